"""Call the engine for a config's steps with their environment and network, and repeat failed downloads."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from kiln import solve_and_install, virtual_packages
from kiln.build import rattler_build_failure_kinds
from kiln.build.plan import test_only_files
from kiln.build.source_mirrors import SourceMirrors
from kiln.builder.job_main import RENDERED
from kiln.errors import BuildFailed, DownloadFailed, KilnError, SolveFailed, TestsFailed
from kiln.executor import network_isolation
from kiln.model.build_and_test_steps import BuildStep, CompileStep, FetchedSource
from kiln.model.rendered import COMPILE, RenderedConfig
from kiln.serialization import to_json
from kiln.store import bazel_variables_of_compile_scripts
from kiln.store.digests import folder_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.job.job_descriptions import BuildJob
    from kiln.job.messages import ReportedStep

Result = TypeVar("Result")

EPOCH = "SOURCE_DATE_EPOCH"
ATTEMPTS, PAUSE = 3, 2.0  # when a download fails; seconds, doubled each time


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCalls:
    """The engine's calls for one config: ``granted`` are patterns of the steps whose scripts may use the network.

    ``secrets`` are variables of the compile step alone. ``recipe_digest`` is a hash of the recipe's files that affect a
    script, ``packed_digest`` one of all of its files, which packages contain. ``sources`` has fetched sources by their
    hashes.
    """

    job: BuildJob
    granted: tuple[str, ...]
    recipe_digest: str
    packed_digest: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    sources: Path | None = None

    @classmethod
    def for_config(
        cls, job: BuildJob, rendered: RenderedConfig, secrets: Mapping[str, str] = MappingProxyType({})
    ) -> EngineCalls:
        """Return the calls for a config; files that only tests use do not affect its scripts."""
        tests = {name for output in rendered.outputs for name in test_only_files(output)}
        return cls(
            job=job,
            granted=rendered.network,
            recipe_digest=folder_digest(job.recipe, without={*RENDERED, *tests}),
            packed_digest=folder_digest(job.recipe),
            secrets=secrets,
        )

    def build_package_with_retries(self, step: BuildStep | CompileStep, display: ReportedStep) -> Path:
        """Have the engine run a step, and return its package.

        Raises:
            KilnError: see `kiln.build.engine_run.build_package`.
        """
        from kiln.build.engine_run import build_package  # nothing is built where all steps are reused

        secrets = self.secrets if isinstance(step, CompileStep) else {}
        title = f"build {step.output.name}" if isinstance(step, BuildStep) else step.title
        with self.scripts_without_network(title) as variables:
            environment = {**self._engine_environment(variables), **secrets}

            def run_engine() -> Path:
                return build_package(
                    step, environment=environment, on_line=display.pass_on_line, origins=self.source_archive_mirrors
                )

            try:
                return call_with_download_retries(run_engine, display)
            except (SolveFailed, DownloadFailed) as error:
                raise explained_solve_error(step, error) from error

    def prepare_script(self, step: BuildStep | CompileStep, display: ReportedStep) -> Mapping[str, str]:
        """Have the engine make everything that a script needs; return the paths."""
        from kiln.build.engine_run import prepare_script_run

        environment = self._engine_environment(os.environ)
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
        folder = self.job.compile.get(bazel_variables_of_compile_scripts.DISTDIR)
        return SourceMirrors(
            folder=None if folder is None else Path(folder),
            mirror=self.job.options.mirror,
            by_hash=self.sources,
            kept=self.job.cache / "sources",
        )

    def runs_without_network(self, step: str) -> bool:
        """Return whether a step's script runs without the network."""
        cached = step.partition(" ")[0] == COMPILE and bool(self.secrets)  # it uses a remote cache
        return (
            self.job.queue is not None and not cached and not network_isolation.is_network_granted(step, self.granted)
        )

    @contextlib.contextmanager
    def scripts_without_network(self, step: str) -> Iterator[Mapping[str, str]]:
        """Have a step's script run without the network, unless it is granted; yield its environment."""
        queue = self.job.queue
        if queue is None or not self.runs_without_network(step):
            yield os.environ
            return
        before = network_isolation.isolated_script_count(queue)
        try:
            yield network_isolation.environment_with_queue_shell(queue, os.environ)
        except (BuildFailed, TestsFailed) as error:
            network_isolation.add_network_hint(error, step)
            raise
        network_isolation.require_isolated_script_run(queue, before, step)

    def _engine_environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**variables, "RATTLER_CACHE_DIR": str(self.job.cache), **package_timestamp_variable()}


def _source_input_without_password(item: FetchedSource) -> dict[str, Any]:
    """Return a source as an input of a step; the password does not affect what is fetched."""
    value: dict[str, Any] = to_json(item)
    if value["source"]["checkout"]:
        value["source"]["checkout"]["password"] = None
    return value


def explained_solve_error(step: BuildStep | CompileStep, failure: KilnError) -> KilnError:
    """Return the failed solve of a step's environments with its reason, which the engine does not give.

    It is the solver's explanation, or the server that cannot be reached; a failed download of a source stays as it is.
    """
    if isinstance(failure, DownloadFailed) and not rattler_build_failure_kinds.PACKAGES.words.search(failure.what):
        return failure
    machine = virtual_packages.machine_virtual_packages(os.environ)
    for environment, platform in (("build", step.platforms.build), ("host", step.platforms.target)):
        specs = [spec for spec in step.recipe["requirements"].get(environment, ()) if isinstance(spec, str)]
        try:
            if specs:
                solve_and_install.solve(
                    step.channels,
                    specs,
                    virtual_packages=machine,
                    platform=platform,
                    priority=step.settings.channel_priority,
                )
        except (SolveFailed, DownloadFailed) as error:
            return type(error)(f"{environment} requirements: {error.what}", why=error.why, hint=failure.hint)
        except KilnError:
            break  # the engine's own error says more
    return failure


def package_timestamp_variable() -> dict[str, str]:
    """Return the timestamp of packages as a variable, in whole seconds: the caller's, else now.

    A package built again with the same timestamp is identical; reproducible-builds.org describes the variable.
    """
    return {EPOCH: os.environ.get(EPOCH) or str(int(time.time()))}


def call_with_download_retries(do: Callable[[], Result], display: ReportedStep) -> Result:
    """Call a function, again after a pause when a download fails for a reason that may pass; return its result."""
    for attempt in range(1, ATTEMPTS):
        try:
            return do()
        except DownloadFailed as error:
            if rattler_build_failure_kinds.is_permanent_download_failure(f"{error.what}\n{error.why}"):
                raise
            display.add_note(f"attempt {attempt} of {ATTEMPTS}: {error.what}")
            display.pass_on_line(f"the network failed, attempt {attempt} of {ATTEMPTS}: {error.why or error.what}")
            time.sleep(PAUSE * 2 ** (attempt - 1))
    return do()
