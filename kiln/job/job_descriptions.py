"""The jobs of a run's processes, and the options of a build in them, which the run's plan carries, too.

A config's job is on its standard input, the build process's in a file of its folder. A file for the former would be
shared by all runs of the same config, before any of them holds its lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.model.rattler_build_settings import OWN_ENGINE, PackageSettings
from kiln.serialization import from_json_values, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


STALL = 20 * 60.0  # seconds; a large link uses the processor, so only waiting is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The options of a config's build: ``executable`` and ``run_arguments`` are for the container engine.

    From ``from_step`` on, every step runs again; the last results of the steps before it are reused. ``debug`` is a
    pattern of the output to prepare for a person, not to build; an empty one is the recipe's own step.

    For compiles by Bazel: ``compile_cache`` is the folder of its caches, if not the feedstock's own, ``distdir`` a
    folder of downloads, with source archives among them, ``mirror`` a further address of these, ``stall`` the seconds
    without an event or work after which a compile is reported as stalled. ``remote_jobs`` is the number of actions
    that a remote executor runs at a time; with ``remote_fallback`` they run here when it does not answer.

    A build stops in time before ``deadline``, in seconds since the epoch, with at least ``least_reserve`` seconds left
    for packing what it made; or after ``action_limit`` finished actions of Bazel; or as soon as the file ``notice``
    says when the machine is taken back.
    """

    engine: str = OWN_ENGINE
    executable: str | None = None
    run_arguments: tuple[str, ...] = ()
    rebuild: bool = False
    keep_failed: bool = False
    from_step: str | None = None
    debug: str | None = None
    network: str = "granted"
    rehearsal: bool = False
    compile_cache: Path | None = None
    distdir: Path | None = None
    mirror: str | None = None
    stall: float = STALL
    remote_jobs: int | None = None
    remote_fallback: bool = False
    deadline: float | None = None
    least_reserve: float = 0.0
    action_limit: int | None = None
    notice: Path | None = None

    @property
    def has_budget(self) -> bool:
        """True when the build may be stopped before it is finished."""
        return self.deadline is not None or self.action_limit is not None or self.notice is not None

    @property
    def rebuilds_finished(self) -> bool:
        """True when finished configs are built again."""
        return self.rebuild or self.from_step is not None or self.debug is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The job of a process, which passes it on as JSON text: ``image`` is None on the host.

    ``parent`` is the process that starts it, where it is visible. ``rehearsal_plan`` is a rehearsal's, as JSON values.
    """

    config: str
    options: BuildOptions
    image: str | None = None
    parent: int | None = None
    rehearsal_plan: Mapping[str, Any] | None = None

    def as_text(self) -> str:
        """Return the job as JSON text."""
        return json.dumps(to_json(self))

    @classmethod
    def parse(cls: type[JobType], text: str) -> JobType:
        """Return the job of a JSON text."""
        return from_json_values(cls, json.loads(text), (BuildOptions, PackageSettings))


JobType = TypeVar("JobType", bound=Job)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigJob(Job):
    """A config to build: ``container`` is an engine's name, or ``none`` for the host; ``memory`` in bytes.

    ``engine_data`` is the container engine as tried by the run: a trial takes long. ``image_platform`` is the image's,
    where its programs are emulated.
    ``variables`` are conda-forge's, ``environment`` the further variables of a build on the host; both without secrets.
    ``python`` is an interpreter of this machine for a rehearsal, ``python_home`` its folder, if it can be mounted.
    ``sources`` is a hash of the feedstock's files from which ``key`` was computed.
    ``group`` are the configs that share a compile, whose ``cold`` build runs first,
    ``cache_key`` names their cache, and ``compile_memory`` is the memory in bytes that a compile should use.
    """

    root: str
    key: str
    shared: str
    sources: str
    container: str
    engine_data: Mapping[str, Any] | None = None
    image_platform: str | None = None
    cores: int
    memory: int | None = None
    variables: Mapping[str, str]
    environment: Mapping[str, str] = field(repr=False)
    python: str | None = None
    python_home: str | None = None
    log: str
    group: str
    cold: bool = False
    cache_key: str
    compile_memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob(Job):
    """The paths and settings of a build process: ``extra`` goes into the packages' metadata.

    ``queue`` is the folder for scripts to run without the network, None where all run here.
    ``python`` is a rehearsal's interpreter.
    ``compile`` are variables for the compile step alone, which do not affect its result. ``shared_packages`` are
    reports of packages that another config has made, which are in ``channel``. ``packages`` are settings of
    conda-forge.yml, which a container does not see. ``build_platform`` is the config's, ``emulated`` when programs of
    its platform run there all the same.
    """

    root: Path
    recipe: Path
    folder: Path
    cache: Path
    result: Path
    extra: Mapping[str, str]
    python: Path | None = None
    compile: Mapping[str, str] = field(default_factory=dict)
    shared_packages: tuple[Mapping[str, Any], ...] = ()
    channel: Path
    queue: Path | None = None
    network: bool = False
    packages: PackageSettings = field(default_factory=PackageSettings)
    build_platform: str = ""
    emulated: bool = False
