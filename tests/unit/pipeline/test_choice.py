"""What a cell is rehearsed with decides whether a finished rehearsal is this one, and what a container is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kiln import rehearse
from kiln.errors import UnsupportedPython
from kiln.pipeline import done
from kiln.pipeline.choice import Means, missing_size
from kiln.pipeline.jobs import BuildJob
from kiln.pipeline.preflight import room_to_rehearse
from kiln.pipeline.rehearsal import the_python
from kiln.rehearse import Interpreter
from tests.feedstocks import written

WHEELS = rehearse.plan(python="3.12")


def interpreter(executable: Path, base: Path) -> Interpreter:
    return Interpreter(
        executable=executable,
        version="3.12.1",
        base_prefix=base,
        stdlib=base / "lib/python3.12",
        lib_dynload=base / "lib/python3.12/lib-dynload",
        include=None,
        libraries=(),
        standard_layout=True,
    )


def test_another_python_and_other_wheels_are_another_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("one")
    (tmp_path / "other").write_text("two")
    means = Means(wheels=WHEELS, interpreter=interpreter(tmp_path / "python", tmp_path))
    others = [
        replace(means, interpreter=None),
        replace(means, interpreter=interpreter(tmp_path / "other", tmp_path)),
        replace(means, wheels=rehearse.plan(python="3.12", cuda="12.9")),
    ]
    assert len({means.key, *(other.key for other in others)}) == 4
    assert means.key == replace(means).key


@pytest.mark.parametrize(("base", "given"), [("/usr", None), ("/opt/python", Path("/opt/python"))])
def test_the_systems_own_python_is_not_given_to_a_container(base: str, given: Path | None) -> None:
    means = Means(wheels=WHEELS, interpreter=interpreter(Path(base, "bin/python3.12"), Path(base)))
    assert means.portable == given


def test_wheels_that_several_cells_need_are_fetched_once(tmp_path: Path) -> None:
    means = Means(wheels=WHEELS, interpreter=None)
    assert missing_size({"a": means, "b": means}, tmp_path) == WHEELS.size
    (tmp_path / WHEELS.upstream.file).touch()
    assert missing_size({"a": means}, tmp_path) == WHEELS.size - WHEELS.upstream.size
    assert room_to_rehearse(100, 10, jobs=2) == 4 * 100 + 2 * 8 * 10


def test_a_rehearsal_is_never_taken_for_a_build(tmp_path: Path) -> None:
    feedstock = written(tmp_path, "package:\n  name: a\n  version: 1\n", files={".ci_support/a.yaml": "{}\n"})
    build = done.inputs(feedstock, "a", recipe="r", engine="rattler-build", where="host")
    rehearsal = done.inputs(feedstock, "a", recipe="r", engine="rattler-build", where="host", rehearsed_with="")
    assert not {build.key, build.shared} & {rehearsal.key, rehearsal.shared}


def test_an_image_without_the_cells_python_is_told_with_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("HOME", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    job = BuildJob(
        root=tmp_path,
        recipe=tmp_path,
        config="some_cell",
        folder=tmp_path,
        cache=tmp_path,
        result=tmp_path,
        extra={},
        keep_failed=False,
        stall=60.0,
        channel=tmp_path,
        image="localhost/base:1",
    )
    with pytest.raises(UnsupportedPython, match=r"the image localhost/base:1 has no Python 3\.12 for some_cell"):
        the_python("3.12", job)
