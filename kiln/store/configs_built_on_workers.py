"""Configs that are built on workers: their inputs, and their collected packages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import expand
from kiln.ledger import Ledger
from kiln.serialization import to_json
from kiln.store import build_cache, delivery_check
from kiln.store.layout import ArtifactLayout
from kiln.variants.cuda_version import compile_group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.model.build_results import PackageReport
    from kiln.model.feedstock import Feedstock
    from kiln.store.build_cache import InputHashes


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """A config to build on a worker: ``group`` shares its compile, ``inputs`` are the hashes of its inputs."""

    config: str
    group: str
    inputs: InputHashes


def remote_configs(feedstock: Feedstock, configs: Sequence[str], *, options: Sequence[str]) -> tuple[RemoteConfig, ...]:
    """Return configs to build on workers with these options of ``kiln build``; raises UnknownConfig.

    Each worker's ledger has its image; here the options stand for the place of the build.
    """
    recipe, where = build_cache.recipe_digest(feedstock), " ".join(("elsewhere", *options))
    entries = expand.read_configs(feedstock, dict.fromkeys(configs))
    return tuple(
        RemoteConfig(
            config=entry.name,
            group=compile_group(entry),
            inputs=build_cache.input_hashes(feedstock, entry.name, recipe=recipe, engine="rattler-build", where=where),
        )
        for entry in entries
    )


def collected_packages(
    feedstock: Feedstock, entries: Sequence[RemoteConfig]
) -> Mapping[str, tuple[PackageReport, ...]]:
    """Return the packages of the configs that were collected before, if they are unchanged in the channel."""
    layout = ArtifactLayout.for_feedstock(feedstock)
    with Ledger(layout.ledger) as ledger:
        return build_cache.packages_of_finished_configs(
            ledger, layout, {entry.config: entry.inputs for entry in entries}
        )


def add_collected_packages(
    feedstock: Feedstock, config: RemoteConfig, packages: Sequence[PackageReport], *, index: bool = True
) -> tuple[PackageReport, ...]:
    """Put a config's collected and verified packages into the channel; return them with their paths there.

    Without ``index``, the caller indexes the channel before anything reads it.

    Raises:
        BrokenPackage: they are not exactly those that the config renders.
        HashMismatch: another config has delivered a package of this name with another hash.
    """
    delivery_check.require_packages_of_config(feedstock, config.config, config.group, packages)
    layout = ArtifactLayout.for_feedstock(feedstock)
    packages_made = [(report.artifact.path, to_json(report)) for report in packages]
    seconds = sum(report.build_seconds for report in packages)
    with Ledger(layout.ledger) as ledger:
        added = build_cache.publish_finished_config(
            ledger, layout, config.config, packages_made, config.inputs, seconds=seconds, disk=0, delivered=True
        )
    if index:
        build_cache.index_channel(layout)
    return added
