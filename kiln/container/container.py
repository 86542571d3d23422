"""Create, run and remove one container; measure its memory; derive an image with more packages."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import process
from kiln.base.errors import ContainerFault, DownloadFailed, program_output_with_margin
from kiln.container import images
from kiln.container.engine import ASIDE, Engine, EngineKind, is_workable_engine_cached, workable_engine
from kiln.container.images import LABEL as OWNER
from kiln.container.images import OwnerProcess, has_ended
from kiln.container.plan import ContainerProgramResult, ContainerRun, create_command, start_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


HELD = "[kiln] most memory held at once:"
KILLS = "[kiln] processes ended for want of memory:"

# cgroups of version 2 first, then of version 1, where the group's own figures include those below it as total_*.
# The kernel's own high-water mark is useless: it counts cached files, too, as long as memory is free.
SCRIPT = f"""
if [ -r /sys/fs/cgroup/memory.stat ]; then
    stat=/sys/fs/cgroup/memory.stat events=/sys/fs/cgroup/memory.events programs=anon shared=shmem
else
    stat=/sys/fs/cgroup/memory/memory.stat events=/sys/fs/cgroup/memory/memory.oom_control
    programs=total_rss shared=total_shmem
fi
most=0
look() {{
    held=0
    while read -r key value; do
        case $key in "$programs" | "$shared") held=$((held + value)) ;; esac
    done <"$stat"
    if [ "$held" -gt "$most" ]; then most=$held; fi
}}
watch() {{
    trap 'echo "{HELD} $most"; exit 0' TERM
    while :; do
        look
        sleep 1 >/dev/null &
        wait "$!"
    done
}}
watcher=
if [ -r "$stat" ]; then
    watch 2>/dev/null &
    watcher=$!
fi
"$@"
code=$?
if [ -n "$watcher" ]; then
    {{ kill -TERM "$watcher" && wait "$watcher"; }} 2>/dev/null
    while read -r key value; do
        if [ "$key" = oom_kill ]; then echo "{KILLS} $value"; fi
    done <"$events"
fi
exit "$code"
"""

_FIGURES = {mark: re.compile(re.escape(mark) + r" (\d+)$") for mark in (HELD, KILLS)}


def watched_command(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs ``argv``, passes its exit code on and reports its memory in the last lines."""
    return ("sh", "-c", SCRIPT, "kiln", *argv)


def is_memory_figure_line(line: str) -> bool:
    """Return whether a line of output is one of the watcher's."""
    return any(figure.match(line) for figure in _FIGURES.values())


def split_output_peak_and_kills(tail: str) -> tuple[str, int | None, int]:
    """Return the tail without the watcher's lines, the peak memory in bytes, and the number of killed processes."""
    values: dict[str, int] = {}
    lines = []
    for line in tail.splitlines():
        if is_memory_figure_line(line):
            mark, _, value = line.rpartition(" ")
            values[mark] = int(value)
        else:
            lines.append(line)
    return "\n".join(lines), values.get(HELD), values.get(KILLS, 0)


# Messages of an engine that is only half installed, and Debian's name of the missing half.
HINTS = (
    ("could not find slirp4netns", "install slirp4netns: rootless Podman reaches the network through it"),
    ("could not find netavark", "install netavark: Podman reaches the network through it"),
)

UNASKED: Mapping[str, Any] = {"Status": "exited", "ExitCode": 0, "OOMKilled": False}
FIGURES = 2  # lines of the watcher's that come after the program's last


class Container:
    """A container as a context: created on entry, removed with its programs on exit, whatever ended the block.

    Entering removes the containers of killed runs, fetches a missing image, and creates the container; an entry that
    fails or is interrupted leaves nothing behind either.
    """

    def __init__(self, engine: Engine, plan: ContainerRun) -> None:
        self.engine = engine
        self.plan = plan
        self.name = f"kiln-{secrets.token_hex(6)}"

    def __enter__(self) -> Container:
        """Create the container.

        Raises:
            DownloadFailed: when the image is missing and cannot be fetched.
            ContainerFault: when the engine refuses.
        """
        remove_orphaned_containers(self.engine)
        if not is_workable_engine_cached(self.engine):
            images.pull_if_missing(self.engine, self.plan.image)
        self.engine = workable_engine(self.engine, self.plan.image)
        try:
            self._create_container()
        except BaseException:
            self.remove()
            raise
        return self

    def _create_container(self) -> None:
        """Create the container; look for the image only when the engine lacks it, since each query takes time."""
        argv = self.plan.argv if self.plan.interactive else watched_command(self.plan.argv)
        plan = dataclasses.replace(self.plan, argv=argv)
        words = create_command(self.engine, plan, name=self.name, labels={OWNER: str(OwnerProcess.of_this_process())})
        result = self._run_engine_client(words)
        if images.is_missing_image_failure(result):
            images.pull_if_missing(self.engine, plan.image)
            result = self._run_engine_client(words)
        self._require_success("create", result)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(
        self,
        *,
        log: Path | None = None,
        timeout: float | None = None,
        on_line: Callable[[str], None] | None = None,
        own: str = "",
    ) -> ContainerProgramResult:
        """Run the plan's program to its end, its output line by line to ``log`` and ``on_line``.

        When ``timeout`` (seconds) is over, the program is ended and the exit code is 124. For ``own`` see
        `kiln.base.process.run`.

        Raises:
            ContainerFault: when the engine could not start it.
        """
        hear = None if on_line is None else lambda line: None if is_memory_figure_line(line) else on_line(line)
        words = start_command(self.engine, self.name)
        result = self._run_engine_client(words, log=log, timeout=timeout, on_line=hear, own=own)
        if result.exit_code == process.TIMED_OUT and self._inspect_state()["Status"] != "exited":
            self.stop()  # it may not even have started
            return ContainerProgramResult(exit_code=process.TIMED_OUT, tail=result.tail)
        tail, peak, kills = split_output_peak_and_kills(result.tail)
        # Success with figures from the watcher needs no query to the engine.
        state = UNASKED if result.ok and peak is not None else self._inspect_state()
        if state["Status"] in {"created", "configured"}:  # Docker, Podman: never started
            raise self._refusal_error("start", result)
        return ContainerProgramResult(
            exit_code=state["ExitCode"],
            tail=tail,
            peak_memory=self.plan.limits.memory if kills and self.plan.limits.memory else peak,
            memory_kills=max(kills, int(state["OOMKilled"])),
        )

    def run_on_terminal(self) -> int:
        """Run the plan's program with this process's standard streams; return its exit code."""
        argv = start_command(self.engine, self.name, interactive=True)
        return process.run_on_terminal(argv, env={**self.engine.environment, **self.plan.secrets}, cwd=ASIDE)

    def stop(self) -> None:
        """Kill the container's programs; their files stay until the container is removed."""
        with contextlib.suppress(ContainerFault):  # it may just have ended
            self._require_success("kill", self.engine.run_command("kill", self.name))

    def variable_names(self) -> tuple[str, ...]:
        """Return the names of the container's variables, with those that the engine's client sets."""
        result = self.engine.run_command(
            "inspect", "--type", "container", "--format", "{{json .Config.Env}}", self.name
        )
        self._require_success("inspect", result)
        return tuple(entry.partition("=")[0] for entry in json.loads(result.stdout) or ())

    def commit(self, tag: str, *, changes: Iterable[str]) -> None:
        """Make an image of the container's files; ``changes`` are instructions of a Dockerfile.

        Raises:
            ContainerFault: when the engine refuses.
        """
        quiet = ["--quiet"] if self.engine.kind is EngineKind.PODMAN else []
        options = [word for change in changes for word in ("--change", change)]
        words = (self.engine.executable, "commit", *quiet, *options, self.name, tag)
        self._require_success("make an image of", self._run_engine_client(words))

    def remove(self) -> None:
        """Remove the container with its programs, if it exists."""
        _remove_container(self.engine, self.name)

    def _inspect_state(self) -> Mapping[str, Any]:
        result = self.engine.run_command("inspect", "--type", "container", "--format", "{{json .State}}", self.name)
        self._require_success("inspect", result)
        state: Mapping[str, Any] = json.loads(result.stdout)
        return state

    def _run_engine_client(
        self,
        argv: Sequence[str],
        *,
        log: Path | None = None,
        timeout: float | None = None,
        on_line: Callable[[str], None] | None = None,
        own: str = "",
    ) -> process.ProcessResult:
        """Run the engine's client with the secrets' values in its environment, and nowhere else."""
        return process.run(
            argv,
            env={**self.engine.environment, **self.plan.secrets},
            cwd=ASIDE,
            secrets=tuple(self.plan.secrets.values()),
            log=log,
            timeout=timeout,
            on_line=on_line,
            tail_lines=process.TAIL_LINES + FIGURES,
            own=own,
        )

    def _require_success(self, verb: str, result: process.ProcessResult) -> None:
        if not result.ok:
            raise self._refusal_error(verb, result)

    def _refusal_error(self, verb: str, result: process.ProcessResult) -> ContainerFault:
        output = result.tail or f"exit code {result.exit_code}"
        hint = next((hint for words, hint in HINTS if words in output), "")
        return self.engine.refusal_error(f"{verb} a container from the image {self.plan.image}", output, hint=hint)


def remove_orphaned_containers(engine: Engine) -> None:
    """Remove the containers of kiln's killed processes."""
    here = OwnerProcess.of_this_process()
    for name, label in _owned_containers(engine):
        owner = OwnerProcess.parse(label)
        if owner is not None and has_ended(owner, here, OwnerProcess.of_process(owner.pid)):
            _remove_container(engine, name)


def _owned_containers(engine: Engine) -> Iterator[tuple[str, str]]:
    """Yield the name and the owner's label of each of kiln's containers."""
    label = f'{{{{index .Labels "{OWNER}"}}}}' if engine.kind is EngineKind.PODMAN else f'{{{{.Label "{OWNER}"}}}}'
    listed = engine.run_command("ps", "--all", "--filter", f"label={OWNER}", "--format", f"{{{{.Names}}}} {label}")
    for line in listed.stdout.splitlines():
        name, _, text = line.partition(" ")
        yield name, text


def _remove_container(engine: Engine, name: str) -> None:
    at_once = ["--time", "0"] if engine.kind is EngineKind.PODMAN else []  # else it waits ten seconds
    engine.run_command("rm", "--force", "--volumes", *at_once, name)


LABEL = "kiln.system-packages"
NAME = f"{images.LOCAL}kiln-system-packages"
SECONDS = 1800.0  # until an installation is stopped
NO_MANAGER = 96

# Packages give files away, set modes and capabilities, and make users; no other of root's rights is granted.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT")

# yum first: conda-forge's CI calls it by this name. Today it is a link to dnf.
INSTALL = f"""
for manager in yum dnf microdnf; do
    if command -v "$manager" >/dev/null; then
        "$manager" install -y "$@" || exit 1
        "$manager" clean all >/dev/null 2>&1
        exit 0
    fi
done
exit {NO_MANAGER}
"""

# The messages of dnf 4 and 5, yum 3 and microdnf about a name that no repository has.
_UNKNOWN = re.compile(r"No match for argument: (\S+)|No package (\S+) available|No package matches '([^']+)'")
_PROXY = re.compile(r"\w*_proxy", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefusal:
    """The reason why an image cannot be derived: no repository has the ``unknown`` packages, or it has no manager."""

    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedImage:
    """An image with further packages; ``digest`` is that of the image below, ``platform`` is set if it is emulated."""

    image: str
    digest: str
    packages: tuple[str, ...]
    platform: str | None = None

    @property
    def key(self) -> str:
        """A hash of everything that determines the image, except the state of the repositories."""
        parts = (self.digest, self.platform or "", INSTALL, *sorted(set(self.packages)))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """The name of the image."""
        return f"{NAME}:{self.key[:24]}"

    def install_plan(self) -> ContainerRun:
        """Return the container that installs the packages: as root, with the network, without any mount."""
        return ContainerRun(
            image=self.image,
            argv=("sh", "-c", INSTALL, "kiln", *self.packages),
            network=True,
            capabilities=CAPABILITIES,
            platform=self.platform,
            # Not ``user``: in rootless Podman that would be the caller, not the root of the container.
            options=("--entrypoint", "", "--user", "0:0"),
        )


def derived_image_exists(engine: Engine, derived: DerivedImage) -> bool:
    """Return whether the engine has a derived image."""
    return images.inspect_image(engine, derived.tag) is not None


def provide_derived_image(
    engine: Engine, derived: DerivedImage, *, on_line: Callable[[str], None] | None = None
) -> InstallRefusal | None:
    """Make a derived image unless the engine has it; return the reason if the packages can never be installed there.

    Raises:
        DownloadFailed: the package manager fails for another reason.
        ContainerFault: the engine refuses.
    """
    if derived_image_exists(engine, derived):
        return None
    below = images.inspect_image(engine, derived.image)
    if below is None:
        raise ContainerFault(f"image not found: {derived.image}")
    if on_line is not None:
        on_line(f"installing {' '.join(derived.packages)} into {derived.image}, once")
    lines: list[str] = []

    def record_line(line: str) -> None:
        lines.append(line)
        if on_line is not None:
            on_line(line)

    with Container(engine, derived.install_plan()) as container:
        result = container.run(on_line=record_line, timeout=SECONDS)
        if result.ok:
            container.commit(
                derived.tag, changes=restored_setting_instructions(below, container.variable_names(), derived.packages)
            )
            return None
    unknown = packages_not_found(lines)
    if unknown or result.exit_code == NO_MANAGER:
        return InstallRefusal(unknown=unknown)
    raise DownloadFailed(
        f"the package manager of {derived.image} cannot install {' '.join(derived.packages)}",
        why=f"it ended with exit code {result.exit_code}:\n{program_output_with_margin(result.tail)}",
        hint="see that containers reach the repositories of the image, or name an image that has them (DOCKER_IMAGE)",
    )


def packages_not_found(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that no repository has, from the messages of a package manager."""
    matches = (match for line in lines for match in _UNKNOWN.finditer(line))
    return tuple(dict.fromkeys(next(filter(None, match.groups())) for match in matches))


def restored_setting_instructions(
    below: Mapping[str, Any], variables: Iterable[str], packages: Iterable[str]
) -> Iterator[str]:
    """Yield the instructions that restore the settings of the image below, which a commit takes from the container.

    ``variables`` are the names of the container's: proxies, which may have passwords, do not stay in the image.
    """
    config = below.get("Config") or {}
    yield f"USER {config.get('User') or '0:0'}"
    yield f"ENTRYPOINT {json.dumps(_string_list(config.get('Entrypoint')))}"
    yield f"CMD {json.dumps(_string_list(config.get('Cmd')))}"
    before = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    for name in sorted(set(variables)):
        if _PROXY.fullmatch(name):
            escaped = re.sub(r'(["\\$])', r"\\\1", before.get(name, ""))
            yield f'ENV {name}="{escaped}"'
    yield f"LABEL {OWNER}="
    yield f'LABEL {LABEL}="{" ".join(packages)}"'


def _string_list(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
