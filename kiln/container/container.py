"""Create, run and remove one container."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from typing import TYPE_CHECKING, Any

from kiln import process_runner
from kiln.container import arguments, engine_workarounds, image_inspection_and_pull, memory_watch
from kiln.container.engine import ASIDE, Engine, EngineKind
from kiln.container.owner_labels import LABEL, OwnerProcess, has_ended
from kiln.errors import ContainerFault
from kiln.model.container import ContainerProgramResult, ContainerRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

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
        if not engine_workarounds.is_workable_engine_cached(self.engine):
            image_inspection_and_pull.pull_if_missing(self.engine, self.plan.image)
        self.engine = engine_workarounds.workable_engine(self.engine, self.plan.image)
        try:
            self._create_container()
        except BaseException:
            self.remove()
            raise
        return self

    def _create_container(self) -> None:
        """Create the container; look for the image only when the engine lacks it, since each query takes time."""
        argv = self.plan.argv if self.plan.interactive else memory_watch.watched_command(self.plan.argv)
        plan = dataclasses.replace(self.plan, argv=argv)
        words = arguments.create_command(
            self.engine, plan, name=self.name, labels={LABEL: str(OwnerProcess.of_this_process())}
        )
        result = self._run_engine_client(words)
        if image_inspection_and_pull.is_missing_image_failure(result):
            image_inspection_and_pull.pull_if_missing(self.engine, plan.image)
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
        `kiln.process_runner.run`.

        Raises:
            ContainerFault: when the engine could not start it.
        """
        hear = (
            None
            if on_line is None
            else lambda line: None if memory_watch.is_memory_figure_line(line) else on_line(line)
        )
        words = arguments.start_command(self.engine, self.name)
        result = self._run_engine_client(words, log=log, timeout=timeout, on_line=hear, own=own)
        if result.exit_code == process_runner.TIMED_OUT and self._inspect_state()["Status"] != "exited":
            self.stop()  # it may not even have started
            return ContainerProgramResult(exit_code=process_runner.TIMED_OUT, tail=result.tail)
        tail, peak, kills = memory_watch.split_output_peak_and_kills(result.tail)
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
        argv = arguments.start_command(self.engine, self.name, interactive=True)
        return process_runner.run_on_terminal(argv, env={**self.engine.environment, **self.plan.secrets}, cwd=ASIDE)

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
    ) -> process_runner.ProcessResult:
        """Run the engine's client with the secrets' values in its environment, and nowhere else."""
        return process_runner.run(
            argv,
            env={**self.engine.environment, **self.plan.secrets},
            cwd=ASIDE,
            secrets=tuple(self.plan.secrets.values()),
            log=log,
            timeout=timeout,
            on_line=on_line,
            tail_lines=process_runner.TAIL_LINES + FIGURES,
            own=own,
        )

    def _require_success(self, verb: str, result: process_runner.ProcessResult) -> None:
        if not result.ok:
            raise self._refusal_error(verb, result)

    def _refusal_error(self, verb: str, result: process_runner.ProcessResult) -> ContainerFault:
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
    label = f'{{{{index .Labels "{LABEL}"}}}}' if engine.kind is EngineKind.PODMAN else f'{{{{.Label "{LABEL}"}}}}'
    listed = engine.run_command("ps", "--all", "--filter", f"label={LABEL}", "--format", f"{{{{.Names}}}} {label}")
    for line in listed.stdout.splitlines():
        name, _, text = line.partition(" ")
        yield name, text


def _remove_container(engine: Engine, name: str) -> None:
    at_once = ["--time", "0"] if engine.kind is EngineKind.PODMAN else []  # else it waits ten seconds
    engine.run_command("rm", "--force", "--volumes", *at_once, name)
