"""What will run, as a value: comparable, printable, and free of side effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.rendered import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep:
    """The making of one package.

    ``recipe`` is the engine's own recipe with nothing left to evaluate, ``folder`` where the engine works, ``index``
    what the package's index.json must say beyond what the engine writes there, ``environment`` what the engine's
    process needs beyond the run's own.
    """

    output: Output
    recipe: Mapping[str, Any]
    folder: Path
    channels: tuple[str, ...]
    environment: Mapping[str, str]
    index: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStep:
    """The recipe's own build step, in whose work directory the outputs' scripts then run.

    ``recipe``, ``folder``, ``channels`` and ``environment`` are as in a BuildStep; the package that the engine makes of
    it is empty and of no use. ``secrets`` are names of variables whose values the engine hands to the script, and which
    stand in no file and no log.
    """

    recipe: Mapping[str, Any]
    folder: Path
    channels: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TestStep:
    """The test of one package in a prefix of its own.

    ``specs`` are installed, the lines of ``script`` run by bash in ``folder``, which holds copies of ``files``.
    ``notes`` say what could not be tested as the recipe asks.
    """

    package: str
    specs: tuple[str, ...]
    script: tuple[str, ...]
    commands: int
    environment: Mapping[str, str]
    files: tuple[Path, ...]
    folder: Path
    prefix: Path
    notes: tuple[str, ...] = ()
