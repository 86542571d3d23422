"""The settings of the packages that kiln's own engine makes: those of conda-forge.yml, and the platforms."""

from __future__ import annotations

from dataclasses import dataclass

OWN_ENGINE = "rattler-build"  # the engine whose process kiln runs itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """The zstd ``level`` of packages, the ``channel_priority`` of solves, and whether overlinking is an error."""

    level: int = 1
    channel_priority: str = "strict"
    error_overlinking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlatforms:
    """The subdirs of a build: of its packages, and of the machine that makes them."""

    target: str = "linux-64"
    build: str = "linux-64"
