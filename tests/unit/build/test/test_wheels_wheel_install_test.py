"""The test of a wheel by pip in a venv of its own is planned from what the wheel requires."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import BrokenPackage
from kiln.build.test.wheels import import_script_lines, install_commands, plan_wheel_test
from tests.unit.build.test.wheels import written


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
