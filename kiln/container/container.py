"""One container, from its making to its removal."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from typing import TYPE_CHECKING, Any

from kiln import command
from kiln.container import arguments, images, trial, watch
from kiln.container.engine import ASIDE, Engine, Kind
from kiln.container.owner import LABEL, Owner, is_gone
from kiln.errors import ContainerFault, excerpt
from kiln.model.container import ContainerRun, Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.model.container import User

# What an engine that is only half installed says when it comes to it, and Debian's name of the other half.
HINTS = (
    ("could not find slirp4netns", "install slirp4netns: rootless Podman reaches the network through it"),
    ("could not find netavark", "install netavark: Podman reaches the network through it"),
)

UNASKED: Mapping[str, Any] = {"Status": "exited", "ExitCode": 0, "OOMKilled": False}
FIGURES = 2  # lines of the watcher's that come after the program's last


class Container:
    """A container as a context: made on entry, removed with all that runs in it on exit, whatever ended the block.

    Entering removes what killed runs left, fetches the image unless it is there, and makes the container; an entry
    that fails or is interrupted half-way leaves nothing behind either.
    """

    def __init__(self, engine: Engine, plan: ContainerRun) -> None:
        self.engine = engine
        self.plan = plan
        self.name = f"kiln-{secrets.token_hex(6)}"

    def __enter__(self) -> Container:
        """Make the container.

        Raises:
            DownloadFailed: when the image is not there and cannot be fetched.
            ContainerFault: when the engine refuses.
        """
        remove_leftovers(self.engine)
        if not trial.is_settled(self.engine):
            images.ensure(self.engine, self.plan.image)
        self.engine = trial.workable(self.engine, self.plan.image)
        try:
            self._create()
        except BaseException:
            self.remove()
            raise
        return self

    def _create(self) -> None:
        """Make the container; only when the engine lacks the image is it looked for, since each question takes time."""
        argv = self.plan.argv if self.plan.interactive else watch.watched(self.plan.argv)
        plan = dataclasses.replace(self.plan, argv=argv)
        words = arguments.create(self.engine, plan, name=self.name, labels={LABEL: str(Owner.here())})
        result = self._command(words)
        if images.is_missing(result):
            images.ensure(self.engine, plan.image)
            result = self._command(words)
        self._must("create", result)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(
        self,
        *,
        log: Path | None = None,
        timeout: float | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Ended:
        """Run the plan's program to its end, its output line by line to ``log`` and ``on_line``.

        When ``timeout`` (seconds) is over, the program is ended and the exit code is 124.

        Raises:
            ContainerFault: when the engine could not start it.
        """
        hear = None if on_line is None else lambda line: None if watch.is_figure(line) else on_line(line)
        result = self._command(arguments.start(self.engine, self.name), log=log, timeout=timeout, on_line=hear)
        if result.exit_code == command.TIMED_OUT and self._state()["Status"] != "exited":
            self.stop()  # it may not even have come to run
            return Ended(exit_code=command.TIMED_OUT, tail=result.tail, seconds=result.seconds)
        tail, peak, kills = watch.figures(result.tail)
        # A good end of which the watcher has told needs no question to the engine.
        state = UNASKED if result.ok and peak is not None else self._state()
        if state["Status"] in {"created", "configured"}:  # Docker, Podman: never came to run
            raise self._fault("start", result)
        return Ended(
            exit_code=state["ExitCode"],
            tail=tail,
            seconds=result.seconds,
            peak_memory=self.plan.limits.memory if kills and self.plan.limits.memory else peak,
            memory_kills=max(kills, int(state["OOMKilled"])),
        )

    def hand_over(self) -> int:
        """Run the plan's program, with what this process reads and writes; returns its exit code."""
        argv = arguments.start(self.engine, self.name, interactive=True)
        return command.hand_over(argv, env={**self.engine.environment, **self.plan.secrets}, cwd=ASIDE)

    def start(self) -> None:
        """Start the plan's program without waiting for it, so that others can be run beside it."""
        self._must("start", self._ask("start", self.name))

    def exec(
        self,
        argv: Sequence[str],
        *,
        user: User | None = None,
        environment: Mapping[str, str] | None = None,
        workdir: str | None = None,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> command.Result:
        """Run a program beside the plan's own in a container that was started; its exit code is returned.

        It has the plan's environment, and ``environment`` besides; another user where one is given.
        """
        options = [
            *([] if user is None else ["--user", f"{user.uid}:{user.gid}"]),
            *([] if workdir is None else ["--workdir", workdir]),
            *arguments.variables(environment or {}, {}),
        ]
        words = [self.engine.executable, "exec", *options, self.name, *argv]
        return self._command(words, log=log, on_line=on_line)

    def copy_in(self, source: Path, target: str) -> None:
        """Copy a file or folder of the host into the container."""
        self._must("copy", self._ask("cp", str(source), f"{self.name}:{target}"))

    def copy_out(self, source: str, target: Path) -> None:
        """Copy a file or folder of the container to the host, where it then belongs to this process's user."""
        self._must("copy", self._ask("cp", f"{self.name}:{source}", str(target)))

    def stop(self) -> None:
        """End the container's programs at once; what they wrote in the container stays until it is removed."""
        with contextlib.suppress(ContainerFault):  # it may just have ended by itself
            self._must("kill", self._ask("kill", self.name))

    def remove(self) -> None:
        """Remove the container with all that runs in it; none there is fine."""
        _remove(self.engine, self.name)

    def _state(self) -> Mapping[str, Any]:
        result = self._ask("inspect", "--type", "container", "--format", "{{json .State}}", self.name)
        self._must("inspect", result)
        state: Mapping[str, Any] = json.loads(result.stdout)
        return state

    def _ask(self, *words: str) -> command.Result:
        return self.engine.ask(*words)

    def _command(
        self,
        argv: Sequence[str],
        *,
        log: Path | None = None,
        timeout: float | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> command.Result:
        """Run the engine's client with the secrets' values where it looks for them, and nowhere else."""
        return command.run(
            argv,
            env={**self.engine.environment, **self.plan.secrets},
            cwd=ASIDE,
            secrets=tuple(self.plan.secrets.values()),
            log=log,
            timeout=timeout,
            on_line=on_line,
            tail_lines=command.TAIL_LINES + FIGURES,
        )

    def _must(self, verb: str, result: command.Result) -> None:
        if not result.ok:
            raise self._fault(verb, result)

    def _fault(self, verb: str, result: command.Result) -> ContainerFault:
        said = result.tail or f"exit code {result.exit_code}"
        return ContainerFault(
            f"{self.engine.kind.value} cannot {verb} a container from the image {self.plan.image}",
            why=f"it says:\n{excerpt(said)}",
            hint=next((hint for words, hint in HINTS if words in said), ""),
        )


def remove_leftovers(engine: Engine) -> tuple[str, ...]:
    """Remove the containers of kiln processes that are gone, killed ones, and return their names."""
    here = Owner.here()
    removed = []
    for name, label in _owned(engine):
        owner = Owner.parse(label)
        if owner is not None and is_gone(owner, here, Owner.of_process(owner.pid)):
            _remove(engine, name)
            removed.append(name)
    return tuple(removed)


def _owned(engine: Engine) -> Iterator[tuple[str, str]]:
    """The name and the owner's label of each container of kiln's."""
    label = f'{{{{index .Labels "{LABEL}"}}}}' if engine.kind is Kind.PODMAN else f'{{{{.Label "{LABEL}"}}}}'
    listed = engine.ask("ps", "--all", "--filter", f"label={LABEL}", "--format", f"{{{{.Names}}}} {label}")
    for line in listed.stdout.splitlines():
        name, _, text = line.partition(" ")
        yield name, text


def _remove(engine: Engine, name: str) -> None:
    at_once = ["--time", "0"] if engine.kind is Kind.PODMAN else []  # it would ask politely for ten seconds
    engine.ask("rm", "--force", "--volumes", *at_once, name)
