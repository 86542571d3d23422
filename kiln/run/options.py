"""The options of a run, as the user gave them."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.errors import UsageError
from kiln.job.job_descriptions import BuildOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

HOST = "none"
CACHE_BOUND = 200_000_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run: ``memory`` in bytes and ``cores`` for each job, ``jobs`` at a time.

    ``image`` is conda-forge's DOCKER_IMAGE, ``caller_variables`` further variables of the caller that a build sees,
    ``client`` the variables of a container engine's client, and of pip for a rehearsal. ``python_channel`` is the
    channel of a rehearsal's Python that the machine lacks. ``remote_cache`` is the address of Bazel's remote cache,
    which may contain a password, ``cache_bound`` the bytes of all caches on the disk. ``build`` goes to each job.
    ``remote_executor`` is the address of a server that runs Bazel's actions, ``remote_credentials`` a folder for it,
    or the variable that is made of one.
    ``remote_url`` is the feedstock's repository, ``ci_url`` the page of the CI's run, ``workflow`` the URI of its
    workflow; empty where unknown.
    """

    configs: tuple[str, ...]
    command: str
    jobs: int = 1
    container: str | None = None
    image: str | None = None
    cores: int | None = None
    memory: int | None = None
    fetch: bool = True
    python_channel: str = "conda-forge"  # as kiln.rehearse has it, which imports much; a test compares them
    caller_variables: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    remote_cache: str | None = field(default=None, repr=False)
    remote_executor: str | None = field(default=None, repr=False)
    remote_credentials: Path | str | None = field(default=None, repr=False)
    cache_bound: int = CACHE_BOUND
    remote_url: str = ""
    workflow: str = ""
    ci_url: str = ""
    build: BuildOptions = field(default_factory=BuildOptions)


def parse_docker_run_arguments(text: str) -> tuple[str, ...]:
    """Return the words of CONDA_FORGE_DOCKER_RUN_ARGS.

    Raises:
        UsageError: when a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"CONDA_FORGE_DOCKER_RUN_ARGS is {text!r}", why=str(error)) from error
