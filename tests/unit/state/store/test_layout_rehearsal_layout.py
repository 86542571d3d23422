"""The folders of a rehearsal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.state.store.layout import RehearsalLayout

if TYPE_CHECKING:
    from pathlib import Path


def test_a_rehearsal_in_a_container_shares_nothing_but_the_wheels(tmp_path: Path) -> None:
    config = tmp_path / "rehearsal" / "c"
    together, apart = RehearsalLayout(config=config), RehearsalLayout(config=config, apart=True)
    assert apart.wheels == together.wheels
    written = (apart.wheels_lock_file, apart.converted_packages, apart.package_cache, apart.channel.root, apart.work)
    assert all(path.is_relative_to(config) for path in written)
    assert not together.converted_packages.is_relative_to(config)


def channel_of(layout: RehearsalLayout, *names: str) -> None:
    for name in names:
        path = layout.channel.root / "noarch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (layout.channel.root / "noarch" / "repodata.json").write_text(" ".join(names))


def test_a_channel_that_loses_packages_stays_beside_until_its_successor_is_complete(tmp_path: Path) -> None:
    layout = RehearsalLayout(config=tmp_path)
    channel_of(layout, "a-1-0.conda", "b-1-0.conda")
    assert not layout.back_up_channel(["a-1-0.conda", "b-1-0.conda"])
    assert not layout.earlier_channel.root.exists()
    assert layout.back_up_channel(["a-2-0.conda", "b-1-0.conda"])
    (layout.channel.root / "noarch" / "a-1-0.conda").unlink()
    channel_of(layout, "a-2-0.conda")  # the rehearsal goes on, and is interrupted; the next one begins
    assert layout.back_up_channel(["a-3-0.conda"])
    earlier = layout.earlier_channel.root / "noarch"
    assert sorted(path.name for path in earlier.iterdir()) == ["a-1-0.conda", "b-1-0.conda", "repodata.json"]
    assert (earlier / "repodata.json").read_text() == "a-1-0.conda b-1-0.conda"
    layout.remove_earlier_channel()
    assert not layout.earlier_channel.root.exists()
    layout.remove_earlier_channel()
