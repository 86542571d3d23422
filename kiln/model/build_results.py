"""The results of a build: packages, their tests, and the steps of a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.bazel_progress_and_report import CompileReport
    from kiln.model.provenance import ExternalRepository, ResolvedPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A conda package that was built for a config, or its wheel; ``size`` is in bytes.

    For a wheel, ``build_string`` holds the tags of its name and ``subdir`` its folder.
    """

    path: Path
    sha256: str
    size: int
    config: str
    name: str
    version: str
    build_string: str
    subdir: str

    @property
    def is_wheel(self) -> bool:
        """True for a wheel, which belongs to no channel."""
        return self.path.suffix == ".whl"


class TestVerdict(str, Enum):
    """The result of a package's tests; they are skipped where no program of its platform runs."""

    PASSED = "passed"
    FAILED = "failed"
    NONE = "no tests"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """The tests of one package in a fresh prefix: ``notes`` are lines for the user.

    ``install_seconds`` is the time for creating the prefix, ``seconds`` that of the tests. ``run_packages`` are the
    package's run dependencies as they were installed, without what only its tests require.
    """

    package: str
    verdict: TestVerdict
    commands: int = 0
    install_seconds: float = 0.0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    log: Path | None = None
    run_packages: tuple[ResolvedPackage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step of a run; ``reused`` when an earlier result was used, ``compile`` is Bazel's report of it.

    ``failed`` is False for all steps of runs that an older kiln recorded.
    """

    title: str
    seconds: float
    reused: bool = False
    notes: tuple[str, ...] = ()
    compile: CompileReport | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """One package of a run with its tests; ``repositories`` are those that its sources declare for Bazel.

    ``feedstock`` is a hash over the recipe, the settings and the config's file that it was built from; empty where they
    changed during the build, or an older kiln recorded it.
    """

    artifact: Artifact
    build_seconds: float
    reused: bool
    tests: TestReport
    repositories: tuple[ExternalRepository, ...] = ()
    feedstock: str = ""
