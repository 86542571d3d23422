"""The packages of a run as text."""

from __future__ import annotations

from pathlib import Path

from kiln.run.report.text import built_packages_text
from kiln.state.results import Artifact, ConfigState, PackageReport, StepReport, TestReport, TestVerdict
from tests.unit.run.view.run import a_config, a_run

CHANNEL = Path("/feedstock/build_artifacts")


def package(name: str, *, notes: tuple[str, ...] = (), subdir: str = "linux-64") -> PackageReport:
    file = CHANNEL / subdir / f"{name}-1.0-h1_0.conda"
    named = {"name": name, "version": "1.0", "build_string": "h1_0", "config": "a", "subdir": subdir}
    artifact = Artifact(**named, path=file, size=2_000_000, sha256="0" * 64)
    tests = TestReport(package=name, verdict=TestVerdict.PASSED, commands=2, seconds=3.0, notes=notes)
    return PackageReport(artifact=artifact, tests=tests, build_seconds=61.0, reused=False)


def test_a_finished_build_says_where_its_packages_are_and_how_to_install_them() -> None:
    configs = (
        a_config("a", ConfigState.DONE, packages=(package("lib"), package("app-a", notes=("not on this GPU",)))),
        a_config("b", ConfigState.CACHED, packages=(package("lib"), package("app"))),
    )
    lines = built_packages_text(a_run(*configs)).splitlines()
    assert [line.split()[0] for line in lines[3:6]] == ["lib", "app-a", "app"], "a shared package is listed once"
    assert "1 min 01 s" in lines[3]
    assert "app-a: not on this GPU" in lines
    assert lines[-2:] == [
        "channel  /feedstock/build_artifacts",
        "install  conda create -n NAME -c file:///feedstock/build_artifacts lib app",
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
    text = built_packages_text(a_run(config, rehearsal=True))
    assert "install  conda create -n lib --override-channels -c file:///feedstock/build_artifacts lib" in text
    assert text.endswith("made on this machine's programs and wheels. They cannot be published.\n")
    config = a_config("a", ConfigState.DONE, packages=(package("tensorflow"), package("tensorflow-cpu")))
    text = built_packages_text(a_run(config, rehearsal=True))
    assert "install  conda create -n tensorflow --override-channels" in text
    assert text.endswith("their compiled parts are upstream's. They cannot be published.\n")


def test_on_a_narrow_terminal_tables_and_notes_are_folded_but_the_command_is_not() -> None:
    note = "not on this GPU, whose compute capability is lower than that of the packages' code, so no kernel would run"
    config = a_config("a", ConfigState.DONE, packages=(package("lib-of-a-long-name-with-parts", notes=(note,)),))
    *text, command = built_packages_text(a_run(config), 80).splitlines()
    assert max(map(len, text)) <= 80
    assert command.startswith("install  conda create -n NAME -c file:///feedstock/build_artifacts lib-of-a-long-name")
    assert len(command) > 80
    assert max(map(len, built_packages_text(a_run(config)).splitlines()[:-1])) > 80
