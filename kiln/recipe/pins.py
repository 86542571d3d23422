"""Pins that a rendering leaves open, found with marks in their places, and closed where no solver is needed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.base.errors import RecipeFault, did_you_mean, raise_all
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.conda.specs import invalid_spec_reason, package_name, pinned_range, with_version_wildcard
from kiln.recipe.rendered import Pin, Requirements
from kiln.recipe.v0.rendering import run_exports
from kiln.recipe.v0.used_keys import SECTIONS, spec_package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig
    from kiln.recipe.v0.metadata import Metadata
    from kiln.recipe.v0.recipe import Recipe


def pinned_spec(pin: Pin, version: str, build: str) -> str:
    """Return the match spec that a pin makes of a package's version and build string, as conda-build writes it.

    Raises:
        ValueError: the text is not a version.
    """
    if pin.exact:
        return f"{pin.name} {version} {build}".strip()
    version = pin.lower or version
    if pin.upper:
        lower = f">={version}," if pin.min_pin or pin.lower else ""
        return f"{pin.name} {lower}<{pin.upper}"
    own_build = " ".join(pin.spec.split()[2:3])
    return " ".join(filter(None, (pin.name, pinned_range(version, pin.min_pin, pin.max_pin), own_build)))


_MARK = lazy_pattern(r"KILN-PIN-([0-9a-f]+)")


def pin_marker(kind: str, name: str, **bounds: Any) -> str:
    """Return the mark of a pin, which replaces its bounds."""
    data = json.dumps({"kind": kind, **{key: None if value is None else str(value) for key, value in bounds.items()}})
    return f"{name} KILN-PIN-{data.encode().hex()}"


def open_pins_of_package(package: Metadata, marked: Recipe) -> tuple[tuple[str, int, Pin], ...]:
    """Return every open pin of a package: its field, its position there, and the pin."""
    twins = [
        twin
        for twin in marked.output_packages(package.variant)
        if (twin.name, twin.kind) == (package.name, package.kind)
    ]
    if not twins:
        return ()
    exports = run_exports(twins[0].section_value("build", "run_exports"))
    fields = {**twins[0].requirements, **{f"run_exports/{kind}": specs for kind, specs in exports.items()}}
    return tuple(_marked_pins(fields))


def run_as_build_pins(requirements: Requirements, rules: Mapping[str, Any]) -> dict[int, Pin]:
    """Return the pins of ``pin_run_as_build`` by their positions in ``run``; ``rules`` are the bounds by package."""
    if not requirements.host and not requirements.build:
        return {}
    names = [(spec.split() or [""])[0] for spec in requirements.run]
    places = {name: pin_run_as_build_bounds(rules[name]) for name in names if name in rules}
    return {
        index: Pin(
            name=name, subpackage=False, spec=requirements.run[index], min_pin=places[name][0], max_pin=places[name][1]
        )
        for index, name in enumerate(names)
        if name in places
    }


def pin_run_as_build_bounds(rule: Mapping[str, str] | str) -> tuple[str, str]:
    """Return the bounds of an entry of ``pin_run_as_build``, the components to keep, with conda-build's defaults."""
    if isinstance(rule, str):
        return rule, rule
    return rule.get("min_pin", "x.x.x.x.x.x.x"), rule.get("max_pin", "x")


def _marked_pins(fields: Mapping[str, Any]) -> Iterator[tuple[str, int, Pin]]:
    for field, specs in fields.items():
        for index, spec in enumerate(specs):
            if match := _MARK.search(spec):
                data = json.loads(bytes.fromhex(match[1]))
                yield field, index, _pin_of_mark(spec.split()[0], data)


def _pin_of_mark(name: str, data: Mapping[str, str | None]) -> Pin:
    return Pin(
        name=name,
        subpackage=data["kind"] == "subpackage",
        min_pin=_bound_or_none(data.get("min_pin")),
        max_pin=_bound_or_none(data.get("max_pin")),
        lower=data.get("lower_bound"),
        upper=data.get("upper_bound"),
        exact=str(data.get("exact")).lower() in {"true", "1"},
    )


def _bound_or_none(text: str | None) -> str | None:
    return None if text in {None, "", "None"} else text


_SOLVED = ("build", "host")  # what is solved itself: a pin there is the bare name


def close_static_pins(rendered: RenderedConfig) -> RenderedConfig:
    """Return the rendered config with every bound closed that does not need a solver.

    ``pin_subpackage`` becomes the other output's exact build or a range of its version. A pin to a package in ``host``
    stays in the output's ``pins``, since its bounds are those of the solved version; its requirement is the range if
    the version in the recipe decides it, else the bare name.

    Raises:
        RecipeFault: a pin names an output that the config does not have, or one without a version; or a requirement is
            not a match spec.
    """
    outputs = tuple(
        _output_with_starred_versions(_output_with_closed_pins(output, rendered)) for output in rendered.outputs
    )
    stagings = tuple(
        step if step.copied else replace(step, requirements=_requirements_with_stars(step.requirements))
        for step in rendered.stagings
    )
    return replace(rendered, outputs=outputs, stagings=stagings)


def _output_with_starred_versions(output: Output) -> Output:
    """Return an output whose plain versions take all that begin so where they are solved: ``1.2.*`` for ``1.2``.

    The rule is conda-build's ``ensure_valid_spec``, which leaves ``run_constrained`` and ``run_exports`` alone.
    """
    if output.settings.by_engine:
        return output
    tests = tuple(replace(test, requires=tuple(map(with_version_wildcard, test.requires))) for test in output.tests)
    return replace(output, requirements=_requirements_with_stars(output.requirements), tests=tests)


def _requirements_with_stars(needs: Requirements) -> Requirements:
    build, host, run = (tuple(map(with_version_wildcard, specs)) for specs in (needs.build, needs.host, needs.run))
    return replace(needs, build=build, host=host, run=run)


def _output_with_closed_pins(output: Output, rendered: RenderedConfig) -> Output:
    """Return an output with its pins closed; those that the engine solves stay, and so does what the variant gives."""
    fields: dict[str, list[str]] = {section: list(getattr(output.requirements, section)) for section in SECTIONS}
    fields |= {f"run_exports/{kind}": list(specs) for kind, specs in output.run_exports.items()}
    checked = tuple(fields)
    fields |= {f"tests/{number}": list(test.requires) for number, test in enumerate(output.tests)}
    pins: list[tuple[str, int, Pin]] = []
    for field, index, pin in output.pins:
        if field not in fields or index >= len(fields[field]):
            continue
        if pin.subpackage:
            fields[field][index] = _closed_subpackage_pin(pin, output, rendered)
        elif pin.lower and not pin.exact and not pin.by_engine:
            fields[field][index] = pinned_spec(pin, pin.lower, "")
        elif field not in _SOLVED:
            pins += [] if field.startswith("tests/") else [(field, index, pin)]
            fields[field][index] = _expected_requirement(
                pin, _version_in_section(pin.name, fields["host"] or fields["build"])
            )
        elif pin.by_engine:
            pins.append((field, index, pin))
    for field in checked:
        _require_valid_specs(fields[field], field, output.name)
    tests = (replace(test, requires=tuple(fields[f"tests/{number}"])) for number, test in enumerate(output.tests))
    exports = {kind: tuple(fields[f"run_exports/{kind}"]) for kind, specs in output.run_exports.items() if specs}
    sections: dict[str, Any] = {section: tuple(fields[section]) for section in SECTIONS}
    needs = replace(output.requirements, **sections)
    return replace(output, requirements=needs, run_exports=exports, tests=tuple(tests), pins=tuple(pins))


def _require_valid_specs(specs: Iterable[str], field: str, package: str) -> None:
    for spec in specs:
        if why := invalid_spec_reason(spec):
            raise RecipeFault(
                f"{package}: {spec!r} in {field} is not a match spec", why=why, hint="'numpy >=1.2,<2', 'six 1.17 py*'"
            )


def _closed_subpackage_pin(pin: Pin, output: Output, rendered: RenderedConfig) -> str:
    other = _pinned_output(pin.name, output, rendered)
    if pin.exact:
        return f"{other.name} {other.version} {other.build_string}"
    return f"{pin.name} {_pinned_range(other.version, pin)}".strip()


def _expected_requirement(pin: Pin, version: str | None) -> str:
    """Return the requirement as far as it is known before the solve, given the version in the recipe."""
    if pin.lower and pin.upper:
        return pinned_spec(pin, pin.lower, "")
    places = max((bound.count(".") + 1 for bound in (pin.min_pin, pin.max_pin) if bound), default=0)
    if version is None or pin.exact or pin.lower or pin.upper or places > version.count(".") + 1:
        return pin.name
    return f"{pin.name} {_pinned_range(version, pin)}".strip()


def _pinned_range(version: str, pin: Pin) -> str:
    try:
        return pinned_range(version, pin.min_pin, pin.max_pin)
    except (ValueError, TypeError, IndexError) as error:
        raise RecipeFault(f"{pin.name} {version} cannot be pinned", why=str(error)) from error


def _pinned_output(name: str, by: Output, rendered: RenderedConfig) -> Output:
    """Return the output of a name that has the same variant as another output."""
    outputs = [output for output in (*rendered.outputs, *rendered.skipped) if output.name == name]
    for output in outputs:
        if all(output.variant.get(key) == by.variant.get(key) for key in output.variant.keys() & output.used.keys()):
            return output
    if outputs:
        return outputs[0]
    raise RecipeFault(
        f"{by.name} pins {name!r} with pin_subpackage, but the config has no such output",
        hint="use pin_compatible for packages of other recipes",
    )


def _version_in_section(name: str, specs: Sequence[str]) -> str | None:
    """Return the version of a package in a section, without a trailing asterisk; None when it has no version."""
    for spec in specs:
        words = spec.split()
        if spec_package_name(spec) == name and len(words) > 1 and words[1][:1].isdigit():
            return words[1].removesuffix("*").removesuffix(".")
    return None


def require_pins_of_outputs(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Refuse pins of outputs that a config does not have, and pins of its own outputs as if they were of others."""
    faults: dict[tuple[str, str], RecipeFault] = {}
    for rendered in renderings:
        names = {output.name for output in (*rendered.outputs, *rendered.skipped)}
        for output in rendered.outputs:
            needs = {package_name(spec) for spec in (*output.requirements.build, *output.requirements.host)}
            for _, _, pin in output.pins:
                if pin.subpackage and pin.name not in names:
                    what = f"{output.name} pins {pin.name!r} with pin_subpackage, but the config has no such output"
                    hint = did_you_mean(pin.name, names) or "use pin_compatible for packages of other recipes"
                elif not pin.subpackage and not pin.spec and pin.name in names - needs:
                    what = f"{output.name} pins {pin.name!r}, an output of this recipe, with pin_compatible"
                    hint = f"use pin_subpackage, or require {pin.name} in host"
                else:
                    continue
                at = _place_of_pin(feedstock.root, rendered.file, pin.name)
                faults.setdefault((output.name, pin.name), RecipeFault(what, at=at, hint=hint))
    raise_all(list(faults.values()))


def _place_of_pin(root: Path, file: str, name: str) -> Place:
    """Return the place of the first pin of a package; the recipe alone for a name that a template makes."""
    call = re.compile(rf"\bpin_(?:subpackage|compatible)\b[^)]*[\"'\s]{re.escape(name)}(?![\w.-])")
    for number, line in enumerate((root / file).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if match := call.search(line):
            return Place(file=file, line=number, column=match.start() + 1)
    return Place(file=file)
