"""Expand a feedstock into its cells, as conda-smithy's rerender does."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.expand import forge
from kiln.expand.collapse import Package, Packages, configs
from kiln.expand.naming import cell_name
from kiln.model.cell import Cell
from kiln.recipe.recipe import Recipe
from kiln.recipe.source import RecipeSource
from kiln.variants.combine import combine
from kiln.variants.files import Source, check, variant_file
from kiln.variants.migrations import Migration, applicable, migrate
from kiln.variants.platform import Platform
from kiln.variants.space import Space, Variant, filtered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from kiln.expand.forge import Forge, Job
    from kiln.model.feedstock import Feedstock
    from kiln.template.names import Doubts
    from kiln.variants.combine import Spec
    from kiln.variants.files import VariantFile

_CUDA = re.compile(r"^[^\#]*compiler\((\"cuda\"|\'cuda\')\).*", re.MULTILINE)


def cells(feedstock: Feedstock, pinning: Path | None = None, doubts: Doubts | None = None) -> tuple[Cell, ...]:
    """Every cell of a feedstock, by name.

    ``pinning`` is a variant file that comes before the recipe's own, such as conda-forge's global pinning; beside it,
    ``share/conda-forge/migrations`` holds the migrations in force. A feedstock of a pinning is made for conda-smithy,
    to which a selector's name that nothing defines is False: here too, and ``doubts`` tells of it. A feedstock that
    stands alone is refused for it.

    Raises:
        KilnError: the recipe, a variant file or the settings are at fault.
    """
    expansion = _Expansion(feedstock, pinning, {} if doubts is None else doubts)
    found = {cell.name: cell for job in expansion.forge.jobs for cell in expansion.cells_of(job)}
    return tuple(found[name] for name in sorted(found))


class _Expansion:
    """What the platforms of one expansion share."""

    def __init__(self, feedstock: Feedstock, pinning: Path | None, doubts: Doubts) -> None:
        self.forge: Forge = forge.read(feedstock.root / "conda-forge.yml")
        self.files: list[VariantFile] = [variant_file(pinning, pinning.name)] if pinning else []
        own = feedstock.recipe / "conda_build_config.yaml"
        if own.is_file():
            self.files.append(variant_file(own, "recipe/conda_build_config.yaml"))
        pinned = pinning.parent / "share" / "conda-forge" / "migrations" if pinning else None
        self.migrations = [
            Migration(file=variant_file(path, f"migrations/{path.name}"))
            for path in applicable(feedstock.configs / "migrations", pinned)
        ]
        keys = [file.keys for file in (*self.files, *(migration.file for migration in self.migrations))]
        self.known = frozenset[str]().union(*keys)
        self.source = RecipeSource(feedstock.meta, "recipe/meta.yaml", self.known, doubts=doubts if pinning else None)
        self.environ = dict(self.forge.environ)
        if _CUDA.search(self.source.text.text):
            self.environ["CF_CUDA_ENABLED"] = "True"

    def cells_of(self, job: Job) -> Iterator[Cell]:
        """The cells of one platform."""
        self.environ["BUILD_PLATFORM"] = job.build_platform
        if job.linux_version:
            # Once set, it holds for the platforms that follow, as it does in conda-smithy.
            self.environ["DEFAULT_LINUX_VERSION"] = job.linux_version
        platform = Platform(system=job.system, arch=job.arch, environ=dict(self.environ))
        space = self._space(platform)
        recipe = Recipe(self.source, platform, space)
        initial = Variant(platform.defaults(), {})
        packages = [
            Package.of(part, package)
            for part, found in recipe.jobs(initial)
            for package in found
            if job.keep_noarch or not package.noarch
        ]
        if not packages:
            return
        labels = self.forge.labels_kept or job.provider == "github_actions"
        every = Packages(
            space=recipe.narrowed,
            packages=packages,
            recipe_text=self.source.text.text,
            pins_numpy=recipe.pins_numpy,
        )
        found, loops = configs(every, labels=labels)
        feedstock = min(packages, key=lambda package: package.dist).feedstock
        for config in found:
            name = cell_name(job.name, config, loops, feedstock)
            yield _cell(name, platform.subdir, self._finished(config, job))

    def _space(self, platform: Platform) -> Space:
        """The space of the variant files after migrations."""
        defaults = Source(name="defaults", values=platform.defaults())
        sources = [defaults, *(file.source(platform, self.known) for file in self.files)]
        spec = migrate(combine(sources), self.migrations, platform, self.known)
        migrated = Source(
            name="the variant files after migrations", values=_without_migrator(spec), origins=tuple(sources[1:])
        )
        check(migrated)
        return filtered(combine([defaults, migrated]), [migrated.values])

    def _finished(self, config: dict[str, Any], job: Job) -> dict[str, Any]:
        """The configuration with the image that its job runs in."""
        if not job.build_platform.startswith("linux"):
            return config
        finished = dict(config)
        finished["docker_image"] = list(config.get("docker_image", [self.forge.fallback_image]))[:1]
        for group in config.get("zip_keys", ()):
            if "docker_image" in group:
                finished.update({key: list(config[key])[:1] for key in group if key != "docker_image"})
        return finished


def _without_migrator(spec: Spec) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "__migrator"}


def _cell(name: str, subdir: str, config: Mapping[str, Any]) -> Cell:
    values = {
        key: tuple(map(str, config[key])) for key in sorted(config) if key not in {"zip_keys", "pin_run_as_build"}
    }
    return Cell(
        name=name,
        platform=values.get("target_platform", (subdir,))[0],
        variant=values,
        zip_keys=tuple(tuple(group) for group in config.get("zip_keys", ())),
        pin_run_as_build=config.get("pin_run_as_build", {}),
        image=values.get("docker_image", (None,))[0],
    )
