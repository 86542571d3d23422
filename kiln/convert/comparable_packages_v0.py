"""Descriptions of the packages of a meta.yaml at a config."""

from __future__ import annotations

import re
from dataclasses import replace
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
from kiln.convert.package_tests import IMPLICIT
from kiln.convert.specs import EXPORTING_LANGUAGES
from kiln.matchspec_notation import with_version_wildcard
from kiln.model.rendered import RUN_EXPORTS, Output, Pin, RenderedConfig, Script, Staging
from kiln.recipe.recipe import script_text
from kiln.render.output_settings import item_texts
from kiln.render.render import evaluated_recipe, render
from kiln.render.unresolved_pins import pin_run_as_build_bounds
from kiln.serialization import mapping_or_empty
from kiln.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.recipe.metadata import Metadata

_ALWAYS_SET = frozenset({"target_platform", "build_platform"})  # variables that each build has
_TRUE = frozenset({"true", "yes", "on", "1"})
_COMPILE_NAMES = ("PKG_NAME", "PKG_VERSION", "PKG_BUILDNUM")


def packages_of_meta_yaml(feedstock: Feedstock, config: BuildConfig) -> list[ComparablePackage]:
    """Return the packages that are not skipped.

    Raises:
        KilnError: the recipe or a variant file is invalid.
    """
    recipe, packages = evaluated_recipe(feedstock, config)
    rendered = render(feedstock, config)
    system = recipe.platform.system
    pairs = zip(packages, rendered.outputs, strict=True)
    return [_comparable_package(package, output, rendered, system) for package, output in pairs if not output.skip]


def _comparable_package(package: Metadata, output: Output, rendered: RenderedConfig, system: str) -> ComparablePackage:
    build = _section_mapping(package, "build")
    values: dict[str, Any] = {
        "package/version": output.version,
        "subdir": output.subdir,
        "build/noarch": output.noarch,
        **dict(_build_section_values(build)),
        "build/number": str(output.build_number),
        "build/variant/down_prioritize_variant": len(output.track_features) or None,
        "build/script": _script_as_lines(output.script),
        "build/script/env": tuple(sorted(item.strip() for item in output.script_env)),
        "build/files": comparable_value(package.output_entry.get("files") or ()),
        **_requirement_values(package, output, rendered.config.pin_run_as_build),
        **_test_section_values(package, system),
        **{f"about/{new}": _about_value(new, output.about.get(old)) for old, new in keys.ABOUT.items()},
        **{f"extra/{key}": comparable_value(value) for key, value in _section_mapping(package, "extra").items()},
        **_source_and_compile_values(package, output, rendered),
    }
    return ComparablePackage(
        name=output.name,
        build_string=output.build_string,
        values=without_default_values(values),
        hash_input=dict(output.used),
        script_keys=_keys_read_by_script(package, output),
        compile_keys=_keys_read_by_compile_script(package, rendered.staging_of_output(output)),
        bound_python=output.noarch != "python" and bool(EXPORTING_LANGUAGES.intersection(output.requirements.run)),
    )


def _keys_read_by_script(package: Metadata, output: Output) -> tuple[str, ...]:
    """Return the keys of the hash that the package's script reads."""
    file = output.script.file
    return tuple(sorted(package.recipe.scripts.keys_used_by_script(file) & output.used.keys())) if file else ()


def _keys_read_by_compile_script(package: Metadata, step: Staging | None) -> tuple[str, ...]:
    """Return the keys, and the variables of the package, that the compile of a recipe with outputs reads."""
    recipe = package.recipe
    if not recipe.output_entries(package.values):
        return ()
    own = () if step is None else package_variables_in_script(step, recipe.source.path.parent)
    return (*own, *sorted(recipe.scripts.keys_used_by_recipe_script(recipe.platform.system) - _ALWAYS_SET))


def _section_mapping(package: Metadata, name: str) -> Mapping[str, Any]:
    return mapping_or_empty(package.values.get(name))


def _build_section_values(build: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    skipped = {"string", "noarch", "number", "force_use_keys", "force_ignore_keys"}
    for old, path in {**keys.TEXTS, **keys.LISTS, **keys.FLAGS_OR_LISTS}.items():
        if old in skipped or old not in build:
            continue
        value = build[old]
        if old == "ignore_run_exports_from":
            value = normalized_specs([str(item) for item in as_list(value) if item], "run_exports")
        is_list = old in keys.LISTS or isinstance(value, list)
        yield "/".join(path), item_texts(value) if is_list else comparable_value(value)
    detection = build.get("detect_binary_files_with_prefix")
    if detection is not None and str(detection).lower() not in _TRUE:
        yield "/".join(keys.DETECTION), "true"


def _script_as_lines(script: Script) -> tuple[str, ...]:
    return (f"file {script.file}",) if script.file else tuple(line.rstrip("\n") for line in script.lines)


def _requirement_values(package: Metadata, output: Output, bounds: Mapping[str, Any]) -> dict[str, Any]:
    pins = {(field, index): pin for field, index, pin in output.pins if not pin.spec}  # pin_run_as_build is read below
    needs = output.requirements
    sections: dict[str, Sequence[str]] = {section: getattr(needs, section) for section in keys.REQUIREMENTS}
    sections |= {f"run_exports/{kind}": given for kind, given in output.run_exports.items()}
    result: dict[str, Any] = {}
    for section, given in sections.items():
        texts = []
        for index, spec in enumerate(given):
            open_pin = pins.get((section, index))
            texts.append(
                normalized_spec(spec, section) if open_pin is None else _open_pin_as_text(open_pin, spec, package)
            )
        first, slash, kind = section.partition("/")
        name = f"{first}/{RUN_EXPORTS.get(kind, kind)}" if slash else keys.REQUIREMENTS[first]
        result[f"requirements/{name}"] = tuple(texts)
    placed = {spec.split()[0] for spec in needs.host or needs.build if " " in spec}
    result["requirements/run"] = tuple(
        _with_pin_run_as_build(spec, bounds, placed) for spec in result["requirements/run"]
    )
    return result


def _with_pin_run_as_build(spec: str, bounds: Mapping[str, Any], placed: set[str]) -> str:
    """Return a bare requirement of ``run`` with the pin that the variant's ``pin_run_as_build`` gives it."""
    if spec not in bounds or spec in EXPORTING_LANGUAGES or spec not in placed:
        return spec
    lower, upper = pin_run_as_build_bounds(bounds[spec])
    return pin_as_text(Pin(name=spec, subpackage=False, min_pin=lower, max_pin=upper))


def _open_pin_as_text(given: Pin, spec: str, package: Metadata) -> str:
    """Return a pin as text; a version of the variant behind its name gives way to the pin once it is closed."""
    words = spec.split()[1:]
    version = package.variant.get(given.name.replace("-", "_"))
    if given.exact or (
        isinstance(version, str) and words == with_version_wildcard(f"{given.name} {version}").split()[1:]
    ):
        words = []
    return pin_as_text(replace(given, build=" ".join(words)))


def _test_section_values(package: Metadata, system: str) -> dict[str, Any]:
    section = _section_mapping(package, "test")
    folder = package.recipe.source.path.parent
    named = [str(section["script"])] if section.get("script") else []
    names = dict.fromkeys(
        [*named, *(name for name in IMPLICIT if _runs_recipe_test_files(package) and (folder / name).is_file())]
    )
    platforms = {"unix": system != "win", "win": system == "win", None: True}
    run = [IMPLICIT[name][1] for name in names if name in IMPLICIT and platforms[IMPLICIT[name][0]]]
    imports = [f'python -c "import {name}"' for name in _as_text_list(section.get("imports"))]
    commands = [*run, *_as_text_list(section.get("commands"))]
    files = {
        "recipe": [*_as_text_list(section.get("files")), *names],
        "source": _as_text_list(section.get("source_files")),
    }
    return comparable_test_values(
        [*imports, *commands], _as_text_list(section.get("requires")), files, _as_text_list(section.get("downstreams"))
    )


def _runs_recipe_test_files(package: Metadata) -> bool:
    """Return whether conda-build runs the test files of the recipe's folder for a package."""
    return not package.recipe.output_entries(package.values) or not package.is_output


def _as_text_list(value: Any) -> list[str]:
    return [text.rstrip("\n") for text in item_texts(value)]


def _about_value(new: str, value: Any) -> Any:
    is_list = new == "license_file" and value is not None
    return comparable_value(as_list(value) if is_list else value)


def _source_and_compile_values(package: Metadata, output: Output, rendered: RenderedConfig) -> dict[str, Any]:
    """Return what a package takes from the recipe's top level: its sources, and the compile if it has a script."""
    runs = bool(output.script.file or output.script.lines or package.output_entry.get("files"))
    several = bool(package.recipe.output_entries(package.values))
    if several and not runs:
        return {}
    result: dict[str, Any] = {
        "source": tuple(_source_entry_values(element) for element in as_list(package.values.get("source")))
    }
    step = rendered.staging_of_output(output)
    if several and step is not None and (step.script.file or step.script.lines):
        result["compile/script"] = _script_as_lines(step.script)
        own = package_variables_in_script(step, package.recipe.source.path.parent)
        result["compile/script/env"] = tuple(sorted((*step.script_env, *(f"{key}={own[key]}" for key in own))))
        for section in ("build", "host"):
            given = list(getattr(step.requirements, section))
            result[f"compile/requirements/{section}"] = normalized_specs(given, section)
    return result


def _source_entry_values(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    pairs = []
    for old, new in keys.SOURCE.items():
        if given.get(old) not in (None, "", []):
            value = given[old]
            pairs.append((new, comparable_value(as_list(value) if old in keys.SOURCE_LISTS else value)))
    return tuple(sorted(pairs))


def package_variables_in_script(staging: Staging, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that the script of a compile names, with their values."""
    if staging.package is None:
        return {}
    script = staging.script
    text = script_text(recipe_folder, script.file) if script.file is not None else "\n".join(script.lines)
    values = zip(_COMPILE_NAMES, map(str, staging.package), strict=True)
    return {name: value for name, value in values if re.search(rf"\b{name}\b", text)}
