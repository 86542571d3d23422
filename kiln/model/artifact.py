"""What a build leaves: packages, what their tests said, and the report of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.compile import CompileReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A conda package that was built for a cell, or its wheel; ``size`` is in bytes.

    Of a wheel, ``build_string`` holds the tags of its name and ``subdir`` the folder that it is kept in.
    """

    path: Path
    sha256: str
    size: int
    cell: str
    name: str
    version: str
    build_string: str
    subdir: str

    @property
    def is_wheel(self) -> bool:
        """Whether this is a wheel, which is of no channel."""
        return self.path.suffix == ".whl"


class Verdict(str, Enum):
    """What the tests of a package said."""

    PASSED = "passed"
    FAILED = "failed"
    NONE = "no tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The tests of one package in a fresh prefix: ``notes`` are lines that a person should see.

    ``install_seconds`` is the making of the prefix, ``seconds`` the tests' own run.
    """

    package: str
    verdict: Verdict
    commands: int = 0
    install_seconds: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step of a run; ``reused`` when an earlier run's result was found, ``compile`` what Bazel did in it."""

    title: str
    seconds: float
    reused: bool = False
    notes: tuple[str, ...] = ()
    compile: CompileReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """One package of a run with its tests."""

    artifact: Artifact
    build_seconds: float
    reused: bool
    tests: TestReport
