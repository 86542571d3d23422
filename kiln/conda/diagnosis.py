"""Explain a failed solve, or why a machine with a GPU gets a build for the CPU."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError, SolveFailed, program_output_with_margin
from kiln.compat import machine as compat_machine
from kiln.compat import tables
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rattler import RepoDataRecord

    from kiln.conda.solve import VirtualPackages

    Solver = Callable[..., Sequence[RepoDataRecord]]


ANY_GLIBC = "2.99"
ELSEWHERE = (
    "or, on a login node whose jobs run on machines with a driver, set CONDA_OVERRIDE_CUDA to its CUDA, {cuda} or newer"
)
VERSIONS = 5  # of a package, in the message about one that does not exist
LINES = 16  # of the solver's own message, without --verbose


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetMachine:
    """The machine to solve for; ``overridden`` are the virtual packages that the user has set.

    ``driver`` returns the version of the NVIDIA driver, which takes a moment.
    """

    virtual_packages: VirtualPackages
    overridden: frozenset[str] = frozenset()
    driver: Callable[[], str | None] = lambda: None

    def with_virtual_package(self, name: str, version: str) -> TargetMachine:
        """Return the same machine with another virtual package."""
        return replace(self, virtual_packages={**self.virtual_packages, name: (version, "0")})

    def without_virtual_package(self, name: str) -> TargetMachine:
        """Return the same machine without a virtual package."""
        return replace(self, virtual_packages={key: item for key, item in self.virtual_packages.items() if key != name})

    def virtual_package_version(self, name: str) -> str | None:
        """Return the version of a virtual package, None without it."""
        package = self.virtual_packages.get(name)
        return None if package is None else package[0]


def explain_failed_solve(
    failure: SolveFailed,
    specs: Sequence[str],
    solve: Solver,
    *,
    channels: Sequence[str],
    machine: TargetMachine,
    most: int,
) -> SolveFailed:
    """Return the error with its cause and a hint, followed by the start of the solver's own message.

    ``solve`` is `kiln.conda.solve.solve` with the channels and their priority; ``most`` lines are shown.
    """

    def solver_refusal(specs: Sequence[str], on: TargetMachine) -> str:
        """Return the solver's message; empty when it succeeds."""
        try:
            solve(specs, virtual_packages=on.virtual_packages)
        except SolveFailed as error:
            return error.why
        return ""

    def conflicting_specs(on: TargetMachine) -> tuple[str, ...]:
        """Return specs that cannot be satisfied together, none of which can be omitted."""
        needed = list(specs)
        for spec in specs:
            fewer = [other for other in needed if other != spec]
            if fewer and solver_refusal(fewer, on):
                needed = fewer
        return tuple(needed)

    def cpu_specs(needs: Sequence[str]) -> list[str]:
        """Return ``tensorflow-cpu 2.21.*`` for ``tensorflow-gpu 2.21.*``, and nothing for others, where it solves."""
        names = {spec: package_name(spec) for spec in needs}
        for_gpu = {spec: name for spec, name in names.items() if name.endswith("-gpu")}
        for_cpu = [f"{name.removesuffix('-gpu')}-cpu{spec[len(name) :]}" for spec, name in for_gpu.items()]
        return [spec for spec in for_cpu if not solver_refusal([spec], machine)]

    explained = partial(_explained_failure, words=failure.why, most=most)
    arch = machine.virtual_package_version(compat_machine.NAME)
    if arch is not None and not solver_refusal(specs, machine.without_virtual_package(compat_machine.NAME)):
        needs = conflicting_specs(machine)
        return explained(*_explain_old_gpu(needs, arch, machine, instead=cpu_specs(needs)))
    newer_glibc = machine.with_virtual_package("__glibc", ANY_GLIBC)
    cudas = _cuda_versions_to_try(failure.why)
    # A driver, a C library, or both: a request that lacks both is refused with either.
    for on, cuda in (*((machine, cuda) for cuda in cudas), *((newer_glibc, cuda) for cuda in ("", *cudas))):
        if solver_refusal(specs, on.with_virtual_package("__cuda", cuda) if cuda else on):
            continue
        needs = conflicting_specs(machine)
        reasons = [_explain_driver(needs, cuda, machine, instead=cpu_specs(needs))] if cuda else []
        reasons += [_explain_old_glibc(needs, machine)] if on is newer_glibc else []
        problems, causes, hints = zip(*reasons, strict=True)
        return explained("; and ".join(problems), "\n".join(causes), "; and ".join(hints))
    anything = machine.with_virtual_package("__cuda", tables.cuda_minor_versions()[0]).with_virtual_package(
        "__glibc", ANY_GLIBC
    )
    core = conflicting_specs(anything)
    solve_anywhere = partial(solve, virtual_packages=anything.virtual_packages)
    versions = _newest_versions(package_name(core[0]), solve_anywhere) if len(core) == 1 else ()
    words = solver_refusal(core, anything) or failure.why
    return explained(*_explain_conflicting_specs(core, channels, versions), words=words)


def _explained_failure(problem: str, why: str, hint: str, *, words: str, most: int) -> SolveFailed:
    """Return an error with the first ``most`` lines of the solver's own message after its cause."""
    lines = words.strip().splitlines()
    more = [f"... and {len(lines) - most} lines more, with --verbose"] if len(lines) > most else []
    detail = "the solver says\n" + program_output_with_margin("\n".join([*lines[:most], *more]))
    return SolveFailed(problem, why="\n".join(filter(None, (why, detail))), hint=hint)


def _cuda_versions_to_try(words: str) -> tuple[str, ...]:
    """Return the versions of CUDA that a driver may need, oldest first: each major one, and those in ``words``."""
    majors = (f"{row['cuda']}.0" for row in tables.table_rows("cuda_minor"))
    versions = re.findall(r"__cuda >=?(\d{1,4}\.\d{1,4})", words)
    return tuple(sorted({*majors, *versions}, key=tables.version_numbers))


def _is_newer_cuda(cuda: str, than: str | None) -> bool:
    """Return whether a CUDA version is newer than a driver's; any is newer than None."""
    return than is None or tables.version_numbers(cuda) > tables.version_numbers(than)


def _explain_driver(
    needs: Sequence[str], cuda: str, machine: TargetMachine, *, instead: Sequence[str]
) -> tuple[str, str, str]:
    """Return problem, cause and hint for a driver that is missing, too old, or newer than packages ask for."""
    cpu = [f"request {spec}, which needs no GPU" for spec in instead]
    if not _is_newer_cuda(cuda, machine.virtual_package_version("__cuda")):
        runs = f"a newer driver runs what is built for an older CUDA: CONDA_OVERRIDE_CUDA={cuda} chooses these packages"
        problem = (
            f"{' and '.join(needs)} cannot be chosen here: this asks for a driver of CUDA {cuda}, not for a newer one"
        )
        return problem, _describe_driver(machine), "; ".join((*cpu, runs))
    row = tables.oldest_driver_row_for_cuda(cuda)
    driver = f"driver {row['driver']} or newer" if row else "a newer driver"
    steps = (*cpu, f"install NVIDIA's {driver}", ELSEWHERE.format(cuda=cuda))
    source = f" ({row.place}: {row['source']})" if row else ""
    return (
        f"{' and '.join(needs)} cannot run here: this needs an NVIDIA {driver}, for CUDA {cuda}{source}",
        _describe_driver(machine),
        "; ".join(steps),
    )


def _explain_old_gpu(
    needs: Sequence[str], arch: str, machine: TargetMachine, *, instead: Sequence[str]
) -> tuple[str, str, str]:
    """Return problem, cause and hint for a GPU that is older than all that the builds have code for."""
    steps = (
        *(f"request {spec}, which needs no GPU" for spec in instead),
        f"or, if another GPU of this machine is meant, set {compat_machine.OVERRIDE} to its compute capability",
    )
    why = (
        f"{compat_machine.OVERRIDE} says that the lowest compute capability is {arch}"
        if compat_machine.NAME in machine.overridden
        else f"the lowest compute capability of this machine's GPUs is {arch}"
    )
    return f"{' and '.join(needs)} cannot run here: its builds have no code for so old a GPU", why, "; ".join(steps)


def _describe_driver(machine: TargetMachine) -> str:
    cuda = machine.virtual_package_version("__cuda")
    if "__cuda" in machine.overridden:
        return f"CONDA_OVERRIDE_CUDA says that this machine has {f'CUDA {cuda}' if cuda else 'no driver'}"
    if cuda is None:
        return "no working NVIDIA driver found on this machine"
    driver = machine.driver()
    return f"this machine's driver{f', {driver},' if driver else ''} runs CUDA up to {cuda}"


def _explain_old_glibc(specs: Sequence[str], machine: TargetMachine) -> tuple[str, str, str]:
    """Return problem, cause and hint for an old C library."""
    return (
        f"{' and '.join(specs)} need{'s' if len(specs) == 1 else ''} a newer C library than this machine's",
        f"glibc here is {machine.virtual_package_version('__glibc') or 'not known'}",
        "use a newer system or a container; CONDA_OVERRIDE_GLIBC chooses packages for another machine",
    )


def _newest_versions(name: str, solve: Callable[[Sequence[str]], Sequence[RepoDataRecord]]) -> list[str]:
    """Return the newest versions of a package that can be installed."""
    versions: list[str] = []
    spec = name
    while len(versions) < VERSIONS:
        try:
            found = [str(record.version) for record in solve([spec]) if record.name.normalized == name]
        except SolveFailed:
            break
        if not found or found[0] in versions:
            break
        versions.append(found[0])
        spec = f"{name} <{found[0]}"
    return versions


def _explain_conflicting_specs(
    core: Sequence[str], channels: Sequence[str], versions: Sequence[str] = ()
) -> tuple[str, str, str]:
    """Return problem, cause and hint for specs that exclude each other, or for one that is in no channel.

    ``versions`` are the newest ones of the latter's package that can be installed.
    """
    where = ", ".join(channels)
    if len(core) == 1:
        known = f"the newest versions there of {package_name(core[0])} are {', '.join(versions)}" if versions else ""
        return (
            f"{core[0]} cannot be installed from {where} on any machine",
            known,
            "request another version, or add a channel (--from)"
            if versions
            else "check its name and version, or add a channel (--from)",
        )
    names = sorted(package_name(spec) for spec in core)
    hint = "request fewer of them, or other versions"
    if names == ["tensorflow-cpu", "tensorflow-gpu"]:
        hint = "request one of them; tensorflow alone selects the build for the machine"
    return f"{' and '.join(core)} exclude each other, on any machine", "", hint


MOST_SPECS = 8  # each costs a solve
_CPU = re.compile(r"(?:^|_)cpu(?:_|$|[^a-z])")


def cpu_build_notes(
    records: Iterable[RepoDataRecord], specs: Sequence[str], solve: Solver, machine: TargetMachine
) -> tuple[str, ...]:
    """Return a note with the cause if the first package of the specs with a build for the CPU has one for CUDA too.

    ``solve`` is `kiln.conda.solve.solve` with the channels and their priority.
    """
    fallback = _unrequested_cpu_build(records, specs) if machine.virtual_package_version("__cuda") is not None else None
    if fallback is None:
        return ()

    def solve_for_cuda_build(specs: Sequence[str], on: TargetMachine) -> RepoDataRecord | None:
        """Return the package's build for CUDA that a solve would take; None for one for the CPU, or without any."""
        try:
            solution = solve(specs, virtual_packages=on.virtual_packages)
        except KilnError:
            return None  # the packages to install are known; only their explanation is not
        named = (record for record in solution if record.name.normalized == fallback.name.normalized)
        return next((record for record in named if any(spec.split()[0] == "__cuda" for spec in record.depends)), None)

    explanations = (_note_on_excluding_spec, _note_on_compute_capability, _note_on_driver)
    notes = (explain(fallback, specs, machine, solve_for_cuda_build) for explain in explanations)
    return tuple(itertools.islice(filter(None, notes), 1))


def _unrequested_cpu_build(records: Iterable[RepoDataRecord], specs: Sequence[str]) -> RepoDataRecord | None:
    """Return the first package with a build for the CPU, a requested one if any; None if the CPU was requested."""
    requested = {package_name(spec): spec for spec in specs}
    builds = [record for record in records if _CPU.search(str(record.build))]
    if any(name.endswith("-cpu") or "cpu" in spec[len(name) :] for name, spec in requested.items()):
        return None
    return min(
        builds, key=lambda record: (record.name.normalized not in requested, record.name.normalized), default=None
    )


def _note_on_excluding_spec(
    fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve
) -> str:
    name = fallback.name.normalized
    for spec in specs[:MOST_SPECS]:
        others = [other for other in specs if other != spec]
        if others and package_name(spec) != name and (instead := solve(others, machine)) is not None:
            return _cpu_build_note(
                fallback,
                f"no build for CUDA fits {spec}",
                f"without {spec} it would be {_version_and_build(instead)}; '{name} * cpu*' requests the CPU",
            )
    return ""


def _note_on_compute_capability(
    fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve
) -> str:
    arch = machine.virtual_package_version(compat_machine.NAME)
    if arch is None or (instead := solve(specs, machine.without_virtual_package(compat_machine.NAME))) is None:
        return ""
    return _cpu_build_note(
        fallback,
        f"its builds for CUDA have no code for a GPU of compute capability {arch}, the lowest here",
        f"on a newer GPU it would be {_version_and_build(instead)}; if another GPU of this machine is meant, set "
        f"{compat_machine.OVERRIDE} to its compute capability",
    )


def _note_on_driver(fallback: RepoDataRecord, specs: Sequence[str], machine: TargetMachine, solve: Solve) -> str:
    here = machine.virtual_package_version("__cuda")
    for cuda in _cuda_versions_to_try(""):
        if (
            _is_newer_cuda(cuda, here)
            and (instead := solve(specs, machine.with_virtual_package("__cuda", cuda))) is not None
        ):
            row = tables.oldest_driver_row_for_cuda(cuda)
            return _cpu_build_note(
                fallback,
                f"its builds for CUDA need a driver for CUDA {cuda}, and this one runs up to {here}",
                f"with driver {row['driver'] if row else cuda} or newer it would be {_version_and_build(instead)}",
            )
    return ""


def _cpu_build_note(fallback: RepoDataRecord, cause: str, remedy: str) -> str:
    build = f"{fallback.name.normalized} {_version_and_build(fallback)}"
    return f"{build} is a build for the CPU, and this machine has a driver for CUDA: {cause}; {remedy}"


def _version_and_build(record: RepoDataRecord) -> str:
    return f"{record.version} {record.build}"


if TYPE_CHECKING:
    Solve = Callable[[Sequence[str], TargetMachine], RepoDataRecord | None]
