"""A log is cut into its steps and tests, and the line that says why it failed is found."""

from __future__ import annotations

import base64
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.run.report.log import read_log
from kiln.state.results import ConfigRun, ConfigState, StepReport

if TYPE_CHECKING:
    from pathlib import Path

TIME = "2026-11-22 19:10:27 "


def config(folder: Path, *lines: str, failed: str = "", state: ConfigState | None = None) -> ConfigRun:
    log = folder / "a.log"
    log.write_text("".join(f"{TIME}{line}\n" for line in lines))
    return ConfigRun(
        config="a",
        state=state or (ConfigState.FAILED if failed else ConfigState.DONE),
        group="",
        log=log,
        steps=(StepReport(title=failed, seconds=1.0, failed=True),) if failed else (),
    )


def test_steps_have_their_lines_and_times(tmp_path: Path) -> None:
    outline = read_log(
        config(tmp_path, "early", "=== render", "x", "--- render: 0.5 s", "    a note", "=== build a", "y")
    )
    assert [(step.title, step.line, step.lines, step.seconds) for step in outline.steps] == [
        ("before the first step", 1, 1, None),
        ("render", 2, 4, 0.5),
        ("build a", 6, 2, None),
    ]
    assert (outline.lines, outline.start) == (7, TIME.strip())


def test_tests_have_their_names_and_output_and_the_last_of_a_failed_step_failed(tmp_path: Path) -> None:
    lines = (
        "=== test a",
        "+ export X=1",
        "+ test -f /w/a/prefixes/a-1/lib/a.so",
        "+ a --check",
        "no",
        "--- test a: 1 s",
    )
    outline = read_log(config(tmp_path, *lines, failed="test a"))
    assert [(test.command, test.line, test.lines, test.failed) for test in outline.tests] == [
        ("test -f $PREFIX/lib/a.so", 3, 1, False),
        ("a --check", 4, 2, True),
    ]
    assert not any(test.failed for test in read_log(config(tmp_path, *lines)).tests)


CAUSES = [
    (("a.c:1: error: no", "make: *** [a] Error 1"), "a.c:1: error: no", "the consequence is not the cause"),
    (("/bin/ld: cannot find -lx", "collect2: error: ld returned 1 exit status"), "/bin/ld: cannot find -lx", ""),
    (("no luck", "Script failed with status 3", ""), "no luck", "nor is what the engine says of it"),
    (("all is well", "or is it"), "or is it", "without any error the last line counts"),
    (("done", "+ exit 1"), "done", "a trace is not an output"),
    (
        ("+ echo 'a.c:1:10: fatal error: b.h: No such file or directory'", "a.c:1:10: fatal error: b.h: No such file"),
        "a.c:1:10: fatal error: b.h: No such file",
        "nor where it quotes what a table knows",
    ),
]


@pytest.mark.parametrize(("lines", "cause", "why"), CAUSES)
def test_the_line_of_the_cause_is_found(lines: tuple[str, ...], cause: str, why: str, tmp_path: Path) -> None:
    run = config(tmp_path, "error: of another step", "=== build a", *lines, "--- build a: 1 s", failed="build a")
    (found,) = read_log(run).causes
    assert found.text == cause, why
    assert run.log is not None
    assert run.log.read_text().splitlines()[found.line - 1] == TIME + cause


def test_of_a_build_without_memory_another_message_of_its_log_is_not_the_cause(tmp_path: Path) -> None:
    lines = ("=== build a", "/bin/ld: cannot find -lx", "--- build a: 1 s")
    run = replace(config(tmp_path, *lines, failed="build a"), state=ConfigState.OUT_OF_MEMORY)
    assert read_log(run).causes == ()
    killed = ("=== build a", "/bin/ld: cannot find -lx", "g++: fatal error: Killed signal terminated program cc1plus")
    run = replace(config(tmp_path, *killed, failed="build a"), state=ConfigState.OUT_OF_MEMORY)
    assert [cause.line for cause in read_log(run).causes] == [3]


def test_a_cause_that_the_table_knows_has_its_cure(tmp_path: Path) -> None:
    line = "fatal error: error writing to /tmp/x.s: No space left on device"
    run = config(tmp_path, "=== build a", line, *("more" for _ in range(500)), "--- build a: 1 s", failed="build a")
    (found,) = read_log(run).causes
    assert (found.line, bool(found.cause), bool(found.cure)) == (2, True, True)


def test_a_full_disk_and_a_done_build_have_no_guessed_cause(tmp_path: Path) -> None:
    lines = ("=== build a", "a.c:1: error: no")
    assert read_log(config(tmp_path, *lines, failed="build a", state=ConfigState.OUT_OF_MEMORY)).causes == ()
    assert read_log(config(tmp_path, *lines)).causes == ()


def test_the_parts_are_the_log(tmp_path: Path) -> None:
    run = config(tmp_path, *("x" * 300 for _ in range(1000)), "=== a", "last")
    assert run.log is not None
    outline = read_log(run, with_parts=True)
    texts = [zlib.decompress(base64.b64decode(text)).decode() for _, _, text in outline.parts]
    assert "".join(texts) == run.log.read_text()
    assert len(texts) > 4
    firsts = [line for line, _, _ in outline.parts]
    assert firsts == [1 + sum(text.count("\n") for text in texts[:index]) for index in range(len(texts))]
    assert [number for _, number, _ in outline.parts] == [text.count("\n") for text in texts]
    assert firsts[-1] == outline.steps[-1].line, "a part belongs to one step"
    assert read_log(run).parts == ()


def test_a_line_without_end_and_a_file_that_is_none_are_bounded(tmp_path: Path) -> None:
    log = tmp_path / "b.log"
    log.write_bytes(b"\xff" * 5_000_000 + b"\nlast")
    outline = read_log(ConfigRun(config="a", state=ConfigState.DONE, group="", log=log), with_parts=True)
    assert outline.lines == 2
    assert sum(len(text) for _, _, text in outline.parts) < 100_000
    log.unlink()
    log.symlink_to(tmp_path)
    assert read_log(ConfigRun(config="a", state=ConfigState.DONE, group="", log=log)).lines == 0
    assert read_log(ConfigRun(config="a", state=ConfigState.DONE, group="")).lines == 0
