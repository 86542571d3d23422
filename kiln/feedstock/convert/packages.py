"""A package's description in one form for both recipe formats, so that two can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kiln.base.serialization import mapping_or_empty
from kiln.base.yaml import PlacedText, typed_variant_value
from kiln.conda.specs import with_version_wildcard
from kiln.feedstock.convert import composition
from kiln.feedstock.convert.conditions import EXPORTING_LANGUAGES, LOOSE, strict_match_spec
from kiln.feedstock.convert.expressions import BUILD_NAMES
from kiln.recipe.pins import pin_run_as_build_bounds
from kiln.recipe.render import evaluated_recipe, render
from kiln.recipe.rendered import RUN_EXPORTS, Output, Pin, RenderedConfig, Script, Staging
from kiln.recipe.v0.metadata import script_text
from kiln.recipe.v0.rendering import item_texts
from kiln.recipe.v1.nodes import rendered_text
from kiln.recipe.v1.rendering import cached_recipe_v1, variant_space_of_config
from kiln.recipe.v1.sections import canonical_spec
from kiln.recipe.v1.variants import SECTIONS, BuildIdentities, RecipePackages, requirements_and_run_exports
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.v0.metadata import Metadata
    from kiln.recipe.v1.recipe import PackageAtVariant
    from kiln.recipe.v1.variants import BuildIdentity


PIP_CHECK = "pip check"


# The files of a recipe that test its only package, whether or not the section says so: how each is run.
IMPLICIT = {
    "run_test.sh": ("unix", "bash -e ./run_test.sh"),
    "run_test.bat": ("win", "call run_test.bat"),
    "run_test.py": (None, "python run_test.py"),
    "run_test.pl": (None, "perl run_test.pl"),
    "run_test.r": (None, "Rscript run_test.r"),
}


Values = Mapping[str, Any]

# Keys that only one of the formats hashes, for all packages alike.
_UNEQUAL = frozenset(
    """python r_base perl lua target_platform build_platform channel_sources MACOSX_DEPLOYMENT_TARGET
    OSX_ARCH""".split()  # noqa: SIM905 - a word list
)
_HASH = re.compile(r"h[0-9a-f]{7}(?![0-9a-f])")
_IMPORT = re.compile(r'python -c "import [\w.]+"')


@dataclass(frozen=True, kw_only=True)
class ComparablePackage:
    """A package: ``values`` by what they are, such as ``requirements/host``, and what went into its hash.

    ``script_keys`` are the keys that its script reads as variables, ``compile_keys`` those that the compile reads.
    ``bound_python`` is set where the bound of a language in ``run`` is conda-build's own.
    """

    name: str
    build_string: str
    values: Values
    hash_input: Mapping[str, str]
    script_keys: tuple[str, ...] = ()
    compile_keys: tuple[str, ...] = ()
    bound_python: bool = False

    @property
    def masked_build_string(self) -> str:
        """The build string without its hash."""
        return _HASH.sub("h#", self.build_string, count=1)

    @property
    def comparable_hash_input(self) -> Mapping[str, str]:
        """The hash input without the entries that the two formats count differently for all packages."""
        return {key: value for key, value in self.hash_input.items() if key not in _UNEQUAL}


def normalized_specs(given: list[str], section: str) -> tuple[str, ...]:
    """Return requirements in one notation."""
    return tuple(normalized_spec(spec, section) for spec in given)


def normalized_spec(spec: str, section: str) -> str:
    """Return a requirement in one notation."""
    words = " ".join(spec.split())
    if section in LOOSE:
        words = with_version_wildcard(words)
    try:
        return canonical_spec(strict_match_spec(words, section))
    except ValueError:
        return words


def pin_as_text(pin: Pin) -> str:
    """Return an open pin as text."""
    kind = "pin_subpackage" if pin.subpackage else "pin_compatible"
    lower, upper = pin.lower or pin.min_pin or "", pin.upper or pin.max_pin or ""
    bounds = "exact" if pin.exact else f"{lower} to {upper}"
    return f"{kind} {pin.name.lower()} {bounds} {pin.build or ''}".rstrip()


def comparable_test_values(
    commands: list[str], requires: Iterable[str], files: Mapping[str, Iterable[str]], downstream: Iterable[str]
) -> dict[str, Any]:
    """Return the values of a package's tests; imports and pip's check are done in any order."""
    free = [line for line in commands if line == PIP_CHECK or _IMPORT.fullmatch(line)]
    return {
        "tests/imports": tuple(sorted(set(free))),
        "tests/commands": tuple(line for line in commands if line not in free),
        "tests/requires": tuple(sorted(set(normalized_specs(list(requires), "test")))),
        **{f"tests/files/{kind}": tuple(sorted(set(names))) for kind, names in files.items()},
        "tests/downstream": tuple(downstream),
    }


def without_default_values(values: Values) -> dict[str, Any]:
    """Return values without those that say what is so anyway."""
    result = {path: value for path, value in values.items() if value not in (None, "", (), False, "false", [], {})}
    result.pop("build/number", None)
    relocation = "build/dynamic_linking/binary_relocation"
    if relocation in values:
        result[relocation] = values[relocation]
    if result.get(relocation) in {True, "true"}:
        del result[relocation]
    return {**result, "build/number": str(values.get("build/number", "0") or "0")}


def comparable_value(value: Any) -> Any:
    """Return a value whose kind does not matter: texts, and tuples of texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return tuple(comparable_value(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((str(key), comparable_value(item)) for key, item in value.items()))
    return value if value is None else str(value).strip()


_STANDING = re.compile(r"\$\{\{ (\w+) \}\}")
_APART = frozenset({"script", "string", "number", "skip", "noarch", "files", "variant"})


def packages_of_recipe_yaml(feedstock: Feedstock, config: BuildConfig, build_platform: str) -> list[ComparablePackage]:
    """Return the packages that are not skipped."""
    recipe = cached_recipe_v1(feedstock)
    rendering = RecipePackages(recipe, variant_space_of_config(feedstock, config), config.platform, build_platform)
    identities = BuildIdentities(rendering.pinned_package)
    result: dict[tuple[str, str], ComparablePackage] = {}
    for package in rendering.packages():
        facts = _comparable_package_v1(package, identities.identity_of(package), several=recipe.has_outputs)
        result.setdefault((facts.name, facts.build_string), facts)
    return list(result.values())


def _comparable_package_v1(package: PackageAtVariant, identity: BuildIdentity, *, several: bool) -> ComparablePackage:
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
        **_requirement_values_v1(package),
        **_test_section_values_v1(sections["tests"], package),
        **{f"about/{key}": comparable_value(value) for key, value in sections["about"].items()},
        **{f"extra/{key}": comparable_value(value) for key, value in sections["extra"].items()},
        **_source_and_compile_values_v1(package, several=several),
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


def _requirement_values_v1(package: PackageAtVariant) -> dict[str, Any]:
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


def _test_section_values_v1(tests: Sequence[Mapping[str, Any]], package: PackageAtVariant) -> dict[str, Any]:
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


def _source_and_compile_values_v1(package: PackageAtVariant, *, several: bool) -> dict[str, Any]:
    build = package.sections["build"]
    runs = bool(build.get("script") or build.get("files"))
    if several and not runs:
        return {}
    staging = package.staging
    sources = staging.sections["source"] if staging else package.sections["source"]
    result: dict[str, Any] = {"source": tuple(_source_entry_values_v1(entry) for entry in sources)}
    if staging:
        result |= _script_and_env_values("compile/script", staging.sections["build"].get("script"), package)
        keys_of_variant = {f"{key}={typed_variant_value(value)}" for key, value in package.scope.variant.items()}
        env = result["compile/script/env"]
        result["compile/script/env"] = tuple(item for item in env if item not in keys_of_variant)
        for section in ("build", "host"):
            given = staging.sections["requirements"].get(section, ())
            result[f"compile/requirements/{section}"] = _comparable_specs(given, section, package)
    return result


def _source_entry_values_v1(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    names = set(composition.SOURCE.values())
    return tuple(sorted((key, comparable_value(value)) for key, value in given.items() if key in names and value))


_ALWAYS_SET = frozenset({"target_platform", "build_platform"})  # variables that each build has
_TRUE = frozenset({"true", "yes", "on", "1"})
_COMPILE_NAMES = ("PKG_NAME", "PKG_VERSION", "PKG_BUILDNUM")


def packages_of_meta_yaml(feedstock: Feedstock, config: BuildConfig) -> list[ComparablePackage]:
    """Return the packages that are not skipped."""
    recipe, packages = evaluated_recipe(feedstock, config)
    rendered = render(feedstock, config)
    system = recipe.platform.system
    pairs = zip(packages, rendered.outputs, strict=True)
    return [_comparable_package_v0(package, output, rendered, system) for package, output in pairs if not output.skip]


def _comparable_package_v0(
    package: Metadata, output: Output, rendered: RenderedConfig, system: str
) -> ComparablePackage:
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
        **_requirement_values_v0(package, output, rendered.config.pin_run_as_build),
        **_test_section_values_v0(package, system),
        **{f"about/{new}": _about_value(new, output.about.get(old)) for old, new in composition.ABOUT.items()},
        **{f"extra/{key}": comparable_value(value) for key, value in _section_mapping(package, "extra").items()},
        **_source_and_compile_values_v0(package, output, rendered),
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
    for old, path in {**composition.TEXTS, **composition.LISTS, **composition.FLAGS_OR_LISTS}.items():
        if old in skipped or old not in build:
            continue
        value = build[old]
        if old == "ignore_run_exports_from":
            value = normalized_specs([str(item) for item in as_list(value) if item], "run_exports")
        is_list = old in composition.LISTS or isinstance(value, list)
        yield "/".join(path), item_texts(value) if is_list else comparable_value(value)
    detection = build.get("detect_binary_files_with_prefix")
    if detection is not None and str(detection).lower() not in _TRUE:
        yield "/".join(composition.DETECTION), "true"


def _script_as_lines(script: Script) -> tuple[str, ...]:
    return (f"file {script.file}",) if script.file else tuple(line.rstrip("\n") for line in script.lines)


def _requirement_values_v0(package: Metadata, output: Output, bounds: Mapping[str, Any]) -> dict[str, Any]:
    pins = {(field, index): pin for field, index, pin in output.pins if not pin.spec}  # pin_run_as_build is read below
    needs = output.requirements
    sections: dict[str, Sequence[str]] = {section: getattr(needs, section) for section in composition.REQUIREMENTS}
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
        name = f"{first}/{RUN_EXPORTS.get(kind, kind)}" if slash else composition.REQUIREMENTS[first]
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


def _test_section_values_v0(package: Metadata, system: str) -> dict[str, Any]:
    section = _section_mapping(package, "test")
    folder = package.recipe.source.path.parent
    named = [str(section["script"])] if section.get("script") else []
    of_folder = not package.recipe.output_entries(package.values) or not package.is_output  # as conda-build does
    names = dict.fromkeys([*named, *(name for name in IMPLICIT if of_folder and (folder / name).is_file())])
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


def _as_text_list(value: Any) -> list[str]:
    return [text.rstrip("\n") for text in item_texts(value)]


def _about_value(new: str, value: Any) -> Any:
    is_list = new == "license_file" and value is not None
    return comparable_value(as_list(value) if is_list else value)


def _source_and_compile_values_v0(package: Metadata, output: Output, rendered: RenderedConfig) -> dict[str, Any]:
    """Return what a package takes from the recipe's top level: its sources, and the compile if it has a script."""
    runs = bool(output.script.file or output.script.lines or package.output_entry.get("files"))
    several = bool(package.recipe.output_entries(package.values))
    if several and not runs:
        return {}
    result: dict[str, Any] = {
        "source": tuple(_source_entry_values_v0(element) for element in as_list(package.values.get("source")))
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


def _source_entry_values_v0(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    pairs = []
    for old, new in composition.SOURCE.items():
        if given.get(old) not in (None, "", []):
            value = given[old]
            pairs.append((new, comparable_value(as_list(value) if old in composition.SOURCE_LISTS else value)))
    return tuple(sorted(pairs))


def package_variables_in_script(staging: Staging, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that the script of a compile names, with their values."""
    if staging.package is None:
        return {}
    script = staging.script
    text = script_text(recipe_folder, script.file) if script.file is not None else "\n".join(script.lines)
    values = zip(_COMPILE_NAMES, map(str, staging.package), strict=True)
    return {name: value for name, value in values if re.search(rf"\b{name}\b", text)}
