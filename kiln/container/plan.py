"""A program in a container and its result as values, and the engine's command lines for it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.patterns import lazy_pattern
from kiln.container.engine import Engine, EngineKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host (``source``, absolute) mounted in the container as ``target``."""

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLimits:
    """The limits of a container: cores, bytes of memory (swap included), processes; None for no limit."""

    cores: float | None = None
    memory: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUser:
    """The ids of a user and a group on the host, who then own the files that the container writes on its mounts."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One program in one container, which can access nothing of the host except for what is listed here.

    ``argv`` is passed to the image's entry point, if it has one. ``secrets`` are environment variables whose values
    appear in no command line, log or representation. Without ``user`` the image sets the user: its entry point may
    start as root and change to another user, for which it needs some of ``capabilities``; all others are dropped.
    ``interactive`` programs read this process's standard input, which is a terminal if ``terminal`` is set.
    ``options`` are passed to the engine unchanged and last, so they take precedence. ``platform`` is the image's, where
    it is not this machine's.
    """

    image: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    mounts: tuple[Mount, ...] = ()
    user: ContainerUser | None = None
    limits: ContainerLimits = ContainerLimits()
    network: bool = False
    workdir: str | None = None
    capabilities: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    interactive: bool = False
    terminal: bool = False
    options: tuple[str, ...] = ()
    platform: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerProgramResult:
    """The result of a container's program.

    ``exit_code`` is 124 after a timeout. ``peak_memory`` is the peak of its processes' memory in bytes, sampled every
    second, without the page cache; None if the kernel does not report it, the limit once a process was killed for
    reaching it. ``memory_kills`` counts the processes that the kernel killed for lack of memory, whatever the result
    of the program.
    """

    exit_code: int
    tail: str
    peak_memory: int | None = None
    memory_kills: int = 0

    @property
    def ok(self) -> bool:
        """True when the program succeeded."""
        return self.exit_code == 0


_NAME = lazy_pattern(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)


def create_command(engine: Engine, run: ContainerRun, *, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line that creates the container ``name`` for ``run`` without starting it.

    Unless ``run`` grants them, these are withheld: capabilities, new privileges, the network, fetching an image.
    """
    require_valid_image_name(run.image)
    return (
        engine.executable,
        "create",
        *("--name", name, "--pull", "never", "--log-driver", "none"),  # output is read while it comes, not kept twice
        *engine.options,
        *([] if run.platform is None else ["--platform", run.platform]),
        *_key_value_options("--label", {**labels, **run.labels}),
        *_privilege_options(engine, run),
        *user_options(engine, run.user),
        *([] if run.network else ["--network", "none"]),
        *(["--interactive"] if run.interactive else []),
        *(["--tty"] if run.terminal else []),
        *_limit_options(run.limits),
        *(word for mount in run.mounts for word in ("--mount", _mount_option(mount))),
        *variable_options(run.environment, run.secrets),
        *(["--workdir", run.workdir] if run.workdir else []),
        *run.options,
        run.image,
        *run.argv,
    )


def require_valid_image_name(image: str) -> None:
    """Refuse an invalid image name: it comes from variant files, and an engine would accept ``--privileged``, too.

    Raises:
        UsageError: with the name.
    """
    if not _NAME.fullmatch(image):
        raise UsageError(f"{image!r} is not a valid name of a container image", hint="[REGISTRY/]NAME[:TAG][@DIGEST]")


def start_command(engine: Engine, name: str, *, interactive: bool = False) -> tuple[str, ...]:
    """Return the command line that starts a container and passes on its output and input until it ends.

    Podman's client would pass a SIGTERM on to the program and wait for it; Docker's ends.
    """
    no_proxy = ("--sig-proxy=false",) if engine.kind is EngineKind.PODMAN else ()
    reads = ("--interactive",) if interactive else ()
    return (engine.executable, "start", "--attach", *reads, *no_proxy, name)


def user_options(engine: Engine, owner: ContainerUser | None) -> tuple[str, ...]:
    """Return the options with which files written on mounts belong to ``owner``.

    Rootless Podman can map its own user to the same number; in rootless Docker the caller is root.
    """
    if owner is None:
        return ()
    if not engine.rootless:
        return ("--user", f"{owner.uid}:{owner.gid}")
    if engine.kind is EngineKind.PODMAN:
        return ("--userns", "keep-id", "--user", f"{owner.uid}:{owner.gid}")
    return ("--user", "0:0")


def variable_options(environment: Mapping[str, str], secrets: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options of environment variables; the engine's client reads secrets from its own environment."""
    return (*_key_value_options("--env", environment), *(word for name in secrets for word in ("--env", name)))


def _privilege_options(engine: Engine, run: ContainerRun) -> Iterator[str]:
    yield from ("--cap-drop", "ALL")
    for capability in run.capabilities:
        yield from ("--cap-add", capability)
    yield from ("--security-opt", "no-new-privileges")
    if engine.selinux:  # relabeling the mounts instead would change files that are not kiln's
        yield from ("--security-opt", "label=disable")


def _limit_options(limits: ContainerLimits) -> Iterator[str]:
    if limits.cores is not None:
        yield from ("--cpus", f"{limits.cores:g}")
    if limits.memory is not None:  # both the same: no swap, or a build that is too large would only become slow
        yield from ("--memory", str(limits.memory), "--memory-swap", str(limits.memory))
    if limits.processes is not None:
        yield from ("--pids-limit", str(limits.processes))


def _mount_option(mount: Mount) -> str:
    for path in (str(mount.source), mount.target):
        if "," in path or not path.startswith("/"):
            raise UsageError(
                f"{path!r} cannot be mounted in a container",
                why="engines take absolute paths without a comma",
                hint="move the folder" if "," in path else "",
            )
    return f"type=bind,source={mount.source},target={mount.target}" + (",readonly" if mount.read_only else "")


def _key_value_options(option: str, values: Mapping[str, str]) -> Iterator[str]:
    for name, value in values.items():
        yield from (option, f"{name}={value}")
