"""A config's build by conda-build or mambabuild: its call, its set-up, its outcome."""

from __future__ import annotations

import json
import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base import files, http
from kiln.base.errors import (
    BrokenPackage,
    BuildFailed,
    DownloadFailed,
    HashMismatch,
    KilnError,
    SolveFailed,
    TestsFailed,
    program_output_with_margin,
)
from kiln.base.patterns import existing_subdirs
from kiln.base.serialization import to_json
from kiln.build.engine import failures
from kiln.build.executor import environment
from kiln.build.job.job import channel_sources
from kiln.build.job.messages import MARK
from kiln.build.job.untrusted_results import open_file_beneath
from kiln.conda import package_reader
from kiln.recipe.variants.files import cuda_arch_of_config, cuda_version_of_config
from kiln.state.results import Artifact, PackageReport, TestReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.build.job.job import JobContext
    from kiln.build.job.messages import BuildLog
    from kiln.recipe.rendered import RenderedConfig


PROGRAMS = {"conda-build": "conda-build", "mambabuild": "conda-mambabuild"}
PACKAGES = {"conda-build": "conda-build", "mambabuild": "boa"}
NO_ENGINE = 97  # the script's exit code when the engine is not there
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above", "The above exception was the direct cause")
RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|NotFound|InvalidMatchSpec|Interrupt)\b(?:: |$)")
SAID = 8  # lines of a script, or of an error message, that are shown
# Patterns of the last exceptions of conda, conda-build and boa; the first match decides the kind.
KINDS = (
    (
        r"SHA256 mismatch|MD5 mismatch|hash mismatch|ChecksumMismatchError",
        HashMismatch,
        failures.HASH.hint,
    ),
    (
        r"CondaHTTPError|CondaSSLError|CONNECTION FAILED|Could not download|Download error \(|downloading repodata",
        DownloadFailed,
        failures.NETWORK.hint,
    ),
    (
        r"Unsatisfiable|(?<!metadata\.)PackageNotFound|PackagesNotFound|nothing provides",  # not importlib.metadata's
        SolveFailed,
        failures.PACKAGES.hint,
    ),
    (r"TESTS FAILED", TestsFailed, "--keep-failed leaves the work directory"),
)
# The last lines with which conda-build until 24.5 and boa exit without an exception.
PLAIN_EXIT = re.compile(r"^(?:TESTS FAILED: |Download error \(|(?:\w+: )?Error downloading repodata)")
MODERN = 1000  # conda-forge's build numbers from here on are those of its own compilers


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaBuildCall:
    """The paths and settings of an engine's run, all paths as the engine sees them.

    ``croot`` is its working folder and holds its packages, ``fetched`` the folder of the packages that it fetches, and
    of its own packages while they are tested. ``cache`` holds the packages fetched by other configs. ``channels`` are
    in order of priority, ``settings`` are conda-build's own. A build for CUDA assumes a driver for the version ``cuda``
    and GPUs of the capability ``cuda_arch``, on every machine. The packages of a ``cross``-compiled config are not
    tested. ``subdir`` is that of the machine that builds.
    """

    engine: str
    recipe: Path
    variant_file: Path
    clobber_file: Path
    condarc: Path
    croot: Path
    fetched: Path
    cache: Path
    channels: tuple[str, ...]
    channel_priority: str
    settings: Mapping[str, str]
    solver: str | None
    cuda: str | None
    cuda_arch: str | None
    extra: Mapping[str, str]
    cross: bool = False
    subdir: str = "linux-64"


def build_command_line(call: CondaBuildCall) -> tuple[str, ...]:
    """Return the engine's command line."""
    return (
        PROGRAMS[call.engine],
        str(call.recipe),
        *("-m", str(call.variant_file)),
        "--suppress-variables",
        *("--clobber-file", str(call.clobber_file)),
        "--extra-meta",
        *(f"{name}={value}" for name, value in call.extra.items()),
        *(("--no-test",) if call.cross else ()),
    )


def debug_command_line(call: CondaBuildCall, output: str) -> tuple[str, ...]:
    """Return the command line that prepares an output to be built by hand: conda-build's, since boa has none.

    ``output`` is a pattern; an empty one leaves the choice to conda-build. Source: ``conda debug`` in conda-smithy's
    build_steps.sh.
    """
    return (
        *("conda", "debug", str(call.recipe)),
        *("-m", str(call.variant_file)),
        *(("--output-id", output) if output else ()),
        *("--clobber-file", str(call.clobber_file)),
    )


def engine_bash_script(call: CondaBuildCall, *, debug: str | None = None) -> str:
    """Return the bash script that enters conda's base environment, where there is one, and runs the engine.

    With ``debug``, an output's pattern or an empty text, prepare that output and open a shell in its work directory,
    with its environment.
    """
    program = PROGRAMS[call.engine] if debug is None else "conda-debug"
    last: tuple[str, ...] = (f"exec {shlex.join(build_command_line(call))}",)
    if debug is not None:
        shell = "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"
        ready = f"{shlex.join(debug_command_line(call, debug))} </dev/null"
        last = (ready, 'cd "$CONDA_BLD_PATH"/debug_*/work', "set +euo pipefail; . ./build_env_setup.sh", shell)
    return "\n".join(
        (
            "set -euo pipefail",
            "unset PYTHONPATH PYTHONDONTWRITEBYTECODE",  # they are for kiln's own processes
            *(f"export {name}={shlex.quote(value)}" for name, value in conda_build_environment(call).items()),
            "if [ -e /opt/conda/etc/profile.d/conda.sh ]; then",
            "    set +u; . /opt/conda/etc/profile.d/conda.sh; conda activate base; set -u",
            "fi",
            f"command -v {program} >/dev/null || exit {NO_ENGINE}",
            # conda deletes by way of a folder in the current one: two engines in the same folder would race there.
            f"cd {shlex.quote(str(call.condarc.parent))}",
            *last,
            "",
        )
    )


def conda_build_environment(call: CondaBuildCall) -> dict[str, str]:
    """Return the environment variables of conda and the engine.

    Source: conda-smithy's build_steps.sh, and ``run_conda_forge_build_setup_linux`` of conda-forge-ci-setup.
    """
    cuda = {"CONDA_OVERRIDE_CUDA": call.cuda, "CONDA_OVERRIDE_CUDA_ARCH": call.cuda_arch if call.cuda else None}
    return {
        "CONDARC": str(call.condarc),
        "CONDA_SUBDIR": call.subdir,
        "CONDA_BLD_PATH": str(call.croot),
        "CONDA_LIBMAMBA_SOLVER_NO_CHANNELS_FROM_INSTALLED": "1",
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in cuda.items() if value is not None},
    }


def error_from_engine_output(engine: str, exit_code: int, output: str) -> KilnError:
    """Return why an engine failed, from the end of its ``output``: the last lines of the script, and the exceptions.

    The engine is written in Python: some forty lines of traceback follow the output of a script or a test.
    """
    output_lines, raised = _split_output_at_exceptions(output.splitlines())
    if not raised:
        raised = [line for line in output_lines[-SAID:] if PLAIN_EXIT.match(line.strip())]
        output_lines = [line for line in output_lines if line not in raised]
    text = "\n".join(raised)
    why = program_output_with_margin("\n".join((*output_lines[-SAID:], *raised[-SAID:])))
    if failures.DISK.words.search(text):
        return failures.DISK.error(f"{engine} ended with exit code {exit_code}", why=why, hint=failures.DISK.hint)
    kinds = ((error, hint) for words, error, hint in KINDS if re.search(words, text, re.IGNORECASE))
    error, hint = next(kinds, (BuildFailed, ""))
    return error(f"{engine} ended with exit code {exit_code}", why=f"it said\n{why}", hint=hint)


def _split_output_at_exceptions(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines before the last chain of exceptions, and the messages of these; all lines without any."""
    starts = [index for index, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return lines, []
    first = starts.pop()
    while starts and any(line.startswith(CHAINED) for line in lines[max(0, first - 2) : first]):
        first = starts.pop()
    raised: list[str] = []
    open_message = False
    for line in lines[first:]:
        starting = RAISED.match(line) is not None
        open_message = starting or (open_message and line != TRACEBACK and not line.startswith(CHAINED))
        if open_message and line.strip():
            raised.append(line)
    return lines[:first], raised


def condarc_content(call: CondaBuildCall) -> str:
    """Return conda's settings, as JSON, which is YAML too."""
    settings = {
        "conda-build": {"root-dir": str(call.croot), **call.settings},
        "pkgs_dirs": [str(call.fetched), str(call.cache), "/opt/conda/pkgs"],
        "channels": list(call.channels),
        "default_channels": [],
        "channel_priority": call.channel_priority,
        "show_channel_urls": True,
        "auto_update_conda": False,
        "add_pip_as_python_dependency": False,
        "aggressive_update_packages": ["ca-certificates", "certifi"],
        **({"solver": call.solver} if call.solver else {}),
    }
    return json.dumps(settings, indent=2)


def clobber_file_text(rendered: RenderedConfig) -> str:
    """Return the clobber file: the build number without the variant's decrement, or an empty mapping.

    Only conda-forge's old compilers had a decrement; a number below 1000 is theirs already, and stays.
    """
    text = rendered.config.variant.get("build_number_decrement", ("0",))[0]
    decrement = int(text) if text.isdecimal() else 0
    numbers = {output.build_number for output in rendered.outputs if not output.skip}
    if not decrement or len(numbers) != 1:
        return "{}\n"
    (number,) = numbers
    return json.dumps({"build": {"number": number - decrement if number >= MODERN else number}}) + "\n"


NOTE = "tested by the engine, as part of the build"
UNTESTED = "not tested: it is cross-compiled"
FETCHED = "fetched"  # the config's own package cache
SHARED = "conda"  # packages fetched by any config, in the shared cache
END_OF_LOG = 65_536  # bytes
STAMP = "2026-01-31 23:59:59 "  # the prefix of a log's line
PACKAGE_ENDINGS = (".conda", ".tar.bz2")
RECORD = "urls.txt"  # conda takes only a folder that has this file for a package cache
INDEXES = "cache"  # where conda keeps the indexes of channels, in its first package cache


def write_engine_script(task: JobContext, executor: Executor) -> tuple[str, ...]:
    """Write the script that runs a job's engine, with its input files, into a fresh folder; return its command line.

    For a job with ``debug``, an output's pattern or an empty text, the script prepares that output and opens a shell
    instead.
    """
    from kiln.feedstock import job_settings

    feedstock, rendered, folder, cache = task.feedstock, task.rendered, task.folder, executor.package_cache
    inside, config = executor.path_inside, rendered.config.name
    files.remove(folder)
    conda = job_settings.conda_settings(feedstock.conda_forge_yml)
    call = CondaBuildCall(
        engine=task.job.options.engine,
        recipe=inside(feedstock.recipe),
        variant_file=inside(feedstock.config_folder / f"{config}.yaml"),
        clobber_file=inside(folder / f"clobber_{config}.yaml"),
        condarc=inside(folder / "condarc"),
        croot=inside(folder / "croot"),
        fetched=inside(folder / FETCHED),
        cache=inside(cache / SHARED),
        channels=http.add_credentials_to_urls(channel_sources(rendered.config)),
        channel_priority=conda.channel_priority,
        settings=conda.conda_build,
        solver=conda.solver,
        cuda=cuda_version_of_config(rendered.config),
        cuda_arch=cuda_arch_of_config(rendered.config),
        extra={name: task.job.variables.get(name, "") for name in environment.EXTRA},
        cross=rendered.config.is_cross,
        subdir=rendered.config.build_platform,
    )
    create_package_caches(folder, cache)
    files.write_text(folder / f"clobber_{config}.yaml", clobber_file_text(rendered))
    files.write_text(folder / "condarc", condarc_content(call), mode=0o600)
    files.write_text(folder / "build.sh", engine_bash_script(call, debug=task.job.options.debug))
    return ("bash", str(inside(folder / "build.sh")))


def create_package_caches(folder: Path, cache: Path) -> None:
    """Make the config's folder with a separate package cache, whose channel indexes are shared by all configs.

    conda-build puts the packages that it made into the first cache to test them, and first removes packages of the
    same name from every cache: in a shared one these may be another config's, under test at the moment.
    """
    indexes = cache / SHARED / INDEXES
    indexes.mkdir(parents=True, exist_ok=True)
    (cache / SHARED / RECORD).touch()
    (folder / FETCHED).mkdir(parents=True)
    (folder / FETCHED / INDEXES).symlink_to(os.path.relpath(indexes, folder / FETCHED))


def move_fetched_packages_to_shared_cache(folder: Path, cache: Path) -> None:
    """Move the packages that the engine fetched to the shared cache; its own packages stay with the config.

    Only on the host, where builds may write there anyway. A package is complete once conda has written its record, and
    an existing folder is not replaced.
    """
    own_names = {file.name.removesuffix(".conda") for file in (folder / "croot").glob("*/*.conda")}
    for record in sorted((folder / FETCHED).glob("*/info/repodata_record.json")):
        package = record.parents[1]
        if package.name in own_names:
            continue
        with suppress(OSError):  # when another config was first
            package.rename(cache / SHARED / package.name)
            for file in (package.with_name(package.name + kind) for kind in PACKAGE_ENDINGS):
                if file.is_file():
                    file.rename(cache / SHARED / file.name)


def error_from_build_log(engine: str, exit_code: int, tail: str, log: Path) -> KilnError:
    """Return the error of an engine, from the end of the config's log, or from ``tail`` without a log."""
    return error_from_engine_output(engine, exit_code, _log_tail(log) or tail)


def _log_tail(log: Path) -> str:
    """Return the end of a config's log, without the times; empty without a log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_OF_LOG))
        lines = file.read().decode(errors="replace").splitlines()[1:]
        return "\n".join(line[len(STAMP) :] for line in lines)
    return ""


def failure_reason_lines(error: KilnError | None, log: Path) -> list[str]:
    """Return the reason of an engine's failure as lines for the end of its log, unless they are there already.

    After a traceback, which is long, they are repeated.
    """
    if error is None or TRACEBACK not in _log_tail(log):
        return []
    return [line.strip(" |") for line in error.why.splitlines()]


def built_package_reports(folder: Path, config: str, *, tested: bool = True) -> list[dict[str, Any]]:
    """Return the engine's finished packages, as JSON values; those with failed tests are in another folder."""
    croot = folder / "croot"
    packages = [file for subdir in existing_subdirs(croot) for file in sorted((croot / subdir).glob("*.conda"))]
    for file in packages:
        open_file_beneath(folder, str(file.relative_to(folder))).close()  # refuses links, and pipes without a writer
    return [to_json(_package_report(file, folder, config, tested=tested)) for file in packages]


def _package_report(file: Path, folder: Path, config: str, *, tested: bool) -> PackageReport:
    index = package_reader.read_info_json_object(file, "index.json")
    if not all(isinstance(index.get(key), str) for key in ("name", "version", "build")):
        raise BrokenPackage(
            f"{file} has no complete metadata", why="its info/index.json lacks a name, version or build"
        )
    artifact = Artifact(
        path=file.relative_to(folder),
        sha256=files.sha256(file),
        size=file.stat().st_size,
        config=config,
        name=index["name"],
        version=index["version"],
        build_string=index["build"],
        subdir=file.parent.name,
    )
    verdict, note = (TestVerdict.PASSED, NOTE) if tested else (TestVerdict.SKIPPED, UNTESTED)
    tests = TestReport(package=index["name"], verdict=verdict, notes=(note,))
    return PackageReport(artifact=artifact, build_seconds=0.0, reused=False, tests=tests)


class Executor(Protocol):
    """Runs the programs of one config, on the host or in containers.

    Paths of ``packages`` and ``queue`` are as this process sees them, those of all else as the programs do.
    """

    @property
    def on_host(self) -> bool:
        """Whether paths need no translation."""

    @property
    def task(self) -> JobContext:
        """The config."""

    @property
    def package_cache(self) -> Path:
        """The cache of fetched packages."""

    @property
    def compile_cache(self) -> Path:
        """Bazel's cache for the config's compile."""

    @property
    def distdir(self) -> Path | None:
        """The folder of downloads."""

    @property
    def script_queue_folder(self) -> Path | None:
        """The folder that passes on scripts, if any."""

    def path_inside(self, path: Path) -> Path:
        """Return a path as the programs see it."""

    def job_command(self, job_file: Path) -> tuple[str, ...]:
        """Return the command that runs a job file."""

    def run_program(self, words: tuple[str, ...], log: BuildLog, *, reads: tuple[Path, ...] = ()) -> ProcessOutcome:
        """Run a program to its end."""

    def run_on_terminal(self, words: tuple[str, ...], terminal: Mapping[str, str] | None) -> int:
        """Run a program on the terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """The outcome of a build process: ``error`` is None when it wrote its result, ``peak_memory`` is in bytes.

    ``starved`` when the kernel killed processes of it because memory ran out.
    """

    error: KilnError | None
    peak_memory: int | None
    starved: bool


def job_message_prefix(task: JobContext) -> str:
    """Return the first character of the build process's messages; empty for another engine, which sends none."""
    return "" if task.uses_other_engine else MARK


def build_process_error(task: JobContext, name: str, exit_code: int, tail: str) -> KilnError:
    """Return the error of a build process that ended without a result: on a full disk, for example.

    For another engine it is that engine's own error.
    """
    if task.uses_other_engine and exit_code > 0:
        return error_from_build_log(task.job.options.engine, exit_code, tail, Path(task.job.log))
    kind = failures.classify_failure("", tail)
    return kind.error(
        f"{name} ended with exit code {exit_code}", why=f"it said\n{program_output_with_margin(tail)}", hint=kind.hint
    )
