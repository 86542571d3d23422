"""A package's test has its own folder and prefix, and runs the recipe's script with the recipe's files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import TestsFailed, UnsupportedPlatform
from kiln.build.test.tester import (
    PackageTester,
    channel_containing_package,
    find_output_of_package,
    require_runnable_package,
    run_test_script,
)
from kiln.recipe.rendered import OutputTest, Requirements, Script
from kiln.state.results import TestVerdict
from tests import builders

OUTPUT = builders.output(
    "a", version="1.0", build_string="py311_0", tests=(OutputTest(script=Script(lines=("true",)), files=("data",)),)
)
TESTER = PackageTester(
    recipe=Path("/recipe"),
    folder=Path("/job"),
    channels=("file:///job/channel", "conda-forge"),
    cache=Path("/cache"),
    machine={"__glibc": ("2.36", "0")},
)


def test_two_builds_of_a_name_have_separate_folders_and_prefixes() -> None:
    other = dataclasses.replace(OUTPUT, build_string="py312_0")
    steps = [step for output in (OUTPUT, other) for step in TESTER.plan_tests(output)]
    assert [step.folder for step in steps] == [Path("/job/test-a-py311_0"), Path("/job/test-a-py312_0")]
    assert [step.prefix for step in steps] == [Path("/job/prefixes/a-py311_0"), Path("/job/prefixes/a-py312_0")]
    assert all(step.files == {"data": Path("/recipe/data")} for step in steps)


@pytest.mark.parametrize(
    "change",
    [{"channels": ("conda-forge",)}, {"machine": {"__glibc": ("2.17", "0")}}, {"folder": Path("/elsewhere")}],
    ids=["channels", "machine", "prefix"],
)
def test_a_test_runs_again_when_its_inputs_change(change: dict[str, Any]) -> None:
    def key(tester: PackageTester) -> str:
        return json.dumps(tester.cache_key_inputs(tester.plan_tests(OUTPUT)))

    assert key(TESTER) == key(dataclasses.replace(TESTER)) != key(dataclasses.replace(TESTER, **change))


@pytest.mark.processes
def test_the_script_runs_in_a_fresh_folder_with_the_recipes_files(tmp_path: Path) -> None:
    (tmp_path / "recipe" / "data").mkdir(parents=True)
    (tmp_path / "recipe" / "data" / "word").write_text("read\n")
    tester = dataclasses.replace(TESTER, recipe=tmp_path / "recipe", folder=tmp_path / "work")
    test = OutputTest(script=Script(lines=("cat data/word", "ls")), files=("data",))
    output = dataclasses.replace(OUTPUT, tests=(test,))
    (step,) = tester.plan_tests(output)
    step.folder.mkdir(parents=True)
    (step.folder / "stale").touch()
    lines: list[str] = []
    run_test_script(step, environment={"PATH": "/usr/bin:/bin"}, log=tmp_path / "log", on_line=lines.append)
    assert "read" in lines
    assert "stale" not in lines


@pytest.mark.processes
def test_a_failing_script_is_an_error_with_its_output_and_its_folders(tmp_path: Path) -> None:
    output = dataclasses.replace(OUTPUT, tests=(OutputTest(script=Script(lines=("echo broken", "exit 3"))),))
    (step,) = dataclasses.replace(TESTER, folder=tmp_path).plan_tests(output)
    with pytest.raises(TestsFailed, match="the tests of a fail with exit code 3") as caught:
        run_test_script(step, environment={"PATH": "/usr/bin:/bin"}, log=tmp_path / "log", on_line=lambda _: None)
    assert "broken" in caught.value.why
    assert str(step.prefix) in caught.value.hint
    assert step.folder.is_dir()


def test_packages_of_another_platform_are_solved_and_run_as_such(tmp_path: Path) -> None:
    tester = TESTER.for_platform("linux-aarch64")
    assert tester.cache_key_inputs(tester.plan_tests(OUTPUT)) != TESTER.cache_key_inputs(TESTER.plan_tests(OUTPUT))
    assert tester.machine == {"__glibc": ("2.36", "0"), "__archspec": ("1", "aarch64")}
    assert TESTER.for_platform(TESTER.platform) is TESTER
    (tmp_path / "qemu-aarch64-static").touch(mode=0o755)
    environment = {"PATH": str(tmp_path), "QEMU_LD_PREFIX": "/sysroot"}
    emulating = tester._emulator_environment(environment)
    assert emulating == {
        **environment,
        "CROSSCOMPILING_EMULATOR": str(tmp_path / "qemu-aarch64-static"),
        "CMAKE_CROSSCOMPILING_EMULATOR": str(tmp_path / "qemu-aarch64-static"),
    }


def test_a_noarch_package_for_another_platform_is_not_tested_here(tmp_path: Path) -> None:
    needs = Requirements(run=("python", "__win"))
    output = dataclasses.replace(OUTPUT, noarch="python", subdir="noarch", requirements=needs)
    tester = dataclasses.replace(TESTER, folder=tmp_path)
    report = tester.run_tests(tester.plan_tests(output), environment={})
    assert report.verdict is TestVerdict.SKIPPED
    assert report.notes == ("not tested: it requires __win, which this machine is not",)
    tester.trial_install(tester.plan_tests(output))
    assert not any(step.foreign for step in tester.plan_tests(dataclasses.replace(output, noarch=None)))


@pytest.mark.parametrize(
    ("subdir", "index", "is_channel"),
    [
        ("linux-64", "repodata.json", True),
        ("noarch", "repodata.json.zst", True),
        ("noarch", "index.html", False),
        ("downloads", "repodata.json", False),
    ],
)
def test_the_channel_of_a_package_is_the_indexed_folder_around_it(
    tmp_path: Path, subdir: str, index: str, is_channel: bool
) -> None:
    folder = tmp_path / "a channel" / subdir
    folder.mkdir(parents=True)
    (folder / index).write_text("{}")
    assert channel_containing_package(folder / "a-1-0.conda") == (
        ((tmp_path / "a channel").as_uri(),) if is_channel else ()
    )


def test_a_package_is_tested_as_the_platform_of_its_folder_renders_it(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: 1\nbuild:\n  string: same\n"
    forge = "provider:\n  linux_64: default\n  linux_aarch64: default\n  osx_64: null\n  win_64: null\n"
    meta += "requirements:\n  build:\n    - {{ compiler('c') }}\n"
    feedstock = builders.expanded(tmp_path / "feedstock", meta, "", forge)
    for subdir in ("linux-64", "linux-aarch64"):
        rendered, output = find_output_of_package(feedstock, tmp_path / "channel" / subdir / "a-1-same.conda")
        assert (rendered.config.platform, output.subdir) == (subdir, subdir)
    assert find_output_of_package(feedstock, tmp_path / "a-1-same.conda")[1].subdir == "linux-64"


def test_a_package_whose_programs_do_not_run_here_is_refused(tmp_path: Path) -> None:
    require_runnable_package(tmp_path / "a-1-0.conda", "noarch")
    with pytest.raises(UnsupportedPlatform, match=r"a-1-0\.conda cannot be tested on this machine"):
        require_runnable_package(tmp_path / "a-1-0.conda", "win-64")


def test_requirements_that_the_channels_lack_are_noted() -> None:
    test = OutputTest(script=Script(lines=("true",)), requires=("gcc", "numpy >=2"))
    output = dataclasses.replace(OUTPUT, tests=(test,))
    (step,) = dataclasses.replace(TESTER, available={"a", "numpy"}).plan_tests(output)
    assert step.specs == ("a ==1.0 py311_0", "numpy >=2")
    assert step.notes == ("tested without what this channel lacks: gcc",)
