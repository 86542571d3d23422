"""Pins of meta.yaml in the notation of recipe.yaml: ``min_pin`` and ``max_pin`` become bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import nodes

_ORDER = {
    "pin_subpackage": ("name", "min_pin", "max_pin", "exact"),
    "pin_compatible": ("name", "lower_bound", "upper_bound", "min_pin", "max_pin", "exact"),
}
_EMPTY = '""'  # an empty bound, which means none
_BOUNDS = (("lower_bound", "min_pin"), ("upper_bound", "max_pin"))


def pin_arguments(function: str, node: nodes.Call, text: Callable[[nodes.Expr], str]) -> str:
    """Return the arguments of a pin in recipe.yaml; an explicit bound has precedence over the number of places."""
    given = dict(zip(_ORDER[function], map(text, node.args), strict=False))
    given |= {str(keyword.key): text(keyword.value) for keyword in node.kwargs}
    arguments = [given.pop(next(iter(given)))] if given else []
    if given.get("exact") in {"true", "1"}:
        return ", ".join([*arguments, "exact=True"])
    for bound, places in _BOUNDS:
        value = given.get(bound)
        value = given.get(places) if value in {None, "none", _EMPTY} else value
        if value is not None:
            arguments.append(f"{bound}={'none' if value == _EMPTY else value}")
    return ", ".join(arguments)


def pin_run_as_build_bounds(given: Mapping[str, str] | str) -> tuple[str, str]:
    """Return the bounds of an entry of ``pin_run_as_build``, with conda-build's defaults."""
    if isinstance(given, str):
        return given, given
    return given.get("min_pin", "x.x.x.x.x.x.x"), given.get("max_pin", "x")
