"""The steps of a build as values: comparable, printable, and free of side effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.recipe.rendered import BuildPlatforms, PackageSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.recipe.rendered import Output, Pin, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSource:
    """A source that kiln fetches or verifies; ``position`` is that of its entry in the engine's recipe, if it has one.

    Its paths are absolute.
    """

    source: Source
    position: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStep:
    """A step that the engine carries out.

    ``recipe`` is the engine's fully evaluated recipe, ``folder`` its work folder. ``environment`` are variables that
    the engine's process needs besides the run's. ``settings`` are conda-forge.yml's, ``platforms`` those of its config.
    ``fetched`` are the sources that kiln fetches for the engine, each with the position of its entry in the recipe,
    which has no address. ``archives`` are those that the engine fetches, unless it cannot unpack them.
    """

    recipe: Mapping[str, Any]
    folder: Path
    channels: tuple[str, ...]
    environment: Mapping[str, str]
    platforms: BuildPlatforms = field(default_factory=BuildPlatforms)
    settings: PackageSettings = field(default_factory=PackageSettings)
    fetched: tuple[FetchedSource, ...] = ()
    archives: tuple[FetchedSource, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep(EngineStep):
    """The build of one package.

    ``index`` are the fields that the package's index.json needs besides those of the engine, ``edits`` the changes of
    its other metadata, ``pins`` the bounds of versions that the engine solves, by field of the output. ``packed`` are
    patterns of the files in ``recipe_folder`` that the package gets for its tests.
    """

    output: Output
    index: Mapping[str, Any]
    edits: Mapping[str, Any] = field(default_factory=dict)
    pins: tuple[tuple[str, Pin], ...] = ()
    recipe_folder: Path | None = None
    packed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStep(EngineStep):
    """A build step that outputs share, in whose work directory, or a copy of it, their scripts then run.

    ``title`` is its name in the run. The package that the engine makes of it is empty and discarded. ``secrets`` are
    names of variables whose values the engine passes to the script; they are in no file and no log.
    """

    title: str
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunExport:
    """A run requirement that a requirement of a build step exports; ``package`` is the package that does."""

    spec: str
    package: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """A build step's result that outputs inherit: its ``folder``, and the run exports of its requirements."""

    folder: Path
    run_exports: tuple[RunExport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TestStep:
    """The test of one package in a separate prefix.

    ``specs`` are installed into ``prefix``, ``build_specs`` into another. The lines of ``script`` are run by bash
    in ``folder``, which holds copies of ``files`` by their places in it, and the files for tests that the package named
    ``files_of`` carries. ``checked`` are tests of the package's contents, which the engine runs while it packs.
    ``downstreams`` are specs of packages whose own tests run with the package. ``links`` is true for a package with
    a link script, which is run as by an installation. ``foreign`` are the virtual packages of another platform that a
    ``noarch`` package requires: no test of it can run here. ``notes`` list what could not be tested as required.
    """

    package: str
    specs: tuple[str, ...]
    script: tuple[str, ...]
    commands: int
    environment: Mapping[str, str]
    files: Mapping[str, Path]
    folder: Path
    prefix: Path
    downstreams: tuple[str, ...] = ()
    build_specs: tuple[str, ...] = ()
    checked: int = 0
    files_of: str = ""
    links: bool = False
    foreign: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def runs_scripts(self) -> bool:
        """True if the test runs something of a package, be it the tests of others alone."""
        return bool(self.commands or self.downstreams or self.links)

    @property
    def build_prefix(self) -> Path:
        """The prefix of ``build_specs``."""
        return self.prefix.with_name(f"{self.prefix.name}-build")
