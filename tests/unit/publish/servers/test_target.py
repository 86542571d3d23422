"""The index of a server's channel is read for every platform that a publication has packages of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.publish.model import Journal
from kiln.publish.servers.servers import ServerKind
from kiln.publish.servers.target import ServerTarget
from kiln.publish.targets import parse_target
from tests.unit.publish.test_transaction import package

if TYPE_CHECKING:
    from pathlib import Path


def test_the_platforms_are_those_of_the_feedstock_and_of_an_interrupted_publication(tmp_path: Path) -> None:
    kind = ServerKind.QUETZ
    target = parse_target(
        "quetz:https://example.org/channel",
        {kind.server_class.token_variable: "token"},
        staging="aside",
        journals=tmp_path / "journals",
        subdirs=("linux-aarch64",),
    )
    assert isinstance(target, ServerTarget)
    assert target.client.subdirs == {"linux-aarch64"}
    _, entry = package(tmp_path, "lib", subdir="linux-ppc64le")
    target.journal.write(Journal.from_entries([entry], {}))
    assert target.client.subdirs == {"linux-aarch64", "linux-ppc64le"}
