"""Expand a feedstock into its configs, as conda-smithy's rerender does."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from kiln.base import limits
from kiln.base.errors import KilnError, PinningNeeded, VariantFault, raise_all
from kiln.base.patterns import lazy_pattern
from kiln.base.yaml import as_text
from kiln.feedstock import job_settings
from kiln.feedstock.collapse import PackageKeyUsage, PlatformPackages, job_variants
from kiln.feedstock.config_file import SETTINGS, config_of_values
from kiln.feedstock.pinning import HINT
from kiln.recipe.feedstock import is_v1
from kiln.recipe.v0.evaluation import RecipeTemplate
from kiln.recipe.v0.recipe import Recipe
from kiln.recipe.variants.files import (
    Platform,
    Spec,
    VariantFile,
    VariantSource,
    check_variant_source,
    combine_sources,
    load_variant_file,
)
from kiln.recipe.variants.migrations import MISFIT, apply_migrations, migration_files_of_feedstock_and_pinning
from kiln.recipe.variants.space import Space, Variant, space_narrowed_to_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.feedstock.job_settings import MatrixSettings, PlatformJob
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.template.names import Doubts


_CUDA = lazy_pattern(r"^[^\#\n]*compiler\((\"cuda\"|\'cuda\')\).*", re.MULTILINE)
_FORBIDDEN = lazy_pattern(r"[<>:?*,\"\/\|\\]")
# The longest path that Windows allows, less the folder into which a GitHub runner checks out a feedstock.
_LONGEST_PATH = 259
_SUFFIX = len("_h01234567.yaml")


def configs(feedstock: Feedstock, pinning: Path | None = None, doubts: Doubts | None = None) -> tuple[BuildConfig, ...]:
    """Return the configs of a feedstock, sorted by name.

    ``pinning`` is a variant file that comes before the recipe's own, such as conda-forge's global pinning; in the same
    folder, ``share/conda-forge/migrations`` holds the migrations in force. A feedstock with a pinning is made for
    conda-smithy, to which an undefined name in a selector is False: so it is here, and ``doubts`` collects these names.
    In a feedstock without a pinning they are errors. It also collects the malformed conditions of ``skip`` in a
    recipe.yaml, which rattler-build takes for false.

    Raises:
        KilnError: the recipe, a variant file or the settings are invalid.
    """
    matrix, found_doubts = limits.run_bounded(lambda: _expand_configs(feedstock, pinning))
    if doubts is not None:
        doubts.update(found_doubts)
    return matrix


def configs_with_values_of(feedstock: Feedstock, given: Sequence[BuildConfig]) -> tuple[BuildConfig, ...]:
    """Return the configs that a feedstock expands to with the values of the ``given`` ones, on their platforms.

    Raises:
        KilnError: the recipe or the settings are invalid.
    """
    return limits.run_bounded(lambda: _expand_configs(feedstock, None, given))[0]


def _expand_configs(
    feedstock: Feedstock, pinning: Path | None, given: Sequence[BuildConfig] = ()
) -> tuple[tuple[BuildConfig, ...], Doubts]:
    doubts: Doubts = {}
    expansion = _MatrixExpansion(feedstock, pinning, doubts, given)
    platforms = {config.platform for config in given}
    jobs = [job for job in expansion.forge.jobs if not given or f"{job.system}-{job.arch}" in platforms]
    configs_by_name: dict[str, BuildConfig] = {}
    faults: dict[str, tuple[KilnError, list[str]]] = {}
    for job in jobs:
        try:
            configs_by_name |= {config.name: config for config in expansion.configs_of_job(job)}
        except KilnError as error:
            faults.setdefault(str(error), (error, []))[1].append(f"{job.system}-{job.arch}")
    raise_all([_error_of_platforms(*fault, len(expansion.forge.jobs)) for fault in faults.values()])
    return tuple(configs_by_name[name] for name in sorted(configs_by_name)), doubts


def _error_of_platforms(error: KilnError, platforms: list[str], total: int) -> KilnError:
    """Return an error with the platforms that have it, unless these are all."""
    if len(platforms) == total:
        return error
    why = "; ".join(filter(None, (error.why, f"only for {', '.join(sorted(platforms))}")))
    return type(error)(error.what, at=error.at, why=why, hint=error.hint, others=error.others)


def variant_file_values_getter(feedstock: Feedstock) -> Callable[[str], Mapping[str, Any]]:
    """Return a function that returns the values of the feedstock's own variant files on a platform, ``linux-64``."""
    expansion = _MatrixExpansion(feedstock, None, {})
    jobs = {f"{job.system}-{job.arch}": job for job in expansion.forge.jobs}
    return lambda platform: expansion.values_of_variant_files(jobs[platform]) if platform in jobs else {}


class _ValuesOfConfigs:
    """The values of configs, as a variant file has them."""

    def __init__(self, configs: Sequence[BuildConfig]) -> None:
        self._configs = configs

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all platforms."""
        return frozenset(key for config in self._configs for key in config.variant)

    def source_for_platform(self, platform: Platform, _: frozenset[str]) -> VariantSource:
        """Return the values on a platform: of each key, or group of zipped keys, those of all its configs."""
        rows: dict[tuple[str, ...], dict[tuple[str, ...], None]] = {}
        pins: dict[str, Any] = {}
        for config in self._configs:
            if config.platform == platform.subdir:
                pins |= config.pin_run_as_build
                alone = config.variant.keys() - {key for group in config.zip_keys for key in group}
                for group in (*config.zip_keys, *((key,) for key in alone)):
                    columns = (config.variant[key] for key in group)
                    rows.setdefault(group, {}).update(dict.fromkeys(zip(*columns, strict=True)))
        values: dict[str, Any] = {
            key: list(column)
            for group, found in rows.items()
            for key, column in zip(group, zip(*found, strict=True), strict=True)
        }
        groups = [list(group) for group in rows if len(group) > 1]
        return VariantSource(name=".ci_support", values={**values, "zip_keys": groups, "pin_run_as_build": pins})


class _MatrixExpansion:
    """One expansion: the state that its platforms share."""

    def __init__(
        self, feedstock: Feedstock, pinning: Path | None, doubts: Doubts, given: Sequence[BuildConfig] = ()
    ) -> None:
        self.forge: MatrixSettings = job_settings.read_matrix_settings(feedstock.conda_forge_yml)
        self.files: list[VariantFile | VariantFileV1 | _ValuesOfConfigs] = []
        if pinning:
            self.files.append(load_variant_file(pinning, feedstock.name_of(pinning)))
        variant_path = feedstock.recipe / "conda_build_config.yaml"
        if variant_path.is_file():
            self.files.append(load_variant_file(variant_path, "recipe/conda_build_config.yaml"))
        self.pinned = pinning is not None
        pinned = pinning.parent / "share" / "conda-forge" / "migrations" if pinning else None
        self.migrations = [
            load_variant_file(path, feedstock.name_of(path))
            for path in migration_files_of_feedstock_and_pinning(feedstock.config_folder / "migrations", pinned)
        ]
        self.v1 = is_v1(feedstock)
        if self.v1 and (variants_file := feedstock.recipe / "variants.yaml").is_file():
            from kiln.recipe.v1.variants import VariantFileV1

            self.files.append(VariantFileV1(variants_file, "recipe/variants.yaml"))
        if given:  # which have what the files and the migrations make of it
            self.files, self.migrations = [_ValuesOfConfigs(given)], []
        keys = [file.keys for file in (*self.files, *self.migrations)]
        self.known = frozenset[str]().union(*keys)
        self.recipe: RecipeTemplate | RecipeV1
        if self.v1:
            from kiln.recipe.v1.recipe import RecipeV1, skip_warnings

            self.recipe = RecipeV1.read(feedstock.recipe_v1)
            doubts.update(skip_warnings(self.recipe, self.known))
            self.text = self.recipe.text
        else:
            self.recipe = RecipeTemplate(
                feedstock.meta, "recipe/meta.yaml", self.known, doubts=doubts if pinning else None
            )
            doubts.update(self.recipe.text.lists_as_selectors)
            self.text = self.recipe.text.text
        self.environ = dict(self.forge.environ)
        if _CUDA.search(self.text):
            self.environ["CF_CUDA_ENABLED"] = "True"

    def configs_of_job(self, job: PlatformJob) -> Iterator[BuildConfig]:
        """Yield the configs of one platform."""
        platform = self._platform_of_job(job)
        space = self._variant_space(platform)
        every = self._platform_packages(job, platform, space)
        if not every.packages:
            return
        labels = self.forge.labels_kept or job.provider == "github_actions"
        result, loops = job_variants(every, labels=labels)
        feedstock = min(every.packages, key=lambda package: package.dist).feedstock
        for config in result:
            name = config_name(job.platform_name, config, loops, feedstock)
            values = self._config_with_image(config, job)
            variant = {key: tuple(map(as_text, values[key])) for key in sorted(values) if key not in SETTINGS}
            yield config_of_values(name, platform.subdir, variant, values)

    def values_of_variant_files(self, job: PlatformJob) -> dict[str, Any]:
        """Return the values of the variant files on one platform, before migrations."""
        platform = self._platform_of_job(job)
        return {
            key: value
            for file in self.files
            for key, value in file.source_for_platform(platform, self.known).values.items()
        }

    def _platform_of_job(self, job: PlatformJob) -> Platform:
        self.environ["BUILD_PLATFORM"] = job.build_platform
        if job.linux_version:
            # Once set, it applies to all later platforms, as in conda-smithy.
            self.environ["DEFAULT_LINUX_VERSION"] = job.linux_version
        return Platform(system=job.system, arch=job.arch, environ=dict(self.environ))

    def _platform_packages(self, job: PlatformJob, platform: Platform, space: Space) -> PlatformPackages:
        if not isinstance(self.recipe, RecipeTemplate):
            from kiln.recipe.v1.variants import packages_with_variant_subspaces

            package_parts = [
                PackageKeyUsage.from_recipe_v1(part, package)
                for part, package in packages_with_variant_subspaces(
                    self.recipe, space, platform.subdir, noarch=job.keep_noarch
                )
            ]
            return PlatformPackages(space=space, packages=package_parts, recipe_text=self.text)
        from kiln.recipe.v0.validity import require_valid_identity

        recipe = Recipe(self.recipe, platform, space)
        initial = Variant(platform.default_variant(), {})
        parts = [(part, package) for part, packages in recipe.jobs_with_packages(initial) for package in packages]
        for _, package in parts:
            require_valid_identity(package)
        package_parts = [
            PackageKeyUsage.from_metadata(part, package)
            for part, package in parts
            if job.keep_noarch or not package.noarch
        ]
        return PlatformPackages(
            space=recipe.narrowed, packages=package_parts, recipe_text=self.text, pins_numpy=recipe.pins_numpy
        )

    def _variant_space(self, platform: Platform) -> Space:
        """Return the space of the variant files after migrations."""
        defaults = VariantSource(name="defaults", values=platform.default_variant())
        sources = [defaults, *(file.source_for_platform(platform, self.known) for file in self.files)]
        spec = self._migrated_spec(combine_sources(sources), platform)
        values = {key: value for key, value in spec.items() if key != "__migrator"}
        migrated = VariantSource(name="the variant files after migrations", values=values, origins=tuple(sources[1:]))
        check_variant_source(migrated)
        return space_narrowed_to_sources(combine_sources([defaults, migrated]), [migrated.values])

    def _migrated_spec(self, spec: Spec, platform: Platform) -> Spec:
        """Return the specification after migrations, which are written for that of a pinning."""
        try:
            return apply_migrations(spec, self.migrations, platform, self.known)
        except VariantFault as error:
            if self.pinned or error.what != MISFIT:
                raise
            why = f"it changes keys of a pinning, which is missing ({error.why})"
            raise PinningNeeded(error.what, at=error.at, why=why, hint=HINT) from error

    def _config_with_image(self, config: dict[str, Any], job: PlatformJob) -> dict[str, Any]:
        """Return the configuration with the image that its job runs in."""
        if not job.build_platform.startswith("linux"):
            return config
        with_image = dict(config)
        with_image["docker_image"] = list(config.get("docker_image", [self.forge.fallback_image]))[:1]
        for group in config.get("zip_keys", ()):
            if "docker_image" in group:
                with_image.update({key: list(config[key])[:1] for key in group if key != "docker_image"})
        return with_image


def config_name(platform: str, config: Mapping[str, Any], loops: Iterable[str], feedstock: str) -> str:
    """Return a config's name: its platform, then each looping key with its value; a long name is cut and hashed."""
    values = "".join(f"{key}{config[key][0]}" for key in sorted(loops) if key != "target_platform")
    name = _FORBIDDEN.sub("", f"{platform}_{values.replace('*', '_').replace(' ', '_')}")
    folder = len(f"C:/Users/runnerx/_work/{feedstock}-feedstock/{feedstock}-feedstock/.ci_support/")
    if folder + len(f"{name}.yaml") <= _LONGEST_PATH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_PATH - folder - _SUFFIX]}_h{digest}"
