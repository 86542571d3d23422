"""The packages that earlier runs have built, here or on workers, as the ledger and the channel have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.model.run import ConfigRun, ConfigState
from kiln.release.candidate_packages import runs_in_ledger

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

BUILT = (ConfigState.DONE, ConfigState.CACHED)


def latest_packages_of_configs(feedstock: Feedstock, configs: Iterable[str]) -> dict[str, tuple[Path, ...]]:
    """Return the packages of configs from the latest run that built each; configs without any are left out.

    Packages that are missing or have changed since do not count.
    """
    history, names = runs_in_ledger(feedstock), set(configs)
    result: dict[str, tuple[Path, ...]] = {}
    for report in history:
        for config in report.configs:
            is_built = config.is_built or config.state in BUILT
            if config.config in names - result.keys() and is_built and config.packages:
                paths = _unchanged_package_files(config)
                result |= {config.config: paths} if paths else {}
    return result


def _unchanged_package_files(config: ConfigRun) -> tuple[Path, ...]:
    """Return a config's package files, none if one is missing or another."""
    artifacts = [package.artifact for package in config.packages if not package.artifact.is_wheel]
    if not all(artifact.path.is_file() and files.sha256(artifact.path) == artifact.sha256 for artifact in artifacts):
        return ()
    return tuple(artifact.path for artifact in artifacts)
