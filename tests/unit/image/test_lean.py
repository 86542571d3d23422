"""What of a prefix goes into a lean image, and what an image of packages says about itself."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kiln.cli.image import KINDS
from kiln.errors import UsageError
from kiln.image import bytecode, debian, kind, lean, needs, runtime
from kiln.image.layers import Entry

PACKAGE = lean.Installed(
    name="tensorflow",
    version="2.21.0",
    build="cuda129py311h0_200",
    file_name="tensorflow-2.21.0-cuda129py311h0_200.conda",
    sha256="ab",
    license="Apache-2.0",
    depends=("__cuda", "python >=3.11"),
    constrains=("__cuda >=12.5",),
    timestamp=1_700_000_000_999,
    files=("bin/tool", "lib/libx.so", "include/x.h"),
    rehearsal=False,
)
NUMPY = replace(
    PACKAGE, name="numpy", version="2.4.6", depends=("__glibc >=2.17", "__cuda"), constrains=(), timestamp=5_000
)
REQUEST = runtime.Request(
    kind=kind.load("tensorflow"),
    channels=("c",),
    specs=("tensorflow",),
    suite="bookworm",
    cuda="12.9",
)


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("lib/libx.so.1", True),
        ("lib/python3.11/site-packages/x/__init__.py", True),
        ("lib/python3.11/site-packages/tensorflow/_api/v2/test/__init__.py", True),
        ("lib/python3.11/site-packages/keras/src/testing/test_case.py", True),
        ("lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", True),
        ("share/licenses/x/LICENSE", True),
        ("lib/libx.a", False),
        ("include/x.h", False),
        ("lib/python3.11/site-packages/tensorflow/include/tensorflow/c/c_api.h", False),
        ("lib/python3.11/site-packages/numpy/tests/test_x.py", False),
        ("lib/python3.11/test/test_x.py", False),
        ("lib/python3.11/site-packages/x/__pycache__/y.cpython-311.pyc", False),
        ("share/man/man1/x.1", False),
        ("bin/pip3.11", False),
        ("conda-meta/x.json", False),
    ],
)
def test_programs_keep_what_they_need(path: str, *, kept: bool) -> None:
    assert lean.selection().keeps(path) is kept


def test_every_row_of_what_is_left_out_has_its_reason() -> None:
    with lean.LEFT_OUT.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    assert all(row["kind"] in {"package", "file"} and row["pattern"] and row["reason"] for row in rows)
    assert len({row["pattern"] for row in rows}) == len(rows)


def test_a_package_that_is_left_out_gives_nothing(tmp_path: Path) -> None:
    for name in PACKAGE.files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    chosen = lean.selection()
    assert [entry.path for entry in lean.entries(tmp_path, PACKAGE, chosen, below="/opt")] == [
        "/opt/bin/tool",
        "/opt/lib/libx.so",
    ]
    assert list(lean.entries(tmp_path, PACKAGE, chosen.with_packages(["tensorflow"]), below="/opt")) == []


def test_kinds_are_whole_and_offered() -> None:
    assert set(kind.names()) == set(KINDS)
    for name in kind.names():
        each = kind.load(name)
        assert all(script.is_file() for script in each.scripts.values())
        programs = {each.entrypoint[0], *each.health[:1]}
        assert all(program in each.scripts or program.startswith(runtime.PREFIX) for program in programs)


def test_layers_that_change_rarely_come_first() -> None:
    system, own = Entry(path="/s", mode=0o644, data=b""), Entry(path="/o", mode=0o644, data=b"")
    first, second = replace(own, path="/p"), replace(own, path="/q")
    layers = runtime.split(REQUEST, [system], {PACKAGE: (first,), NUMPY: (second,)}, [own])
    assert [[entry.path for entry in layer.entries] for layer in layers] == [["/s"], ["/q"], ["/p"], ["/o"]]


def test_an_image_for_gpus_says_which_driver_it_needs() -> None:
    contents = runtime.Contents(layers=(), packages=(PACKAGE, NUMPY), debs=())
    config = runtime.configuration(REQUEST, contents)
    assert config.environment["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.5"
    assert (config.labels["kiln.cuda"], config.labels["kiln.cuda.driver"]) == ("12.5", ">=525")
    assert config.labels["org.opencontainers.image.version"] == "2.21.0"
    assert config.user == "65532:65532"
    plain = runtime.configuration(replace(REQUEST, cuda=""), contents)
    assert not any(name.startswith("NVIDIA") for name in plain.environment)
    assert "kiln.rehearsal" not in config.labels
    marked = replace(contents, packages=(PACKAGE, replace(NUMPY, rehearsal=True)))
    assert runtime.labels(REQUEST, marked)["kiln.rehearsal"] == "true"


def test_an_image_is_as_old_as_its_newest_package() -> None:
    assert runtime.Contents(layers=(), packages=(NUMPY, PACKAGE), debs=()).epoch == 1_700_000_000


def test_the_solve_is_for_the_image() -> None:
    assert runtime.virtual_packages("2.36", "")["__glibc"] == ("2.36", "0")
    assert "__cuda" not in runtime.virtual_packages("2.36", "")
    assert runtime.virtual_packages("2.36", "12.9")["__cuda"] == ("12.9", "0")


def test_a_library_that_nothing_brings_is_found_missing() -> None:
    """The interpreter that runs this needs the C library at least."""
    python = Path(sys.executable).resolve()
    assert "libc.so.6" in needs.needed(python)
    lacking = needs.missing([Entry(path="/bin/python", mode=0o755, source=python)])
    assert lacking["libc.so.6"] == "/bin/python"
    there = [Entry(path=f"/lib/{name}", mode=0o644, data=b"") for name in lacking]
    assert needs.missing([Entry(path="/bin/python", mode=0o755, source=python), *there]) == {}


def test_a_broken_program_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF and then nothing")
    assert needs.needed(tmp_path / "x") == ()


def test_mmdebstrap_only_fetches() -> None:
    words = debian.argv("trixie", ("libc6", "bash"), sources=Path("/s"), settings=Path("/c"), keyring=None)
    assert words[:4] == ["mmdebstrap", "--variant=extract", "--format=null", "--include=bash,libc6"]
    assert words[-3:] == ["trixie", "/dev/null", "/s"]


@pytest.mark.parametrize(
    ("file", "name", "upstream"),
    [("libc6_2.36-9+deb12u14_amd64.deb", "libc6", "2.36"), ("tzdata_1%3a2026f_all.deb", "tzdata", "2026f")],
)
def test_debian_names_its_files_by_package_and_version(file: str, name: str, upstream: str) -> None:
    deb = debian.Deb(path=Path(file))
    assert (deb.name, deb.upstream_version) == (name, upstream)


def test_compiled_modules_lie_beside_their_sources(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.touch()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "m.cpython-311.pyc").touch()
    (tmp_path / "__pycache__" / "mm.cpython-311.pyc").touch()
    entry = Entry(path="/opt/conda/lib/python3.11/site-packages/m.py", mode=0o644, source=source)
    assert [re.sub(r".*site-packages", "", each.path) for each in bytecode.beside([entry])] == [
        "/m.py",
        "/__pycache__/m.cpython-311.pyc",
    ]


def test_licences_that_are_in_another_package_are_missed_until_it_is_there() -> None:
    shared = Entry(path="/usr/share/doc/libgcc-s1", mode=0o777, link="gcc-12-base")
    text = Entry(path="/usr/share/doc/gcc-12-base/copyright", mode=0o644, data=b"")
    inside = Entry(path="/usr/share/doc/libc6/other", mode=0o777, link="copyright")
    assert debian.told_elsewhere([shared, inside]) == {"gcc-12-base"}
    assert debian.told_elsewhere([shared, inside, text]) == set()


def test_what_makes_no_sense_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    for request, tag in ((replace(REQUEST, cuda="twelve"), None), (REQUEST, "NO NAME")):
        with pytest.raises(UsageError):
            runtime.make(request, None, tag=tag, work=tmp_path / "work", env={}, step=pytest.fail)
    assert not (tmp_path / "work").exists()
