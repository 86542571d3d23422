"""Descriptions of the packages of a recipe.yaml at a config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kiln.convert import keys
from kiln.convert.comparable_package import (
    ComparablePackage,
    comparable_test_values,
    comparable_value,
    normalized_spec,
    normalized_specs,
    pin_as_text,
    without_default_values,
)
from kiln.convert.expressions import BUILD_NAMES
from kiln.convert.package_tests import PIP_CHECK
from kiln.matchspec_notation import with_version_wildcard
from kiln.model.rendered import Pin
from kiln.recipe_v1.hash_inputs_and_build_strings import SECTIONS, BuildIdentities, requirements_and_run_exports
from kiln.recipe_v1.node_evaluation import rendered_text
from kiln.recipe_v1.variant_exploration import RecipePackages
from kiln.render.v1 import cached_recipe_v1, variant_space_of_config
from kiln.yamltext import PlacedText
from kiln.yamltext.text_with_typed_value import typed_variant_value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.recipe_v1.hash_inputs_and_build_strings import BuildIdentity
    from kiln.recipe_v1.recipe import PackageAtVariant

_STANDING = re.compile(r"\$\{\{ (\w+) \}\}")
_APART = frozenset({"script", "string", "number", "skip", "noarch", "files", "variant"})


def packages_of_recipe_yaml(feedstock: Feedstock, config: BuildConfig, build_platform: str) -> list[ComparablePackage]:
    """Return the packages that are not skipped.

    Raises:
        KilnError: the recipe or a variant file is invalid.
    """
    recipe = cached_recipe_v1(feedstock)
    rendering = RecipePackages(recipe, variant_space_of_config(feedstock, config), config.platform, build_platform)
    identities = BuildIdentities(rendering.pinned_package)
    result: dict[tuple[str, str], ComparablePackage] = {}
    for package in rendering.packages():
        facts = _comparable_package(package, identities.identity_of(package), several=recipe.has_outputs)
        result.setdefault((facts.name, facts.build_string), facts)
    return list(result.values())


def _comparable_package(package: PackageAtVariant, identity: BuildIdentity, *, several: bool) -> ComparablePackage:
    sections = package.sections
    build = sections["build"]
    pinned = {spec.name for spec in requirements_and_run_exports(package) if isinstance(spec, Pin) and spec.subpackage}
    down = build.get("variant", {}).get("down_prioritize_variant")
    values: dict[str, Any] = {
        "package/version": package.version,
        "subdir": "noarch" if package.noarch else package.scope.target,
        "build/noarch": package.noarch,
        **dict(_flattened_section_values("build", {key: value for key, value in build.items() if key not in _APART})),
        "build/number": str(build.get("number", 0)),
        "build/variant/down_prioritize_variant": abs(down) if down else None,
        **_script_and_env_values("build/script", build.get("script"), package),
        "build/files": comparable_value(build.get("files") or ()),
        **_requirement_values(package),
        **_test_section_values(sections["tests"], package),
        **{f"about/{key}": comparable_value(value) for key, value in sections["about"].items()},
        **{f"extra/{key}": comparable_value(value) for key, value in sections["extra"].items()},
        **_source_and_compile_values(package, several=several),
    }
    return ComparablePackage(
        name=package.name.lower(),
        build_string=identity.build_string,
        values=without_default_values(values),
        hash_input={key: str(value) for key, value in identity.hash_input.items() if key not in pinned},
    )


def _flattened_section_values(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flattened_section_values(f"{path}/{key}", inner)
    else:
        yield path, comparable_value(value)


def _rendered_script_line(line: str, package: PackageAtVariant) -> str:
    """Return a line of a script as the build renders it, with the build's own names as variables of the shell."""
    with package.scope.leave_names_unevaluated(BUILD_NAMES):
        text = rendered_text(PlacedText(line, 0, 0, plain=False), package.scope)
    return _STANDING.sub(r"$\1", text).rstrip("\n")


def _script_and_env_values(path: str, given: Mapping[str, Any] | None, package: PackageAtVariant) -> dict[str, Any]:
    script = given or {}
    lines = tuple(_rendered_script_line(line, package) for line in script.get("content", ()))
    env = [*(f"{key}={value}" for key, value in script.get("env", {}).items()), *script.get("secrets", ())]
    return {path: (f"file {script['file']}",) if script.get("file") else lines, f"{path}/env": tuple(sorted(env))}


def _requirement_values(package: PackageAtVariant) -> dict[str, Any]:
    needs = package.sections["requirements"]
    result = {
        f"requirements/{section}": _comparable_specs(needs.get(section, ()), section, package) for section in SECTIONS
    }
    exports = needs.get("run_exports", {})
    kinds = exports if isinstance(exports, dict) else {"weak": exports}
    result |= {
        f"requirements/run_exports/{kind}": _comparable_specs(given, "run_exports", package)
        for kind, given in kinds.items()
    }
    ignored = needs.get("ignore_run_exports", {})
    for kind in ("by_name", "from_package"):
        given = list(ignored.get(kind, ()))
        texts = normalized_specs(given, "run_exports") if kind == "from_package" else tuple(given)
        result[f"requirements/ignore_run_exports/{kind}"] = texts
    return result


def _comparable_specs(given: Sequence[Any], section: str, package: PackageAtVariant) -> tuple[str, ...]:
    return tuple(_comparable_spec(entry, section, package) for entry in given)


def _comparable_spec(given: Any, section: str, package: PackageAtVariant) -> str:
    if isinstance(given, Pin):
        return pin_as_text(given)
    text = str(given)
    bare = " " not in text and section in {"build", "host"}
    if bare and (key := package.scope.version_key_of_package(text)):
        return normalized_spec(with_version_wildcard(f"{text} {package.scope.variant[key]}"), section)
    return text


def _test_section_values(tests: Sequence[Mapping[str, Any]], package: PackageAtVariant) -> dict[str, Any]:
    commands: list[str] = []
    requires: set[str] = set()
    files: dict[str, set[str]] = {"recipe": set(), "source": set()}
    for test in tests:
        if python := test.get("python"):
            commands.extend(f'python -c "import {name}"' for name in python.get("imports", ()))
            versions = python.get("python_version", ())
            requires |= {f"python {version}" for version in versions}
            if python.get("pip_check") is not False:
                commands.append(PIP_CHECK)
                requires.add("pip")
        script = test.get("script", {})
        commands.extend(_rendered_script_line(line, package) for line in script.get("content", ()))
        requires |= set(_comparable_specs(test.get("requirements", {}).get("run", ()), "test", package))
        for kind, names in files.items():
            names |= set(test.get("files", {}).get(kind, ()))
    return comparable_test_values(
        commands, requires, files, (test["downstream"] for test in tests if "downstream" in test)
    )


def _source_and_compile_values(package: PackageAtVariant, *, several: bool) -> dict[str, Any]:
    build = package.sections["build"]
    runs = bool(build.get("script") or build.get("files"))
    if several and not runs:
        return {}
    staging = package.staging
    sources = staging.sections["source"] if staging else package.sections["source"]
    result: dict[str, Any] = {"source": tuple(_source_entry_values(entry) for entry in sources)}
    if staging:
        result |= _script_and_env_values("compile/script", staging.sections["build"].get("script"), package)
        keys_of_variant = {f"{key}={typed_variant_value(value)}" for key, value in package.scope.variant.items()}
        env = result["compile/script/env"]
        result["compile/script/env"] = tuple(item for item in env if item not in keys_of_variant)
        for section in ("build", "host"):
            given = staging.sections["requirements"].get(section, ())
            result[f"compile/requirements/{section}"] = _comparable_specs(given, section, package)
    return result


def _source_entry_values(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = set(keys.SOURCE.values())
    return tuple(sorted((key, comparable_value(value)) for key, value in given.items() if key in names and value))
