"""The keys of meta.yaml and their faults, and the checks of a rendered package."""

from __future__ import annotations

from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import RecipeFault, did_you_mean
from kiln.base.patterns import invalid_name_reason, lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import list_or_empty, mapping_or_empty, mappings_in_list
from kiln.conda import specs
from kiln.recipe.v0.used_keys import SECTIONS, KeyPath, spec_package_name, unsupported_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.recipe.rendered import KeyFault
    from kiln.recipe.v0.metadata import Metadata
    from kiln.recipe.v0.recipe import Recipe


ANY = "*"  # stands for all keys of a section
_NESTED = ("build", "requirements", "test", "about")  # sections that an output may have, too
_ONLY_OUTPUTS = {("test", "script")}
_WITHOUT_EFFECT = (
    "outputs",
    "test",
    "script_interpreter",
)  # conda-build's manual has it, and its code does not read it
# The presence of these keys counts, whatever their values.
_BY_PRESENCE = {("source", "path_via_symlink"), ("source", "no_hoist")}
_KEY = lazy_pattern(r"(\s*(?:-\s+)*)['\"]?([A-Za-z_][\w-]*)['\"]?\s*:(?:\s|$)")


@lru_cache(maxsize=1)
def recipe_keys() -> Mapping[tuple[str, str], str]:
    """Return the keys by section and name, each with the reason why it is refused; empty for one that is honored."""
    rows = files.csv_rows(Path(__file__).parent / "keys.csv")
    return {(row["section"], row["key"]): row["note"] if row["support"] != "honored" else "" for row in rows}


def key_faults(values: Mapping[str, Any], text: str, file: str) -> tuple[KeyFault, ...]:
    """Return the faults of a recipe's keys; ``text`` is the recipe as written, in which they are located."""
    faults = [_key_fault(path, kind, why, text, file) for path, kind, why in _faulty_key_paths(values)]
    return tuple({(fault.key, fault.what): fault for fault in faults}.values())


def _faulty_key_paths(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path of each key at fault, with its kind (``unknown``, ``refused`` or ``value``) and the reason."""
    sections = {section for section, _ in recipe_keys()}
    for section, content in values.items():
        if section not in sections:
            yield (str(section),), "unknown", did_you_mean(str(section), sections)
            continue
        for entry in mappings_in_list(content):
            yield from _faulty_keys_of_section(section, entry, (section,))
            if section == "outputs":
                for nested in _NESTED:
                    for part in mappings_in_list(entry.get(nested)):
                        yield from _faulty_keys_of_section(nested, part, ("outputs", nested))
    yield from ((path, "value", why) for path, why in unsupported_values(values))


def _faulty_keys_of_section(
    section: str, entry: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[KeyPath, str, str]]:
    table = recipe_keys()
    if (section, ANY) in table:
        return
    for key, value in entry.items():
        why = table.get((section, str(key)))
        if (*path, key) == _WITHOUT_EFFECT:
            continue
        if why is None or ((section, str(key)) in _ONLY_OUTPUTS and path[0] != "outputs"):
            yield (*path, str(key)), "unknown", _similar_key_hint(section, str(key))
        elif why and (value or (section, str(key)) in _BY_PRESENCE):
            yield (*path, str(key)), "refused", why


def _similar_key_hint(section: str, key: str) -> str:
    """Return the names like a misspelt key: those of its section first, then the sections that have the key."""
    names = [name for within, name in recipe_keys() if within == section]
    elsewhere = [within for within, name in recipe_keys() if name == key]
    if elsewhere and section not in elsewhere:
        return f"{key} belongs to {' or '.join(elsewhere)}"
    return did_you_mean(key, names) or f"none of the {len(names)} keys of {section} is like it"


def _fault(**fields: Any) -> KeyFault:
    from kiln.recipe.rendered import KeyFault  # an expansion, which starts with this module, has no faults to report

    return KeyFault(**fields)


def _key_fault(path: KeyPath, kind: str, why: str, text: str, file: str) -> KeyFault:
    key, at = "/".join(path), _place_of_key(path, text, file)
    if kind == "unknown":
        what = f"unknown section {key!r}" if len(path) == 1 else f"unknown key {key!r}"
        return _fault(key=key, known=False, what=what, at=at, why="conda-build ignores it without a word", hint=why)
    what = f"the engine rattler-build does not have {key!r}"
    if kind == "value":
        what = f"the engine rattler-build does not have this value of {key!r}"
    return _fault(key=key, known=True, what=what, at=at, why=why, hint="leave it out, or --engine conda-build")


@lru_cache(maxsize=256)  # configs share their keys
def _place_of_key(path: KeyPath, text: str, file: str) -> Place:
    """Return the place of a key in the recipe as written, else that of its section."""
    section = Place(file=file)
    for number, column, keys in _key_paths_with_positions(text.splitlines()):
        if keys == path:
            return Place(file=file, line=number, column=column)
        if keys == path[:1] and not section.line:
            section = Place(file=file, line=number, column=column)
    return section


def _key_paths_with_positions(lines: Iterable[str]) -> Iterator[tuple[int, int, KeyPath]]:
    """Yield each key of a recipe's text: its line, its column, and the keys that it is below of, by indentation."""
    above: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if match := _KEY.match(line):
            indent = len(match[1])
            while above and above[-1][0] >= indent:
                above.pop()
            above.append((indent, match[2]))
            yield number, indent + 1, tuple(name for _, name in above)


_NOARCH = frozenset({"python", "generic", "True"})
_FORBIDDEN = frozenset("=@#$%^&*:;\"'\\|<>?/ ")
_BOUND = lazy_pattern(r"[<>=!~|,]")  # what conda-build's own build string may have of a requirement
_IGNORED = lazy_pattern(r"\[[^\]=]*\].*$")  # brackets without a key=value, with what follows: conda skips them


def require_valid_identity(package: Metadata) -> None:
    """Refuse a name, version or build number that conda-build refuses, at a variant that is known.

    Raises:
        RecipeFault: with the section of the recipe that is at fault.
    """
    if package.name != package.name.lower():
        at = package.recipe.place_of_section("package")
        raise RecipeFault(f"the package name {package.name!r} is not lower case", at=at)
    _require_allowed_characters(package, package.name, "package name", _FORBIDDEN | {"!"})
    _require_allowed_characters(package, package.version, "version", _FORBIDDEN | {"-"})
    number = package.section_value("build", "number")
    try:
        if int(number or 0) >= 0:
            return
    except (TypeError, ValueError):
        pass
    raise RecipeFault(f"the build number is {number!r}", at=package.recipe.place_of_section("build"))


def _require_allowed_characters(package: Metadata, text: str, kind: str, forbidden: frozenset[str]) -> None:
    at = package.place_of_section("package")
    if characters := sorted(forbidden.intersection(text)):
        raise RecipeFault(f"the {kind} {text!r} has the character {characters[0]!r}", at=at)
    if text and (why := invalid_name_reason(text, kind)):
        raise RecipeFault(f"{text!r} is not a valid {kind}", at=at, why=why)


def require_valid_package(package: Metadata, values: Mapping[str, Any]) -> None:
    """Refuse a package that conda-build refuses; ``values`` are those of the whole recipe at its variant."""
    require_valid_identity(package)
    if package.section_value("build", "string"):
        _require_allowed_characters(package, package.build_string, "build string", _FORBIDDEN | {"-", "!"})
    else:
        text = _BOUND.sub("", package.build_string).replace("*", "")  # the asterisk is that of a variant's version
        _require_allowed_characters(package, text, "build string", frozenset())
    if not package.name:
        at = package.place_of_section("package")
        raise RecipeFault("a package has no name", at=at, hint="name: of package or output")
    if not package.version or package.version.startswith("."):
        what = f"{package.name} has {f'the version {package.version!r}' if package.version else 'no version'}"
        raise RecipeFault(what, at=package.place_of_section("package"), hint="version: of package or output")
    if package.noarch and str(package.noarch) not in _NOARCH:
        what = f"{package.name}: noarch is {str(package.noarch)[:40]!r}"
        raise RecipeFault(what, at=package.place_of_section("build"), hint="python or generic")
    for section in SECTIONS:
        if None in _written_requirements(package, values, section):
            what = f"{package.name}: requirements/{section} has an empty item"
            raise RecipeFault(what, at=package.place_of_section("requirements"))
        for spec in package.requirements.get(section, ()):
            if fault := specs.invalid_spec_reason(_IGNORED.sub("", spec)) or _self_requirement_reason(
                package, section, spec
            ):
                what = f"{package.name}: {spec[:80]!r} in requirements/{section}"
                raise RecipeFault(what, at=_place_of_item(package, spec), why=fault)


def _written_requirements(package: Metadata, values: Mapping[str, Any], section: str) -> list[object]:
    """Return the items of a section of requirements as the recipe has them."""
    entries = package.recipe.output_entries(values) if package.is_output else [values]
    own = next((entry for entry in entries if not package.is_output or entry.get("name") == package.name), {})
    requirements = own.get("requirements")
    return list_or_empty(requirements.get(section) if isinstance(requirements, dict) else requirements)


def _place_of_item(package: Metadata, text: str) -> Place:
    """Return the place of a requirement that a line of the recipe writes out, else that of the requirements."""
    source = package.recipe.source
    for line in source.text.lines:
        if line.text.strip().strip("- '\"") == text:
            return Place(file=source.name, line=line.number, column=line.text.index(text) + 1)
    return package.place_of_section("requirements")


def value_faults(recipe: Recipe, packages: Sequence[Metadata]) -> tuple[KeyFault, ...]:
    """Return what has no final value: names of a source's revision, versions, and build strings with a bound."""
    faults = [
        _fault(
            key=name,
            known=False,
            what=f"{name} has no value, and is empty text",
            at=recipe.place_of_section("source"),
            why="the recipe's first source is not a git repository of the feedstock that has it; no other is fetched",
            hint="write the value into the recipe",
        )
        for name in sorted(recipe.undefined)
    ]
    for package in packages:
        if package.version == "None":
            faults.append(
                _fault(
                    key="package/version",
                    known=True,
                    what=f"{package.name} has the version 'None'",
                    at=package.place_of_section("package"),
                    why="the template gives it no value",
                    hint="write the version into the recipe",
                )
            )
        if _BOUND.search(package.build_string):  # conda-build writes a version there, once the host is solved
            faults.append(
                _fault(
                    key="requirements/host",
                    known=True,
                    what=f"{package.name} has the build string {package.build_string!r}",
                    at=_place_of_bound(package),
                    why="a requirement bounds the version that the build string names, which a solver chooses",
                    hint="require the package once, without a bound beside the variant's version",
                )
            )
    return tuple(faults)


def _place_of_bound(package: Metadata) -> Place:
    """Return the place of the requirement that bounds a version in the build string."""
    from kiln.recipe.v0.metadata import LANGUAGES

    names = {name for _, packages, _ in LANGUAGES for name in packages}
    for section in ("host", "build"):
        for spec in package.requirements.get(section, ()):
            if spec_package_name(spec) in names and _BOUND.search(spec):
                return _place_of_item(package, spec)
    return package.place_of_section("requirements")


def ignored_test_warnings(packages: Sequence[Metadata]) -> Iterator[RecipeFault]:
    """Yield a warning for what conda-build ignores: tests of an output named like its recipe, and interpreters."""
    for package in packages:
        test, of = package.output_entry.get("test"), f"of the output {package.name}"
        at = _place_of_output_test(package)
        if test and package.parent and not package.is_output:
            why = "it has the recipe's name, so it has the recipe's own section test, if any"
            yield RecipeFault(f"the tests {of} are ignored", at=at, why=why, hint="move them to the section test")
        if _WITHOUT_EFFECT[-1] in mapping_or_empty(test):
            what = f"the test {of} has a {_WITHOUT_EFFECT[-1]}, which is ignored"
            yield RecipeFault(what, at=at, why="the ending of its script decides", hint="remove the key")


def _place_of_output_test(package: Metadata) -> Place:
    """Return the place of an output's tests in the recipe as written, else that of the outputs."""
    source, own = package.recipe.source, False
    lines = source.text.text.splitlines()
    for number, column, keys in _key_paths_with_positions(lines):
        if keys == ("outputs", "name"):
            name = lines[number - 1].partition(":")[2].partition("#")[0].strip(" '\"")
            own = name == package.name or "{{" in name
        elif own and keys == ("outputs", "test"):
            return Place(file=source.name, line=number, column=column)
    return package.recipe.place_of_section("outputs")


def require_acyclic_outputs(packages: Sequence[Metadata]) -> None:
    """Refuse outputs that require each other; a cross-compiled recipe may require its outputs of another platform."""
    needs = {
        package.name: {
            spec_package_name(spec)
            for section in (("host", "run") if _is_cross_compiled(package) else ("build", "host", "run"))
            for spec in package.requirements_of_section(section)
        }
        for package in packages
    }
    try:
        TopologicalSorter({name: sorted(set(required) - {name}) for name, required in needs.items()}).prepare()
    except CycleError as error:
        *names, last = error.args[1][1:]
        at = packages[0].recipe.place_of_section("outputs")
        raise RecipeFault(f"the outputs {', '.join(names)} and {last} require each other", at=at) from error


def _is_cross_compiled(package: Metadata) -> bool:
    return package.recipe.platform.build not in {"", package.recipe.platform.subdir}


def _self_requirement_reason(package: Metadata, section: str, spec: str) -> str:
    if (
        section == "run_constrained"
        or spec_package_name(spec) != package.name
        or (section == "build" and _is_cross_compiled(package))
    ):
        return ""
    return "a package cannot require itself"
