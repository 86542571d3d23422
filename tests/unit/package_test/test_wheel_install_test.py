"""A wheel is tried out by pip in a venv of its own: planned first, then for real."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from kiln.errors import BrokenPackage, TestsFailed
from kiln.model.build_results import TestVerdict
from kiln.package_test.wheel_install_test import (
    execute_wheel_test,
    find_wheel_interpreter,
    import_script_lines,
    install_commands,
    plan_wheel_test,
)
from kiln.package_test.wheel_name import WheelName
from tests.unit.package_test.wheels import written


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


@pytest.mark.processes
def test_a_wheel_is_installed_into_a_venv_and_imported(tmp_path: Path) -> None:
    good = written(tmp_path, "a-1-py3-none-any.whl", {"a/__init__.py": b"print('imported a')\n"})
    python = find_wheel_interpreter(
        WheelName.from_path(good), (tmp_path / "none", Path(sys.executable)), environment=os.environ
    )
    assert python == Path(sys.executable)
    log = tmp_path / "log"
    run = partial(execute_wheel_test, environment=os.environ, apart=lambda: nullcontext(os.environ), log=log)
    step = plan_wheel_test(good, python=python, folder=tmp_path / "venv", network=False)
    report = run(step)
    assert (report.verdict, report.commands) == (TestVerdict.PASSED, 2)
    assert "imported a" in log.read_text()
    assert not step.folder.exists()
    bad = written(tmp_path, "b-1-py3-none-any.whl", {"b/__init__.py": b"raise RuntimeError('no luck')\n"})
    with pytest.raises(TestsFailed, match="cannot be used after pip install") as told:
        run(plan_wheel_test(bad, python=python, folder=tmp_path / "venv", network=False))
    assert "no luck" in told.value.why
