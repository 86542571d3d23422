"""A run as JUnit's XML, which CI systems show as tests: a suite for each config, a case for each step."""

from __future__ import annotations

from datetime import datetime, timezone
from xml.etree import ElementTree as ET

from kiln.console.text import sanitized_line, unindented_terminal_line
from kiln.model.build_results import PackageReport, TestVerdict
from kiln.model.run import BAD, ConfigRun, ConfigState, MatrixReport
from kiln.report import totals
from kiln.report.tail import end_of_log


def as_junit(report: MatrixReport, now: float) -> str:
    """Return a run as JUnit's XML; ``now`` is the time in seconds since the epoch, for a run in progress."""
    end = totals.end_or_last_recorded_time(report, now)
    root = ET.Element("testsuites", name=f"kiln run {report.run}", time=_seconds_text(end - report.started))
    for config in report.configs:
        root.append(_test_suite_element(report, config, end))
    for count in ("tests", "failures", "errors", "skipped"):
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _test_suite_element(report: MatrixReport, config: ConfigRun, end: float) -> ET.Element:
    """Return the suite of a config: its steps, its packages' tests, and the config as a whole."""
    name = unindented_terminal_line(config.config)
    suite = ET.Element("testsuite", name=name)
    moment = datetime.fromtimestamp(config.started or report.started, tz=timezone.utc)
    suite.set("timestamp", moment.strftime("%Y-%m-%dT%H:%M:%S"))
    suite.set("hostname", unindented_terminal_line(config.worker or report.machine))
    for step in config.steps:
        _add_test_case(suite, name, unindented_terminal_line(step.title), step.seconds)
    for package in config.packages:
        _add_package_tests(suite, name, package)
    _add_config_result(suite, name, config, end)
    suite.set("time", _seconds_text(totals.elapsed_seconds(config, end) or 0.0))
    for count, kind in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(count, str(sum(1 for _ in suite.iter(kind))))
    return suite


def _add_test_case(suite: ET.Element, config: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=config, name=name, time=_seconds_text(seconds))


def _add_package_tests(suite: ET.Element, config: str, package: PackageReport) -> None:
    tests, artifact = package.tests, package.artifact
    name = unindented_terminal_line(f"tests of {artifact.name} {artifact.version} {artifact.build_string}")
    case = _add_test_case(suite, config, name, tests.install_seconds + tests.seconds)
    if tests.verdict is TestVerdict.FAILED:
        ET.SubElement(case, "failure", message="the package's tests fail").text = _xml_safe_text("\n".join(tests.notes))
    elif tests.verdict is TestVerdict.NONE:
        ET.SubElement(case, "skipped", message="the package has no tests")
    elif tests.verdict is TestVerdict.SKIPPED:
        reason = unindented_terminal_line("; ".join(tests.notes)) or "the tests were skipped"
        ET.SubElement(case, "skipped", message=reason)


def _add_config_result(suite: ET.Element, name: str, config: ConfigRun, end: float) -> None:
    """Add the config's own case, with the reason of its failure and the end of its log."""
    case = _add_test_case(suite, name, "build", totals.elapsed_seconds(config, end) or 0.0)
    message = unindented_terminal_line(config.reason.partition("\n")[0]) or config.state.value
    if config.state in BAD:
        log = end_of_log(config.log) if config.log is not None else ""
        failure = ET.SubElement(case, "failure", type=config.state.value, message=message)
        failure.text = _xml_safe_text("\n\n".join(part for part in (config.reason, log) if part))
    elif config.state is ConfigState.INTERRUPTED:
        ET.SubElement(case, "error", type=config.state.value, message=message)
    elif config.state in {ConfigState.WAITING, ConfigState.RUNNING, ConfigState.LOCKED}:
        ET.SubElement(case, "skipped", message=message)
    if config.log is not None:
        ET.SubElement(case, "system-out").text = _xml_safe_text(f"log: {config.log}")


def _seconds_text(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}"


def _xml_safe_text(text: str) -> str:
    """Return text without the characters that XML does not allow, or that hide other text."""
    return "\n".join(map(sanitized_line, text.splitlines()))
