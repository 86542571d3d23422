"""Call the engine for a config's steps; reuse results, repeat failed downloads, report packages."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base import files
from kiln.base.errors import BudgetSpent, BuildFailed, DownloadFailed, KilnError, SolveFailed, TestsFailed, UsageError
from kiln.base.serialization import to_json
from kiln.build.bazel import events
from kiln.build.engine import failures, output_filter
from kiln.build.engine.plan import test_only_files
from kiln.build.engine.source_plan import SourceMirrors
from kiln.build.executor import environment as executor_environment
from kiln.build.job.messages import CONTINUE
from kiln.build.steps import BuildStep, CompileStep, FetchedSource
from kiln.conda import solve
from kiln.recipe.rendered import COMPILE, RenderedConfig
from kiln.state.ledger import json_columns
from kiln.state.results import Artifact, PackageReport, TestReport
from kiln.state.store.compile_cache import folder_digest, json_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.build.job.job import BuildJob
    from kiln.build.job.messages import ReportedStep, StepReporter
    from kiln.recipe.rendered import Output
    from kiln.state.ledger.ledger import Ledger


RENDERED = (
    "meta.yaml",
    "recipe.yaml",
    "conda_build_config.yaml",
    "variants.yaml",
)  # their effect is in the rendered recipe
NOT_FOR_TESTS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # set for this process; tests must not import kiln
GONE = "read the log; with --keep-failed, the folders in which the script runs are kept"


@contextlib.contextmanager
def remove_folders_on_failure(job: BuildJob, *folders: Path) -> Iterator[None]:
    """Remove folders when the block fails, unless failed builds are kept."""
    try:
        yield
    except KilnError as error:
        if not job.options.keep_failed:
            for folder in folders:
                files.remove(folder)
            if any(str(folder) in error.hint for folder in folders):
                error.hint = GONE  # instead of a removed path
        raise


def package_report_json(output: Output, result: StepResult, test_result: StepResult, job: BuildJob) -> dict[str, Any]:
    """Return the report of one package, as JSON values."""
    identity = {"name": output.name, "version": output.version, "build_string": output.build_string}
    return file_report_json(result, test_result, job, **identity, subdir=output.subdir)


def file_report_json(result: StepResult, test_result: StepResult, job: BuildJob, **identity: str) -> dict[str, Any]:
    """Return the report of a step's one file, as JSON values; its path is relative to the config's folder.

    ``identity`` are the name, the version, the build string and the subdir of an `Artifact`.
    """
    ((path, sha256),) = result.paths.items()
    artifact = Artifact(
        path=path.relative_to(job.folder), sha256=sha256, size=path.stat().st_size, config=job.config, **identity
    )
    report = PackageReport(
        artifact=artifact,
        build_seconds=round(result.seconds, 3),
        reused=result.reused,
        tests=json_columns.record_from_json(TestReport, test_result.detail),
    )
    return {**to_json(report), "repositories": list(result.detail.get("repositories", ()))}


def step_file_hashes(*results: StepResult) -> list[str]:
    """Return the hashes of the files of steps, sorted."""
    return sorted(sha256 for result in results for sha256 in result.paths.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step: ``paths`` are files with their hashes, ``detail`` further JSON values.

    ``outdated`` when it is reused although its inputs have changed since.
    """

    paths: Mapping[Path, str]
    detail: Mapping[str, Any]
    seconds: float
    reused: bool
    outdated: bool = False


OUTDATED = "reused, though its inputs have changed since"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """The cache of a config's steps, each of which runs through ``run_or_reuse``.

    The last results of the steps in ``settled`` are reused even if their inputs have changed; the results of those in
    ``again`` are dropped when the first of them is reached. No step runs once the file ``stop`` exists.
    """

    config: str
    ledger: Ledger
    console: StepReporter
    settled: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    began: float = field(default_factory=time.time)
    stop: Path | None = None

    def run_or_reuse(
        self,
        title: str,
        inputs: Mapping[str, Any],
        do: Callable[[ReportedStep], tuple[Iterable[Path], Mapping[str, Any]]],
        leaves: str = "",
    ) -> StepResult:
        """Run a step, or reuse its result if its ``inputs`` (JSON values) are unchanged.

        ``do`` returns the files that it made and further details, which are recorded when it returns. ``leaves`` is the
        name of one of the files, if known beforehand: a settled step must have it.
        """
        key = json_digest({"title": title, **inputs})
        with self.console.step(title) as step:
            if title in self.again:
                self._forget_steps_to_repeat()
            result = (
                self._last_result_of_settled_step(title, key, leaves)
                if title in self.settled
                else self._reusable_result(key)
            )
            if result is not None:
                step.reused = True
                if result.outdated:
                    step.add_note(OUTDATED)
                return result
            self.require_budget_left()
            start = time.monotonic()
            paths_made, detail = do(step)
            paths = {path: files.sha256(path) for path in paths_made}
            seconds = time.monotonic() - start
            record = {"files": {str(path): hashed for path, hashed in paths.items()}, "detail": dict(detail)}
            self.ledger.store_step(key, config=self.config, title=title, seconds=seconds, detail=record)
            return StepResult(paths=paths, detail=detail, seconds=seconds, reused=False)

    def require_budget_left(self) -> None:
        """Raise BudgetSpent when the build is to stop, before or in a step."""
        if self.stop is not None and self.stop.exists():
            raise BudgetSpent("stopped by --budget", hint=CONTINUE)

    def unfinished_step_error(self, title: str) -> UsageError:
        """Return the error for starting after a step that was never finished, or whose files are gone."""
        return UsageError(
            f"cannot start at {self.again[0]!r}: the step {title!r} before it is not finished",
            why="no recorded attempt finished with the files that it would make now; a finished config keeps no steps",
            hint=f"--from-step {title!r}, or build without --from-step",
        )

    def _last_result_of_settled_step(self, title: str, key: str, leaves: str) -> StepResult:
        for finished in self.ledger.latest_steps(title, self.config):
            result = self._reusable_result(finished.key)
            if result is not None and (not leaves or leaves in {path.name for path in result.paths}):
                return replace(result, outdated=finished.key != key)
        raise self.unfinished_step_error(title)

    def _forget_steps_to_repeat(self) -> None:
        for title in self.again:
            for finished in self.ledger.latest_steps(title, self.config):
                if finished.finished < self.began:
                    self.ledger.delete_step(finished.key)

    def _reusable_result(self, key: str) -> StepResult | None:
        """Return an earlier run's result if all its files are unchanged."""
        finished = self.ledger.finished_step(key)
        if finished is None:
            return None
        try:
            paths = {Path(path): str(hashed) for path, hashed in finished.detail["files"].items()}
            detail = dict(finished.detail["detail"])
        except (LookupError, TypeError, ValueError, AttributeError):  # an unreadable record does not count
            return None
        if any(not path.is_file() or files.sha256(path) != hashed for path, hashed in paths.items()):
            self.ledger.delete_step(key)
            return None
        return StepResult(paths=paths, detail=detail, seconds=finished.seconds, reused=True)


Result = TypeVar("Result")

EPOCH = "SOURCE_DATE_EPOCH"
# Lines of rattler-build 0.6x and of the filter of a script's output, by what begins then.
_PHASES = {
    "  Platform: ": "solve",
    "Finalized run dependencies": "install",
    output_filter.BEGUN: "script",
    output_filter.ENDED: "pack",
}
ATTEMPTS, PAUSE = 3, 2.0  # when a download fails; seconds, doubled each time


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalls:
    """The engine's calls for one config: ``granted`` are patterns of the steps whose scripts may use the network.

    ``environment`` is that of the build's process, ``compile_secrets`` are variables of the compile step alone.
    ``recipe_digest`` is a hash of the recipe's files that affect a
    script, ``packed_digest`` one of all of its files, which packages contain. ``sources`` has fetched sources by their
    hashes.
    """

    job: BuildJob
    granted: tuple[str, ...]
    recipe_digest: str
    packed_digest: str
    environment: Mapping[str, str] = field(repr=False)
    compile_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    sources: Path | None = None

    @classmethod
    def for_config(
        cls,
        job: BuildJob,
        rendered: RenderedConfig,
        environment: Mapping[str, str],
        compile_secrets: Mapping[str, str] = MappingProxyType({}),
    ) -> EngineCalls:
        """Return the calls for a config; files that only tests use do not affect its scripts."""
        tests = {name for output in rendered.outputs for name in test_only_files(output)}
        return cls(
            job=job,
            granted=rendered.network,
            recipe_digest=folder_digest(job.recipe, without={*RENDERED, *tests}),
            packed_digest=folder_digest(job.recipe),
            environment=environment,
            compile_secrets=compile_secrets,
        )

    def build_package_with_retries(self, step: BuildStep | CompileStep, display: ReportedStep) -> Path:
        """Have the engine run a step, and return its package."""
        from kiln.build.engine.run import build_package  # nothing is built where all steps are reused

        secrets = self.compile_secrets if isinstance(step, CompileStep) else {}
        title = f"build {step.output.name}" if isinstance(step, BuildStep) else step.title
        with self.scripts_without_network(title) as variables:
            environment = {**self._engine_environment(variables), **secrets}

            def pass_on_line_and_enter_phase(line: str) -> None:
                if phase := phase_that_line_begins(line):
                    display.enter_phase(phase)
                display.pass_on_line(line)

            def run_engine() -> Path:
                display.enter_phase("download")
                return build_package(
                    step,
                    environment=environment,
                    on_line=pass_on_line_and_enter_phase,
                    origins=self.source_archive_mirrors,
                )

            try:
                return call_with_download_retries(run_engine, display)
            except (SolveFailed, DownloadFailed) as error:
                raise explained_solve_error(step, error, self.environment) from error

    def prepare_script(self, step: BuildStep | CompileStep, display: ReportedStep) -> Mapping[str, str]:
        """Have the engine make everything that a script needs; return the paths."""
        from kiln.build.engine.run import prepare_script_run

        environment = self._engine_environment(self.environment)
        return call_with_download_retries(
            lambda: prepare_script_run(
                step, environment=environment, on_line=display.pass_on_line, origins=self.source_archive_mirrors
            ),
            display,
        )

    def inputs_that_decide_result(self, step: BuildStep | CompileStep) -> dict[str, Any]:
        """Return the inputs that decide a step's result."""
        return {
            "recipe": step.recipe,
            **({"sources": [_source_input_without_password(item) for item in step.fetched]} if step.fetched else {}),
            "files": self.packed_digest if isinstance(step, BuildStep) else self.recipe_digest,
            "channels": step.channels,
            "engine": version("py-rattler-build"),
            "folder": str(step.folder),
            "platforms": to_json(step.platforms),
            "settings": to_json(step.settings),
            **({"pins": to_json(step.pins)} if isinstance(step, BuildStep) else {}),
        }

    @property
    def source_archive_mirrors(self) -> SourceMirrors:
        """Further places of source archives."""
        folder = self.job.compile.get(events.DISTDIR)
        return SourceMirrors(
            folder=None if folder is None else Path(folder),
            mirror=self.job.options.mirror,
            by_hash=self.sources,
            kept=self.job.cache / "sources",
        )

    def runs_without_network(self, step: str) -> bool:
        """Return whether a step's script runs without the network, in a container of its own or that of the engine."""
        if self.job.queue is None:
            return not self.job.network
        compiles_remotely = step.partition(" ")[0] == COMPILE and bool(self.compile_secrets)
        return not compiles_remotely and not executor_environment.is_network_granted(step, self.granted)

    def add_network_hint(self, error: KilnError, step: str) -> None:
        """Have an error of a step's script say how it gets the network that it lacked; a rehearsal's gets none."""
        if self.runs_without_network(step) and not self.job.options.rehearsal:
            executor_environment.add_network_hint(error, step)

    @contextlib.contextmanager
    def scripts_without_network(self, step: str) -> Iterator[Mapping[str, str]]:
        """Have a step's script run without the network, unless it is granted; yield its environment."""
        queue = self.job.queue if self.runs_without_network(step) else None
        before = 0 if queue is None else executor_environment.isolated_script_count(queue)
        try:
            yield (
                self.environment
                if queue is None
                else executor_environment.environment_with_queue_shell(queue, self.environment)
            )
        except (BuildFailed, TestsFailed) as error:
            self.add_network_hint(error, step)
            raise
        if queue is not None:
            executor_environment.require_isolated_script_run(queue, before, step)

    def _engine_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of an engine's process.

        A package built again with the same timestamp is identical; reproducible-builds.org describes the variable.
        """
        timestamp = self.environment.get(EPOCH) or str(int(time.time()))
        return {**variables, "RATTLER_CACHE_DIR": str(self.job.cache), EPOCH: timestamp}


def phase_that_line_begins(line: str) -> str:
    """Return the phase of a step that a line of the engine begins; empty for nearly all lines.

    A script that prints such a line changes a figure of its own report.
    """
    return next((phase for begin, phase in _PHASES.items() if line.startswith(begin)), "")


def _source_input_without_password(item: FetchedSource) -> dict[str, Any]:
    """Return a source as an input of a step; the password does not affect what is fetched."""
    value: dict[str, Any] = to_json(item)
    if value["source"]["checkout"]:
        value["source"]["checkout"]["password"] = None
    return value


def explained_solve_error(
    step: BuildStep | CompileStep, failure: KilnError, environment: Mapping[str, str]
) -> KilnError:
    """Return the failed solve of a step's environments with its reason, which the engine does not give.

    It is the solver's explanation, or the server that cannot be reached; a failed download of a source stays as it is.
    """
    if isinstance(failure, DownloadFailed) and not failures.PACKAGES.words.search(failure.what):
        return failure
    machine = solve.machine_virtual_packages(environment)
    for section, platform in (("build", step.platforms.build), ("host", step.platforms.target)):
        specs = [spec for spec in step.recipe["requirements"].get(section, ()) if isinstance(spec, str)]
        try:
            if specs:
                solve.solve(
                    step.channels,
                    specs,
                    virtual_packages=machine,
                    platform=platform,
                    priority=step.settings.channel_priority,
                )
        except (SolveFailed, DownloadFailed) as error:
            return type(error)(f"{section} requirements: {error.what}", why=error.why, hint=failure.hint)
        except KilnError:
            break  # the engine's own error says more
    return failure


def call_with_download_retries(do: Callable[[], Result], display: ReportedStep) -> Result:
    """Call a function, again after a pause when a download fails for a reason that may pass; return its result."""
    for attempt in range(1, ATTEMPTS):
        try:
            return do()
        except DownloadFailed as error:
            if failures.is_permanent_download_failure(f"{error.what}\n{error.why}"):
                raise
            display.add_note(f"attempt {attempt} of {ATTEMPTS}: {error.what}")
            display.pass_on_line(f"the network failed, attempt {attempt} of {ATTEMPTS}: {error.why or error.what}")
            time.sleep(PAUSE * 2 ** (attempt - 1))
    return do()
