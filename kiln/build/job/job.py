"""One config's job: its options and context, the host's properties, its needs, its steps and outputs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base import http, masking
from kiln.base.errors import UsageError, did_you_mean
from kiln.base.serialization import from_json_values, to_json
from kiln.build.bazel import events
from kiln.build.engine.recipe import config_caller_variable_names
from kiln.conda.specs import package_name
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins
from kiln.recipe.rendered import OWN_ENGINE, PackageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.container.engine import Engine
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig, Staging
    from kiln.state.store.layout import ArtifactLayout


def compile_secrets(options: RunOptions) -> dict[str, str]:
    """Return the secret variables of the compile steps: addresses, and the content of the credentials' files."""
    credentials = options.remote_credentials
    variables = {
        events.REMOTE_CACHE: options.remote_cache,
        events.EXECUTOR: options.remote_executor,
        events.CREDENTIALS: events.encode_credentials_folder(credentials)
        if isinstance(credentials, Path)
        else credentials,
    }
    return {name: value for name, value in variables.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMachine:
    """``environment`` are the run's variables, free of secrets.

    ``python`` is the interpreter for a rehearsal without CONFIG; with ``insists`` the user has named it, and no other
    is used.
    """

    environment: Mapping[str, str]
    python: Path
    insists: bool = False


def channels_needed_by_config(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the variant's channels, or conda-forge; empty when no package from outside is required."""
    from kiln.build.test.specs import specs_required_by_test

    own_names = {output.name for output in rendered.outputs}
    outputs = [output for output in rendered.outputs if not output.skip]
    sections = [*(staging.requirements for staging in rendered.stagings), *(output.requirements for output in outputs)]
    specs = [spec for needs in sections for spec in (*needs.build, *needs.host, *needs.run)]
    tests = [test for output in outputs for test in output.tests]
    specs += [spec for test in tests for spec in (*specs_required_by_test(test), *test.downstreams)]
    names = {package_name(spec) for spec in specs}
    if not {name for name in names - own_names if not name.startswith("__")}:
        return ()
    return channel_sources(rendered.config)


def channel_sources(config: BuildConfig) -> tuple[str, ...]:
    """Return the channels that a config's variant names, by priority; see `kiln.base.http` for theirs."""
    channels = config.variant.get("channel_sources", ("conda-forge",))[0]
    return http.register_credentials(name for part in channels.split(",") if (name := part.strip()))


def python_versions_of_config(config: BuildConfig) -> frozenset[str]:
    """Return the minor versions of Python in a config's variant, ``3.11``."""
    values = config.variant.get("python", ())
    return frozenset(match[0] for value in values if (match := re.match(r"3\.\d+", value)))


def needs_network(rendered: RenderedConfig) -> bool:
    """Return whether a config's build needs packages or sources that are not on this machine."""
    remote = [name for name in channels_needed_by_config(rendered) if not name.startswith(("file:", "/"))]
    return bool(
        remote
        or rendered.network
        or any(source.url or source.git_url or source.checkout for source in rendered.sources)
    )


def step_names(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the names of a config's steps, in their order; outputs of one name share theirs."""
    from kiln.build.engine.plan import outputs_in_build_order  # few runs name a step or an output

    outputs = [output.name for output in outputs_in_build_order(rendered.outputs)]
    compiling = (staging.title for staging in rendered.stagings)
    every = ("render", *compiling, *(f"build {name}" for name in outputs), *(f"test {name}" for name in outputs))
    return tuple(dict.fromkeys(every))


def require_known_step(renderings: Iterable[RenderedConfig], step: str, *, engine: str) -> None:
    """Refuse to start at a step that a config does not have.

    Raises:
        UsageError: with the valid steps, the most similar ones first.
    """
    if engine != OWN_ENGINE:
        raise UsageError(
            f"--from-step requires --engine rattler-build: {engine} has one step only", hint="remove --from-step"
        )
    for rendered in renderings:
        names = step_names(pins.close_static_pins(rendered))
        if step not in names:
            raise UsageError(
                f"{rendered.config.name} has no step {step!r}",
                why=f"its steps are {', '.join(map(repr, names))}",
                hint=did_you_mean(step, names) or "name one of these",
            )


def script_variables(rendered: RenderedConfig, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables that a config's recipe passes to its scripts, as far as they are set."""
    return {name: environment[name] for name in config_caller_variable_names(rendered) if name in environment}


def mask_build_secrets(
    rendered: RenderedConfig, environment: Mapping[str, str], compile_secrets: Mapping[str, str]
) -> None:
    """Have this process mask the secrets of a config's programs, and the password of pip's index."""
    masking.register_secrets(
        (
            *masking.secrets_of_environment(environment),
            *masking.secrets_of_script_variables(script_variables(rendered, environment)),
            *events.with_secrets_inside_credentials(compile_secrets).values(),
        )
    )


def find_matching_staging(rendered: RenderedConfig, pattern: str) -> Staging | None:
    """Return the build step that outputs share whose name matches a pattern; without one, the only or first one."""
    stagings = [staging for staging in rendered.stagings if fnmatchcase(staging.name, pattern or "*")]
    return stagings[0] if stagings else None


def find_matching_output(rendered: RenderedConfig, pattern: str) -> Output:
    """Return the output whose name, or package's file name, matches a pattern; without one, the only output."""
    from kiln.build.engine.plan import outputs_in_build_order

    outputs = outputs_in_build_order(rendered.outputs)
    matches = [
        output
        for output in outputs
        if any(fnmatchcase(name, pattern or "*") for name in (output.name, output.package_file_name))
    ]
    if len(matches) == 1:
        return matches[0]
    names = [*(staging.name for staging in rendered.stagings), *dict.fromkeys(output.name for output in outputs)]
    problem = f"{len(matches)} outputs match {pattern!r}" if matches else f"no output matches {pattern!r}"
    listing = ", ".join(sorted({output.name for output in matches})) if matches else ", ".join(names)
    raise UsageError(
        problem,
        why=f"{'they' if matches else 'the outputs'} are {listing}",
        hint=did_you_mean(pattern, names) or "--output-id NAME",
    )


def memory_limit(requested: int | None, share: int, engine: Engine | None) -> int | None:
    """Return the bytes that bound the memory of a config's build; None where nothing does.

    On the host only a request bounds it; in a container its share does, or all of the memory of the engine's machine
    (on macOS a virtual one) where that is less, if the engine can bound memory at all.
    """
    if engine is None:
        return requested
    return None if engine.lacks else min(share, engine.memory or share)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """A config's job with its feedstock, folders and rendered outputs.

    ``environment`` is that of the run's process for the config: the variables of a container engine's client and of
    pip, the secrets of the compile, and the caller's variables for scripts. It goes to no program as a whole.
    """

    job: ConfigJob
    feedstock: Feedstock
    layout: ArtifactLayout
    rendered: RenderedConfig
    environment: Mapping[str, str] = field(repr=False)

    @classmethod
    def from_job(cls, job: ConfigJob, environment: Mapping[str, str]) -> JobContext:
        """Find the feedstock and render the config."""
        from kiln.recipe import render
        from kiln.state.store.layout import ArtifactLayout

        feedstock = recipe_feedstock.load(Path(job.root))
        return cls(
            job=job,
            feedstock=feedstock,
            layout=ArtifactLayout.for_feedstock(
                feedstock, rehearsal=job.options.rehearsal, compile_cache=job.options.compile_cache
            ),
            rendered=render.render(feedstock, config_file.read_config(feedstock, job.config)),
            environment=environment,
        )

    @property
    def folder(self) -> Path:
        """The folder in which the config is built."""
        return self.layout.work_folder(self.job.config)

    @property
    def lock_file(self) -> Path:
        """The lock file of the config's build."""
        return self.layout.lock_file(self.job.config)

    @property
    def uses_other_engine(self) -> bool:
        """True when another engine than rattler-build makes the packages, by a script instead of kiln's process."""
        return self.job.options.engine != OWN_ENGINE

    @property
    def compile_secrets(self) -> dict[str, str]:
        """The secret variables of the compile step, passed by environment alone; other engines pass none to scripts."""
        if self.uses_other_engine or self.job.options.rehearsal:
            return {}
        return {name: self.environment[name] for name in events.secret_variable_names(self.environment)}

    @property
    def compiles_remotely(self) -> bool:
        """True when the compile's Bazel uses a remote cache or executor, whose addresses are secrets."""
        return bool(self.compile_secrets)

    @property
    def script_variables(self) -> dict[str, str]:
        """The caller's variables that the recipe passes to scripts, if set; they are in no file."""
        return script_variables(self.rendered, self.environment)

    @property
    def has_network(self) -> bool:
        """True when the config's container has the network."""
        return (
            self.uses_other_engine
            or self.compiles_remotely
            or (
                not self.job.options.rehearsal
                and (self.job.options.network == "always" or needs_network(self.rendered))
            )
        )


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
    ``values_digest`` is a keyed hash of the caller's variables that scripts get, empty without any.
    """

    config: str
    options: BuildOptions
    image: str | None = None
    parent: int | None = None
    rehearsal_plan: Mapping[str, Any] | None = None
    values_digest: str = ""

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


HOST = "none"
CACHE_BOUND = 200_000_000_000  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run: ``memory`` in bytes and ``cores`` for each job, ``jobs`` at a time.

    ``image`` is conda-forge's DOCKER_IMAGE, ``caller_variables`` further variables of the caller that a build sees,
    ``client`` the variables of a container engine's client, and of pip for a rehearsal. ``script_values`` are those
    of the caller's variables that the recipe passes to scripts of any config. ``python_channel`` is the channel of a
    rehearsal's Python that the machine lacks. ``remote_cache`` is the address of Bazel's remote cache, which may
    contain a password, ``cache_bound`` the bytes of all caches on the disk. ``build`` goes to each job.
    ``remote_executor`` is the address of a server that runs Bazel's actions, ``remote_credentials`` a folder for it,
    or the variable that is made of one.
    ``remote_url`` is the feedstock's repository, ``ci_url`` the page of the CI's run, ``workflow`` the URI of its
    workflow; empty where unknown.
    """

    configs: tuple[str, ...]
    command: str
    jobs: int = 1
    container: str | None = None
    image: str | None = None
    cores: int | None = None
    memory: int | None = None
    fetch: bool = True
    python_channel: str = (
        "conda-forge"  # as kiln.build.rehearsal.wheel_download has it, which imports much; a test compares them
    )
    caller_variables: Mapping[str, str] = field(default_factory=dict)
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    script_values: Mapping[str, str] = field(default_factory=dict, repr=False)
    remote_cache: str | None = field(default=None, repr=False)
    remote_executor: str | None = field(default=None, repr=False)
    remote_credentials: Path | str | None = field(default=None, repr=False)
    cache_bound: int = CACHE_BOUND
    remote_url: str = ""
    workflow: str = ""
    ci_url: str = ""
    build: BuildOptions = field(default_factory=BuildOptions)


def parse_docker_run_arguments(text: str) -> tuple[str, ...]:
    """Return the words of CONDA_FORGE_DOCKER_RUN_ARGS.

    Raises:
        UsageError: when a quote is not closed.
    """
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"CONDA_FORGE_DOCKER_RUN_ARGS is {text!r}", why=str(error)) from error
