"""The network in a config's build is for the engine, and for those scripts to which the recipe grants it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from tests.integration.matrix.helpers import CPU_311, SMALL, kiln, replace, states, usable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

SEES = 'echo "{} sees $(ls /sys/class/net | tr "\\n" " ")"\n'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A copy of the small feedstock whose scripts print the networks that they see."""
    root = shutil.copytree(SMALL, tmp_path / "small-feedstock")
    replace(root, "build.sh", "mkdir", f"{SEES.format('compile')}mkdir")
    replace(root, "install-app.sh", "mkdir", f"{SEES.format('small')}mkdir")
    replace(root, "check.sh", "test ", f"{SEES.format('test')}test ")
    return root


def seen(root: Path) -> dict[str, set[str]]:
    """The networks that each script of the last run saw."""
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        report = ledger.run_report()
    assert report is not None
    log = report.configs[0].log
    assert log is not None
    lines = [line.split()[2:] for line in log.read_text().splitlines() if " sees " in line]
    return {words[0]: set(words[2:]) for words in lines if words[0] != "+"}


@pytest.mark.parametrize("where", ["docker", pytest.param("podman", marks=pytest.mark.sampled)])
def test_of_the_scripts_only_those_reach_the_network_that_the_recipe_grants_it(small: Path, where: str) -> None:
    replace(small, "meta.yaml", "extra:\n", "extra:\n  network:\n    - compile\n")
    ended = kiln(small, CPU_311, "--container", usable(where))
    assert ended.returncode == 0, ended.stderr
    networks = seen(small)
    assert len(networks.pop("compile")) > 1
    assert networks == {"small": {"lo"}, "test": {"lo"}}


def test_all_scripts_have_the_network_on_request(small: Path) -> None:
    replace(small, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    ended = kiln(small, CPU_311, "--container", usable("docker"), "--network", "always")
    assert ended.returncode == 0, ended.stderr
    assert {name: len(networks) > 1 for name, networks in seen(small).items()} == dict.fromkeys(
        ("compile", "small", "test"), True
    )


def test_a_script_that_fails_without_network_has_a_hint_to_grant_it(small: Path) -> None:
    replace(small, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    fails = "echo >/dev/tcp/192.0.2.1/9 || exit 9\n"
    replace(small, "install-app.sh", "mkdir", f"{fails}mkdir")
    ended = kiln(small, CPU_311, "--container", usable("docker"))
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert states(small) == {CPU_311: ConfigState.FAILED}
    assert "grant it in the recipe (extra: network: [build small]), or --network always" in ended.stderr


def test_a_compile_without_network_is_reported_even_with_a_known_cause(small: Path) -> None:
    """Bazel's words for an address that it cannot look up stand in the table of causes, with a hint of their own."""
    replace(small, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    fails = "echo 'class java.net.UnknownHostException Unknown host: example.org'; exit 9\n"
    replace(small, "build.sh", "mkdir", f"{fails}mkdir")
    ended = kiln(small, CPU_311, "--container", usable("docker"))
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert "download failed" in ended.stderr
    assert "grant it in the recipe (extra: network: [compile]), or --network always" in ended.stderr
