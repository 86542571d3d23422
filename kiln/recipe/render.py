"""Render a config of a feedstock into its outputs, as conda-build does before a solver runs."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiln.base import limits
from kiln.base.errors import RecipeFault, raise_all
from kiln.base.system.files import file_content_stamp
from kiln.base.text import first_of
from kiln.base.yaml import ScalarInterpretation, parse_document, read_text
from kiln.recipe.feedstock import is_v1
from kiln.recipe.pins import open_pins_of_package, pin_marker, run_as_build_pins
from kiln.recipe.rendered import KeyFault, Output, Pin, RenderedConfig
from kiln.recipe.v0.evaluation import RecipeTemplate
from kiln.recipe.v0.recipe import Recipe
from kiln.recipe.v0.rendering import (
    compile_plan_command,
    output_from_package,
    recipe_sources,
    requirements_from_sections,
    steps_with_network,
    top_level_build_step,
    truth_value_or_none,
)
from kiln.recipe.v0.used_keys import SECTIONS
from kiln.recipe.v0.validity import (
    ignored_test_warnings,
    key_faults,
    require_acyclic_outputs,
    require_valid_package,
    value_faults,
)
from kiln.recipe.variants.files import Platform, VariantSource, combine_sources, load_variant_file
from kiln.recipe.variants.space import space_narrowed_to_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.v0.metadata import Metadata


def as_plain_data(rendered: RenderedConfig) -> list[dict[str, Any]]:
    """Return every output as plain data; ``subdir`` is the channel folder of its package."""
    return [_output_as_plain_data(output) for output in rendered.outputs]


def _output_as_plain_data(output: Output) -> dict[str, Any]:
    # An empty key of the recipe is None to conda-build, and so here.
    exports: Any = {
        kind: _list_or_single_text(output, f"run_exports/{kind}", specs) or None
        for kind, specs in output.run_exports.items()
    }
    if output.run_exports_bare and exports:
        exports = _list_or_single_text(output, "run_exports", output.run_exports["weak"])
    return {
        "name": output.name,
        "version": output.version,
        "build_number": output.build_number,
        "build": output.build_string,
        "subdir": output.subdir,
        "noarch": True if "noarch" in output.single else None if "noarch_python" in output.single else output.noarch,
        "requirements": {section: list(getattr(output.requirements, section)) for section in SECTIONS},
        "track_features": list(output.track_features),
        "run_exports": exports,
        "test": {
            "imports": _list_or_single_text(
                output, "test/imports", [name for test in output.tests for name in test.imports]
            ),
            "commands": _list_or_single_text(
                output, "test/commands", [line for test in output.tests for line in test.script.lines]
            ),
            "requires": _list_or_single_text(
                output, "test/requires", [spec for test in output.tests for spec in test.requires]
            ),
        },
        "used": dict(output.used),
        "skip": output.skip,
    }


def _list_or_single_text(output: Output, field: str, texts: Sequence[str]) -> list[str] | str:
    """Return a list, or the text in its place, which conda-build leaves as it is."""
    return texts[0] if field in output.single and texts else list(texts)


_BUILD = "build_platform"  # a key of conda-forge.yml
_OWN_KEYS = ("docker_image",)  # keys that kiln itself adds to a config's file


def render(feedstock: Feedstock, config: BuildConfig) -> RenderedConfig:
    """Return the rendered config: every output, in build order.

    Bounds that depend on other outputs or on a solver stay open, as in conda-build's own unfinalized rendering;
    ``finalise`` closes those that need no solver.

    Raises:
        KilnError: the recipe or a variant file is invalid.
    """
    return limits.run_bounded(lambda: _render_unbounded(feedstock, config))


def _render_unbounded(feedstock: Feedstock, config: BuildConfig) -> RenderedConfig:
    config = replace(config, build_platform=config.build_platform or build_platform(feedstock, config.platform))
    if is_v1(feedstock):
        from kiln.recipe.v1.rendering import render_v1

        return render_v1(feedstock, config, config.build_platform)
    recipe, packages = evaluated_recipe(feedstock, config)
    pinned = "pin_" in recipe.source.text.text
    open_ends = Recipe(recipe.source, recipe.platform, recipe.space, pin_marker, reads_sources=True) if pinned else None
    documents = [recipe.top_level_metadata(package.variant).values for package in packages]
    return replace(
        _rendered_config(config, recipe, packages, open_ends),
        key_faults=(*_key_faults(recipe, documents), *value_faults(recipe, packages)),
        warnings=(
            *recipe.source.text.lists_as_selectors.values(),
            *(recipe.source.doubts or {}).values(),
            *ignored_test_warnings(packages),
        ),
    )


def evaluated_recipe(feedstock: Feedstock, config: BuildConfig) -> tuple[Recipe, list[Metadata]]:
    """Return the recipe of a meta.yaml at a config, and its packages, in the order of the rendered outputs.

    Raises:
        KilnError: the recipe or a variant file is invalid.
    """
    recipe = recipe_of_config(feedstock, config)
    packages = list(_distinct_packages(recipe))
    for package in packages:
        require_valid_package(package, recipe.top_level_metadata(package.variant).values)
    require_acyclic_outputs(packages)
    return recipe, packages


def recipe_of_config(feedstock: Feedstock, config: BuildConfig) -> Recipe:
    """Return a meta.yaml on the platform and in the space of a config.

    Raises:
        KilnError: the recipe or a variant file is invalid.
    """
    system, _, arch = config.platform.partition("-")
    build = config.build_platform or build_platform(feedstock, config.platform)
    platform = Platform(system=system, arch=arch, build=build)
    variant_path = feedstock.recipe / "conda_build_config.yaml"
    files = [load_variant_file(variant_path, f"recipe/{variant_path.name}")] if variant_path.is_file() else []
    keys = frozenset[str]().union(*(file.keys for file in files))
    alone = keys.union(platform.default_variant(), _OWN_KEYS) >= config.variant.keys()
    source = _shared_recipe_source(feedstock, keys.union(config.variant), alone=alone)
    values = {**{key: list(items) for key, items in config.variant.items()}, **config.settings}
    own = VariantSource(name=f".ci_support/{config.name}.yaml", values=values)
    sources = [*(file.source_for_platform(platform, source.known) for file in files), own]
    defaults = VariantSource(name="defaults", values=platform.default_variant())
    space = space_narrowed_to_sources(combine_sources([defaults, *sources]), [source.values for source in sources])
    return Recipe(source, platform, space, reads_sources=True)


def build_platform(feedstock: Feedstock, platform: str) -> str:
    """Return the subdir of the machine that builds for a platform, by ``build_platform`` of conda-forge.yml."""
    return build_platforms(feedstock, (platform,))[platform]


def build_platforms(feedstock: Feedstock, platforms: Iterable[str]) -> dict[str, str]:
    """Return the subdirs of the machines that build for platforms, by these.

    Raises:
        KilnError: conda-forge.yml is malformed, and may have the setting.
    """
    file = feedstock.conda_forge_yml
    text = read_text(file, file.name) if file.is_file() else ""
    builds: Any = None
    if _BUILD in text or "\\" in text:  # an escape may spell the key; without it, the fork of a parse is saved
        settings = limits.run_bounded(lambda: parse_document(text, file.name, ScalarInterpretation.TEXT).value)
        builds = settings.get(_BUILD) if isinstance(settings, dict) else None
    chosen = builds if isinstance(builds, dict) else {}
    return {name: str(chosen.get(name.replace("-", "_")) or name).replace("_", "-") for name in platforms}


def _shared_recipe_source(feedstock: Feedstock, known: frozenset[str], *, alone: bool) -> RecipeTemplate:
    """Return the recipe's text, shared by the configs of one process while neither it nor the known names change.

    A config's file holds the keys that its outputs use; the recipe may test others that only a pinning defines,
    which is not here. Unless the feedstock stands ``alone``, it has a pinning, and a near miss may be right.
    """
    # A key of another config may be tested here without a mistake.
    files = [*feedstock.config_folder.glob("*.yaml"), *(feedstock.config_folder / "migrations").glob("*.yaml")]
    known = known.union(*(_variant_file_keys(feedstock, path, file_content_stamp(path)) for path in files))
    return _cached_recipe_source(feedstock.meta, file_content_stamp(feedstock.meta), known, alone=alone)


@lru_cache(maxsize=1)
def _cached_recipe_source(path: Path, _stamp: tuple[int, ...], known: frozenset[str], *, alone: bool) -> RecipeTemplate:
    return RecipeTemplate(path, "recipe/meta.yaml", known, all_known=False, doubts=None if alone else {})


@lru_cache(maxsize=4096)
def _variant_file_keys(feedstock: Feedstock, path: Path, _stamp: tuple[int, ...]) -> frozenset[str]:
    """Return the keys of a variant file, which is read once for all configs of a process while it does not change."""
    return load_variant_file(path, feedstock.name_of(path)).keys


def _distinct_packages(recipe: Recipe) -> Iterator[Metadata]:
    distinct: dict[object, Metadata] = {}
    for _, packages in recipe.jobs_with_packages():
        for package in packages:
            if package.kind in {None, "conda", "conda_v2"}:
                choice = recipe.used_varying_values(package.variant, package.used_keys())
                distinct[(package.dist, package.variant.get("target_platform"), choice)] = package
    yield from distinct.values()


def _rendered_config(
    config: BuildConfig, recipe: Recipe, packages: list[Metadata], open_ends: Recipe | None
) -> RenderedConfig:
    if not packages:
        return RenderedConfig(config=config)
    loops = sorted(recipe.space.varying_keys)
    top = recipe.top_level_metadata(packages[0].variant)
    step = top_level_build_step(top, several=len(packages) > 1)
    shared: dict[str, Any] = {"sources": recipe_sources(top)} if step is None else {"staging": step.name}
    outputs = tuple(replace(_output_with_open_pins(package, loops, open_ends), **shared) for package in packages)
    pinned = {pin.name for output in outputs for _, _, pin in output.pins if pin.subpackage}
    absent = pinned - {output.name for output in outputs}
    all_packages = (recipe.output_packages(package.variant) for package in packages if absent)
    skipped = [package for package in itertools.chain(*all_packages) if package.name in absent and package.skip]
    return RenderedConfig(
        config=config,
        name=top.name,
        stagings=() if step is None else (step,),
        outputs=outputs,
        skipped=tuple(_output_with_open_pins(package, loops, open_ends) for package in skipped),
        network=steps_with_network(top.values.get("extra")),
        plan_command=compile_plan_command(top.values.get("extra")),
    )


def _key_faults(recipe: Recipe, documents: list[Mapping[str, Any]]) -> tuple[KeyFault, ...]:
    """Return the faults of the recipe's keys in its values at the variants of all packages."""
    source, distinct = recipe.source, {id(values): values for values in documents}
    faults = [fault for values in distinct.values() for fault in key_faults(values, source.text.text, source.name)]
    return tuple(dict.fromkeys(faults))


def _output_with_open_pins(package: Metadata, loops: list[str], open_ends: Recipe | None) -> Output:
    variant = {key: str(package.variant[key]) for key in loops}
    pins = open_pins_of_package(package, open_ends) if open_ends else ()
    as_built = _pin_run_as_build_pins(package)
    open_pins = (pin for pin in pins if pin[0] != "run" or pin[1] not in as_built)
    return output_from_package(
        package, variant=variant, pins=(*open_pins, *(("run", index, pin) for index, pin in as_built.items()))
    )


def _pin_run_as_build_pins(package: Metadata) -> dict[int, Pin]:
    rules = package.variant.get("pin_run_as_build")
    independent = package.section_value("build", "python_version_independent")
    python = (
        {"python"}
        if package.noarch == "python" or package.sets_build_noarch_python or truth_value_or_none(independent)
        else set()
    )
    rules = {name: rule for name, rule in rules.items() if name not in python} if isinstance(rules, dict) else {}
    return run_as_build_pins(requirements_from_sections(package.requirements), rules)


def require_supported_keys(renderings: Sequence[RenderedConfig], *, own_engine: bool) -> None:
    """Refuse renderings whose recipe has an unknown key, or with kiln's ``own_engine`` one that it does not have.

    Raises:
        RecipeFault: with all keys at fault.
    """
    raise_all([error for fault, error in key_fault_errors(renderings).items() if own_engine or not fault.known])


def key_fault_errors(renderings: Sequence[RenderedConfig]) -> dict[KeyFault, RecipeFault]:
    """Return the error of each key at fault, which names the configs that have it, if others have not."""
    names: dict[KeyFault, list[str]] = {}
    for rendered in renderings:
        for fault in dict.fromkeys(rendered.key_faults):
            names.setdefault(fault, []).append(rendered.config.name)
    errors = {}
    for fault, having in names.items():
        where = f"only in {first_of(having, 1)}" if len(having) < len(renderings) else ""
        why = "; ".join(filter(None, (fault.why, where)))
        errors[fault] = RecipeFault(fault.what, at=fault.at, why=why, hint=fault.hint)
    return errors


def key_fault_warnings(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return a line for each key at fault, and the recipe's other warnings."""
    notes = ((fault, f" ({fault.hint})" if fault.hint and not fault.known else "") for fault in rendered.key_faults)
    return (*(f"{fault.at}: {fault.what}{note}" for fault, note in notes), *map(str, rendered.warnings))
