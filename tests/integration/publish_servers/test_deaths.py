"""Publications to servers that die at any request."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from kiln import files
from kiln.publish import transaction
from tests.channel_server import index
from tests.integration.publish_servers.helpers import KINDS, Mortal, channel_on, release, served
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.publish.servers import ServerKind
    from kiln.publish.servers.server import Server

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("kind", KINDS)
def test_a_publication_that_dies_at_any_request_is_resumed_or_aborted(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    paths, entries = release(tmp_path)
    old = [release_package(tmp_path / "built", "old"), release_package(tmp_path / "built", "kept", subdir="noarch")]
    died = 0
    for lives, after in itertools.product(range(100), (False, True)):
        channel, staging = f"release-{lives}-{after}", f"trial-{lives}-{after}"
        where = channel_on(server, kind, tmp_path, channel=channel, staging=staging)
        for package in old:
            place = tmp_path / "served" / channel / ("noarch" if package.name.startswith("kept") else "linux-64")
            files.link_or_copy(package, place / package.name)
        index(tmp_path / "served" / channel)
        before = served(tmp_path, channel)
        mortal = dataclasses.replace(where, server=cast("Server", Mortal(where.server, lives, after=after)))
        try:
            transaction.publish(mortal, paths, entries, lambda _: None)
        except KeyboardInterrupt:
            died += 1
        else:
            break
        new = served(tmp_path, channel).items() - before.items()
        if where.server.together:
            assert len(new) in (0, 2), "all or nothing"
        assert [path for path, _ in new] != ["linux-64/app-1-0.conda"], "what others need comes first"
        if after:  # which is how it looks before the next request, too: so each state is finished and taken back
            transaction.abort(where)
            assert served(tmp_path, channel) == before
            assert transaction.abort(where) == ()
        else:
            transaction.publish(where, paths, entries, lambda _: None)
            assert served(tmp_path, channel) == {**before, **{entry.path: entry.sha256 for entry in entries}}
        assert served(tmp_path, staging) == {}
        for gone in (channel, staging):
            shutil.rmtree(tmp_path / "served" / gone)
    assert died >= 2 * 5, "it died at every request"


@pytest.mark.parametrize("kind", KINDS)
def test_abort_can_die_at_any_request_and_leaves_packages_of_others(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    paths, entries = release(tmp_path)
    for lives, after in itertools.product(range(100), (False, True)):
        channel, staging = f"release-{lives}-{after}", f"trial-{lives}-{after}"
        where = channel_on(server, kind, tmp_path, channel=channel, staging=staging)
        dying = cast("Server", Mortal(where.server, 3, after=True))
        with contextlib.suppress(KeyboardInterrupt):
            transaction.publish(dataclasses.replace(where, server=dying), paths, entries, lambda _: None)
        foreign = tmp_path / "served" / channel / "noarch" / "lib-1-0.conda"
        files.link_or_copy(release_package(tmp_path / "foreign", "lib", subdir="noarch"), foreign)
        index(tmp_path / "served" / channel)
        mortal = dataclasses.replace(where, server=cast("Server", Mortal(where.server, lives, after=after)))
        try:
            transaction.abort(mortal)
        except KeyboardInterrupt:
            transaction.abort(where)
        else:
            break
        assert list(served(tmp_path, channel)) == ["noarch/lib-1-0.conda"]
        assert served(tmp_path, staging) == {}
        shutil.rmtree(tmp_path / "served" / channel)
    assert lives >= 2, "it died at every request"
