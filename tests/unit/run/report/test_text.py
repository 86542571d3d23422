"""The packages of a run as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest

from kiln.run.report.text import as_junit, built_packages_text, install_command, lay_out_grid, run_table_text
from kiln.state.results import ConfigState, PackageReport, StepReport, TestVerdict
from tests import builders, runs
from tests.unit.run.view.run import a_config, a_run

if TYPE_CHECKING:
    from kiln.state.results import MatrixReport

CHANNEL = Path("/feedstock/build_artifacts")


def package(name: str, *, notes: tuple[str, ...] = (), subdir: str = "linux-64") -> PackageReport:
    file = CHANNEL / subdir / f"{name}-1.0-h1_0.conda"
    report = builders.package_report(
        name, version="1.0", build_string="h1_0", subdir=subdir, path=file, size=2_000_000, sha256="0" * 64
    )
    tests = dataclasses.replace(report.tests, commands=2, seconds=3.0, notes=notes)
    return dataclasses.replace(report, tests=tests, build_seconds=61.0)


def installers(names: str, folder: Path) -> Path:
    """A folder with programs of these names."""
    for name in names.split():
        (folder / name).touch(mode=0o755)
    return folder


def test_a_finished_build_says_where_its_packages_are_and_how_to_install_them(tmp_path: Path) -> None:
    configs = (
        a_config("a", ConfigState.DONE, packages=(package("lib"), package("app-a", notes=("not on this GPU",)))),
        a_config("b", ConfigState.CACHED, packages=(package("lib"), package("app"))),
    )
    lines = built_packages_text(a_run(*configs), env={"PATH": str(installers("conda", tmp_path))}).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["lib", "app-a", "app"], "a shared package is listed once"
    assert "1 min 01 s" in lines[3]
    assert "app-a: not on this GPU" in lines
    assert lines[-2:] == [
        "channel  /feedstock/build_artifacts",
        "install  conda create -n app --override-channels -c file:///feedstock/build_artifacts -c conda-forge lib app",
    ]


def test_packages_of_two_platforms_are_told_apart_by_their_subdirs() -> None:
    subdirs = ("linux-64", "linux-aarch64", "noarch")
    configs = [a_config(name, ConfigState.DONE, packages=(package("lib", subdir=name),)) for name in subdirs]
    lines = built_packages_text(a_run(*configs)).splitlines()
    assert [(line.split()[0], line.split()[-1]) for line in lines[3:6]] == [("lib", subdir) for subdir in subdirs]
    assert lines[1].split()[-1] == "subdir"
    assert "subdir" not in built_packages_text(a_run(configs[0], configs[2]))


def test_notes_of_steps_come_first_and_those_of_tests_once() -> None:
    steps = (
        StepReport(title="compare", seconds=0.0, notes=("upstream's wheel has no libapp.so",)),
        StepReport(title="test app", seconds=1.0, notes=("not on this GPU",)),
    )
    config = a_config("a", ConfigState.DONE, packages=(package("app", notes=("not on this GPU",)),), steps=steps)
    lines = built_packages_text(a_run(config)).splitlines()
    assert lines[4:7] == ["", "upstream's wheel has no libapp.so", "app: not on this GPU"]
    assert "\n".join(lines).count("not on this GPU") == 1


def test_a_build_without_a_finished_config_has_no_result() -> None:
    assert built_packages_text(a_run(a_config("a", ConfigState.FAILED, packages=(package("lib"),)))) == ""


def test_a_rehearsal_says_that_its_packages_cannot_be_published() -> None:
    config = a_config("a", ConfigState.DONE, packages=(package("lib"),))
    text = built_packages_text(a_run(config, rehearsal=True), env={"PATH": ""})
    assert "install  kiln install -p ./lib -c file:///feedstock/build_artifacts lib\n" in text
    assert text.endswith("made on this machine's programs and wheels. They cannot be published.\n")
    config = a_config("a", ConfigState.DONE, packages=(package("tensorflow"), package("tensorflow-cpu")))
    text = built_packages_text(a_run(config, rehearsal=True), env={"PATH": ""})
    assert "install  kiln install -p ./tensorflow -c" in text
    assert text.endswith("their compiled parts are upstream's. They cannot be published.\n")


def test_on_a_narrow_terminal_tables_and_notes_are_folded_but_the_command_is_not() -> None:
    note = "not on this GPU, whose compute capability is lower than that of the packages' code, so no kernel would run"
    config = a_config("a", ConfigState.DONE, packages=(package("lib-of-a-long-name-with-parts", notes=(note,)),))
    *text, command = built_packages_text(a_run(config), 80, env={"PATH": ""}).splitlines()
    assert max(map(len, text)) <= 80
    assert text[3] == "lib-of-a-long-name-with-parts", "a long name has a line of its own"
    assert command.startswith(
        "install  kiln install -p ./lib-of-a-long-name-with-parts -c file:///feedstock/build_artifacts -c conda-forge"
    )
    assert len(command) > 80
    assert max(map(len, built_packages_text(a_run(config)).splitlines()[:-1])) > 80


INSTALLERS = [
    ("", "kiln install -p ./a -c file:///c a"),
    ("pixi", "pixi global install --environment a --channel file:///c a"),
    ("micromamba pixi", "micromamba create -n a --override-channels -c file:///c a"),
    ("conda micromamba", "conda create -n a --override-channels -c file:///c a"),
    ("conda mamba pixi", "mamba create -n a --override-channels -c file:///c a"),
]


@pytest.mark.parametrize(("names", "command"), INSTALLERS)
def test_the_command_is_for_the_installer_that_is_there(names: str, command: str, tmp_path: Path) -> None:
    env = {"PATH": str(installers(names, tmp_path))}
    assert install_command(["file:///c"], ["a"], env) == command


def test_several_rehearsed_configs_end_in_one_table_with_a_channel_each() -> None:
    configs = []
    for name in ("a", "b"):
        made = package("lib")
        path = CHANNEL / name / "linux-64" / f"lib-1.0-{name}_0.conda"
        made = dataclasses.replace(made, artifact=dataclasses.replace(made.artifact, path=path))
        configs.append(a_config(name, ConfigState.DONE, packages=(made,)))
    text = built_packages_text(a_run(*configs, rehearsal=True), 80, env={"PATH": ""})
    assert text.count("build string") == text.count("install  ") == 1
    assert [line for line in text.splitlines() if line.startswith("channel")] == [
        "channel  /feedstock/build_artifacts/a",
        "channel  /feedstock/build_artifacts/b",
    ]


PYTHONS = ("3.9", "3.10")


def test_the_grid_has_pythons_across_in_the_order_of_versions() -> None:
    variants = runs.variants(("12.9", "None", "12.10"), ("3.10", "3.9"))
    result = lay_out_grid(list(variants), variants)
    assert result.columns == ("Python 3.9", "Python 3.10")
    assert [row.heads for row in result.rows] == [(("none", 1),), (("12.9", 1),), (("12.10", 1),)]
    assert result.rows[1].places[0] == ("linux_64_cuda_compiler_version12.9python3.9.____cpython",)


def test_a_head_spans_the_rows_that_it_is_for() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS, levels=("1", "3"))
    assert [row.heads for row in lay_out_grid(list(variants), variants).rows] == [
        (("none", 2), ("1", 1)),
        (("none", 0), ("3", 1)),
        (("12.9", 2), ("1", 1)),
        (("12.9", 0), ("3", 1)),
    ]


def test_a_place_without_a_config_is_empty() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS)
    missing = variants.pop("linux_64_cuda_compiler_version12.9python3.9.____cpython")
    assert missing
    assert lay_out_grid(list(variants), variants).rows[1].places[0] == ()


def test_where_it_is_not_known_what_varies_each_config_has_a_row() -> None:
    configs = [*runs.variants(("None",), PYTHONS), "linux_64_gone"]
    assert [row.places for row in lay_out_grid(configs, {}).rows] == [((config,),) for config in configs]


@pytest.mark.parametrize("count", [1, 4, 12, 192])
def test_every_config_has_one_place(count: int) -> None:
    cudas, levels = {1: (1, 1), 4: (1, 1), 12: (3, 1), 192: (8, 6)}[count]
    pythons = tuple(f"3.{minor}" for minor in range(10, 10 + min(count, 4)))
    variants = runs.variants([f"12.{n}" for n in range(cudas)], pythons, [str(n) for n in range(levels)])
    assert len(variants) == count
    result = lay_out_grid(list(variants), variants)
    assert sorted(config for row in result.rows for place in row.places for config in place) == sorted(variants)


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


def test_the_table_of_a_run_has_where_its_time_went() -> None:
    lines = run_table_text(runs.worked_through(["a"]), {}, 80).splitlines()
    start = next(index for index, line in enumerate(lines) if line.split() == ["phase", "time", "share"])
    assert [line.split()[0] for line in lines[start + 2 : start + 7]] == [
        "wait",
        "download",
        "install",
        "script",
        "test",
    ]
    assert lines[start + 5].split() == ["script", "2", "h", "47", "min", "90", "%"]


def test_on_a_narrow_terminal_each_failed_config_has_its_reason_in_a_line_below() -> None:
    variants = runs.variants(["None", "12.5"], ["3.10", "3.11"], ["1", "3"])
    report = runs.worked_through(variants, bad={1: ConfigState.FAILED, 2: ConfigState.OUT_OF_MEMORY})
    lines = run_table_text(report, variants, 80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "✗ no CUDA · Python 3.11 · x86-64-v1: the compile step ended with exit code 1" in lines
    assert "cached" not in lines[0], "a column without a value is left out"
    assert "why" in run_table_text(report, variants).splitlines()[0]
