"""A wheel as a product: its name taken at its word, its binaries held against it, its test planned."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from kiln.check import wheel as check_wheel
from kiln.check.wheel import BARE, Wheel, commands, plan, script
from kiln.errors import BrokenPackage, TestsFailed
from kiln.model.artifact import Verdict

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CP = f"cp{PYTHON.replace('.', '')}"


def written(folder: Path, name: str, files: dict[str, bytes], requires: str = "") -> Path:
    """Write a wheel whose name is ``name`` with files and its metadata."""
    parts = Wheel.of(Path(name))
    info = f"{parts.name}-{parts.version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {parts.name}\nVersion: {parts.version}\n{requires}\n"
    tag = f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: false\nTag: {parts.tags}\n"
    whole = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": tag.encode()}
    record = "".join(f"{each},sha256=AAAA,{len(data)}\n" for each, data in whole.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / name, "w") as archive:
        for each, data in {**whole, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(each, data)
    return folder / name


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library that needs what the C library has had since 2.34 (``pthread_create``)."""
    folder = tmp_path_factory.mktemp("library")
    source = folder / "a.c"
    source.write_text("#include <pthread.h>\nint f(pthread_t *t) { return pthread_create(t, 0, 0, 0); }\n")
    words = ("gcc", "-shared", "-fPIC", "-o", str(folder / "a.so"), str(source), "-lpthread")
    subprocess.run(words, check=True)
    return (folder / "a.so").read_bytes()


def test_a_name_is_taken_apart() -> None:
    found = Wheel.of(Path("/x/tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"))
    assert (found.name, found.version, found.python) == ("tensorflow_cpu", "2.21.0", "cp311")
    assert found.tags == "cp311-cp311-manylinux_2_27_x86_64"
    with pytest.raises(BrokenPackage, match=r"x\.whl is no name of a wheel"):
        Wheel.of(Path("x.whl"))


@pytest.mark.parametrize("tags", ["cp311-cp311", "py3-none", "cp39-abi3"])
def test_a_wheel_may_be_for_the_python_of_its_cell(tags: str) -> None:
    check_wheel.require_python(Wheel.of(Path(f"a-1-{tags}-any.whl")), "3.11")


def test_a_wheel_for_another_python_is_refused() -> None:
    with pytest.raises(TestsFailed, match="is for cp312"):
        check_wheel.require_python(Wheel.of(Path("a-1-cp312-cp312-any.whl")), "3.11")


@pytest.mark.processes
@pytest.mark.needs("gcc")
def test_binaries_are_held_against_the_promise_of_the_name(tmp_path: Path, library: bytes) -> None:
    kept = check_wheel.promise(Wheel.of(written(tmp_path, f"a-1-{CP}-{CP}-linux_x86_64.whl", {"a.so": library})))
    assert kept is not None
    assert kept.startswith("manylinux_2_")
    honest = written(tmp_path, f"a-1-{CP}-{CP}-{kept}.whl", {"a.so": library})
    assert check_wheel.promise(Wheel.of(honest)) == kept
    boast = written(tmp_path, f"a-1-{CP}-{CP}-manylinux_2_5_x86_64.whl", {"a.so": library})
    with pytest.raises(TestsFailed, match=f"promises manylinux_2_5_x86_64, and its binaries keep {kept} alone") as told:
        check_wheel.promise(Wheel.of(boast))
    assert "libc.so.6" in told.value.why


def test_a_wheel_without_binaries_promises_nothing(tmp_path: Path) -> None:
    assert check_wheel.promise(Wheel.of(written(tmp_path, "a-1-py3-none-any.whl", {"a.py": b""}))) is None


def test_a_wheel_that_promises_nothing_is_kept_under_what_it_keeps(tmp_path: Path) -> None:
    source = written(tmp_path, f"a-1-{CP}-{CP}-{BARE}.whl", {"a/__init__.py": b"x = 1\n", "a/data": bytes(5000)})
    kept = check_wheel.placed(Wheel.of(source), tmp_path / "out", "manylinux_2_34_x86_64")
    assert kept.name == f"a-1-{CP}-{CP}-manylinux_2_34_x86_64.whl"
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(kept) as new:
        assert new.namelist() == old.namelist()
        changed = [name for name in new.namelist() if new.read(name) != old.read(name)]
        assert changed == ["a-1.dist-info/WHEEL", "a-1.dist-info/RECORD"]
        content = new.read("a-1.dist-info/WHEEL")
        assert f"Tag: {CP}-{CP}-manylinux_2_34_x86_64\n".encode() in content
        (row,) = [line for line in new.read("a-1.dist-info/RECORD").decode().splitlines() if "/WHEEL," in line]
        assert row.endswith(f",{len(content)}")
    named = check_wheel.placed(Wheel.of(kept), tmp_path / "again", "manylinux_2_34_x86_64")
    assert named.read_bytes() == kept.read_bytes(), "a name that promises something stays"


def test_what_a_wheel_requires_decides_how_it_is_tried_out(tmp_path: Path) -> None:
    files = {"a/__init__.py": b"", "b.cpython-311-x86_64-linux-gnu.so": b"", "a-1.data/scripts/x.py": b"", "c.py": b""}
    free = written(tmp_path, "a-1-py3-none-any.whl", files, "Requires-Dist: nvidia-x; extra == 'and-cuda'")
    bound = written(tmp_path, "d-1-py3-none-any.whl", files, "Requires-Dist: numpy")
    folder, python = tmp_path / "venv", Path("/p/python")
    alone = plan(free, python=python, folder=folder, network=False)
    assert [words[-1] for words in commands(alone)] == [str(folder), str(free), "check"]
    assert "--no-index" in commands(alone)[1]
    assert "--no-deps" not in commands(alone)[1]
    assert script(alone)[-1].endswith("'import a, b, c'")
    indexed = plan(bound, python=python, folder=folder, network=True)
    assert "--no-index" not in commands(indexed)[1]
    assert "--only-binary" in commands(indexed)[1], "nothing of what it requires is run by pip"
    without = plan(bound, python=python, folder=folder, network=False)
    assert {"--no-index", "--no-deps"} <= set(commands(without)[1])
    assert (len(commands(without)), script(without)) == (2, ()), "nothing can be imported without what it requires"


def test_a_file_that_is_no_wheel_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"no zip")
    with pytest.raises(BrokenPackage, match="is no wheel"):
        plan(path, python=Path("python"), folder=tmp_path, network=False)


@pytest.mark.processes
def test_a_wheel_is_installed_into_a_venv_and_imported(tmp_path: Path) -> None:
    good = written(tmp_path, "a-1-py3-none-any.whl", {"a/__init__.py": b"print('imported a')\n"})
    python = check_wheel.interpreter(Wheel.of(good), (tmp_path / "none", Path(sys.executable)), environment=os.environ)
    assert python == Path(sys.executable)
    log = tmp_path / "log"
    run = partial(check_wheel.execute, environment=os.environ, apart=lambda: nullcontext(os.environ), log=log)
    step = plan(good, python=python, folder=tmp_path / "venv", network=False)
    report = run(step)
    assert (report.verdict, report.commands) == (Verdict.PASSED, 2)
    assert "imported a" in log.read_text()
    assert not step.folder.exists()
    bad = written(tmp_path, "b-1-py3-none-any.whl", {"b/__init__.py": b"raise RuntimeError('no luck')\n"})
    with pytest.raises(TestsFailed, match="cannot be used after pip install") as told:
        run(plan(bad, python=python, folder=tmp_path / "venv", network=False))
    assert "no luck" in told.value.why
