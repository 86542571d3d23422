"""Write the command lines of an engine, from a plan; nothing is run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.container.engine import Engine, EngineKind
from kiln.errors import UsageError
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.container import ContainerLimits, ContainerRun, ContainerUser, Mount

_NAME = lazy_pattern(r"[A-Za-z0-9][\w.:/@-]*", re.ASCII)


def create_command(engine: Engine, run: ContainerRun, *, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command line that creates the container ``name`` for ``run`` without starting it.

    Unless ``run`` grants them, these are withheld: capabilities, new privileges, the network, fetching an image.

    Raises:
        UsageError: for an image or a mount that an engine would take for something else.
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
