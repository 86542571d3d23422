"""conda-build is told exactly what conda-forge's build steps tell it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from kiln.base.errors import BuildFailed, DiskFull, DownloadFailed, HashMismatch, KilnError, SolveFailed, TestsFailed
from kiln.build.executor import conda_build
from kiln.build.executor.conda_build import (
    TRACEBACK,
    CondaBuildCall,
    build_command_line,
    clobber_file_text,
    conda_build_environment,
    condarc_content,
    engine_bash_script,
    error_from_engine_output,
)
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import RenderedConfig
from tests import builders
from tests.packages import release_package

CALL = CondaBuildCall(
    engine="conda-build",
    recipe=Path("/home/conda/recipe_root"),
    variant_file=Path("/f/.ci_support/linux_64_.yaml"),
    clobber_file=Path("/w/clobber_linux_64_.yaml"),
    condarc=Path("/w/condarc"),
    croot=Path("/w/croot"),
    fetched=Path("/w/fetched"),
    cache=Path("/a/cache"),
    channels=("conda-forge", "other"),
    channel_priority="strict",
    settings={"pkg_format": "2", "zstd_compression_level": "16"},
    solver=None,
    cuda=None,
    cuda_arch=None,
    extra={"flow_run_id": "", "remote_url": "https://g/a b", "sha": "abc"},
)


def test_the_command_line_is_conda_forges() -> None:
    assert build_command_line(CALL) == (
        "conda-build",
        "/home/conda/recipe_root",
        "-m",
        "/f/.ci_support/linux_64_.yaml",
        "--suppress-variables",
        "--clobber-file",
        "/w/clobber_linux_64_.yaml",
        "--extra-meta",
        "flow_run_id=",
        "remote_url=https://g/a b",
        "sha=abc",
    )
    cross = dataclasses.replace(CALL, cross=True)
    assert build_command_line(cross) == (*build_command_line(CALL), "--no-test")


def test_mambabuild_has_the_same_arguments() -> None:
    mamba = dataclasses.replace(CALL, engine="mambabuild")
    assert build_command_line(mamba) == ("conda-mambabuild", *build_command_line(CALL)[1:])
    assert "command -v conda-mambabuild >/dev/null || exit 97" in engine_bash_script(mamba)
    assert "'remote_url=https://g/a b'" in engine_bash_script(mamba)


def test_a_shell_is_opened_where_conda_debug_has_made_an_output_ready() -> None:
    lines = engine_bash_script(CALL, debug="libsmall-*").splitlines()
    assert "command -v conda-debug >/dev/null || exit 97" in lines
    variant = "-m /f/.ci_support/linux_64_.yaml"
    clobbered = "--clobber-file /w/clobber_linux_64_.yaml"
    ready = f"conda debug /home/conda/recipe_root {variant} --output-id 'libsmall-*' {clobbered} </dev/null"
    enter = ['cd "$CONDA_BLD_PATH"/debug_*/work', "set +euo pipefail; . ./build_env_setup.sh"]
    assert lines[-4:] == [ready, *enter, "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"]
    assert "--output-id" not in engine_bash_script(CALL, debug="")


def test_condas_settings_have_the_folders_and_the_channels() -> None:
    told = json.loads(condarc_content(CALL))
    assert told["conda-build"] == {"root-dir": "/w/croot", "pkg_format": "2", "zstd_compression_level": "16"}
    assert told["pkgs_dirs"] == ["/w/fetched", "/a/cache", "/opt/conda/pkgs"]
    assert told["channels"] == ["conda-forge", "other"]
    assert told["channel_priority"] == "strict"
    assert "solver" not in told
    assert not told["auto_update_conda"]
    assert not told["add_pip_as_python_dependency"]
    assert json.loads(condarc_content(dataclasses.replace(CALL, solver="classic")))["solver"] == "classic"


def test_a_build_for_cuda_counts_on_a_driver_on_every_machine() -> None:
    assert not [name for name in conda_build_environment(CALL) if "CUDA" in name]
    for_cuda = dataclasses.replace(CALL, cuda="12.9", cuda_arch="9.0")
    assert conda_build_environment(for_cuda)["CONDA_OVERRIDE_CUDA"] == "12.9"
    assert conda_build_environment(for_cuda)["CONDA_OVERRIDE_CUDA_ARCH"] == "9.0"
    assert "export CONDA_OVERRIDE_CUDA=12.9" in engine_bash_script(for_cuda).splitlines()


def test_the_engine_finds_nothing_of_kilns_own_python() -> None:
    lines = engine_bash_script(CALL).splitlines()
    assert lines[-2:] == ["cd /w", f"exec {shlex.join(build_command_line(CALL))}"], "in a folder of its own"
    assert "unset PYTHONPATH PYTHONDONTWRITEBYTECODE" in lines[:-1]


CALLS = """\
Traceback (most recent call last):
  File "conda_build/utils.py", line 389, in call
    raise subprocess.CalledProcessError(1)
subprocess.CalledProcessError: Command '['bash', 'conda_build.sh']' returned non-zero exit status 1.

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "conda-build", line 6, in <module>
    sys.exit(execute())
             ^^^^^^^^^
"""


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("conda_build.exceptions.BuildScriptException: Command 'conda_build.sh' returned 1", BuildFailed),
        ("conda_build.exceptions.CondaBuildUserError: TESTS FAILED: libsmall-1.2-0.conda", TestsFailed),
        ("conda_build.exceptions.DependencyNeedsBuildingError: Unsatisfiable dependencies: {'abc'}", SolveFailed),
        ("conda.exceptions.PackagesNotFoundError: The following packages are not available:\n\n  - abc", SolveFailed),
        ("conda.exceptions.CondaHTTPError: HTTP 000 CONNECTION FAILED for url <https://c/r.json>", DownloadFailed),
        ("RuntimeError: Could not download http://c/nothing.tar.gz", DownloadFailed),
        ("RuntimeError: SHA256 mismatch for s.tar.gz: obtained 'a' != expected 'b'", HashMismatch),
        ("OSError: [Errno 28] No space left on device", DiskFull),
        ("RuntimeError: Download error (6) Couldn't resolve host name [https://c/r.json]", DownloadFailed),
        ("RuntimeError: Error downloading repodata", DownloadFailed),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for conda", BuildFailed),
        ("conda.exceptions.ResolvePackageNotFound: \n  - abc", SolveFailed),
    ],
)
def test_an_engines_last_exception_decides_the_error(last: str, error: type[KilnError]) -> None:
    result = error_from_engine_output("conda-build", 1, f"compiling\nthe compiler's last word\n{CALLS}{last}\n")
    assert type(result) is error
    assert "conda-build ended with exit code 1" in result.what
    assert "the compiler's last word\n" in result.why
    assert last.splitlines()[-1] in result.why
    assert "sys.exit(execute())" not in result.why


def test_a_scripts_own_traceback_is_shown() -> None:
    own = 'Traceback (most recent call last):\n  File "setup.py", line 1\nValueError: the script\'s own\n'
    result = error_from_engine_output("conda-build", 1, f"{own}{CALLS}BuildScriptException: Command\n")
    assert "ValueError: the script's own" in result.why


def test_output_without_a_traceback_is_shown_as_it_is() -> None:
    result = error_from_engine_output("mambabuild", 2, "usage: conda-build [-h]\nconda-build: error: no such argument")
    assert (type(result), result.what) == (BuildFailed, "mambabuild ended with exit code 2")
    assert "no such argument" in result.why


@pytest.mark.parametrize(
    ("last", "error"),
    [
        ("TESTS FAILED: libsmall-1.2-0.conda", TestsFailed),
        ("Download error (7) Couldn't connect to server [http://c/linux-64/repodata.json]", DownloadFailed),
        ("Error downloading repodata for http://c", DownloadFailed),
        ("the recipe's test said: TESTS FAILED: none", BuildFailed),
    ],
)
def test_the_last_line_of_an_engine_that_exits_without_an_exception_decides(last: str, error: type[KilnError]) -> None:
    result = error_from_engine_output("conda-build", 1, f"the test's last word\n{last}\n")
    assert (type(result), result.why.count(last)) == (error, 1)


@pytest.mark.parametrize(
    ("decrement", "number", "expected"),
    [(None, 3, {}), ("0", 1003, {}), ("1000", 1003, {"build": {"number": 3}}), ("1000", 3, {"build": {"number": 3}})],
)
def test_the_build_number_is_clobbered_for_old_compilers_alone(
    decrement: str | None, number: int, expected: dict[str, object]
) -> None:
    variant = {} if decrement is None else {"build_number_decrement": (decrement,)}
    config = BuildConfig(name="c", platform="linux-64", variant=variant, pin_run_as_build={})
    output = builders.output(build_number=number)
    assert json.loads(clobber_file_text(RenderedConfig(config=config, outputs=(output,)))) == expected


def fetched(folder: Path, package: str, *, whole: bool = True) -> None:
    """A package as conda leaves it in a package cache."""
    info = folder / "fetched" / package / "info"
    info.mkdir(parents=True)
    if whole:
        (info / "repodata_record.json").write_text("{}")
    (folder / "fetched" / f"{package}.conda").write_text("archive")


def test_what_was_fetched_is_shared_and_what_was_made_is_not(tmp_path: Path) -> None:
    config, cache = tmp_path / "work" / "config", tmp_path / "cache"
    conda_build.create_package_caches(config, cache)
    for package in ("python-3.11-0", "own-1-0", "failed-1-0"):
        fetched(config, package)
    fetched(config, "half-1-0", whole=False)
    for subdir, package in (("linux-64", "own-1-0"), ("broken", "failed-1-0")):
        (config / "croot" / subdir).mkdir(parents=True)
        (config / "croot" / subdir / f"{package}.conda").touch()
    conda_build.move_fetched_packages_to_shared_cache(config, cache)
    assert {item.name for item in (cache / "conda").iterdir()} == {
        *("cache", "urls.txt", "python-3.11-0", "python-3.11-0.conda")
    }
    assert (config / "fetched" / "own-1-0").is_dir()


def test_the_first_config_that_has_fetched_a_package_shares_it(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("first", "second"):
        conda_build.create_package_caches(tmp_path / name, cache)
        fetched(tmp_path / name, "python-3.11-0")
        (tmp_path / name / "fetched" / "python-3.11-0.conda").write_text(name)
        conda_build.move_fetched_packages_to_shared_cache(tmp_path / name, cache)
    assert (cache / "conda" / "python-3.11-0.conda").read_text() == "first"


def test_configs_share_the_indexes_of_channels(tmp_path: Path) -> None:
    conda_build.create_package_caches(tmp_path / "work" / "one", tmp_path / "cache")
    (tmp_path / "work" / "one" / "fetched" / "cache" / "1.json").write_text("{}")
    tmp_path.rename(tmp_path.with_name("seen-elsewhere"))  # as a container sees it
    assert (tmp_path.with_name("seen-elsewhere") / "work" / "one" / "fetched" / "cache" / "1.json").is_file()
    assert (tmp_path.with_name("seen-elsewhere") / "cache" / "conda" / "cache" / "1.json").is_file()


def logged(folder: Path, *lines: str) -> Path:
    log = folder / "config.log"
    log.write_text("".join(f"2026-11-21 16:00:00 {line}\n" for line in ("=== conda-build", *lines)))
    return log


def test_the_reason_of_a_failure_is_at_the_logs_end(tmp_path: Path) -> None:
    log = logged(
        tmp_path, "the test's last word", TRACEBACK, "  File 'conda-build', line 6", "BuildError: TESTS FAILED: a-1"
    )
    failure = conda_build.error_from_build_log("conda-build", 1, "", log)
    assert isinstance(failure, TestsFailed)
    assert "| the test's last word\n" in failure.why
    last_words = ["it said", "the test's last word", "BuildError: TESTS FAILED: a-1"]
    assert conda_build.failure_reason_lines(failure, log) == last_words
    assert not conda_build.failure_reason_lines(None, log)


def test_a_reason_that_is_at_the_logs_end_is_not_repeated(tmp_path: Path) -> None:
    log = logged(tmp_path, "the test's last word", "TESTS FAILED: a-1.conda")
    failure = conda_build.error_from_build_log("conda-build", 1, "", log)
    assert isinstance(failure, TestsFailed)
    assert not conda_build.failure_reason_lines(failure, log)


def test_without_a_log_the_tail_has_the_reason(tmp_path: Path) -> None:
    assert (
        "no space left"
        in conda_build.error_from_build_log("conda-build", 1, "no space left", tmp_path / "none.log").why
    )


@pytest.mark.parametrize(
    ("tested", "verdict", "note"), [(True, "passed", conda_build.NOTE), (False, "skipped", conda_build.UNTESTED)]
)
def test_packages_of_any_platform_are_collected_with_whether_they_were_tested(
    tested: bool, verdict: str, note: str, tmp_path: Path
) -> None:
    release_package(tmp_path / "croot" / "linux-aarch64", "app", subdir="linux-aarch64")
    release_package(tmp_path / "croot" / "broken", "bad")
    (package,) = conda_build.built_package_reports(tmp_path, "config", tested=tested)
    assert (package["artifact"]["name"], package["artifact"]["subdir"]) == ("app", "linux-aarch64")
    assert (package["tests"]["verdict"], package["tests"]["notes"]) == (verdict, [note])
