"""Why no packages satisfy what was asked: the driver, the C library, or specs that exclude each other.

A solver tells what it tried, not what is missing. So the same solve is asked of other machines, and of fewer specs,
and the answers say which of them it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiln import channel
from kiln.compat import lines, tables
from kiln.errors import SolveFailed, excerpt
from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kiln.channel import VirtualPackages

ANY_GLIBC = "2.99"
ELSEWHERE = (
    "or, on a login node whose jobs run where there is one, set CONDA_OVERRIDE_CUDA to its CUDA, {cuda} or newer"
)
LINES = 16  # of the solver's own words, unless all are asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What packages are chosen for; ``overridden`` are the virtual packages that a person has set.

    ``driver`` asks for the version of the NVIDIA driver, which takes a moment.
    """

    virtual_packages: VirtualPackages
    overridden: frozenset[str] = frozenset()
    driver: Callable[[], str | None] = lambda: None

    def offering(self, name: str, version: str) -> Machine:
        """Return the same machine with another virtual package."""
        return replace(self, virtual_packages={**self.virtual_packages, name: (version, "0")})

    def version(self, name: str) -> str | None:
        """Return the version of a virtual package, None without it."""
        found = self.virtual_packages.get(name)
        return None if found is None else found[0]


def explained(
    failure: SolveFailed,
    asked: Sequence[str],
    *,
    channels: Sequence[str],
    machine: Machine,
    flexible: bool = False,
    most: int = LINES,
) -> SolveFailed:
    """Return the failure with its reason and what to do, the first of the solver's own words after it."""

    def refused(specs: Sequence[str], on: Machine) -> str:
        """What the solver says against it; nothing when it solves."""
        try:
            channel.solve(channels, specs, virtual_packages=on.virtual_packages, flexible=flexible)
        except SolveFailed as error:
            return error.why
        return ""

    def needed(on: Machine) -> tuple[str, ...]:
        return smallest(asked, lambda specs: not refused(specs, on))

    for cuda in cudas(failure.why):
        if newer(cuda, machine.version("__cuda")) and not refused(asked, machine.offering("__cuda", cuda)):
            needs = needed(machine)
            instead = [spec for spec in map(_on_the_cpu, needs) if spec and not refused([spec], machine)]
            return _told(*no_driver(needs, cuda, machine, instead=instead), words=failure.why, most=most)
    if not refused(asked, machine.offering("__glibc", ANY_GLIBC)):
        return _told(*old_glibc(needed(machine), machine), words=failure.why, most=most)
    anything = machine.offering("__cuda", tables.cuda_lines()[0]).offering("__glibc", ANY_GLIBC)
    core = needed(anything)
    return _told(*excluded(core, channels), words=refused(core, anything) or failure.why, most=most)


def _told(what: str, why: str, hint: str, *, words: str, most: int) -> SolveFailed:
    """The failure with the solver's own words after its reason, as many as help."""
    told = words.strip().splitlines()
    more = [f"... and {len(told) - most} lines more, with --verbose"] if len(told) > most else []
    detail = "the solver says\n" + excerpt("\n".join([*told[:most], *more]))
    return SolveFailed(what, why="\n".join(filter(None, (why, detail))), hint=hint)


def cudas(words: str) -> tuple[str, ...]:
    """Return the versions of CUDA that a driver may need, oldest first: each major one, and those in ``words``."""
    majors = (f"{row['cuda']}.0" for row in tables.table("cuda_minor"))
    named = re.findall(r"__cuda >=?(\d{1,4}\.\d{1,4})", words)
    return tuple(sorted({*majors, *named}, key=lines.numbers))


def newer(cuda: str, than: str | None) -> bool:
    """Whether a CUDA is newer than what a driver runs; any is newer than none."""
    return than is None or lines.numbers(cuda) > lines.numbers(than)


def smallest(specs: Sequence[str], solves: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Return specs that cannot be satisfied together, of which each is needed for that."""
    left = list(specs)
    for spec in specs:
        fewer = [each for each in left if each != spec]
        if fewer and not solves(fewer):
            left = fewer
    return tuple(left)


def no_driver(needs: Sequence[str], cuda: str, machine: Machine, *, instead: Sequence[str]) -> tuple[str, str, str]:
    """Say that a driver is missing or too old: what needs it, what is here, what to do."""
    row = tables.driver(cuda)
    driver = f"driver {row['driver']} or newer" if row else "a newer driver"
    told = (
        *(f"ask for {spec}, which needs no GPU" for spec in instead),
        f"install NVIDIA's {driver}",
        ELSEWHERE.format(cuda=cuda),
    )
    source = f" ({row.place}: {row['source']})" if row else ""
    return (
        f"{' and '.join(needs)} cannot run here: this needs an NVIDIA {driver}, for CUDA {cuda}{source}",
        _here(machine),
        "; ".join(told),
    )


def _here(machine: Machine) -> str:
    cuda = machine.version("__cuda")
    if "__cuda" in machine.overridden:
        return f"CONDA_OVERRIDE_CUDA says that this machine has {f'CUDA {cuda}' if cuda else 'no driver'}"
    if cuda is None:
        return "this machine has no NVIDIA driver that answers"
    driver = machine.driver()
    return f"this machine's driver{f', {driver},' if driver else ''} runs CUDA up to {cuda}"


def old_glibc(asked: Sequence[str], machine: Machine) -> tuple[str, str, str]:
    """Say that the C library is too old."""
    return (
        f"{' and '.join(asked)} needs a newer C library than this machine's",
        f"glibc here is {machine.version('__glibc') or 'not known'}",
        "use a newer system or a container; CONDA_OVERRIDE_GLIBC chooses packages for another machine",
    )


def excluded(core: Sequence[str], channels: Sequence[str]) -> tuple[str, str, str]:
    """Say which specs exclude each other, or that one is nowhere."""
    where = ", ".join(channels)
    if len(core) == 1:
        return (
            f"no machine can have {core[0]} from {where}",
            "",
            "see its name and version, or add a channel (--from)",
        )
    names = sorted(package_name(spec) for spec in core)
    hint = "ask for fewer of them, or for other versions"
    if names == ["tensorflow-cpu", "tensorflow-gpu"]:
        hint = "ask for one of them; tensorflow alone takes the build that fits the machine"
    return f"{' and '.join(core)} exclude each other, on any machine", "", hint


def _on_the_cpu(spec: str) -> str:
    """``tensorflow-cpu 2.21.*`` for ``tensorflow-gpu 2.21.*``; nothing for what has no such name."""
    name = package_name(spec)
    return f"{name.removesuffix('-gpu')}-cpu{spec[len(name) :]}" if name.endswith("-gpu") else ""
