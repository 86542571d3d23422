"""Each step of a run at most once: what an earlier run finished, and still lies there unchanged, is found again."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from kiln import files
from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from kiln.ledger import Ledger


class Shown(Protocol):
    """A step that is shown while it goes on."""

    def found(self) -> None:
        """Hear that an earlier run's result is used."""

    def note(self, text: str) -> None:
        """Hear a line that people should see."""


Step_co = TypeVar("Step_co", bound=Shown, covariant=True)


class Teller(Protocol[Step_co]):
    """Who shows steps: the console, or a cell's process that tells another one."""

    def step(self, title: str) -> AbstractContextManager[Step_co]:
        """Show a step from its start to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a step left: ``paths`` are files with their hashes, ``detail`` what else it wants back, as JSON values.

    ``outdated`` when it was taken although what it is made of has changed since.
    """

    paths: Mapping[Path, str]
    detail: Mapping[str, Any]
    seconds: float
    reused: bool
    outdated: bool = False


OUTDATED = "taken as remembered, though what it is made of has changed since"


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo(Generic[Step_co]):
    """The memory of one run: what is done goes through ``once``.

    Of the steps in ``settled`` what they left last is taken, whatever has become of their inputs; those in ``again``
    are forgotten, once the first of them is reached.
    """

    config: str
    ledger: Ledger
    console: Teller[Step_co]
    settled: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    began: float = field(default_factory=time.time)

    def once(
        self,
        title: str,
        inputs: Mapping[str, Any],
        do: Callable[[Step_co], tuple[Iterable[Path], Mapping[str, Any]]],
        leaves: str = "",
    ) -> Made:
        """Do a step, or find what it left when nothing of its ``inputs`` (JSON values) has changed.

        ``do`` returns the files that it made and details of its own; it is remembered only when it returns. ``leaves``
        is the name of a file among them, where that is known beforehand: of a settled step it must be the same.

        Raises:
            UsageError: when a settled step was never finished.
        """
        key = digest({"title": title, **inputs})
        with self.console.step(title) as step:
            if title in self.again:
                self._forget()
            found = self._settled(title, key, leaves) if title in self.settled else self._found(key)
            if found is not None:
                step.found()
                if found.outdated:
                    step.note(OUTDATED)
                return found
            start = time.monotonic()
            made, detail = do(step)
            paths = {path: files.sha256(path) for path in made}
            seconds = time.monotonic() - start
            record = {"files": {str(path): hashed for path, hashed in paths.items()}, "detail": dict(detail)}
            self.ledger.record(key, config=self.config, title=title, seconds=seconds, detail=record)
            return Made(paths=paths, detail=detail, seconds=seconds, reused=False)

    def unfinished(self, title: str) -> UsageError:
        """Return the refusal to begin after a step that was never finished, or whose work is gone."""
        return UsageError(
            f"cannot begin at {self.again[0]!r}: {title!r}, which comes before it, is not finished",
            why="no attempt that is remembered came to its end with what it would have to leave now; once a cell is "
            "finished, its steps are not kept",
            hint=f"--from-step {title!r}, or build without --from-step",
        )

    def _settled(self, title: str, key: str, leaves: str) -> Made:
        """Return what a step left last."""
        for finished in self.ledger.latest(title, self.config):
            made = self._found(finished.key)
            if made is not None and (not leaves or leaves in {path.name for path in made.paths}):
                return replace(made, outdated=finished.key != key)
        raise self.unfinished(title)

    def _forget(self) -> None:
        """Strike out what earlier runs left of the steps that are to run again."""
        for title in self.again:
            for finished in self.ledger.latest(title, self.config):
                if finished.finished < self.began:
                    self.ledger.forget(finished.key)

    def _found(self, key: str) -> Made | None:
        """Return what an earlier run left, if every file of it still has its content."""
        finished = self.ledger.finished(key)
        if finished is None:
            return None
        paths = {Path(path): hashed for path, hashed in finished.detail["files"].items()}
        if any(not path.is_file() or files.sha256(path) != hashed for path, hashed in paths.items()):
            self.ledger.forget(key)
            return None
        return Made(paths=paths, detail=finished.detail["detail"], seconds=finished.seconds, reused=True)


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def folder_digest(folder: Path, *, without: Iterable[str] = ()) -> str:
    """Return a hash over the names and contents of all files below a folder, some names at its top left out."""
    left_out = {folder / name for name in without}
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file not in left_out)
    return digest([(str(file.relative_to(folder)), files.sha256(file)) for file in found])


def file_or_folder_digest(path: Path) -> str:
    """Return a hash over the content of a file, or of all files below a folder; of nothing where there is neither."""
    return files.sha256(path) if path.is_file() else folder_digest(path)
