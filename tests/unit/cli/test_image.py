"""What `kiln image` takes as a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.cli.image import channel_name
from kiln.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_a_url_and_a_name_stays(tmp_path: Path) -> None:
    assert channel_name(str(tmp_path)) == tmp_path.as_uri()
    assert channel_name("conda-forge") == "conda-forge"
    assert channel_name("https://example.org/x") == "https://example.org/x"


@pytest.mark.parametrize("name", ["", " ", "/no/such/folder", "./nothing-here"])
def test_what_is_no_channel_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="there is no channel"):
        channel_name(name)
