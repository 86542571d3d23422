"""The folders of a rehearsal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.store.rehearsal_layout import RehearsalLayout

if TYPE_CHECKING:
    from pathlib import Path


def test_a_rehearsal_in_a_container_shares_nothing_but_the_wheels(tmp_path: Path) -> None:
    config = tmp_path / "rehearsal" / "c"
    together, apart = RehearsalLayout(config=config), RehearsalLayout(config=config, apart=True)
    assert apart.wheels == together.wheels
    written = (apart.lock, apart.converted, apart.cache, apart.channel.root, apart.work)
    assert all(path.is_relative_to(config) for path in written)
    assert not together.converted.is_relative_to(config)
