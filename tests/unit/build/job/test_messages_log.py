"""The log of a config: what a script may have written into the stream of messages is masked there too."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base import masking
from kiln.base.secret_forms import MASKED
from kiln.build.job.messages import MARK, BuildLog

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protect the secret for one test alone."""
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.Mask([SECRET]))


@pytest.mark.parametrize(
    "line",
    [
        f"{MARK}no message, but {SECRET}",
        MARK + json.dumps({"kind": "hello", "pid": SECRET}),
        MARK + json.dumps({"kind": "step", "title": SECRET}),
        MARK + json.dumps({"kind": "step", "title": "build", "more": SECRET}),
    ],
)
def test_a_forged_message_shows_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    with BuildLog(tmp_path / "log") as log:
        log.record_and_pass_on_line(line)
    assert SECRET not in (tmp_path / "log").read_text()
    assert SECRET not in capsys.readouterr().out
    assert MASKED in (tmp_path / "log").read_text()


def test_a_message_keeps_its_kind_though_it_were_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.Mask(["step"]))
    with BuildLog(tmp_path / "log") as log:
        log.record_and_pass_on_line(MARK + json.dumps({"kind": "step", "title": "compile"}))
    assert "=== compile" in (tmp_path / "log").read_text()
    assert '"kind": "step"' in capsys.readouterr().out
