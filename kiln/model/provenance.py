"""What is known of how a package was made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """One package's making: times in seconds since the epoch, ``epoch`` the moment that the package is said to be of.

    ``sources`` are the recipe's, each with its hash or commit. ``recipe`` is a hash over the recipe's files,
    ``log_sha256`` one over what the build said. What is not known is None.
    """

    file: str
    subdir: str
    sha256: str
    size: int
    name: str
    version: str
    build: str
    licence: str
    depends: tuple[str, ...]
    cell: str
    variant: Mapping[str, tuple[str, ...]]
    sources: tuple[Mapping[str, Any], ...]
    recipe: str
    commit: str | None
    remote: str | None
    engine: str
    engine_version: str | None
    kiln: str
    container: str
    image: str | None
    machine: str
    cores: int
    started: float | None
    finished: float | None
    epoch: int | None
    tests: str
    log_sha256: str | None
    sbom_sha256: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """What goes into a channel beside its packages.

    ``seal`` makes the lines of the records, given the hash of the line that they follow; ``boms`` are bills of
    materials by the hash of their package.
    """

    seal: Callable[[str], bytes]
    boms: Mapping[str, bytes]
