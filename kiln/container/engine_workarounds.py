"""Find the options with which an engine runs on this machine, by running ``true`` once.

Rootful Podman raises the limits on open files and processes above the caller's, which a machine without
CAP_SYS_RESOURCE refuses; crun refuses cgroups of both versions at once, runc accepts them.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import ContainerFault, MissingTool, program_output_with_margin
from kiln.operating_system import machine_resources

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.container.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRefusal:
    """A refusal, recognized by the engine's message, and the options that avoid it."""

    words: re.Pattern[str]
    note: str
    options: Callable[[Engine], tuple[str, ...]]


# The limits that Podman sets for itself when it starts, where it may: its containers cannot get more.
PODMANS_OWN = {"nofile": 1 << 20, "nproc": 1 << 15}


def _ulimit_options(_engine: Engine) -> tuple[str, ...]:
    """Return options for this process's hard limits, or Podman's own where those are lower."""
    limits = {name: min(machine_resources.resource_hard_limit(name), most) for name, most in PODMANS_OWN.items()}
    return tuple(word for name, most in limits.items() for word in ("--ulimit", f"{name}={most}:{most}"))


def _runc_options(engine: Engine) -> tuple[str, ...]:
    path = engine.environment.get("PATH", "")
    program = shutil.which("runc", path=f"{path}:/usr/sbin:/sbin")  # Debian puts it where users do not look
    if program is None:
        raise MissingTool(
            "crun cannot run containers on this machine, and runc, which can, is not here",
            why="both versions of cgroups are mounted side by side",
            hint="install runc (Debian's package has this name), or --container none",
        )
    return ("--runtime", program)


REFUSALS = (
    KnownRefusal(
        words=re.compile(r"setting rlimit|setrlimit", re.IGNORECASE),
        note="raising the limits on open files and processes is refused here; containers get those of this process",
        options=_ulimit_options,
    ),
    KnownRefusal(
        words=re.compile(r"cgroups in hybrid mode not supported"),
        note="crun refuses to run where both versions of cgroups are mounted; runc is used",
        options=_runc_options,
    ),
)

_workable: dict[Engine, Engine] = {}


def workable_engine(engine: Engine, image: str, *, platform: str | None = None) -> Engine:
    """Return the engine with the options that it needs here, tried once per process with a present image.

    ``platform`` is the image's, where it is not this machine's.

    Raises:
        ContainerFault: when it refuses for an unknown reason.
        MissingTool: when the program that would work is not installed.
    """
    if engine not in _workable:
        _workable[engine] = _find_workable_engine(engine, image, platform)
    return _workable[engine]


def is_workable_engine_cached(engine: Engine) -> bool:
    """Return whether an engine's options are already known."""
    return engine in _workable


def mark_as_workable(engine: Engine) -> Engine:
    """Return an engine that another process has tried, without a further trial."""
    _workable[engine] = engine
    return engine


def _find_workable_engine(engine: Engine, image: str, platform: str | None = None) -> Engine:
    """Run ``true`` until it succeeds, adding options for each known refusal; repeat once after a silent refusal."""
    refusals, silent = list(REFUSALS), 0
    while True:
        result = engine.run_command(*trial_command(engine, image, platform))
        if result.ok:
            return engine
        refusal = next((candidate for candidate in refusals if candidate.words.search(result.tail)), None)
        if refusal is None and not result.tail and not silent:
            silent += 1  # Podman was seen to fail like this right after a run was killed
            continue
        if refusal is None:
            raise ContainerFault(
                f"{engine.kind.value} cannot run containers on this machine",
                why=f"it refuses to run 'true' from the image {image}:\n{program_output_with_margin(result.tail)}",
                hint="another engine with --container, or --container none",
            )
        refusals.remove(refusal)
        engine = avoid_refusal(engine, refusal)


def avoid_refusal(engine: Engine, refusal: KnownRefusal) -> Engine:
    """Return the engine with the options that avoid a refusal."""
    return dataclasses.replace(
        engine, options=(*engine.options, *refusal.options(engine)), notes=(*engine.notes, refusal.note)
    )


def trial_command(engine: Engine, image: str, platform: str | None = None) -> tuple[str, ...]:
    """Return the smallest command to run, without the image's own entry point."""
    return (
        *("run", "--rm", "--pull", "never", "--network", "none"),
        *engine.options,
        *(() if platform is None else ("--platform", platform)),
        *("--entrypoint", "true", image),
    )
