"""A slim image includes the files of packages that programs need."""

from __future__ import annotations

import csv
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.rehearsal.inputs import WHEEL_LEVEL
from kiln.build.rehearsal.packages import microarch_level_metadata
from kiln.cli.image import KINDS
from kiln.image import contents
from kiln.image.oci import LayerEntry
from tests import builders
from tests.unit.image.packages import NUMPY, PACKAGE, REQUEST


@pytest.mark.parametrize(
    ("path", "included"),
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
def test_the_selection_includes_the_files_that_programs_need(path: str, *, included: bool) -> None:
    assert contents.read_file_selection(()).includes(path) is included


def test_each_exclusion_has_a_reason() -> None:
    with contents.LEFT_OUT.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    assert all(row["kind"] in {"package", "file"} and row["pattern"] and row["reason"] for row in rows)
    assert len({row["pattern"] for row in rows}) == len(rows)


def test_an_excluded_package_has_no_entries(tmp_path: Path) -> None:
    builders.write_files(tmp_path, dict.fromkeys(PACKAGE.files, ""))
    selection = contents.read_file_selection(())
    assert [entry.path for entry in contents.included_entries(tmp_path, PACKAGE, selection, below="/opt")] == [
        "/opt/bin/tool",
        "/opt/lib/libx.so",
    ]
    assert (
        list(contents.included_entries(tmp_path, PACKAGE, contents.read_file_selection(["tensorflow"]), below="/opt"))
        == []
    )


def test_compiled_modules_are_added_next_to_their_sources(tmp_path: Path) -> None:
    names = ("m.py", "__pycache__/m.cpython-311.pyc", "__pycache__/mm.cpython-311.pyc")
    builders.write_files(tmp_path, dict.fromkeys(names, ""))
    path = "/opt/conda/lib/python3.11/site-packages/m.py"
    entry = LayerEntry(path=path, mode=0o644, source=tmp_path / "m.py")
    assert [re.sub(r".*site-packages", "", entry.path) for entry in contents.with_compiled_modules([entry])] == [
        "/m.py",
        "/__pycache__/m.cpython-311.pyc",
    ]


ROOT = Path(__file__).parents[3]


def test_rarely_changing_layers_come_first() -> None:
    system, scripts = LayerEntry(path="/s", mode=0o644, data=b""), LayerEntry(path="/o", mode=0o644, data=b"")
    first, second = replace(scripts, path="/p"), replace(scripts, path="/q")
    assert contents.ImageContents(layers=(), packages=(NUMPY, PACKAGE), debs=()).epoch == 1_700_000_000
    layers = contents.split_into_layers(REQUEST, [system], {PACKAGE: (first,), NUMPY: (second,)}, [scripts])
    assert [[entry.path for entry in layer.entries] for layer in layers] == [["/s"], ["/q"], ["/p"], ["/o"]]


@pytest.mark.parametrize(
    ("paths", "lacking"),
    [
        (("bin/python", "lib/python3.13/site-packages/tensorflow/__init__.py"), ""),
        (("bin/python", "bin/hello"), "no package has lib/python*/site-packages/tensorflow/__init__.py"),
        (("bin/hello",), "no package has bin/python or lib/python*/site-packages/tensorflow/__init__.py"),
    ],
)
def test_packages_of_something_else_are_not_called_tensorflow(paths: tuple[str, ...], lacking: str) -> None:
    entries = tuple(LayerEntry(path=f"{contents.PREFIX}/{path}", mode=0o755, data=b"") for path in paths)
    request = replace(REQUEST, specs=("hello",))
    if not lacking:
        contents.require_files_of_kind(request, {PACKAGE: entries})
        return
    with pytest.raises(BuildFailed) as caught:
        contents.require_files_of_kind(request, {NUMPY: entries})
    assert caught.value.what == f"hello makes no image of tensorflow: {lacking}"
    assert caught.value.why.endswith("installed are numpy 2.4.6")
    assert caught.value.hint.startswith("request tensorflow, too, from a channel")


def test_the_solve_is_for_the_image() -> None:
    assert contents.virtual_packages("2.36", "")["__glibc"] == ("2.36", "0")
    assert "__cuda" not in contents.virtual_packages("2.36", "")
    assert contents.virtual_packages("2.36", "12.9")["__cuda"] == ("12.9", "0")


def test_its_processor_is_of_the_level_that_upstream_compiles_tensorflow_for() -> None:
    version, processor = contents.virtual_packages("2.36", "")["__archspec"]
    accepted = [
        facts.version
        for facts in microarch_level_metadata()
        if all(re.match(pattern, processor) for pattern in facts.depends[0].split(" ")[2:])
    ]
    assert (version, accepted[-1]) == ("1", WHEEL_LEVEL)


def test_a_missing_library_is_reported(tmp_path: Path) -> None:
    """The interpreter that runs this needs the C library at least."""
    (tmp_path / "x").write_bytes(b"\x7fELF and then nothing")
    assert contents.needed_libraries(tmp_path / "x") == ()
    python = Path(sys.executable).resolve()
    assert "libc.so.6" in contents.needed_libraries(python)
    missing = contents.missing_libraries([LayerEntry(path="/bin/python", mode=0o755, source=python)])
    assert missing["libc.so.6"] == "/bin/python"
    libraries = [LayerEntry(path=f"/lib/{name}", mode=0o644, data=b"") for name in missing]
    assert contents.missing_libraries([LayerEntry(path="/bin/python", mode=0o755, source=python), *libraries]) == {}


def test_each_kind_is_complete_and_a_command_of_kiln_image() -> None:
    assert {path.stem for path in contents.KINDS.glob("*.json")} == set(KINDS)
    for name in KINDS:
        image_kind = contents.read_image_kind(name)
        assert all(script.is_file() for script in image_kind.scripts.values())
        programs = {image_kind.entrypoint[0], *image_kind.health[:1]}
        assert all(program in image_kind.scripts or program.startswith(contents.PREFIX) for program in programs)
