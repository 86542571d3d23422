"""The files that another engine gets, and those of its results that are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import TestsFailed
from kiln.build.executor import conda_build
from kiln.build.executor.conda_build import TRACEBACK
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path


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
        *("cache", "urls.txt", "python-3.11-0", "python-3.11-0.conda"),
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


def test_why_an_engine_failed_stands_at_the_end_of_its_log(tmp_path: Path) -> None:
    log = logged(tmp_path, "the test's last word", TRACEBACK, "BuildError: TESTS FAILED: a-1")
    result = conda_build.error_from_build_log("conda-build", 1, "", log)
    assert isinstance(result, TestsFailed)
    assert "| the test's last word\n" in result.why


def test_the_reason_of_a_failure_is_at_the_logs_end(tmp_path: Path) -> None:
    log = logged(
        tmp_path, "the test's last word", TRACEBACK, "  File 'conda-build', line 6", "BuildError: TESTS FAILED: a-1"
    )
    failure = conda_build.error_from_build_log("conda-build", 1, "", log)
    last_words = ["it said", "the test's last word", "BuildError: TESTS FAILED: a-1"]
    assert conda_build.failure_reason_lines(failure, log) == last_words
    assert not conda_build.failure_reason_lines(None, log)


def test_a_reason_that_is_at_the_logs_end_is_not_repeated(tmp_path: Path) -> None:
    log = logged(tmp_path, "the test's last word", "TESTS FAILED: a-1.conda")
    failure = conda_build.error_from_build_log("conda-build", 1, "", log)
    assert isinstance(failure, TestsFailed)
    assert not conda_build.failure_reason_lines(failure, log)


def test_the_shared_cache_is_one_that_conda_reads(tmp_path: Path) -> None:
    conda_build.create_package_caches(tmp_path / "config", tmp_path / "cache")
    assert (tmp_path / "cache" / "conda" / "urls.txt").is_file()


def test_without_a_log_the_tail_has_the_reason(tmp_path: Path) -> None:
    assert (
        "no space left"
        in conda_build.error_from_build_log("conda-build", 1, "no space left", tmp_path / "none.log").why
    )


@pytest.mark.parametrize(
    ("tested", "verdict", "note"),
    [(True, "passed", conda_build.NOTE), (False, "skipped", conda_build.UNTESTED)],
)
def test_packages_of_any_platform_are_collected_with_whether_they_were_tested(
    tested: bool, verdict: str, note: str, tmp_path: Path
) -> None:
    release_package(tmp_path / "croot" / "linux-aarch64", "app", subdir="linux-aarch64")
    release_package(tmp_path / "croot" / "broken", "bad")
    (package,) = conda_build.built_package_reports(tmp_path, "config", tested=tested)
    assert (package["artifact"]["name"], package["artifact"]["subdir"]) == ("app", "linux-aarch64")
    assert (package["tests"]["verdict"], package["tests"]["notes"]) == (verdict, [note])
