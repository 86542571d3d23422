"""A plugin of pytest that tells the recorder of functions which test begins, and stores how long each took."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logstart(nodeid: str) -> None:
    recorder = getattr(sys.modules.get("sitecustomize"), "recorder", None)
    if recorder is not None:
        recorder.begin(nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    Path(os.environ["KILN_REACHED"], "seconds.json").write_text(json.dumps(_seconds), encoding="utf-8")
