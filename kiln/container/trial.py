"""What an engine refuses on this machine, and what works instead: found by running ``true`` once.

Rootful Podman raises the limits on open files and processes above the caller's, which a machine without
CAP_SYS_RESOURCE refuses; crun refuses cgroups of both versions side by side, runc takes them.
"""

from __future__ import annotations

import dataclasses
import re
import resource
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import ContainerFault, MissingTool, excerpt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.container.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refusal known by the engine's words, and the options with which it does not occur."""

    words: re.Pattern[str]
    note: str
    options: Callable[[Engine], tuple[str, ...]]


# What Podman gives itself when it starts, where it may: no container of its can get more.
PODMANS_OWN = {"nofile": (resource.RLIMIT_NOFILE, 1 << 20), "nproc": (resource.RLIMIT_NPROC, 1 << 15)}


def _limits_within_reach(_engine: Engine) -> tuple[str, ...]:
    return tuple(_ulimits({name: resource.getrlimit(number)[1] for name, (number, _) in PODMANS_OWN.items()}))


def _ulimits(hard: Mapping[str, int]) -> Iterator[str]:
    """Options for this process's hard limits, or Podman's own where those are lower."""
    for name, limit in hard.items():
        most = PODMANS_OWN[name][1] if limit == resource.RLIM_INFINITY else min(limit, PODMANS_OWN[name][1])
        yield from ("--ulimit", f"{name}={most}:{most}")


def _runc(engine: Engine) -> tuple[str, ...]:
    path = engine.environment.get("PATH", "")
    found = shutil.which("runc", path=f"{path}:/usr/sbin:/sbin")  # Debian puts it where users do not look
    if found is None:
        raise MissingTool(
            "crun cannot run containers on this machine, and runc, which can, is not here",
            why="both versions of cgroups are mounted side by side",
            hint="install runc (Debian's package has this name), or --container none",
        )
    return ("--runtime", found)


REFUSALS = (
    Refusal(
        words=re.compile(r"setting rlimit|setrlimit", re.IGNORECASE),
        note="raising the limits on open files and processes is refused here; containers get those of this process",
        options=_limits_within_reach,
    ),
    Refusal(
        words=re.compile(r"cgroups in hybrid mode not supported"),
        note="crun refuses to run where both versions of cgroups are mounted; runc is used",
        options=_runc,
    ),
)

_workable: dict[Engine, Engine] = {}


def workable(engine: Engine, image: str) -> Engine:
    """Return the engine with the options that it needs here, found once per process with an image that is present.

    Raises:
        ContainerFault: when it refuses for a reason that is not known.
        MissingTool: when what would work is not installed.
    """
    if engine not in _workable:
        _workable[engine] = _settle(engine, image)
    return _workable[engine]


def is_settled(engine: Engine) -> bool:
    """Whether it is known already how an engine works here."""
    return engine in _workable


def trust(engine: Engine) -> Engine:
    """Take an engine as another process has found it to work, without a trial of one's own."""
    _workable[engine] = engine
    return engine


def _settle(engine: Engine, image: str) -> Engine:
    """Run ``true`` until it is not refused, each refusal answered once; one without a word is tried once more."""
    known, silent = list(REFUSALS), 0
    while True:
        result = engine.ask(*words(engine, image))
        if result.ok:
            return engine
        refusal = next((each for each in known if each.words.search(result.tail)), None)
        if refusal is None and not result.tail and not silent:
            silent += 1  # Podman was seen to fail so once, right after a run of its was killed
            continue
        if refusal is None:
            raise ContainerFault(
                f"{engine.kind.value} runs no container on this machine",
                why=f"it refuses to run 'true' from the image {image}:\n{excerpt(result.tail)}",
                hint="another engine with --container, or --container none",
            )
        known.remove(refusal)
        engine = answer(engine, refusal)


def answer(engine: Engine, refusal: Refusal) -> Engine:
    """The engine with what avoids the refusal."""
    return dataclasses.replace(
        engine, options=(*engine.options, *refusal.options(engine)), notes=(*engine.notes, refusal.note)
    )


def words(engine: Engine, image: str) -> tuple[str, ...]:
    """The smallest run there is, without the image's own entry point."""
    return (
        *("run", "--rm", "--pull", "never", "--network", "none"),
        *engine.options,
        *("--entrypoint", "true", image),
    )
