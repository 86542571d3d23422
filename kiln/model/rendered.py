"""A recipe evaluated for one config."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.model.build_settings import BuildSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kiln.model.build_config import BuildConfig
    from kiln.model.recipe_keys import KeyFault


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The match specs of each section, in the recipe's order."""

    build: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    run_constrained: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTests:
    """The ``test:`` section of an output.

    ``imports`` are in the language of the package's name (``r-``, ``perl-``, ``lua-``, else Python), ``other_imports``
    pairs of a language and a name. ``scripts`` are the files of the recipe that are run, by the names that they have in
    a test: ``run_test.py`` and so on. ``downstreams`` are specs of packages whose tests run, too.
    """

    imports: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()
    other_imports: tuple[tuple[str, str], ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict)
    downstreams: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A build script: a file of the recipe, or the lines of a shell script; neither means nothing to run."""

    file: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A bound that is evaluated once the version is known: of another output, or of a package in ``host``.

    ``subpackage`` is true for another output. ``min_pin`` and ``max_pin`` are how many components to keep (``x.x``);
    ``lower`` and ``upper`` are explicit bounds of the recipe. ``spec`` is the recipe's own requirement, to which
    ``pin_run_as_build`` applies where ``host`` has the package; empty for a pin that the recipe itself has.
    ``by_engine`` leaves the bounds to rattler-build, whose rules are those of a ``recipe.yaml``.
    """

    name: str
    subpackage: bool
    min_pin: str | None = "x.x.x.x.x.x"
    max_pin: str | None = "x"
    lower: str | None = None
    upper: str | None = None
    exact: bool = False
    spec: str = ""
    by_engine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One package of a config.

    ``used`` are the keys in the hash. ``run_exports`` maps ``weak``, ``strong``, ``noarch``, ``weak_constrains`` and
    ``strong_constrains`` to match specs; ``run_exports_bare`` is set when the recipe has a list, which means weak.
    ``pins`` are the bounds to evaluate: the field (``run``, or ``run_exports/weak``), the position in it, and the pin.
    ``platform`` is the subdir that the output was rendered for, which for ``noarch`` packages is not the ``subdir`` of
    the channel that they go to. ``variant`` are the values of the keys that vary inside the config, such as each of
    several Pythons. ``script_env`` are variables of the caller that the script gets: ``NAME``, or ``NAME=value``.
    ``single`` are the fields that the recipe has as text, or as true, in the place of a list or a word.
    """

    name: str
    version: str
    build_number: int
    build_string: str
    subdir: str
    noarch: str | None = None
    requirements: Requirements = Requirements()
    track_features: tuple[str, ...] = ()
    run_exports: Mapping[str, tuple[str, ...]]
    tests: OutputTests = OutputTests()
    script: Script = Script()
    entry_points: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    about: Mapping[str, str | tuple[str, ...]]
    used: Mapping[str, str]
    skip: bool = False
    run_exports_bare: bool = False
    pins: tuple[tuple[str, int, Pin], ...] = ()
    platform: str = ""
    variant: Mapping[str, str] = field(default_factory=dict)
    script_env: tuple[str, ...] = ()
    binary_relocation: bool | tuple[str, ...] = True
    detect_binary_files_with_prefix: bool = True
    settings: BuildSettings = field(default_factory=BuildSettings)
    extra: Mapping[str, Any] = field(default_factory=dict)
    single: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of the ``source:`` section; exactly one of ``url``, ``git_url`` and ``path`` is given.

    ``file_name`` is the name of a file that is not to be unpacked.
    """

    url: tuple[str, ...] = ()
    sha256: str | None = None
    md5: str | None = None
    file_name: str | None = None
    git_url: str | None = None
    git_rev: str | None = None
    git_depth: int | None = None
    path: str | None = None
    folder: str | None = None
    patches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """All outputs of a config, and the compile step that they share (the recipe's top level).

    ``name``, ``version`` and ``build_number`` are those of the top level, as in the compile's script.
    ``network`` are the steps whose scripts may use the network according to the recipe, by names or patterns.
    ``compile_merged`` is the compile's ``merge_build_host``. ``key_faults`` are the keys that do not exist, and
    those that rattler-build does not have.
    """

    config: BuildConfig
    name: str = ""
    version: str = ""
    build_number: int = 0
    sources: tuple[Source, ...] = ()
    compile: Script = Script()
    compile_requirements: Requirements = Requirements()
    compile_script_env: tuple[str, ...] = ()
    compile_merged: bool = False
    outputs: tuple[Output, ...] = ()
    network: tuple[str, ...] = ()
    key_faults: tuple[KeyFault, ...] = ()
