"""An engine's messages decide the error that is raised."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base import process_table
from kiln.base.errors import (
    BuildFailed,
    DiskFull,
    DownloadFailed,
    HashMismatch,
    KilnError,
    OutOfMemory,
    SolveFailed,
    TestsFailed,
)
from kiln.build.engine import failures, worker
from kiln.build.engine.failures import (
    ABSENT,
    ENGINE_FOLDER,
    NETWORK,
    classify_failure,
    is_permanent_download_failure,
    readable_engine_message,
)
from kiln.build.engine.run import build_step_error
from kiln.build.engine.worker import refuse_unusable_files
from kiln.build.steps import BuildStep
from kiln.recipe.rendered import BuildPlatforms
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("reason", "tail", "error"),
    [
        ("Script failed with status 2", "gcc: error", BuildFailed),
        ("Script failed with status 2", "cp: No space left on device", DiskFull),
        ("IO error: No space left on device (os error 28)", "", DiskFull),
        ("error sending request for url (https://c/noarch/repodata.json)", "", DownloadFailed),
        ("Script failed with status 1", "curl: connection refused", BuildFailed),
        ("PyRattlerBuildError: Failed to resolve dependencies", "Specs: nosuch", SolveFailed),
        ("PyRattlerBuildError: Failed to resolve dependencies", "Retry attempt #2. Sleeping 3 s", DownloadFailed),
        ("PyRattlerBuildError: Failed to download from URL: Request failed after 3 retries", "", DownloadFailed),
        ("PyRattlerBuildError: Script failed to execute", "Retry attempt #2", BuildFailed),
        ('PyRattlerBuildError: sha256 checksum validation failed for "/x/v1.tar.gz"', "", HashMismatch),
        ("Failed to download from URL", "Failed to fetch from u: sha256 checksum validation failed", HashMismatch),
        ("Script failed with status 1", "sha256 checksum validation failed", BuildFailed),
        ("failed package content tests: No match for lib glob", "", TestsFailed),
        ("Cannot solve the request because of: No candidates were found for x", "", SolveFailed),
    ],
)
def test_a_failure_has_its_classify_failure(reason: str, tail: str, error: type[KilnError]) -> None:
    assert classify_failure(reason, tail).error is error


@pytest.mark.parametrize(
    ("reason", "tail", "said"),
    [
        (
            "PyRattlerBuildError: Script failed to execute",
            "no luck\nScript failed with status 3",
            "its script ended with exit code 3",
        ),
        (
            "PyRattlerBuildError: Script failed to execute",
            "+ before\n✔ Successfully updated the host environment\n+ make\n+ grep x y\nScript failed with status 1",
            "its script ended with exit code 1 after: grep x y",
        ),
        (
            "PyRattlerBuildError: Script failed to execute",
            "+ ./a\nScript failed with status 139",
            "its script ended with exit code 139 (Segmentation fault) after: ./a",
        ),
        ("PyRattlerBuildError: Script failed to execute", "killed", "Script failed to execute"),
        ("PyRattlerBuildError: Failed to resolve dependencies", "", "Failed to resolve dependencies"),
        ("the engine ended with exit code -9", "", "the engine ended with exit code -9"),
    ],
)
def test_an_engines_message_is_shown_without_its_exceptions_name(reason: str, tail: str, said: str) -> None:
    assert readable_engine_message(reason, tail) == said


def test_a_failed_script_is_told_by_the_cause_in_its_output(tmp_path: Path) -> None:
    reason = "PyRattlerBuildError: Script failed to execute"
    output = "+ make\na.c:1:10: fatal error: zlib.h: No such file or directory\nScript failed with status 2"
    step = a_step(tmp_path, ())
    error = build_step_error(step, reason, output)
    assert error.what == "a could not be built: zlib.h not found, which the sources include"
    assert error.why.splitlines()[1:] == ["    | a.c:1:10: fatal error: zlib.h: No such file or directory"]
    assert "requirements/host" in error.hint
    killed = build_step_error(step, reason, "x.sh: line 2: 7 Killed      make\nScript failed with status 137")
    assert isinstance(killed, OutOfMemory)


def test_a_wrong_hash_is_told_with_the_one_to_paste_and_a_patch_with_its_hunk(tmp_path: Path) -> None:
    step = a_step(tmp_path, ())
    hashes = f"  expected: {'0' * 64}\n  actual:   {'a' * 64}"
    file = "/build/output/src_cache/30499b49c9466d42_h-1.tar.gz"
    error = build_step_error(step, f'sha256 checksum validation failed for "{file}"\n{hashes}', "")
    assert error.what == f"a could not be built: the sha256 of h-1.tar.gz is {'a' * 64}, the recipe has {'0' * 64}"
    assert "kiln bump --hashes" in error.hint
    reason = "Patch application error: error applying hunk #1: no context\nHunk content:\n@@ -1 +1 @@\n-a"
    error = build_step_error(step, reason, "Applying patch: /recipe/fix.patch")
    assert error.what == "a could not be built: fix.patch does not apply: hunk #1: no context"
    assert error.why == "Hunk content:\n@@ -1 +1 @@\n-a"


def test_a_missing_license_is_told_with_those_of_the_sources(tmp_path: Path) -> None:
    step = a_step(tmp_path, ["nothing"])
    (tmp_path / "step" / ENGINE_FOLDER / "a_1" / "work" / "LICENCE.md").touch()
    assert "the sources have LICENCE.md at their top" in build_step_error(step, REASON, "").why


@pytest.mark.parametrize(
    ("messages", "final"),
    [
        ("Failed to fetch from u: HTTP status client error (404 Not Found) for url (u)", True),
        ("Failed to fetch from u: HTTP status client error (403 Forbidden) for url (u)", True),
        ("Failed to fetch from u: HTTP status client error (429 Too Many Requests) for url (u)", False),
        ("Failed to fetch from u: HTTP status client error (408 Request Timeout) for url (u)", False),
        ("Failed to fetch from u: HTTP status server error (503 Service Unavailable) for url (u)", False),
        ("Failed to fetch from a: HTTP status client error (404 Not Found)\nFailed to fetch from b: dns error", False),
        ("Script failed with status 404", False),
        ("", False),
    ],
)
def test_an_answer_that_would_not_change_is_told_from_a_fault_that_may_pass(messages: str, final: bool) -> None:
    assert is_permanent_download_failure(messages) == final
    if messages.startswith("Failed"):
        assert classify_failure(messages, "") is (ABSENT if final else NETWORK)


REASON = "PyRattlerBuildError: No license files were copied"


def a_step(tmp_path: Path, entries: object) -> BuildStep:
    work, recipe = tmp_path / "step" / ENGINE_FOLDER / "a_1" / "work", tmp_path / "recipe"
    (work / "licenses").mkdir(parents=True)
    (work / "licenses" / "MIT.txt").touch()
    recipe.mkdir()
    (recipe / "NOTICE").touch()
    return BuildStep(
        output=builders.output("a", subdir="noarch"),
        recipe={"about": {"license_file": entries}},
        folder=tmp_path / "step",
        channels=(),
        environment={},
        index={},
        platforms=BuildPlatforms(target="linux-64", build="linux-64"),
        recipe_folder=recipe,
    )


@pytest.mark.parametrize(
    ("entries", "names"),
    [
        ("LICENSE", "LICENSE"),
        (["licenses/MIT.txt", "COPYING", "NOTICE", "licenses/*.md", "licenses/"], "COPYING, licenses/*.md"),
        (list("abcdefg"), "a, b, c, d, e and 2 more"),
    ],
)
def test_the_missing_files_are_named(tmp_path: Path, entries: object, names: str) -> None:
    error = build_step_error(a_step(tmp_path, entries), REASON, "")
    expected = f"a could not be built: about/license_file: neither in the sources nor in the recipe: {names}"
    assert (error.what, "recipe's folder" in error.hint) == (expected, True)


@pytest.mark.parametrize("entries", [["licenses/*.txt"], ["/etc/x"], ["${{ SRC_DIR }}/x"], None])
def test_where_none_is_missing_the_engines_words_stay(tmp_path: Path, entries: object) -> None:
    step = a_step(tmp_path, entries)
    assert failures.missing_licenses_message(step) == ""
    assert build_step_error(step, REASON, "").what == "a could not be built: No license files were copied"


FILES = (
    *("a/x.py", "a/x.so", "a/y.py", "a/z.pyd", "a/z.py", "a/x.cpython-311.so", "CACHEDIR.TAG", "a/CACHEDIR.TAG"),
    *("a/conda-meta/history", "conda-meta/history", "dep/x.py", "dep/x.so", "dep/timeout.py"),
)


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Return a prefix with files of a script, and with those of a package ``dep`` that was there before."""
    prefix = tmp_path / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold_placehold"
    builders.write_files(prefix, dict.fromkeys(FILES, ""))
    (prefix / "a" / "y.so").symlink_to("nowhere")
    record = {"name": "dep", "files": [name for name in FILES if name.startswith("dep/")]}
    (prefix / "conda-meta" / "dep-1-0.json").write_text(json.dumps(record))
    return prefix


def test_a_package_without_files_of_its_script_is_refused_with_their_names(prefix: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leaves out") as caught:
        refuse_unusable_files(tmp_path, {"build": {}}, by_conda_build_rules=False)
    assert str(caught.value) == (
        "rattler-build leaves out a/conda-meta/history (it is in a folder conda-meta), a/x.py (x.so is next to it), "
        "a/z.py (z.pyd is next to it)"
    )
    kind = failures.classify_failure(str(caught.value).replace("a/x.py", "a/timeout.py"), "")
    assert kind.error is BuildFailed, "the name of a file is not the engine's message"
    assert "remove the files in the script" in kind.hint
    refuse_unusable_files(tmp_path, {"build": {"files": ["a/y.py"]}}, by_conda_build_rules=False)


def test_tags_of_caches_are_named_in_the_log(prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a/x.py", "a/z.py", "a/conda-meta/history"):
        (prefix / name).unlink()
    refuse_unusable_files(tmp_path, {"build": {}}, by_conda_build_rules=False)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "rattler-build leaves out CACHEDIR.TAG",
        "rattler-build leaves out a/CACHEDIR.TAG",
    ]


@pytest.fixture
def prefix_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prefix with a file, a folder, and links to special files, which are none themselves."""
    prefix_folder = tmp_path / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold"
    (prefix_folder / "bin").mkdir(parents=True)
    (prefix_folder / "bin" / "app").touch()
    (prefix_folder / "null").symlink_to(os.devnull)
    monkeypatch.setenv("PREFIX", str(prefix_folder))
    return prefix_folder


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the line after a script, as the engine does: traced, and until a command fails."""
    script = "\n".join(("set -xe", *failures.refuse_special_files_lines(folder), "{ echo after; } 2>/dev/null"))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_a_prefix_without_special_files_passes_without_a_trace(prefix_folder: Path, tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "after\n", "")
    assert failures.special_files_that_ended_script(tmp_path) == () == failures.find_special_files([prefix_folder])


@pytest.mark.processes
def test_special_files_end_the_script_and_are_named(prefix_folder: Path, tmp_path: Path) -> None:
    os.mkfifo(prefix_folder / "bin" / "two\nlines")
    os.mknod(prefix_folder / "a socket", stat.S_IFSOCK | 0o600)
    named = ("a socket (socket)", "bin/two\nlines (FIFO)")
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert failures.special_files_that_ended_script(tmp_path) == named
    assert failures.find_special_files([prefix_folder]) == named


def test_the_engines_error_is_replaced_by_the_files_for_which_the_script_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / failures.LIST).write_bytes(b"p pipe\0")
    job = {"folder": str(tmp_path), "parent": os.getppid(), "result": str(tmp_path / "result.json")}
    (tmp_path / "job.json").write_text(json.dumps(job))  # what is missing in it is the engine's failure here
    monkeypatch.setattr(os, "_exit", lambda _: None)
    monkeypatch.setattr(process_table, "die_with_parent", lambda **_: None)
    worker.main(str(tmp_path / "job.json"))
    reason = json.loads((tmp_path / "result.json").read_text())["error"]
    assert reason == "the script left in its prefix what no package can contain: pipe (FIFO)"
    kind = failures.classify_failure(reason.replace("pipe", "failed to download"), "")
    assert kind.error is BuildFailed, "the name of a file is not the engine's message"
    assert "when it runs" in kind.hint


RECIPE = {"package": {"name": "app", "version": "1.0"}, "build": {}}


SITE = "lib/python3.11/site-packages"


@pytest.fixture
def step(tmp_path: Path) -> Path:
    """Return the folder of a step whose prefix has two good records, and good links."""
    prefix = prefix_of(tmp_path / "work" / "app-0")
    names = (f"{SITE}/app-1.0.dist-info/METADATA", f"{SITE}/app_more-3.dist-info/METADATA", "share/x")
    builders.write_files(prefix, dict.fromkeys(names, ""))
    (prefix / "share" / "own").symlink_to(prefix / "share" / "x")
    (prefix / "share" / "system").symlink_to("/usr/bin/env")
    return tmp_path / "work" / "app-0"


def prefix_of(step: Path) -> Path:
    return step / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold_placehold"


def test_a_record_of_another_version_is_refused(step: Path) -> None:
    (prefix_of(step) / SITE / "app-1.0.dist-info").rename(prefix_of(step) / SITE / "App-0.9.dist-info")
    with pytest.raises(
        ValueError, match=r"App-0\.9\.dist-info/METADATA is of version 0\.9, the package of version 1\.0"
    ):
        refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)


def test_a_record_of_another_package_does_not_count(step: Path) -> None:
    prefix = prefix_of(step)
    (prefix / SITE / "app-1.0.dist-info").rename(prefix / SITE / "app-0.9.dist-info")
    (prefix / "conda-meta").mkdir()
    record = {"files": [f"{SITE}/app-0.9.dist-info/METADATA"]}
    (prefix / "conda-meta" / "app-0.json").write_text(json.dumps(record))
    refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)


def test_files_that_the_recipe_does_not_choose_do_not_count(step: Path) -> None:
    """The prefix of an output with ``files`` has all that the shared step has installed."""
    (prefix_of(step) / "share" / "other").symlink_to(step.parent / "compile" / "work" / "file")
    refuse_unusable_files(step, {**RECIPE, "build": {"files": ["share/x"]}}, by_conda_build_rules=True)


@pytest.mark.parametrize("place", ["bld/rattler-build_app/work", "../compile/work"])
def test_a_link_to_a_folder_of_the_build_is_refused(step: Path, place: str) -> None:
    file = step / ("output" if place.startswith("bld") else "") / place / "file"
    file.parent.mkdir(parents=True)
    file.touch()
    (prefix_of(step) / "share" / "link").symlink_to(file)
    with pytest.raises(ValueError, match=r"share/link is a link to .*/work/file in the build's folder") as caught:
        refuse_unusable_files(step, RECIPE, by_conda_build_rules=True)
    failure = failures.classify_failure(str(caught.value), "")
    assert failure.error is BuildFailed
    assert "copy files in place of links" in failure.hint


def test_faults_are_separated_from_how_many_more_there_are() -> None:
    text = failures.message_naming_files(failures.UNUSABLE_TEXT, list("abcdefg"), separator="; ")
    assert text == "the package would not work: a; b; c; d; e; and 2 more"
