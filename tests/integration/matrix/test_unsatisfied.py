"""A requirement that no channel has is named: of a script's environment, and of a package in its tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import SolveFailed
from kiln.conda.channel import LocalChannel
from tests.integration.matrix.helpers import CPU_311, kiln, replace, report
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

PIN = '        - {{ pin_subpackage("libsmall", exact=True) }}\n'


@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (
            PIN + "      host:\n        - wanted\n        - absent 99\n",
            ("build small: host requirements: nothing in ", " satisfies absent 99.*"),
        ),
        (
            PIN + "        - wanted >=1\n",
            ("test small: nothing in ", " satisfies absent >=2, a requirement of small ==1.2 cpu_py311"),
        ),
    ],
    ids=["host", "run"],
)
def test_a_requirement_that_no_channel_has_is_named(
    small: Path, tmp_path: Path, recipe: str, told: tuple[str, str]
) -> None:
    channel = LocalChannel(root=tmp_path / "channel")
    package = release_package(tmp_path / "packages", "wanted", depends=["absent >=2"] if "wanted >=1" in recipe else [])
    channel.add([(package, "linux-64")])
    replace(small, "meta.yaml", PIN, recipe)
    config = small / ".ci_support" / f"{CPU_311}.yaml"
    config.write_text(f"{config.read_text()}channel_sources:\n- {channel.url}\n")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == SolveFailed.exit_code, ended.stderr
    for words in told:
        assert words in ended.stderr
    assert "try: see that the channels" in ended.stderr
    (entry,) = report(small).configs
    assert told[1] in entry.reason
    assert entry.log is not None
    assert "Cannot solve the request because of" in entry.log.read_text()
