"""Feedstocks with a recipe.yaml are built in containers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.build.executor import environment
from tests.integration.matrix.helpers import BASE, usable
from tests.integration.recipe_v1_feedstocks import CPU, built, copied, kiln, require_same

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("where", ["docker", pytest.param("podman", marks=pytest.mark.sampled)])
@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("small-v1", ["libplain", "plain-scripts", "plain"]),
        ("small-v1-staging", ["libstaged", "libstaged-dev", "staged-plugin", "staged", "staged-alone"]),
    ],
)
def test_packages_of_containers_are_those_that_rattler_build_makes_here(
    name: str, order: list[str], where: str, tmp_path: Path
) -> None:
    """One of the two has steps with and steps without the network, so that its scripts have containers of their own."""
    root = copied(name, tmp_path)
    built(root, CPU, where=usable(where))
    require_same(root, tmp_path / "theirs", order)
    report = json.loads(kiln(root, "report", "--json").stdout)
    assert (report["container"], report["image"].partition("@")[0]) == (where, BASE)


def test_debug_opens_a_staging_script_in_a_container(tmp_path: Path) -> None:
    root = copied("small-v1-staging", tmp_path)
    lines = './conda_build.sh >/dev/null 2>&1 && cat compiled.txt && echo "$SRC_DIR" && exit 7\n'
    ended = kiln(root, "build", CPU, "--container", usable("docker"), "--debug", stdin=lines)
    assert ended.returncode == 7, ended.stderr
    *_, compiled, folder = ended.stdout.splitlines()
    assert compiled == "compiled for None"
    assert folder.startswith(f"{environment.ROOT}/")
