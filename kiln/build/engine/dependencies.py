"""Requirements as conda-build writes them: simplified, pinned to what was solved, with run exports."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from kiln.base import patterns
from kiln.base.errors import BuildFailed, RecipeFault
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.build.steps import RunExport
from kiln.conda.specs import package_name, with_version_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.rendered import Output, Pin

    Pins = Iterable[tuple[str, Pin]]


def simplified_depends(specs: Iterable[str]) -> list[str]:
    """Return sorted specs, each ``name``, ``name version`` or ``name version build``, without what others imply.

    Of a package with an exact version and build, all other specs are left out; of one with a version, the bare name.
    """
    by_name: dict[str, set[str]] = {}
    for spec in specs:
        name, _, rest = spec.partition(" ")
        by_name.setdefault(name, set()).add(rest.strip())
    return sorted(_specs_not_implied(by_name))


def _specs_not_implied(by_name: Mapping[str, set[str]]) -> Iterable[str]:
    for name, rests in by_name.items():
        exact = {rest for rest in rests if _is_exact_pin(rest)}
        if len(exact) > 1:
            raise RecipeFault(
                f"{name} is required in two exact builds",
                why=", ".join(sorted(exact)),
                hint="if one is a run export of a package in build or host, ignore_run_exports leaves it out",
            )
        yield from (f"{name} {rest}".strip() for rest in exact or (rests - {""} or rests))


def _is_exact_pin(rest: str) -> bool:
    """Return whether a spec without its name is a version and a build, neither with wildcards nor as a range."""
    words = rest.split()
    return len(words) > 1 and not set("<>*") & set(words[0]) and "*" not in words[1]


RENDERED = "recipe/rendered_recipe.yaml"
SECTIONS = {"run": "depends", "run_constrained": "constrains"}  # the field of an output: the key of index.json
_PRESENT = "0"  # a lower bound that every version meets: the engine fails early where host lacks the package


def pin_placeholder(pin: Pin) -> str:
    """Return what stands for a pin in the engine's recipe.

    It is the engine's own pin where the engine decides the bounds. Else it is a placeholder, for
    `replace_pin_placeholders`: the engine cannot pin some versions (``1.0.1_``), and counts missing components unlike
    conda-build.
    """
    if why := patterns.invalid_name_reason(pin.name, "package name"):
        raise RecipeFault(f"{pin.name!r} is not a valid package name", why=why)
    if pin.by_engine:
        return _pin_compatible_call(
            pin.name, pin.lower or pin.min_pin, pin.upper or pin.max_pin, exact=pin.exact, build=pin.build
        )
    return pin.name if pin.spec else _pin_compatible_call(pin.name, _PRESENT, None)


def _pin_compatible_call(
    name: str, lower: str | None, upper: str | None, *, exact: bool = False, build: str | None = None
) -> str:
    bounds = (
        "exact=true" if exact else f"lower_bound={_template_literal(lower)}, upper_bound={_template_literal(upper)}"
    )
    bounds += "" if build is None or exact else f", build={_template_literal(build)}"
    return f"${{{{ pin_compatible({_template_literal(name)}, {bounds}) }}}}"


def _template_literal(text: str | None) -> str:
    """Return a text as a literal of the engine's template language."""
    if text is not None and not set(text) <= _PLAIN:
        raise RecipeFault(f"{text!r} is not a bound of a pin")
    return "none" if text is None else json.dumps(text)


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+!*")


def pins_to_solve(output: Output) -> tuple[tuple[str, Pin], ...]:
    """Return the pins that `replace_pin_placeholders` replaces after the build, by field."""
    return tuple((field, pin) for field, _, pin in output.pins if not pin.by_engine)


def packages_in_rendered_recipe(recipe: bytes) -> dict[str, list[tuple[str, str, str]]]:
    """Return name, version and build string of the packages in ``host`` and ``build``, as the engine recorded them.

    ``recipe`` is the text of its rendered recipe; an environment that the package has not is left out.
    """
    value = parse_document(recipe.decode(), RENDERED, ScalarInterpretation.TEXT).value or {}
    recorded = value.get("finalized_dependencies", {})
    solved = {name: recorded[name] for name in ("host", "build") if isinstance(recorded.get(name), dict)}
    return {
        name: [(record["name"], record["version"], record["build"]) for record in environment.get("resolved") or ()]
        for name, environment in solved.items()
    }


def pinnable_packages(solved: Mapping[str, Iterable[tuple[str, str, str]]]) -> dict[str, tuple[str, str]]:
    """Return version and build string of the packages that a pin can mean, by name.

    They are those of the host environment; without one, those of the build environment.
    """
    return {name: (version, build) for name, version, build in next(iter(solved.values()), ())}


def replace_pin_placeholders(
    specs: Sequence[str], pins: Iterable[Pin], solved: Mapping[str, tuple[str, str]]
) -> list[str]:
    """Return the engine's specs of a section, with the bounds of the solved versions in the place of placeholders."""
    ranges: dict[str, list[str]] = {}
    for pin in pins:
        ranges.setdefault(pin.name, []).append(_solved_pin_spec(pin, solved.get(pin.name)))
    placeholders = {text: name for name in ranges for text in (name, f"{name} >={_PRESENT}")}
    in_place = [text for spec in specs for text in ranges.get(placeholders.get(spec, ""), [spec])]
    return list(dict.fromkeys([*in_place, *(text for texts in ranges.values() for text in texts)]))


def _solved_pin_spec(pin: Pin, package: tuple[str, str] | None) -> str:
    from kiln.recipe.pins import pinned_spec

    if package is None and pin.spec:
        return with_version_wildcard(" ".join(pin.spec.split()))
    if package is None:
        raise RecipeFault(
            f"pin_compatible: {pin.name} is not in the host environment", hint=f"add {pin.name} to requirements/host"
        )
    try:
        return pinned_spec(pin, *package)
    except (ValueError, TypeError, IndexError) as error:
        raise RecipeFault(f"{pin.name} {package[0]} cannot be pinned", why=str(error)) from error


# The strong run exports of build tools that say what a machine must have, by the tools' names; {0} is their version.
# Sources: recipe/meta.yaml of conda-forge's linux-sysroot-feedstock and macosx_deployment_target-feedstock,
# recipe/recipe.yaml of microarch-level-feedstock.
EXPORTS = {
    "sysroot_linux-64": "__glibc >={0},<3.0.a0",
    "sysroot_linux-aarch64": "__glibc >={0},<3.0.a0",
    "macosx_deployment_target_osx-arm64": "__osx >={0}",
    "x86_64-microarch-level": "_x86_64-microarch-level >={0}",
}
_VERSION = re.compile(r" (?:[=>]=?)?(\d+(?:\.\d+)*)")


def run_exports_of_package(package: Path) -> tuple[RunExport, ...]:
    """Return the run exports that the engine has recorded in the package of a build step, without ignored ones."""
    from kiln.conda import package_reader

    text = package_reader.read_info_files(package).get(RENDERED, b"").decode()
    recipe = parse_document(text, RENDERED, ScalarInterpretation.TEXT).value
    try:
        depends = recipe["finalized_dependencies"]["run"]["depends"] or []
    except (KeyError, TypeError) as error:
        raise BuildFailed(
            f"{package.name} has no record of its dependencies", hint="--rebuild builds it again"
        ) from error
    return tuple(
        RunExport(spec=str(entry["spec"]), package=str(entry["run_export"]))
        for entry in depends
        if isinstance(entry, dict) and "run_export" in entry
    )


def run_exports_from_build_tools(output: Output) -> Iterator[RunExport]:
    """Yield what the tools in the build section of an output export: the C library and the processor."""
    for spec in output.requirements.build:
        name = package_name(spec)
        version = _VERSION.search(spec)
        if name in EXPORTS and version:
            yield RunExport(spec=EXPORTS[name].format(version[1]), package=name)
