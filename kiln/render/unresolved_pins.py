"""Pins that a rendering leaves open, found by a second rendering with marks in their places."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.lazy_pattern import lazy_pattern
from kiln.model.rendered import Pin, Requirements
from kiln.render.rendered_parts_from_meta_yaml import run_exports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.recipe.metadata import Metadata
    from kiln.recipe.recipe import Recipe

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
