"""The packages of a run as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.console.text import duration, table, wrapped_lines
from kiln.model.build_results import PackageReport, TestVerdict
from kiln.model.run import GOOD, ConfigRun, MatrixReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

SPEC = "tensorflow"  # the package of its rehearsal's install command; of others it is the last package
_HEADER: tuple[str, ...] = ("package", "version", "build string", "size", "built", "tests", "tested")


def built_packages_text(report: MatrixReport, width: int | None = None) -> str:
    """Return the built packages as text, with the channel, and the command that installs from it.

    ``width`` is that of the terminal, which tables and notes keep to; commands stay on one line, to be copied.
    """
    configs = [config for config in report.configs if config.packages]
    if report.rehearsal:
        return "".join("\n" + "\n".join(_rehearsal_result_lines(config, width)) + "\n" for config in configs)
    configs = [config for config in configs if config.state in GOOD]
    return "\n" + "\n".join(_build_result_lines(configs, width)) + "\n" if configs else ""


def _rehearsal_result_lines(config: ConfigRun, width: int | None) -> Iterator[str]:
    yield table(_HEADER, [_package_row(package) for package in config.packages], right=(3,), width=width)
    yield ""
    yield from _package_note_lines(config, width)
    seconds = config.finished - config.started if config.started and config.finished else None
    yield f"The rehearsal of {config.config} " + ("is cached." if seconds is None else f"took {duration(seconds)}.")
    channel = config.packages[0].artifact.path.parents[1]
    names = list(dict.fromkeys(package.artifact.name for package in config.packages))
    spec = SPEC if SPEC in names else names[-1]
    yield from _install_command_lines(channel, f"-n {spec} --override-channels", [spec])
    yield (
        "These packages are a rehearsal: their compiled parts are upstream's. They cannot be published."
        if SPEC in names
        else "These packages are a rehearsal, made on this machine's programs and wheels. They cannot be published."
    )


def _build_result_lines(configs: Sequence[ConfigRun], width: int | None) -> Iterator[str]:
    packages = [package for config in configs for package in config.packages]
    distinct = list({(package.artifact.subdir, package.artifact.path.name): package for package in packages}.values())
    header, rows = _HEADER, [_package_row(package) for package in distinct]
    if len({package.artifact.subdir for package in distinct if not package.artifact.is_wheel} - {"noarch"}) > 1:
        header = (*header, "subdir")  # packages of two platforms may have equal names
        rows = [(*row, package.artifact.subdir) for row, package in zip(rows, distinct, strict=True)]
    yield table(header, rows, right=(3,), width=width)
    yield ""
    for config in configs:
        yield from _package_note_lines(config, width)
    artifacts = [package.artifact for package in configs[-1].packages if not package.artifact.is_wheel]
    yield from _install_command_lines(
        artifacts[0].path.parents[1], "-n NAME", dict.fromkeys(artifact.name for artifact in artifacts)
    )


def _install_command_lines(channel: Path, options: str, specs: Iterable[str]) -> Iterator[str]:
    """Yield the channel of the packages, and the command that installs them."""
    yield f"channel  {channel}"
    yield f"install  conda create {options} -c {channel.absolute().as_uri()} {' '.join(specs)}"


def _package_row(package: PackageReport) -> tuple[str, ...]:
    artifact, tests = package.artifact, package.tests
    count = "" if tests.verdict in {TestVerdict.NONE, TestVerdict.SKIPPED} else f"{tests.commands} "
    built = "cached" if package.reused else duration(package.build_seconds)
    tested = duration(tests.seconds) if tests.commands else ""
    size = files.human_readable_size(artifact.size)
    return (
        artifact.name,
        artifact.version,
        artifact.build_string,
        size,
        built,
        f"{count}{tests.verdict.value}",
        tested,
    )


def _package_note_lines(config: ConfigRun, width: int | None) -> list[str]:
    tests = [(package.tests.package, note) for package in config.packages for note in package.tests.notes]
    of_tests = {note for _, note in tests}
    steps = [note for step in config.steps for note in step.notes if note not in of_tests]
    notes = [*steps, *(f"{package}: {note}" for package, note in tests)]
    lines = [line for note in notes for line in ([note] if width is None else wrapped_lines(note, width))]
    return lines + [""] * bool(notes)
