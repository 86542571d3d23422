"""Render a config of a feedstock whose recipe is recipe.yaml, as rattler-build does, into the types of any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.model.rendered import Output, OutputTests, Pin, Rendered, Requirements, Script, Source
from kiln.recipe_v1.exploration import Rendering
from kiln.recipe_v1.identity import Identities
from kiln.recipe_v1.recipe import RecipeV1
from kiln.recipe_v1.requirement import OpenPin
from kiln.recipe_v1.variant_file import VariantFileV1
from kiln.variants.files import variant_file
from kiln.variants.platform import Platform
from kiln.variants.space import Space

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock
    from kiln.recipe_v1.identity import Identity
    from kiln.recipe_v1.recipe import PackageAt
    from kiln.recipe_v1.requirement import Requirement
    from kiln.variants.files import VariantSource

# The keys of ``about`` and of ``run_exports``, and what conda-build calls them.
_ABOUT = {"homepage": "home", "repository": "dev_url", "documentation": "doc_url"}
_EXPORTS = {"weak_constraints": "weak_constrains", "strong_constraints": "strong_constrains"}
_SHARED: dict[tuple[object, ...], RecipeV1] = {}


def render_v1(feedstock: Feedstock, config: BuildConfig, build_platform: str) -> Rendered:
    """Return every output of a config, in the order in which they can be built.

    Raises:
        KilnError: the recipe or a variant file is at fault.
    """
    recipe = _recipe(feedstock)
    space = space_at(feedstock, config)
    rendering = Rendering(recipe, space, config.platform, build_platform)
    identities = Identities(rendering.pinned)
    loops = sorted(space.loops)
    outputs: dict[tuple[str, ...], Output] = {}
    for package in rendering.packages():
        made = _output(package, identities.of(package), loops)
        outputs.setdefault((made.name, made.version, made.build_string, made.subdir), made)
    return Rendered(config=config, outputs=tuple(outputs.values()), **_of_whole(recipe, rendering))


def _recipe(feedstock: Feedstock) -> RecipeV1:
    """Return the recipe, shared between the configs of one process while it does not change."""
    status = feedstock.recipe_v1.stat()
    key = (feedstock.recipe_v1, status.st_mtime_ns, status.st_size)
    if key not in _SHARED:
        _SHARED.clear()
        _SHARED[key] = RecipeV1.read(feedstock.recipe_v1)
    return _SHARED[key]


def space_at(feedstock: Feedstock, config: BuildConfig) -> Space:
    """Return the variants of a config.

    Raises:
        KilnError: a variant file is at fault.
    """
    return Space.of(_spec(feedstock, config))


def _spec(feedstock: Feedstock, config: BuildConfig) -> dict[str, Any]:
    """Return the variants of a config: its file's, and what a variant file of the recipe gives besides."""
    spec: dict[str, Any] = {key: list(values) for key, values in config.variant.items()}
    groups = [list(group) for group in config.zip_keys]
    beside = _beside(feedstock, config.platform)
    if beside is not None:
        more = {key: value for key, value in beside.values.items() if key not in spec and isinstance(value, list)}
        groups += [group for group in more.pop("zip_keys", []) if more.keys() >= set(group)]
        spec = {**more, **spec}
    spec.setdefault("target_platform", [config.platform])
    return {**spec, **({"zip_keys": groups} if groups else {})}


def _beside(feedstock: Feedstock, subdir: str) -> VariantSource | None:
    """Return the one variant file beside the recipe that rattler-build takes."""
    system, _, arch = subdir.partition("-")
    platform = Platform(system=system, arch=arch)
    new, old = feedstock.recipe / "variants.yaml", feedstock.recipe / "conda_build_config.yaml"
    if new.is_file():
        own = VariantFileV1(new, "recipe/variants.yaml")
        return own.source(platform, own.keys)
    if old.is_file():
        file = variant_file(old, "recipe/conda_build_config.yaml")
        return file.source(platform, file.keys)
    return None


def _of_whole(recipe: RecipeV1, rendering: Rendering) -> dict[str, Any]:
    """Return what a config's outputs share: the first package's sources, and the recipe's own name."""
    first = next(rendering.packages(), None)
    if first is None:
        return {}
    staging = first.staging or {}
    sources = staging.get("source") or first.sections.get("source", [])
    name, version = recipe.identity_at(first)
    script = staging.get("build", {}).get("script")
    needs = staging.get("requirements", {})
    return {
        "name": name,
        "version": version,
        "build_number": first.sections["build"].get("number", 0),
        "sources": tuple(_source(each) for each in sources),
        "compile": _script(script),
        "compile_requirements": Requirements(build=_specs(needs.get("build", ())), host=_specs(needs.get("host", ()))),
    }


def _output(package: PackageAt, identity: Identity, loops: Sequence[str]) -> Output:
    sections, build = package.sections, package.sections["build"]
    needs, exports = sections["requirements"], _exports(sections["requirements"].get("run_exports", {}))
    linking, detection = build.get("dynamic_linking", {}), build.get("prefix_detection", {})
    relocation = linking.get("binary_relocation")
    return Output(
        name=package.name.lower(),
        version=package.version,
        build_number=build.get("number", 0),
        build_string=identity.build_string,
        subdir="noarch" if package.noarch else package.scope.target,
        noarch=package.noarch,
        requirements=Requirements(
            build=_specs(needs.get("build", ())),
            host=_specs(needs.get("host", ())),
            run=_specs(needs.get("run", ())),
            run_constrained=_specs(needs.get("run_constraints", ())),
        ),
        track_features=_features(package),
        run_exports={kind: _specs(specs) for kind, specs in exports.items()},
        run_exports_bare=isinstance(needs.get("run_exports"), list),
        tests=_tests(sections["tests"]),
        script=_script(build.get("script")),
        entry_points=tuple(build.get("python", {}).get("entry_points", ())),
        files=_files(build.get("files")),
        about={_ABOUT.get(key, key): _about(value) for key, value in sections["about"].items()},
        used=identity.hash_input,
        platform=package.scope.target,
        pins=tuple(_pins(needs, exports)),
        variant={key: str(package.scope.variant[key]) for key in loops},
        binary_relocation=tuple(relocation) if isinstance(relocation, list) else relocation is not False,
        detect_binary_files_with_prefix=detection.get("ignore_binary_files") is not True,
    )


def _about(value: Any) -> str | tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else str(value)


def _specs(given: Sequence[Requirement]) -> tuple[str, ...]:
    """Return requirements as text; an open pin is the bare name, as it is in a recipe of conda-build."""
    return tuple(each.name if isinstance(each, OpenPin) else each for each in given)


def _exports(given: Mapping[str, Any] | Sequence[Requirement]) -> dict[str, Sequence[Requirement]]:
    if isinstance(given, dict):
        return {_EXPORTS.get(str(kind), str(kind)): specs for kind, specs in given.items()}
    return {"weak": list(given)} if given else {}


def _pins(needs: Mapping[str, Any], exports: Mapping[str, Sequence[Requirement]]) -> Iterator[tuple[str, int, Pin]]:
    fields = {
        **{section: needs.get(section, ()) for section in ("build", "host", "run")},
        "run_constrained": needs.get("run_constraints", ()),
        **{f"run_exports/{kind}": specs for kind, specs in exports.items()},
    }
    for field, specs in fields.items():
        yield from ((field, index, _pin(each)) for index, each in enumerate(specs) if isinstance(each, OpenPin))


def _pin(given: OpenPin) -> Pin:
    """Return a pin; a bound of x's says how many parts of the version count, any other is a version itself."""
    lower, upper = given.lower, given.upper
    return Pin(
        name=given.name,
        subpackage=given.subpackage,
        min_pin=lower if _counts(lower) else None,
        max_pin=upper if _counts(upper) else None,
        lower=None if _counts(lower) else lower,
        upper=None if _counts(upper) else upper,
        exact=given.exact,
        by_engine=not given.subpackage,
    )


def _counts(bound: str | None) -> bool:
    return bound is not None and set(bound) <= {"x", "."}


def _features(package: PackageAt) -> tuple[str, ...]:
    """Return the features by which a solver avoids a package, one for each step down."""
    down = package.sections["build"].get("variant", {}).get("down_prioritize_variant") or 0
    return tuple(f"{package.name.lower()}-p-{step}" for step in range(abs(down)))


def _files(given: Any) -> tuple[str, ...]:
    return tuple(given.get("include", ()) if isinstance(given, dict) else given or ())


def _script(given: Mapping[str, Any] | None) -> Script:
    if not given:
        return Script()
    if given.get("file"):
        return Script(file=given["file"])
    return Script(lines=tuple(given.get("content", ())))


def _tests(given: Sequence[Mapping[str, Any]]) -> OutputTests:
    """Return what the tests of an output import, run and require, all of them together."""
    python = [test["python"] for test in given if "python" in test]
    scripts = [test for test in given if "script" in test]
    return OutputTests(
        imports=tuple(name for test in python for name in test.get("imports", ())),
        commands=tuple(line for test in scripts for line in _script(test["script"]).lines),
        requires=tuple(spec for test in scripts for spec in _specs(test.get("requirements", {}).get("run", ()))),
        files=tuple(name for test in scripts for name in test.get("files", {}).get("recipe", ())),
        source_files=tuple(name for test in scripts for name in test.get("files", {}).get("source", ())),
    )


def _source(given: Mapping[str, Any]) -> Source:
    return Source(
        url=tuple(given.get("url", ())),
        sha256=given.get("sha256"),
        git_url=given.get("git"),
        git_rev=given.get("rev") or given.get("tag") or given.get("branch"),
        path=given.get("path"),
        folder=given.get("target_directory"),
        patches=tuple(given.get("patches", ())),
    )
