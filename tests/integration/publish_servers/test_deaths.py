"""Publications to servers that die at any request."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from kiln.base import files
from kiln.base.errors import HashMismatch
from kiln.publish import transaction
from tests.channel_server import index
from tests.integration.publish_servers.helpers import KINDS, Mortal, channel_on, refuse, release, served
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.publish.servers.servers import Server, ServerKind
    from kiln.publish.servers.target import ServerTarget

pytestmark = pytest.mark.sampled


def require_named_remains(where: ServerTarget, tmp_path: Path, before: dict[str, str]) -> None:
    """Abort a publication: what it leaves are packages of one request, and each is named."""
    remarks: list[str] = []
    transaction.abort(where, remarks.append)
    assert served(tmp_path, where.channel).items() >= before.items()
    left = [
        (path, place)
        for place in (where.channel, where.staging or "")
        for path in served(tmp_path, place).keys() - before.keys()
    ]
    assert sorted((remark.split()[0], remark.split()[3]) for remark in remarks) == sorted(left)
    assert len(left) <= (2 if where.server.together else 1)


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
        if after:  # what the last request made was not confirmed, and stays
            require_named_remains(where, tmp_path, before)
            assert transaction.abort(where) == ()
        else:
            transaction.publish(where, paths, entries, lambda _: None)
            assert served(tmp_path, channel) == {**before, **{entry.path: entry.sha256 for entry in entries}}
            assert served(tmp_path, staging) == {}
        for gone in (channel, staging, "../unlabeled"):
            shutil.rmtree(tmp_path / "served" / gone, ignore_errors=True)
    assert died >= 2 * 5, "it died at every request"


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_never_removes_a_release_that_another_machine_finished(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    """The second machine publishes the same packages between the failure of the first one and its abort."""
    paths, entries = release(tmp_path)
    expected = {entry.path: entry.sha256 for entry in entries}
    for case, (lives, after) in enumerate(((-1, False), *itertools.product(range(4), (False, True)))):
        channel, staging = f"release-{case}", f"trial-{case}"
        first, second = (
            channel_on(server, kind, tmp_path / machine, channel=channel, staging=staging) for machine in "ab"
        )
        mortal = dataclasses.replace(first, server=cast("Server", Mortal(first.server, lives, after=after)))
        with contextlib.suppress(KeyboardInterrupt, HashMismatch):
            transaction.publish(*((first, paths, entries, refuse) if lives < 0 else (mortal, paths, entries, len)))
        confirmed = journal.confirmed_paths(channel) if (journal := first.journal.read()) else ()
        transaction.publish(second, paths, entries, lambda _: None)
        transaction.abort(first)
        assert served(tmp_path, channel).items() >= {p: h for p, h in expected.items() if p not in confirmed}.items()
        if not confirmed:
            assert served(tmp_path, channel) == expected
        for gone in (channel, staging, "../unlabeled"):
            shutil.rmtree(tmp_path / "served" / gone, ignore_errors=True)


@pytest.mark.parametrize("kind", KINDS)
def test_abort_can_die_at_any_request_and_leaves_packages_of_others(
    server: str, tmp_path: Path, kind: ServerKind
) -> None:
    paths, entries = release(tmp_path)
    for lives, after in itertools.product(range(100), (False, True)):
        channel, staging = f"release-{lives}-{after}", f"trial-{lives}-{after}"
        where = channel_on(server, kind, tmp_path, channel=channel, staging=staging)
        dying = cast("Server", Mortal(where.server, 3, after=False))
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
        for gone in (channel, "../unlabeled"):
            shutil.rmtree(tmp_path / "served" / gone, ignore_errors=True)
    assert lives >= 2, "it died at every request"
