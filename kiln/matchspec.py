"""Match specs in conda-build's notation and in rattler-build's strict one."""

from __future__ import annotations

import re

_PARTS = re.compile(r"([,|])")


def strict(spec: str) -> str:
    """Return a match spec of a meta.yaml in rattler-build's strict notation, in which bare versions have ``==``.

    ``libfoo 2.21.0 cpu_*`` becomes ``libfoo ==2.21.0 cpu_*``; a version with an operator or an asterisk is unchanged.
    The rule is conda's: a version without operator and asterisk matches exactly.
    """
    words = spec.split()
    if len(words) > 1:
        words[1] = "".join(_explicit(part) for part in _PARTS.split(words[1]))
    return " ".join(words)


def legacy(spec: str) -> str:
    """Return a match spec as conda-build writes it into a package: the reverse of ``strict``."""
    words = spec.split()
    if len(words) > 1:
        words[1] = "".join(part.removeprefix("==") for part in _PARTS.split(words[1]))
    return " ".join(words)


def package_name(spec: str) -> str:
    """Return the package name of a match spec."""
    return re.split(r"[\s=<>!~\[]", spec.strip(), maxsplit=1)[0]


def _explicit(version: str) -> str:
    bare = version[:1].isalnum() and "*" not in version
    return f"=={version}" if bare else version
