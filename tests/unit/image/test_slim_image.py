"""Slim images."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.image import slim
from tests.unit.image.packages import REQUEST

if TYPE_CHECKING:
    from pathlib import Path


def test_invalid_requests_are_refused_before_any_download(tmp_path: Path) -> None:
    for request, tag in ((replace(REQUEST, cuda="twelve"), None), (REQUEST, "NO NAME")):
        with pytest.raises(UsageError):
            slim.make_slim_image(request, None, tag=tag, work=tmp_path / "work", env={}, step=pytest.fail)
    assert not (tmp_path / "work").exists()
