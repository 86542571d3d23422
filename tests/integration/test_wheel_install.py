"""A wheel is installed by pip into a venv of its own, and its modules are imported there."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

from kiln.base.errors import TestsFailed
from kiln.build.test.specs import WheelName
from kiln.build.test.wheels import execute_wheel_test, find_wheel_interpreter, plan_wheel_test
from kiln.state.results import TestVerdict
from tests.unit.build.test.wheels import written


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
