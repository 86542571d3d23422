"""A run as JUnit's XML: what fails, is interrupted or waits is a case of its kind, and any output is valid XML."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from kiln.run.report.text import as_junit
from kiln.state.results import ConfigState, TestVerdict
from tests import runs

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.state.results import MatrixReport


def parsed(report: MatrixReport) -> ET.Element:
    return ET.fromstring(as_junit(report, runs.BEGAN + 10 * runs.HOUR))


def counts(element: ET.Element) -> dict[str, int]:
    return {name: int(element.get(name, "-1")) for name in ("tests", "failures", "errors", "skipped")}


def test_each_config_is_a_suite_with_its_steps_and_tests() -> None:
    root = parsed(runs.worked_through(["a", "b"]))
    assert [suite.get("name") for suite in root] == ["a", "b"]
    assert counts(root) == {"tests": 18, "failures": 0, "errors": 0, "skipped": 0}
    names = [case.get("name", "") for case in root[0]]
    assert names[:3] == ["fetch the source", "compile", "test tensorflow"]
    assert names[3] == "tests of libtensorflow_framework 2.21.0 cuda129py310h1234abc_0"
    assert names[-1] == "build"
    assert root[0].get("time") == f"{3.1 * runs.HOUR:.3f}"
    assert root[0].get("timestamp") == "2026-09-21T14:13:20"
    assert all(case.get("classname") == "a" for case in root[0])


def test_a_failure_has_its_reason_and_the_end_of_the_log_without_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"first\n\x1b[31mred & <bold>\x00\x08\n\xff]]>last\n")
    suite = parsed(runs.worked_through(["a"], bad={0: ConfigState.FAILED}, log=log))[0]
    assert counts(suite) == {"tests": 4, "failures": 1, "errors": 0, "skipped": 0}
    failure = suite[-1][0]
    assert failure.get("type") == "failed"
    assert failure.get("message") == "the compile step ended with exit code 1"
    text = failure.text or ""
    assert "cannot find -lcudart_static" in text
    assert text.endswith("red & <bold>\n\N{REPLACEMENT CHARACTER}]]>last")
    assert suite[-1][1].text == f"log: {log}"


@pytest.mark.parametrize(
    ("state", "kind"),
    [(ConfigState.INTERRUPTED, "error"), (ConfigState.LOCKED, "skipped"), (ConfigState.OUT_OF_MEMORY, "failure")],
)
def test_other_ends_are_cases_of_their_kinds(state: ConfigState, kind: str) -> None:
    suite = parsed(runs.worked_through(["a"], bad={0: state}))[0]
    assert [item.tag for item in suite[-1]] == [kind]


def test_a_config_that_waits_is_skipped_and_a_cached_one_passes() -> None:
    running = parsed(runs.worked_through(["a", "b"], jobs=1, until=10.0))
    assert [len(list(suite.iter("skipped"))) for suite in running] == [1, 1]
    cached = parsed(runs.worked_through(["a"], bad={0: ConfigState.CACHED}))
    assert counts(cached) == {"tests": 6, "failures": 0, "errors": 0, "skipped": 0}


def test_failed_and_missing_tests_of_a_package_are_told() -> None:
    report = runs.worked_through(["a"])
    config = report.configs[0]
    verdicts = (TestVerdict.FAILED, TestVerdict.NONE, TestVerdict.SKIPPED)
    packages = [
        dataclasses.replace(package, tests=dataclasses.replace(package.tests, verdict=verdict, notes=("import fails",)))
        for package, verdict in zip(config.packages, verdicts, strict=False)
    ]
    report = dataclasses.replace(report, configs=(dataclasses.replace(config, packages=tuple(packages)),))
    suite = parsed(report)[0]
    assert counts(suite) == {"tests": 7, "failures": 1, "errors": 0, "skipped": 2}
    assert [item.text for item in suite.iter("failure")] == ["import fails"]
    assert [item.get("message") for item in suite.iter("skipped")] == ["the package has no tests", "import fails"]
