"""Which container engine is on this machine, and what it can do."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command
from kiln.errors import MissingTool, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Podman's monitor leaves a file named oom in its working folder when memory runs out; that must not be a feedstock.
ASIDE = Path(tempfile.gettempdir())
ANSWER_SECONDS = 30.0

ON_THE_HOST = (
    "without a container the build sees the whole file system of this machine, and may write where its user may",
    "without a container the build reaches the network at every step",
    "without a container nothing bounds the cores and processes of the build, and its memory only what --memory says",
    "without a container the build uses this machine's compilers and libraries instead of the cell's image",
)


class Kind(str, Enum):
    """The two engines, which share a command line but for a few options."""

    DOCKER = "docker"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """A container engine that answers.

    ``environment`` is what its client runs with. ``options`` are needed on this machine for any container to run, and
    ``notes`` say why; both come from ``kiln.container.trial``. ``lacks`` are sentences on what it cannot do here.
    """

    kind: Kind
    executable: str
    version: str
    rootless: bool = False
    selinux: bool = False
    options: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(repr=False, compare=False)

    def as_json(self) -> dict[str, Any]:
        """Return the engine as JSON values, for another process of this machine; its environment is not among them."""
        fields = {
            each.name: getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "environment"
        }
        return {**fields, "kind": self.kind.value}

    @classmethod
    def from_json(cls, told: Mapping[str, Any], *, environment: Mapping[str, str]) -> Engine:
        """Return the engine that another process has found."""
        lists = {name: tuple(value) for name, value in told.items() if isinstance(value, (list, tuple))}
        return cls(**{**told, **lists, "kind": Kind(told["kind"]), "environment": environment})

    def ask(self, *words: str) -> command.Result:
        """Run one of the engine's quick commands; its answer is the result's ``stdout``, its complaint the ``tail``."""
        words = (self.executable, *words)
        return command.capture(words, env=self.environment, cwd=ASIDE, timeout=4 * ANSWER_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where builds run: in containers of ``engine``, or on the host without one.

    ``notes`` are sentences for whoever starts the build: the isolation that is missing, and why.
    """

    engine: Engine | None
    notes: tuple[str, ...]


def choose(name: str | None, *, env: Mapping[str, str], executable: str | None = None) -> Choice:
    """Return the engine called ``name``, nothing for ``none``, or the first that answers when no name is given.

    ``executable`` is the program to use for it (conda-forge's DOCKER_EXECUTABLE), ``env`` what the engine's client
    needs (PATH, DOCKER_HOST, XDG_RUNTIME_DIR, ...).

    Raises:
        UsageError: for a name that is no engine's.
        MissingTool: when the engine that was asked for is missing or does not answer.
    """
    if name == "none":
        return Choice(engine=None, notes=ON_THE_HOST)
    if name is not None or executable is not None:
        engine = find(_kind(name), env=env, executable=executable)
        return Choice(engine=engine, notes=engine.lacks)
    complaints = []
    for kind in Kind:
        try:
            engine = find(kind, env=env)
            return Choice(engine=engine, notes=engine.lacks)
        except MissingTool as error:
            complaints.append(f"{error.what}{f' ({error.why})' if error.why else ''}")
    return Choice(engine=None, notes=(*complaints, *ON_THE_HOST))


def _kind(name: str | None) -> Kind | None:
    if name is None:
        return None
    try:
        return Kind(name)
    except ValueError:
        raise UsageError(f"there is no container engine {name!r}", hint="docker, podman or none") from None


def find(kind: Kind | None, *, env: Mapping[str, str], executable: str | None = None) -> Engine:
    """Return an engine once it has answered; what its program calls itself decides what it is.

    Raises:
        MissingTool: when the program is missing, does not answer, or is neither Docker nor Podman.
        UsageError: when the program is another engine than ``kind``.
    """
    program = executable or (kind or Kind.DOCKER).value
    path = _path(program, env, own=executable is not None)
    said = command.capture([path, "--version"], env=env, timeout=ANSWER_SECONDS).stdout.lower()
    actual = next((each for each in Kind if said.startswith(each.value)), None)
    if actual is None:
        raise MissingTool(f"{path} is neither Docker nor Podman", why=f"it calls itself {said.strip()!r}")
    if kind is not None and kind is not actual:
        raise UsageError(f"{program} is {actual.value}, not {kind.value}", hint=f"--container {actual.value}")
    return parse(actual, path, _information(path, env), environment=env)


def _path(program: str, env: Mapping[str, str], *, own: bool) -> str:
    """Return where an engine's program lies; ``own`` is one that the user has named."""
    try:
        return str(command.find(program, env=env))
    except MissingTool as error:
        error.hint = "install it, or --container none"
        if own:
            error.hint = f"let DOCKER_EXECUTABLE name a program that is here, or unset it; {error.hint}"
        raise


def _information(path: str, env: Mapping[str, str]) -> Mapping[str, Any]:
    """What ``docker info`` or ``podman info`` tells."""
    result = command.capture([path, "info", "--format", "{{json .}}"], env=env, timeout=ANSWER_SECONDS)
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


def parse(kind: Kind, path: str, answer: Mapping[str, Any], *, environment: Mapping[str, str]) -> Engine:
    """Read what ``info`` told into an Engine."""
    if kind is Kind.DOCKER:
        options = " ".join(answer.get("SecurityOptions") or ())
        rootless, selinux = "name=rootless" in options, "name=selinux" in options
        version, limits = answer.get("ServerVersion", ""), bool(answer.get("MemoryLimit", True))
    else:
        host = answer["host"]
        rootless, selinux = bool(host["security"]["rootless"]), bool(host["security"].get("selinuxEnabled"))
        version, limits = answer["version"]["Version"], not (rootless and host.get("cgroupVersion") == "v1")
    return Engine(
        kind=kind,
        executable=path,
        version=version,
        rootless=rootless,
        selinux=selinux,
        lacks=() if limits else (f"{kind.value} cannot bound memory, cores and processes on this machine",),
        environment=environment,
    )
