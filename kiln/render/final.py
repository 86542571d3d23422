"""Close the bounds that need no solver: pins between outputs, and pins to the variant's versions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.rendered import Requirements
from kiln.recipe.specs import name_of
from kiln.versions import pinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.model.rendered import Output, Pin, Rendered

_SECTIONS = ("build", "host", "run", "run_constrained")


def finalise(rendered: Rendered) -> Rendered:
    """Return the rendered config with every bound closed that does not need a solver.

    ``pin_subpackage`` becomes the other output's exact build or a range of its version, ``pin_compatible`` and
    ``pin_run_as_build`` a range of the version in ``host``; where ``host`` has no version, the bare name stays.

    Raises:
        RecipeFault: a pin names an output that the config does not have, or one without a version.
    """
    outputs = [_closed(output, rendered) for output in rendered.outputs]
    return replace(rendered, outputs=tuple(_pinned(output, rendered) for output in outputs))


def _closed(output: Output, rendered: Rendered) -> Output:
    fields: dict[str, list[str]] = {section: list(getattr(output.requirements, section)) for section in _SECTIONS}
    fields |= {f"run_exports/{kind}": list(specs) for kind, specs in output.run_exports.items()}
    for field, index, pin in output.pins:
        if field in fields and index < len(fields[field]):
            fields[field][index] = _spec(pin, output, rendered, fields)
    exports = {kind: tuple(fields[f"run_exports/{kind}"]) for kind, specs in output.run_exports.items() if specs}
    sections = {section: tuple(fields[section]) for section in _SECTIONS}
    return replace(output, requirements=Requirements(**sections), run_exports=exports, pins=())


def _spec(pin: Pin, output: Output, rendered: Rendered, fields: Mapping[str, Sequence[str]]) -> str:
    if pin.subpackage:
        other = _output(pin.name, output, rendered)
        if pin.exact:
            return f"{other.name} {other.version} {other.build_string}"
        return f"{pin.name} {_range(other.version, pin)}".strip()
    version = pin.lower or _version(pin.name, fields["host"] or fields["build"])
    if version is None:
        return f"{pin.name} <{pin.upper}" if pin.upper else pin.name
    if pin.upper:
        return f"{pin.name} >={version},<{pin.upper}"
    return f"{pin.name} {_range(version, pin)}".strip()


def _range(version: str, pin: Pin) -> str:
    try:
        return pinned(version, pin.min_pin, pin.max_pin)
    except (ValueError, TypeError, IndexError) as error:
        raise RecipeFault(f"{pin.name} {version} cannot be pinned", why=str(error)) from error


def _output(name: str, by: Output, rendered: Rendered) -> Output:
    """Return the output of a name that has the same variant as another output."""
    outputs = [output for output in rendered.outputs if output.name == name]
    for output in outputs:
        if all(output.variant.get(key) == by.variant.get(key) for key in output.variant.keys() & output.used.keys()):
            return output
    if outputs:
        return outputs[0]
    raise RecipeFault(
        f"{by.name} pins {name!r} with pin_subpackage, but the config has no such output",
        hint="use pin_compatible for packages of other recipes",
    )


def _version(name: str, specs: Sequence[str]) -> str | None:
    """Return the version of a package in a section, without a trailing asterisk; None when it has no version."""
    for spec in specs:
        words = spec.split()
        if name_of(spec) == name and len(words) > 1 and words[1][:1].isdigit():
            return words[1].removesuffix("*").removesuffix(".")
    return None


def _pinned(output: Output, rendered: Rendered) -> Output:
    """Return the output with ``pin_run_as_build`` applied to its ``run`` requirements."""
    needs = output.requirements
    run = tuple(_as_built(spec, output, rendered) for spec in needs.run)
    return replace(output, requirements=replace(needs, run=run))


def _as_built(spec: str, output: Output, rendered: Rendered) -> str:
    name, *rest = spec.split() or [""]
    pins = {**_DEFAULT_PINS, **rendered.config.pin_run_as_build}.get(name)
    version = _version(name, output.requirements.host or output.requirements.build)
    if pins is None or version is None or (name == "python" and output.noarch == "python"):
        return spec
    bounds = _bounds(pins)
    build = rest[1:2]
    return " ".join([name, pinned(version, bounds.get("min_pin", "x.x.x.x.x.x.x"), bounds.get("max_pin", "x")), *build])


def _bounds(pins: Mapping[str, str] | str) -> dict[str, str]:
    return {"min_pin": pins, "max_pin": pins} if isinstance(pins, str) else dict(pins)


# What conda-build pins where no variant file says anything.
_DEFAULT_PINS: Mapping[str, Mapping[str, str]] = {
    "python": {"min_pin": "x.x", "max_pin": "x.x"},
    "r-base": {"min_pin": "x.x", "max_pin": "x.x"},
}
