from __future__ import annotations

import csv
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests import builders
from tests.unit.own_feedstock.conftest import NVIDIA, RECIPE, SOLIB, shared_object
from tests.unit.own_feedstock.test_elf_runpath import runpath_of

LIBRARIES = ("libtensorflow_framework", "libtensorflow_cc")
SITE = "lib/python3.11/site-packages"
C_HEADERS = ("tensorflow/c/c_api.h", "xla/x.h")
HEADERS = (*C_HEADERS, "tensorflow/c/c_api_internal.h", "tensorflow/core/x.h", "tsl/x.h")
APART = ("LICENSE", "absl/x.h", "absl/base/y.h")
TREES = ("external/tree/x.h",)


def files_in(folder: Path) -> set[str]:
    return {
        str(Path(top, name).relative_to(folder))
        for top, folders, names in os.walk(folder)
        for name in (*names, *(item for item in folders if Path(top, item).is_symlink()))
    }


def record(prefix: Path) -> dict[str, str]:
    text = (prefix / SITE / "tensorflow-2.21.0.dist-info" / "RECORD").read_text()
    return {path: digest for path, digest, _ in csv.reader(text.splitlines())}


def test_each_file_of_the_wheel_is_in_one_output_and_none_in_two(split: Any, make_wheel: Any) -> None:
    make_wheel()
    seen: set[str] = set()
    only = (f"tensorflow-{kind}" for kind in ("cpu", "gpu", "sse3", "avx2"))
    for output in (*LIBRARIES, "tensorflow-base", "tensorflow", *only):
        prefix = split(output)
        now = files_in(prefix) if prefix.exists() else set()
        assert seen <= now
        seen = now
    assert seen == {
        *(f"lib/{name}.so{suffix}" for name in LIBRARIES for suffix in ("", ".2", ".2.21.0")),
        *(f"include/libtensorflow_cc/{item}" for item in (*APART, *TREES)),
        *(f"include/{item}" for item in HEADERS),
        "lib/pkgconfig/tensorflow_cc.pc",
        *(f"lib/cmake/tensorflow_cc/tensorflow_cc-config{suffix}.cmake" for suffix in ("", "-version")),
        *(f"{SITE}/tensorflow/{item}" for item in ("__init__.py", "THIRD_PARTY_NOTICES.txt")),
        *(f"{SITE}/tensorflow/include/{item}" for item in (*APART, *HEADERS, *TREES)),
        *(f"{SITE}/tensorflow/include/libtensorflow_cc/{item}" for item in APART),
        *(f"{SITE}/tensorflow/python/{item}" for item in ("_pywrap.so", "plain.so")),
        *(f"{SITE}/tensorflow/{name}.so.2" for name in LIBRARIES),
        *(f"{SITE}/tensorflow-2.21.0.dist-info/{item}" for item in ("METADATA", "WHEEL", "INSTALLER", "RECORD")),
    }


def test_every_link_is_relative_and_leads_to_a_file_of_the_prefix(split: Any, make_wheel: Any) -> None:
    make_wheel()
    prefix = split(*LIBRARIES, "tensorflow-base")
    links = {name: prefix / name for name in files_in(prefix) if (prefix / name).is_symlink()}
    assert len(links) == 6 + len(HEADERS) + len(TREES) + 2 * len(APART)
    for name, link in links.items():
        assert not link.readlink().is_absolute(), name
        assert link.resolve(strict=True).is_relative_to(prefix), name
        assert link.is_file(), f"{name} leads to a folder, in which other packages may install files"
    assert (prefix / SITE / "tensorflow/libtensorflow_cc.so.2").samefile(prefix / "lib/libtensorflow_cc.so.2.21.0")
    assert (prefix / SITE / "tensorflow/include/tensorflow/c/c_api.h").read_bytes() == b'#include "xla/x.h"\n'


def test_the_headers_of_the_c_interface_are_in_the_library_that_both_others_require(
    split: Any, make_wheel: Any
) -> None:
    make_wheel()
    headers = {name for name in files_in(split("libtensorflow_framework")) if name.startswith("include/")}
    assert headers == {f"include/{item}" for item in C_HEADERS}


def test_includes_are_found_from_the_include_folder_of_the_prefix_alone(split: Any, make_wheel: Any) -> None:
    make_wheel()
    include = split(*LIBRARIES) / "include"
    own, apart = include / "tensorflow/core/x.h", include / "libtensorflow_cc/absl/x.h"
    assert own.read_text() == '#include <vector>\n  #  include "libtensorflow_cc/absl/x.h"\n#include "tsl/x.h"\n'
    # The last one is found next to the header.
    assert apart.read_text().splitlines() == [
        '#include "libtensorflow_cc/absl/base/y.h"',
        "#include <libtensorflow_cc/absl/base/y.h>",
        '#include "base/y.h"',
    ]
    assert (include / "libtensorflow_cc/external/tree/x.h").read_text() == '#include "absl/x.h"\n'


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    """The folder of what Bazel made without the wheel: three libraries, and a header that the wheel lacks."""
    folder = tmp_path / "dist" / "libraries"
    for name in (*LIBRARIES, "libtensorflow"):
        (folder / "lib").mkdir(parents=True, exist_ok=True)
        (folder / "lib" / f"{name}.so.2").write_bytes(shared_object(f"{SOLIB}:$ORIGIN/", tail=name.encode()))
    headers = {"tensorflow/cc/client.h": '#include "absl/x.h"\n', "tensorflow/core/x.h": "other"}
    builders.write_files(folder / "include", headers)
    return folder


def test_the_libraries_are_those_that_bazel_made_for_themselves(
    scripts: Any, split: Any, make_wheel: Any, libraries: Path
) -> None:
    make_wheel()
    prefix = split(*LIBRARIES, "libtensorflow", "tensorflow-base")
    for name in (*LIBRARIES, "libtensorflow"):
        installed = prefix / "lib" / f"{name}.so"
        assert installed.read_bytes().find(b"\0" + name.encode()) > 0
        assert runpath_of(scripts, installed) == "$ORIGIN"
        assert installed.stat().st_mtime == 1772669760.0
        assert installed.stat().st_mode & 0o777 == 0o755
    assert (prefix / SITE / "tensorflow/libtensorflow_cc.so.2").samefile(prefix / "lib/libtensorflow_cc.so.2.21.0")
    assert (prefix / "include/tensorflow/cc/client.h").read_text() == '#include "libtensorflow_cc/absl/x.h"\n'
    assert "absl" in (prefix / "include/tensorflow/core/x.h").read_text(), "the wheel's header comes first"
    assert libraries.is_dir()


@pytest.mark.parametrize("complete", [True, False])
def test_the_package_says_whether_its_library_has_client_session(
    split: Any, make_wheel: Any, request: pytest.FixtureRequest, *, complete: bool
) -> None:
    make_wheel()
    if complete:
        request.getfixturevalue("libraries")
    text = (split("libtensorflow_cc") / "lib/pkgconfig/tensorflow_cc.pc").read_text()
    assert f"\nclient_session={'yes' if complete else 'no'}\n" in text


def test_a_wheel_alone_makes_no_libtensorflow(split: Any, make_wheel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    make_wheel()
    split("libtensorflow", code=1)
    assert "there is no libtensorflow in a wheel" in capsys.readouterr().err


def test_a_library_that_the_compile_did_not_leave_is_named(
    split: Any, make_wheel: Any, libraries: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel()
    (libraries / "lib" / "libtensorflow_cc.so.2").unlink()
    split("libtensorflow_cc", code=1)
    assert "the compile left no libtensorflow_cc.so.2 in " in capsys.readouterr().err


def test_the_build_machine_leaves_no_trace_in_search_paths(scripts: Any, split: Any, make_wheel: Any) -> None:
    make_wheel()
    prefix = split(*LIBRARIES, "tensorflow-base")
    assert runpath_of(scripts, prefix / "lib/libtensorflow_cc.so") == "$ORIGIN"
    assert runpath_of(scripts, prefix / SITE / "tensorflow/python/_pywrap.so") == "$ORIGIN/..:$ORIGIN"


def test_the_files_of_macos_stay_as_they_are_under_its_names(split: Any, make_wheel: Any, libraries: Path) -> None:
    """A changed file has no valid signature, and macOS ends the process that loads it."""
    machine = b"\xcf\xfa\xed\xfe of "
    dylibs = {f"tensorflow/{name}.2.dylib": machine + name.encode() for name in LIBRARIES}
    modules = {f"tensorflow/python/{name}.so": machine + name.encode() for name in ("_pywrap", "plain")}
    path = make_wheel(name="tensorflow", platform="macosx_12_0_arm64", **dylibs, **modules)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(path.with_suffix(".new"), "w") as new:
        for member in old.infolist():
            if not member.filename.endswith(".so.2"):
                new.writestr(member, old.read(member))
    path.with_suffix(".new").replace(path)
    shutil.rmtree(libraries)
    prefix = split(*LIBRARIES, "tensorflow-base")
    for name in LIBRARIES:
        links = (f"lib/{name}.dylib", f"lib/{name}.2.dylib", f"{SITE}/tensorflow/{name}.2.dylib")
        assert {(prefix / link).resolve() for link in links} == {prefix / f"lib/{name}.2.21.0.dylib"}
        assert (prefix / links[0]).read_bytes() == dylibs[f"tensorflow/{name}.2.dylib"]
    assert all((prefix / SITE / name).read_bytes() == content for name, content in modules.items())
    text = (prefix / "lib/cmake/tensorflow_cc/tensorflow_cc-config.cmake").read_text()
    assert 'lib${_library}.2.21.0.dylib"' in text
    assert 'IMPORTED_SONAME "@rpath/lib${_library}.2.dylib"' in text


def test_a_cuda_library_finds_what_it_opens_from_both_paths(scripts: Any, split: Any, make_wheel: Any) -> None:
    make_wheel(name="tensorflow", runpath=":".join([SOLIB, *[NVIDIA] * 30]))
    prefix = split(*LIBRARIES, "tensorflow-base")
    (prefix / SITE / "tensorflow/_api").mkdir()
    (prefix / SITE / "nvidia/cusolver/lib").mkdir(parents=True)
    entries = (runpath_of(scripts, prefix / "lib/libtensorflow_framework.so") or "").split(":")

    def reached_from(folder: str) -> set[Path]:
        places = [entry.replace("$ORIGIN", str(prefix / folder)) for entry in entries]
        return {Path(os.path.realpath(place)) for place in places if Path(place).is_dir()}

    assert reached_from("lib") == {prefix / "lib"}
    beside, expected = f"{SITE}/tensorflow", ("lib", f"{SITE}/tensorflow", f"{SITE}/nvidia/cusolver/lib")
    assert reached_from(beside) == {prefix / item for item in expected}


def test_the_metadata_is_that_of_tensorflow_without_what_nothing_uses(split: Any, make_wheel: Any) -> None:
    make_wheel()
    prefix = split("tensorflow-base")
    text = (prefix / SITE / "tensorflow-2.21.0.dist-info" / "METADATA").read_text()
    head, body = text.split("\n\n")
    assert head.split("\n")[1:] == ["Name: tensorflow", "Version: 2.21.0", "Requires-Dist: six>=1.12.0"]
    assert body == "Name: is what the text below the blank line may say.\n"


def test_the_record_lists_the_installed_files_with_their_hashes(scripts: Any, split: Any, make_wheel: Any) -> None:
    make_wheel()
    prefix = split(*LIBRARIES, "tensorflow-base")
    listed = record(prefix)
    assert set(listed) == {str(Path(name).relative_to(SITE)) for name in files_in(prefix) if name.startswith(SITE)}
    changed = prefix / SITE / "tensorflow/python/_pywrap.so"
    assert listed["tensorflow/python/_pywrap.so"] == scripts.wheel_metadata.fingerprint(changed.read_bytes())[0]
    assert listed["tensorflow/__init__.py"] == "sha256=old"
    assert listed["tensorflow/libtensorflow_cc.so.2"] == listed["tensorflow-2.21.0.dist-info/RECORD"] == ""


def test_the_same_wheel_gives_the_same_files_with_the_same_dates(split: Any, make_wheel: Any) -> None:
    make_wheel()
    prefix = split(*LIBRARIES, "tensorflow-base")
    dates = {
        path.stat().st_mtime
        for path in (prefix / name for name in files_in(prefix) if name.endswith((".py", ".h", ".so.2.21.0")))
    }
    assert dates == {1772669760.0}  # 2026-03-05 00:16 UTC
    assert (prefix / SITE / "tensorflow/python/_pywrap.so").stat().st_mode & 0o777 == 0o755
    assert (prefix / "include/tensorflow/c/c_api.h").stat().st_mode & 0o777 == 0o644


def test_the_license_texts_are_at_the_recipes_paths(split: Any, make_wheel: Any, tmp_path: Path) -> None:
    make_wheel()
    split("tensorflow-gpu")
    assert (tmp_path / "licenses/LICENSE").read_text() == "licence"
    named = {line.strip().removeprefix("- licenses/") for line in (RECIPE / "meta.yaml").read_text().splitlines()}
    assert {path.name for path in (tmp_path / "licenses").iterdir()} <= named


WHEEL = "tensorflow-2.{}-cp{}-cp{}-manylinux_2_27_x86_64.whl"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _make, _dist: None, "must hold exactly one wheel; found none"),
        (
            lambda make, _: [make(name=name) for name in ("tensorflow", "tensorflow_cpu")],
            "found tensorflow-2.21.0-cp311",
        ),
        (lambda make, dist: make().rename(dist / WHEEL.format("20.0", 311, 311)), "is not a wheel of version 2.21.0"),
        (
            lambda make, dist: make().rename(dist / WHEEL.format("21.0", 312, 312)),
            "is for Python 3.12, the prefix has Python 3.11",
        ),
        (lambda make, _: make().write_bytes(b"PK\x03\x04 and no more"), "not a zip file"),
        (
            lambda make, _: make(**{"tensorflow_extra/__init__.py": b""}),
            "belongs to no output: tensorflow_extra/__init__.py",
        ),
        (
            lambda make, _: make(**{"tensorflow/../../../escaped": b""}),
            "a file with the name tensorflow/../../../escaped",
        ),
        (
            lambda make, _: make(**{"tensorflow/python/_pywrap.so": b"text"}),
            "tensorflow/python/_pywrap.so is not a shared object",
        ),
    ],
)
def test_a_wheel_that_will_not_do_is_refused_in_one_line(
    spoil: Any, says: str, split: Any, make_wheel: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dist").mkdir()
    spoil(make_wheel, tmp_path / "dist")
    split("tensorflow-base", code=1)
    message = capsys.readouterr().err
    assert says in message
    assert message.count("\n") == 1
    assert not (tmp_path / "escaped").exists()


def test_a_library_serves_every_python(split: Any, make_wheel: Any, tmp_path: Path) -> None:
    make_wheel().rename(tmp_path / "dist/tensorflow-2.21.0-cp313-cp313-manylinux_2_27_x86_64.whl")
    prefix = split(*LIBRARIES)
    assert not [name for name in files_in(prefix) if "Python.h" in name]


def test_a_wheel_without_the_library_is_refused(
    split: Any, make_wheel: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(without="tensorflow/libtensorflow_cc.so.2")
    split("libtensorflow_cc", code=1)
    assert "the wheel has no library libtensorflow_cc" in capsys.readouterr().err
