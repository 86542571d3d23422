"""Render a config of a feedstock whose recipe is recipe.yaml, as rattler-build does, into the types of any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.model.rendered import Output, Pin, RenderedConfig, Requirements
from kiln.name_rules import invalid_name_reason
from kiln.operating_system.file_operations import file_content_stamp
from kiln.recipe_v1.hash_inputs_and_build_strings import BuildIdentities, BuildIdentity
from kiln.recipe_v1.mentioned_variables import malformed_skip_warnings
from kiln.recipe_v1.node_evaluation import RECIPE
from kiln.recipe_v1.recipe import PackageAtVariant, RecipeV1, requirement_versions_from_variant
from kiln.recipe_v1.variant_exploration import RecipePackages
from kiln.recipe_v1.variant_file import VariantFileV1
from kiln.render.rendered_parts_from_meta_yaml import about_field_value, steps_with_network
from kiln.render.rendered_parts_from_recipe_yaml import (
    RecipeScriptReader,
    build_settings,
    output_tests,
    script_secret_names,
    source_from_entry,
    spec_texts,
    staging_outputs,
)
from kiln.variants.files import VariantSource, load_variant_file
from kiln.variants.platform_properties import Platform
from kiln.variants.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.recipe_v1.requirement import Requirement

# The keys of ``about`` and of ``run_exports``, and what conda-build calls them.
_ABOUT = {"homepage": "home", "repository": "dev_url", "documentation": "doc_url"}
_EXPORTS = {"weak_constraints": "weak_constrains", "strong_constraints": "strong_constrains"}
_SHARED: dict[tuple[object, ...], RecipeV1] = {}


def render_v1(feedstock: Feedstock, config: BuildConfig, build_platform: str) -> RenderedConfig:
    """Return every output of a config, in the order in which they can be built.

    Raises:
        KilnError: the recipe or a variant file is at fault.
    """
    recipe = cached_recipe_v1(feedstock)
    space = variant_space_of_config(feedstock, config)
    rendering = RecipePackages(recipe, space, config.platform, build_platform)
    identities = BuildIdentities(rendering.pinned_package)
    loops = sorted(space.varying_keys)
    packages = tuple(rendering.packages())
    stagings, staging_names = staging_outputs(packages, feedstock.recipe, loops)
    scripts = RecipeScriptReader(recipe_folder=feedstock.recipe, several=recipe.has_outputs)
    outputs: dict[tuple[str, ...], Output] = {}
    for package in packages:
        output = replace(
            _output_from_package(package, identities.identity_of(package), loops, scripts),
            staging=staging_names.get(id(package)),
        )
        _require_valid_names(package, output)
        outputs.setdefault((output.name, output.version, output.build_string, output.subdir), output)
    return RenderedConfig(
        config=config,
        name=recipe.recipe_name_at(packages[0]) if packages else "",
        stagings=stagings,
        outputs=tuple(outputs.values()),
        network=steps_with_network(packages[0].sections.get("extra")) if packages else (),
        warnings=tuple(map(str, malformed_skip_warnings(recipe.root).values())),
        file=RECIPE,
    )


def cached_recipe_v1(feedstock: Feedstock) -> RecipeV1:
    """Return the recipe, shared between the configs of one process while it does not change."""
    key = (feedstock.recipe_v1, file_content_stamp(feedstock.recipe_v1))
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = RecipeV1.read(feedstock.recipe_v1)
    return _SHARED[key]


def variant_space_of_config(feedstock: Feedstock, config: BuildConfig) -> Space:
    """Return the variants of a config: its file's, and what a variant file of the recipe gives besides.

    Raises:
        KilnError: a variant file is at fault.
    """
    spec: dict[str, Any] = {key: list(values) for key, values in config.variant.items()}
    groups = [list(group) for group in config.zip_keys]
    variant_source = _recipe_variant_source(feedstock, config.platform)
    if variant_source is not None:
        more = {
            key: value for key, value in variant_source.values.items() if key not in spec and isinstance(value, list)
        }
        groups += [group for group in more.pop("zip_keys", []) if more.keys() >= set(group)]
        spec = {**more, **spec}
    spec.setdefault("target_platform", [config.platform])
    return Space.from_spec({**spec, **({"zip_keys": groups} if groups else {})})


def _recipe_variant_source(feedstock: Feedstock, subdir: str) -> VariantSource | None:
    """Return the one variant file next to the recipe that rattler-build takes."""
    system, _, arch = subdir.partition("-")
    platform = Platform(system=system, arch=arch)
    new, old = feedstock.recipe / "variants.yaml", feedstock.recipe / "conda_build_config.yaml"
    if new.is_file():
        own = VariantFileV1(new, "recipe/variants.yaml")
        return own.source_for_platform(platform, own.keys)
    if old.is_file():
        file = load_variant_file(old, "recipe/conda_build_config.yaml")
        return file.source_for_platform(platform, file.keys)
    return None


def _require_valid_names(package: PackageAtVariant, output: Output) -> None:
    """Refuse names that are not conda's; they become parts of paths."""
    given = {"package name": output.name, "version": output.version, "build string": output.build_string}
    for kind, text in given.items():
        if why := invalid_name_reason(text, kind):
            raise package.placed_error(f"invalid {kind} {text[:80]!r}", why)


def _output_from_package(
    package: PackageAtVariant, identity: BuildIdentity, loops: Sequence[str], scripts: RecipeScriptReader
) -> Output:
    sections, build = package.sections, package.sections["build"]
    needs, exports = sections["requirements"], _run_exports_by_kind(sections["requirements"].get("run_exports", {}))
    linking, detection = build.get("dynamic_linking", {}), build.get("prefix_detection", {})
    relocation, extra = linking.get("binary_relocation"), sections.get("extra")
    return Output(
        name=package.name.lower(),
        version=package.version,
        build_number=build.get("number", 0),
        build_string=identity.build_string,
        subdir="noarch" if package.noarch else package.scope.target,
        noarch=package.noarch,
        requirements=Requirements(
            build=spec_texts(needs.get("build", ())),
            host=spec_texts(needs.get("host", ())),
            run=spec_texts(needs.get("run", ())),
            run_constrained=spec_texts(needs.get("run_constraints", ())),
            versions=requirement_versions_from_variant(needs, package.scope),
        ),
        track_features=_down_priority_features(package),
        run_exports={kind: spec_texts(given) for kind, given in exports.items()},
        run_exports_bare=isinstance(needs.get("run_exports"), list),
        tests=tuple(output_tests(sections["tests"], scripts)),
        script=scripts.script_from_section(build.get("script"), default=not scripts.several),
        script_env=script_secret_names(build.get("script")),
        entry_points=tuple(build.get("python", {}).get("entry_points", ())),
        files=_included_file_globs(build.get("files")),
        about={_ABOUT.get(key, key): about_field_value(value) for key, value in sections["about"].items()},
        used=identity.hash_input,
        platform=package.scope.target,
        pins=tuple(_open_pins(needs, exports, sections["tests"])),
        variant={key: str(package.scope.variant[key]) for key in loops},
        binary_relocation=tuple(relocation) if isinstance(relocation, list) else relocation is not False,
        detect_binary_files_with_prefix=detection.get("ignore_binary_files") is not True,
        sources=tuple(source_from_entry(entry) for entry in sections["source"]),
        staged_exports=package.staging is None or package.staging.run_exports,
        settings=build_settings(build, needs),
        extra=dict(extra or {}),
    )


def _run_exports_by_kind(given: Mapping[str, Any] | Sequence[Requirement]) -> dict[str, Sequence[Requirement]]:
    if isinstance(given, dict):
        return {_EXPORTS.get(str(kind), str(kind)): specs for kind, specs in given.items()}
    return {"weak": list(given)} if given else {}


def _open_pins(
    needs: Mapping[str, Any], exports: Mapping[str, Sequence[Requirement]], given: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, int, Pin]]:
    fields = {
        **{section: needs.get(section, ()) for section in ("build", "host", "run")},
        "run_constrained": needs.get("run_constraints", ()),
        **{f"run_exports/{kind}": specs for kind, specs in exports.items()},
        **{f"tests/{number}": test.get("requirements", {}).get("run", ()) for number, test in enumerate(given)},
    }
    for field, entries in fields.items():
        yield from ((field, index, item) for index, item in enumerate(entries) if isinstance(item, Pin))


def _down_priority_features(package: PackageAtVariant) -> tuple[str, ...]:
    """Return the features by which a solver avoids a package, one for each step down."""
    down = package.sections["build"].get("variant", {}).get("down_prioritize_variant") or 0
    return tuple(f"{package.name.lower()}-p-{step}" for step in range(abs(down)))


def _included_file_globs(given: Any) -> tuple[str, ...]:
    return tuple(given.get("include", ()) if isinstance(given, dict) else given or ())
