"""Checks of a rendered package, as conda-build makes them: its name, version, ``noarch`` and requirements."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.key_faults import KeyFault
from kiln.recipe.specs import name_of
from kiln.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kiln.recipe.metadata import Metadata

_NOARCH = frozenset({"python", "generic", "True"})
_BLANKS = re.compile(r"(?<=[<>=!~,|])\s+|\s+(?=[,|])")  # around operators, where they divide nothing
_HEAD = re.compile(r"(?:\S+::)?([^\s=<>!~\[]*)\s*")
_PACKAGE = re.compile(r"[\w.+*-]+")
_CONSTRAINT = re.compile(r"(?:==|!=|<=|>=|~=|=<|=>|=|<|>)?([\w.!+*-]+)|\^.*\$")
_OPERATOR = re.compile(r"[<>=~,|]")
_BUILD = re.compile(r"(?<=[\w.*])=(?!=)[\w.*+-]*$")  # of name=version=build
_SECTIONS = ("build", "host", "run", "run_constrained")


def require_valid(package: Metadata, values: Mapping[str, Any]) -> None:
    """Refuse a package that conda-build refuses; ``values`` are those of the whole recipe at its variant.

    Raises:
        RecipeFault: with the section of the recipe that is at fault.
    """
    own = "outputs" if package.is_output else ""
    if not package.name:
        at = package.recipe.place(own or "package")
        raise RecipeFault("a package has no name", at=at, hint="name: of package or output")
    if not package.version or package.version.startswith("."):
        what = f"{package.name} has {f'the version {package.version!r}' if package.version else 'no version'}"
        raise RecipeFault(what, at=package.recipe.place(own or "package"), hint="version: of package or output")
    if package.noarch and str(package.noarch) not in _NOARCH:
        at = package.recipe.place(own or "build")
        raise RecipeFault(f"{package.name}: noarch is {str(package.noarch)[:40]!r}", at=at, hint="python or generic")
    for section in _SECTIONS:
        if None in _written(package, values, section):
            at = package.recipe.place(own or "requirements")
            raise RecipeFault(f"{package.name}: requirements/{section} has an empty item", at=at)
        for spec in package.requirements.get(section, ()):
            if fault := spec_fault(spec) or _own_name(package, section, spec):
                at = package.recipe.place(own or "requirements")
                raise RecipeFault(f"{package.name}: {spec[:80]!r} in requirements/{section}", at=at, why=fault)


def _written(package: Metadata, values: Mapping[str, Any], section: str) -> list[object]:
    """Return the items of a section of requirements as the recipe has them."""
    entries = package.recipe.outputs_of(values) if package.is_output else [values]
    own = next((entry for entry in entries if not package.is_output or entry.get("name") == package.name), {})
    requirements = own.get("requirements")
    items = requirements.get(section) if isinstance(requirements, dict) else requirements
    return items if isinstance(items, list) else []


def unread_versions(packages: Sequence[Metadata]) -> tuple[KeyFault, ...]:
    """Return the versions that only a fetched source or the recipe's code could give: a template reads them as None."""
    return tuple(
        KeyFault(
            key="package/version",
            known=True,
            what=f"{package.name} has the version 'None'",
            at=package.recipe.place("outputs" if package.is_output else "package"),
            why="rendering reads no source but a local folder of the feedstock, and runs no code",
            hint="write the version into the recipe, or --engine conda-build",
        )
        for package in packages
        if package.version == "None"
    )


def require_no_cycle(packages: Sequence[Metadata]) -> None:
    """Refuse two outputs that require each other.

    Raises:
        RecipeFault: with their names.
    """
    needs = {
        package.name: {name_of(spec) for section in ("build", "host", "run") for spec in package.depends(section)}
        for package in packages
    }
    for name, required in needs.items():
        for other in required & needs.keys() - {name}:
            if name in needs[other]:
                at = packages[0].recipe.place("outputs")
                raise RecipeFault(f"the outputs {name} and {other} require each other", at=at)


def spec_fault(spec: str) -> str:
    """Return why a requirement is not a match spec of conda, or an empty text."""
    text, _, _ = _BLANKS.sub("", spec.partition("#")[0].strip()).partition("[")
    head = _HEAD.match(text)
    assert head is not None, "the pattern matches any text"
    if not head[1]:
        return "it has no package name"
    if not _PACKAGE.fullmatch(head[1]):
        return f"{head[1][:40]!r} is not the name of a package"
    version, build = (*text[head.end() :].split(), "", "")[:2]
    parts = re.split(r"[,|]", _BUILD.sub("", version.replace("(", "").replace(")", ""))) if version else []
    if not all(map(_is_constraint, parts)):
        return f"{version[:40]!r} is not a version constraint"
    return f"{build[:40]!r} is not a build string; join constraints by commas" if _OPERATOR.search(build) else ""


def _is_constraint(part: str) -> bool:
    match = _CONSTRAINT.fullmatch(part)
    if match is None or match[1] is None:
        return match is not None
    plain = match[1].removesuffix("*").removesuffix(".") if match[1].endswith("*") else match[1]
    return plain == "" or version_or_none(plain) is not None


def _own_name(package: Metadata, section: str, spec: str) -> str:
    cross = package.recipe.platform.build not in {"", package.recipe.platform.subdir}
    if section == "run_constrained" or name_of(spec) != package.name or (section == "build" and cross):
        return ""
    return "a package cannot require itself"
