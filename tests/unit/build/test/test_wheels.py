"""A wheel's binaries are held against what its name promises, and it is kept under the tag that they keep."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest

from kiln.base.errors import BrokenPackage, TestsFailed
from kiln.build.test.specs import WheelName
from kiln.build.test.wheels import (
    fulfilled_platform_tag,
    import_script_lines,
    install_commands,
    place_wheel_with_tag,
    plan_wheel_test,
)
from tests.unit.build.test.wheels import CP, written


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library that needs what the C library has had since 2.34 (``pthread_create``)."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / "a.c"
    source.write_text("#include <pthread.h>\nint f(pthread_t *t) { return pthread_create(t, 0, 0, 0); }\n")
    words = ("gcc", "-shared", "-fPIC", "-o", str(folder / "a.so"), str(source), "-lpthread")
    subprocess.run(words, check=True)
    return (folder / "a.so").read_bytes()


@pytest.mark.processes
@pytest.mark.needs("gcc")
def test_a_tag_that_the_binaries_do_not_fulfill_is_refused(tmp_path: Path, library: bytes) -> None:
    kept = fulfilled_platform_tag(
        WheelName.from_path(written(tmp_path, f"a-1-{CP}-{CP}-linux_x86_64.whl", {"a.so": library}))
    )
    assert kept is not None
    assert kept.startswith("manylinux_2_")
    honest = written(tmp_path, f"a-1-{CP}-{CP}-{kept}.whl", {"a.so": library})
    assert fulfilled_platform_tag(WheelName.from_path(honest)) == kept
    boast = written(tmp_path, f"a-1-{CP}-{CP}-manylinux_2_5_x86_64.whl", {"a.so": library})
    with pytest.raises(TestsFailed, match=f"promises manylinux_2_5_x86_64, and its binaries keep {kept} alone") as told:
        fulfilled_platform_tag(WheelName.from_path(boast))
    assert "libc.so.6" in told.value.why


def test_a_wheel_without_binaries_promises_nothing(tmp_path: Path) -> None:
    assert fulfilled_platform_tag(WheelName.from_path(written(tmp_path, "a-1-py3-none-any.whl", {"a.py": b""}))) is None


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
def test_a_wheel_without_a_promise_gets_the_tag_of_its_binaries(tmp_path: Path, processor: str) -> None:
    bare, tag = f"a-1-{CP}-{CP}-linux_{processor}.whl", f"manylinux_2_34_{processor}"
    source = written(tmp_path, bare, {"a/__init__.py": b"x = 1\n", "a/data": bytes(5000)})
    kept = place_wheel_with_tag(WheelName.from_path(source), tmp_path / "out", tag)
    assert kept.name == f"a-1-{CP}-{CP}-{tag}.whl"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(kept) as new:
        assert new.namelist() == old.namelist()
        changed = [name for name in new.namelist() if new.read(name) != old.read(name)]
        assert changed == ["a-1.dist-info/WHEEL", "a-1.dist-info/RECORD"]
        content = new.read("a-1.dist-info/WHEEL")
        assert f"Tag: {CP}-{CP}-{tag}\n".encode() in content
        (row,) = [line for line in new.read("a-1.dist-info/RECORD").decode().splitlines() if "/WHEEL," in line]
        assert row.endswith(f",{len(content)}")
    named = place_wheel_with_tag(WheelName.from_path(kept), tmp_path / "again", tag)
    assert named.read_bytes() == kept.read_bytes(), "a name that promises something stays"


def test_what_a_wheel_requires_decides_how_it_is_tried_out(tmp_path: Path) -> None:
    files = {"a/__init__.py": b"", "b.cpython-311-x86_64-linux-gnu.so": b"", "a-1.data/scripts/x.py": b"", "c.py": b""}
    free = written(tmp_path, "a-1-py3-none-any.whl", files, "Requires-Dist: nvidia-x; extra == 'and-cuda'")
    bound = written(tmp_path, "d-1-py3-none-any.whl", files, "Requires-Dist: numpy")
    folder, python = tmp_path / "venv", Path("/p/python")
    alone = plan_wheel_test(free, python=python, folder=folder, network=False)
    assert [words[-1] for words in install_commands(alone)] == [str(folder), str(free), "check"]
    assert "--no-index" in install_commands(alone)[1]
    assert "--no-deps" not in install_commands(alone)[1]
    assert import_script_lines(alone)[-1].endswith("'import a, b, c'")
    indexed = plan_wheel_test(bound, python=python, folder=folder, network=True)
    assert "--no-index" not in install_commands(indexed)[1]
    assert "--only-binary" in install_commands(indexed)[1], "nothing of what it requires is run by pip"
    without = plan_wheel_test(bound, python=python, folder=folder, network=False)
    assert {"--no-index", "--no-deps"} <= set(install_commands(without)[1])
    assert (len(install_commands(without)), import_script_lines(without)) == (2, ()), (
        "nothing can be imported without what it requires"
    )


def test_a_file_that_is_not_a_wheel_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(BrokenPackage, match="is not a wheel"):
        plan_wheel_test(path, python=Path("python"), folder=tmp_path, network=False)
