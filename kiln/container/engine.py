"""Find a container engine on this machine, its features, and the options with which it works here."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import process, serialization
from kiln.base.errors import ContainerFault, MissingTool, UsageError, program_output_with_margin
from kiln.base.system import machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
    limits = {name: min(machine.resource_hard_limit(name), most) for name, most in PODMANS_OWN.items()}
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


# Podman's monitor leaves a file named oom in its working folder when memory runs out; keep it out of feedstocks.
ASIDE = Path(tempfile.gettempdir())
ANSWER_SECONDS = 30.0

ON_THE_HOST = (
    "without a container the build has all rights of your user: it sees the whole file system, and your keys in it",
    "without a container the build reaches the network at every step",
    "without a container nothing bounds the cores and processes of the build, and its memory only what --memory says",
    "without a container the build uses this machine's compilers and libraries instead of the config's image",
)


class EngineKind(str, Enum):
    """The kinds of engines, which share a command line but for a few options."""

    DOCKER = "docker"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine that answers.

    ``environment`` are its client's variables. ``options`` are needed on this machine to run any container, and
    ``notes`` say why; both come from ``container.engine_workarounds``. ``lacks`` are sentences on missing features.
    ``cores`` and ``memory`` are those of its machine, which on macOS is a virtual one.
    """

    kind: EngineKind
    executable: str
    version: str
    rootless: bool = False
    selinux: bool = False
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    cores: int | None = None
    memory: int | None = None
    environment: Mapping[str, str] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the engine as JSON values, without its environment, for another process of this machine."""
        return {name: value for name, value in serialization.to_json(self).items() if name != "environment"}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, environment: Mapping[str, str]) -> Engine:
        """Return the engine from another process's JSON values."""
        return serialization.from_json_values(cls, {**data, "environment": environment}, (EngineKind,))

    def run_command(self, *words: str) -> process.ProcessResult:
        """Run one of the engine's quick commands; the result's ``stdout`` has the output, its ``tail`` the errors."""
        words = (self.executable, *words)
        return process.capture(words, env=self.environment, cwd=ASIDE, timeout=4 * ANSWER_SECONDS)

    def refusal_error(self, action: str, output: str, *, hint: str = "") -> ContainerFault:
        """Return the failure of an action that the engine refused with this output."""
        return ContainerFault(
            f"{self.kind.value} cannot {action}", why=f"it says:\n{program_output_with_margin(output)}", hint=hint
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineChoice:
    """The engine of the builds, or None for builds on the host.

    ``notes`` are sentences for the user: the isolation that is missing, and why.
    """

    engine: Engine | None
    notes: tuple[str, ...]


def choose_engine(name: str | None, *, env: Mapping[str, str], executable: str | None = None) -> EngineChoice:
    """Return the engine called ``name``, none for ``none``, or the first that answers without a name.

    Builds on the host have all rights of the user: so an engine that is installed and does not answer is an error.

    ``executable`` is the program to use for it (conda-forge's DOCKER_EXECUTABLE), ``env`` the variables of the
    engine's client (PATH, DOCKER_HOST, XDG_RUNTIME_DIR, ...).

    Raises:
        UsageError: for an unknown name.
        MissingTool: when the requested engine is missing or does not answer, or none of the installed ones answers.
    """
    if name == "none":
        return EngineChoice(engine=None, notes=ON_THE_HOST)
    if name is not None or executable is not None:
        engine = find_engine(_engine_kind_of_name(name), env=env, executable=executable)
        return EngineChoice(engine=engine, notes=engine.lacks)
    missing, silent = [], []
    for kind in EngineKind:
        try:
            _find_engine_program(kind.value, env, is_named=False)
        except MissingTool as error:
            missing.append(error)
            continue
        try:
            engine = find_engine(kind, env=env)
        except MissingTool as error:
            silent.append(error)
            continue
        return EngineChoice(engine=engine, notes=(*map(_complaint, silent), *engine.lacks))
    if silent:
        raise silent[0]
    return EngineChoice(engine=None, notes=(*map(_complaint, missing), *ON_THE_HOST))


def _complaint(error: MissingTool) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


def _engine_kind_of_name(name: str | None) -> EngineKind | None:
    if name is None:
        return None
    try:
        return EngineKind(name)
    except ValueError:
        raise UsageError(f"no such container engine: {name!r}", hint="docker, podman or none") from None


def find_engine(kind: EngineKind | None, *, env: Mapping[str, str], executable: str | None = None) -> Engine:
    """Return an engine that answers; the output of its program's ``--version`` decides its kind."""
    program = executable or (kind or EngineKind.DOCKER).value
    path = _find_engine_program(program, env, is_named=executable is not None)
    output = process.capture([path, "--version"], env=env, timeout=ANSWER_SECONDS).stdout.lower()
    actual = next((engine_kind for engine_kind in EngineKind if output.startswith(engine_kind.value)), None)
    if actual is None:
        raise MissingTool(f"{path} is neither Docker nor Podman", why=f"it calls itself {output.strip()!r}")
    if kind is not None and kind is not actual:
        raise UsageError(f"{program} is {actual.value}, not {kind.value}", hint=f"--container {actual.value}")
    return engine_from_info(actual, path, _engine_info(path, env), environment=env)


def _find_engine_program(program: str, env: Mapping[str, str], *, is_named: bool) -> str:
    """Return the path of an engine's program; ``is_named`` when the user has named it."""
    try:
        return str(process.find_program(program, env=env))
    except MissingTool as error:
        error.hint = f"{error.hint or 'install it'}, or --container none"
        if is_named:
            error.hint = f"let DOCKER_EXECUTABLE name a program that is here, or unset it; {error.hint}"
        raise


def _engine_info(path: str, env: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the output of ``docker info`` or ``podman info``."""
    result = process.capture([path, "info", "--format", "{{json .}}"], env=env, timeout=ANSWER_SECONDS)
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not result.ok or answer.get("ServerErrors"):
        complaints = [*(answer or {}).get("ServerErrors", ()), *result.tail.splitlines()[-1:]]
        raise MissingTool(
            f"{path} is here, but its engine does not answer",
            why=complaints[0] if complaints else f"it ended with exit code {result.exit_code}",
            hint="start the engine, allow this user to use it, or --container none",
        )
    return answer


def engine_from_info(
    kind: EngineKind, path: str, answer: Mapping[str, Any], *, environment: Mapping[str, str]
) -> Engine:
    """Return the engine that the output of ``info`` describes."""
    if kind is EngineKind.DOCKER:
        options = " ".join(answer.get("SecurityOptions") or ())
        rootless, selinux = "name=rootless" in options, "name=selinux" in options
        version, limits = answer.get("ServerVersion", ""), bool(answer.get("MemoryLimit", True))
        cores, memory = answer.get("NCPU"), answer.get("MemTotal")
    else:
        host = answer["host"]
        rootless, selinux = bool(host["security"]["rootless"]), bool(host["security"].get("selinuxEnabled"))
        version, limits = answer["version"]["Version"], not (rootless and host.get("cgroupVersion") == "v1")
        cores, memory = host.get("cpus"), host.get("memTotal")
    return Engine(
        kind=kind,
        executable=path,
        version=version,
        rootless=rootless,
        selinux=selinux,
        lacks=() if limits else (f"{kind.value} cannot bound memory, cores and processes on this machine",),
        cores=cores if isinstance(cores, int) and cores > 0 else None,
        memory=memory if isinstance(memory, int) and memory > 0 else None,
        environment=environment,
    )
