"""What a run was asked to do, before anything is looked up or decided."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST = "none"
STALL = 20 * 60.0  # seconds; a large link works all the while, so only what waits for something is told
CACHE_BOUND = 200_000_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What was asked for: ``memory`` in bytes and ``cores`` for each job, ``jobs`` at a time.

    ``image``, ``executable`` and ``options`` are conda-forge's DOCKER_IMAGE, DOCKER_EXECUTABLE and
    CONDA_FORGE_DOCKER_RUN_ARGS, ``given`` further variables of the caller's that a build sees, ``client`` what a
    container engine's client needs, and pip for a ``rehearsal``.

    For compiles by Bazel: ``remote_cache`` is the address of a cache, which may hold a password, ``distdir`` a folder
    of downloads, the sources' archives among them, ``mirror`` the address under which these are looked for as well,
    ``stall`` the seconds without any event or work after which a compile is told to stand still, ``cache_bound`` the
    bytes that all caches on the disk may take together.
    """

    configs: tuple[str, ...]
    command: str
    jobs: int = 1
    engine: str = "rattler-build"
    container: str | None = None
    image: str | None = None
    executable: str | None = None
    options: tuple[str, ...] = ()
    cores: int | None = None
    memory: int | None = None
    rebuild: bool = False
    keep_failed: bool = False
    from_step: str | None = None
    debug: str | None = None
    network: str = "granted"
    fetch: bool = True
    rehearsal: bool = False
    given: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    remote_cache: str | None = field(default=None, repr=False)
    distdir: Path | None = None
    mirror: str | None = None
    stall: float = STALL
    cache_bound: int = CACHE_BOUND


def run_arguments(text: str) -> tuple[str, ...]:
    """Return the words of CONDA_FORGE_DOCKER_RUN_ARGS.

    Raises:
        UsageError: when a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"CONDA_FORGE_DOCKER_RUN_ARGS is {text!r}", why=str(error)) from error
