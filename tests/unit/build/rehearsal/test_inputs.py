"""The inputs of a rehearsal decide whether a finished rehearsal is this one, and what a container is given."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import UnknownConfig, UnsupportedPython
from kiln.build.job.job import HostMachine
from kiln.build.rehearsal import inputs, python_search, wheel_download
from kiln.build.rehearsal.inputs import (
    RehearsalInputs,
    RehearsalPlanner,
    cpu_config_for_machine,
    missing_wheels_size,
    rehearsal_disk_bytes,
)
from kiln.build.rehearsal.python_search import NO_CHANNEL, Interpreter, PythonRequest
from kiln.build.rehearsal.rehearse import config_for_one_python, find_rehearsal_python
from kiln.build.rehearsal.wheel_download import PYTHONS
from kiln.build.rehearsal.wheels import RehearsalPlan, StandIn
from kiln.feedstock import config_file, matrix
from kiln.recipe.feedstock import BuildConfig, Feedstock
from kiln.recipe.rendered import OutputTest
from kiln.state.store import cache
from tests import builders
from tests.unit.build.sample import interpreter

WHEELS = wheel_download.plan_from_locks(python="3.12")


def test_another_python_and_other_wheels_are_another_rehearsal(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("one")
    (tmp_path / "other").write_text("two")
    means = RehearsalInputs(wheels=WHEELS, interpreter=interpreter(tmp_path / "python", tmp_path))
    others = [
        replace(means, interpreter=None),
        replace(means, interpreter=interpreter(tmp_path / "other", tmp_path)),
        replace(means, wheels=wheel_download.plan_from_locks(python="3.12", cuda="12.9")),
    ]
    assert len({means.inputs_digest, *(other.inputs_digest for other in others)}) == 4
    assert means.inputs_digest == replace(means).inputs_digest


@pytest.mark.parametrize(("base", "given"), [("/usr", None), ("/opt/python", Path("/opt/python"))])
def test_the_systems_own_python_is_not_mounted_in_a_container(base: str, given: Path | None) -> None:
    means = RehearsalInputs(wheels=WHEELS, interpreter=interpreter(Path(base, "bin/python3.12"), Path(base)))
    assert means.mountable_python_folder == given


def test_wheels_that_several_configs_need_are_fetched_once(tmp_path: Path) -> None:
    means = RehearsalInputs(wheels=WHEELS, interpreter=None)
    size = sum(wheel.size for wheel in WHEELS.wheels)
    assert missing_wheels_size({"a": means, "b": means}, tmp_path) == size
    upstream = WHEELS.wheels[0]
    (tmp_path / upstream.file).touch()
    assert missing_wheels_size({"a": means}, tmp_path) == size - upstream.size
    assert rehearsal_disk_bytes(100, 10, jobs=2) == 4 * 100 + 2 * 8 * 10


def test_stand_ins_are_part_of_a_rehearsals_key() -> None:
    means = RehearsalInputs(wheels=RehearsalPlan(python=""), interpreter=None)
    stand_in = StandIn(name="gcc_linux-64", version="14", origin="gcc 12")
    others = [
        replace(means, wheels=RehearsalPlan(python="", stand_ins=(one,)))
        for one in (stand_in, replace(stand_in, origin="gcc 13"))
    ]
    assert len({means.inputs_digest, *(other.inputs_digest for other in others)}) == 3


def test_tests_for_other_pythons_run_with_the_rehearsals() -> None:
    tests = (OutputTest(pythons=("3.10.*", "*")), OutputTest(pythons=("3.12",)), OutputTest(imports=("a",)))
    rendered = builders.rendered_config(builders.output(tests=tests))
    (narrowed,) = config_for_one_python(rendered, "3.10").outputs
    assert [test.pythons for test in narrowed.tests] == [("3.10",), (), ()]


def test_a_rehearsal_never_has_the_key_of_a_build(tmp_path: Path) -> None:
    feedstock = builders.feedstock(
        tmp_path, "package:\n  name: a\n  version: 1\n", files={".ci_support/a.yaml": "{}\n"}
    )
    build = cache.input_hashes(feedstock, "a", recipe="r", engine="rattler-build", where="host")
    rehearsal = cache.input_hashes(feedstock, "a", recipe="r", engine="rattler-build", where="host", rehearsed_with="")
    assert not {build.key, build.shared} & {rehearsal.key, rehearsal.shared}


def test_an_image_without_the_configs_python_is_reported_with_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("HOME", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    job = builders.build_job(tmp_path, config="some_config", image="localhost/base:1")
    with pytest.raises(UnsupportedPython, match=r"the image localhost/base:1 has no Python 3\.12 for some_config"):
        find_rehearsal_python("3.12", job, os.environ)


CONFIGS = {python: f"cpu_{python}" for python in PYTHONS}


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock with a CPU config for each Python."""
    files = {f".ci_support/{name}.yaml": f"python:\n- {python}.* *_x\n" for python, name in CONFIGS.items()}
    return builders.feedstock(tmp_path / "feedstock", "package:\n  name: a\n  version: 1\n", files=files)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Interpreter]:
    """This machine's interpreters by their minor versions; the calling one is /calling, of Python 3.14."""
    known: dict[str, Interpreter] = {}

    def find(python: str, **_: object) -> Interpreter:
        if python not in known:
            raise UnsupportedPython(f"no Python {python}", why="/calling is Python 3.14")
        return known[python]

    def probe(executable: Path, **_: object) -> Interpreter:
        raise UnsupportedPython(f"{executable} cannot be used")

    monkeypatch.setattr(python_search, "find_interpreter", find)
    monkeypatch.setattr(python_search, "probe_interpreter", probe)
    monkeypatch.setattr(
        python_search,
        "first_available_interpreter",
        lambda **_: next((known[item] for item in PYTHONS[::-1] if item in known), None),
    )
    return known


def interpreter_of(python: str) -> Interpreter:
    return replace(interpreter(Path(f"/py/bin/python{python}"), Path("/py")), version=f"{python}.9")


MACHINE = HostMachine(environment={}, python=Path("/calling"))


def test_without_wheels_for_the_calling_python_the_newest_of_the_machine_is_rehearsed(
    feedstock: Feedstock, here: dict[str, Interpreter]
) -> None:
    assert cpu_config_for_machine(feedstock, MACHINE) == CONFIGS["3.13"], "which is fetched"
    here.update({python: interpreter_of(python) for python in ("3.11", "3.12")})
    assert cpu_config_for_machine(feedstock, MACHINE) == CONFIGS["3.12"]
    with pytest.raises(UnsupportedPython, match="/calling cannot be used"):
        cpu_config_for_machine(feedstock, replace(MACHINE, insists=True))


def test_of_several_configs_of_a_python_the_usual_one_of_this_machine_is_rehearsed(
    tmp_path: Path, here: dict[str, Interpreter]
) -> None:
    names = ("linux_64_usual", "linux_64_free", "linux_aarch64_usual")
    builds = dict(zip(names, ("cp313", "cp313t", "cp313"), strict=True))
    files = {f".ci_support/{name}.yaml": f"python:\n- 3.13.* *_{build}\n" for name, build in builds.items()}
    feedstock = builders.feedstock(tmp_path / "other", "package:\n  name: a\n  version: 1\n", files=files)
    assert cpu_config_for_machine(feedstock, MACHINE, names[:2]) == "linux_64_usual"
    with pytest.raises(UnknownConfig) as caught:
        cpu_config_for_machine(feedstock, MACHINE)
    assert caught.value.hint == "kiln build --rehearse CONFIG, one of linux_64_usual, linux_aarch64_usual"


def test_without_a_config_of_the_python_all_are_named(tmp_path: Path, here: dict[str, Interpreter]) -> None:
    files = {f".ci_support/linux_64_{number}.yaml": "target_platform:\n- linux-64\n" for number in range(8)}
    feedstock = builders.feedstock(tmp_path / "other", "package:\n  name: a\n  version: 1\n", files=files)
    with pytest.raises(UnknownConfig, match="none") as caught:
        cpu_config_for_machine(feedstock, MACHINE)
    assert caught.value.hint.startswith("kiln build --rehearse CONFIG, one of linux_64_0, linux_64_1, ")
    assert caught.value.hint.endswith("linux_64_5 and 2 more")


def test_of_several_levels_of_the_processor_that_of_upstreams_wheel_is_rehearsed(
    tmp_path: Path, here: dict[str, Interpreter]
) -> None:
    files = {
        f".ci_support/linux_64_level{level}.yaml": f"microarch_level:\n- '{level}'\npython:\n- 3.13.* *_cp313\n"
        for level in (1, 2, 3)
    }
    feedstock = builders.feedstock(tmp_path / "other", "package:\n  name: a\n  version: 1\n", files=files)
    assert cpu_config_for_machine(feedstock, MACHINE) == "linux_64_level2"


def pythons(tmp_path: Path, *, fetch: bool = True) -> inputs.RehearsalPythons:
    return inputs.RehearsalPythons(machine=MACHINE, folder=tmp_path, channel="the-channel", fetch=fetch)


def configs(feedstock: Feedstock, *names: str) -> list[BuildConfig]:
    return [config_file.read_config(feedstock, CONFIGS[name]) for name in names]


def test_another_interpreter_than_the_calling_one_is_noted(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path
) -> None:
    here["3.12"] = interpreter_of("3.12")
    means, notes = inputs.require_rehearsal_inputs(configs(feedstock, "3.12"), pythons(tmp_path), on_host=True)
    assert means[CONFIGS["3.12"]].interpreter == here["3.12"]
    assert notes == ("rehearsing with Python 3.12.9, /py/bin/python3.12",)


def test_a_named_python_that_cannot_be_used_is_not_replaced(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.update({python: interpreter_of(python) for python in ("3.11", "3.12")})
    own, machine = pythons(tmp_path), replace(MACHINE, insists=True)
    named = replace(own, machine=machine)
    with pytest.raises(UnsupportedPython, match="/calling cannot be used"):
        inputs.require_rehearsal_inputs(configs(feedstock, "3.12"), named, on_host=True)
    monkeypatch.setattr(python_search, "probe_interpreter", lambda *_, **__: interpreter_of("3.11"))
    with pytest.raises(UnsupportedPython, match="/calling cannot be used for this rehearsal") as caught:
        inputs.require_rehearsal_inputs(configs(feedstock, "3.12"), named, on_host=True)
    assert caught.value.why == "it is Python 3.11, the rehearsal requires Python 3.12"
    both = configs(feedstock, "3.11", "3.12")
    assert len(inputs.require_rehearsal_inputs(both, named, on_host=True)[0]) == 2
    assert len(inputs.require_rehearsal_inputs(configs(feedstock, "3.12"), own, on_host=True)[0]) == 1


def test_a_python_that_is_absent_is_fetched_with_what_was_wrong_with_others(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[PythonRequest] = []

    def fetch(request: PythonRequest, **_: object) -> Interpreter:
        requests.append(request)
        return interpreter_of(request.python)

    monkeypatch.setattr(python_search, "fetch_python", fetch)
    here["3.12"] = interpreter_of("3.12")
    means, notes = inputs.require_rehearsal_inputs(configs(feedstock, "3.11", "3.12"), pythons(tmp_path), on_host=True)
    (request,) = requests
    assert (request.python, request.channel, request.refusal) == ("3.11", "the-channel", "/calling is Python 3.14")
    assert means[CONFIGS["3.11"]].interpreter == interpreter_of("3.11")
    assert len(notes) == 2


def test_some_missing_pythons_are_noted_and_all_are_an_error(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(request: PythonRequest, **_: object) -> Interpreter:
        raise UnsupportedPython(f"no Python {request.python} can be had", hint="get it")

    monkeypatch.setattr(python_search, "fetch_python", fetch)
    with pytest.raises(UnsupportedPython, match=r"no Python 3\.13 can be had"):
        inputs.require_rehearsal_inputs(configs(feedstock, "3.11", "3.13"), pythons(tmp_path), on_host=True)
    here["3.12"] = interpreter_of("3.12")
    means, notes = inputs.require_rehearsal_inputs(configs(feedstock, "3.12", "3.13"), pythons(tmp_path), on_host=True)
    assert means[CONFIGS["3.13"]].interpreter is None
    assert notes[1:] == ("no Python 3.13 can be had: get it",)
    means, notes = inputs.require_rehearsal_inputs(configs(feedstock, "3.13"), pythons(tmp_path), on_host=False)
    assert (means[CONFIGS["3.13"]].interpreter, notes) == (None, ()), "a container may have one"


def test_a_config_of_another_platform_needs_no_python_of_this_machine(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path
) -> None:
    assert here == {}
    (config,) = configs(feedstock, "3.13")
    foreign = replace(config, platform="linux-aarch64")
    means, notes = inputs.require_rehearsal_inputs([foreign], pythons(tmp_path), on_host=True)
    assert means[foreign.name].interpreter is None
    assert means[foreign.name].wheels.subdir == "linux-aarch64"
    assert notes == ("a rehearsal has no Python for linux-aarch64: its packages are not tested",)


def test_a_dry_run_notes_the_pythons_to_fetch(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path
) -> None:
    _, notes = inputs.require_rehearsal_inputs(configs(feedstock, "3.13"), pythons(tmp_path, fetch=False), on_host=True)
    assert notes == ("Python 3.13 not found on this machine: it would be fetched from the-channel, or by uv",)


def test_a_dry_run_that_may_fetch_nothing_is_refused_as_the_run_would_be(
    feedstock: Feedstock, here: dict[str, Interpreter], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(request: PythonRequest, **_: object) -> Interpreter:
        raise UnsupportedPython(f"nothing from {request.channel}")

    monkeypatch.setattr(python_search, "fetch_python", fetch)
    pythons_here = replace(pythons(tmp_path, fetch=False), channel=NO_CHANNEL)
    with pytest.raises(UnsupportedPython, match="nothing from none"):
        inputs.require_rehearsal_inputs(configs(feedstock, "3.13"), pythons_here, on_host=True)


@pytest.mark.parametrize("insists", [True, False])
def test_a_named_python_that_cannot_be_used_is_refused(insists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(executable: Path, **_: Any) -> Interpreter:
        raise UnsupportedPython(f"{executable} cannot be used")

    monkeypatch.setattr(python_search, "probe_interpreter", probe)
    monkeypatch.setattr(python_search, "first_available_interpreter", lambda **_: None)
    planner = RehearsalPlanner(
        feedstock=Feedstock(root=Path("/feedstock")),
        machine=HostMachine(environment={}, python=Path("/named"), insists=insists),
        store=Path("/store"),
        folder=None,
        mirror=None,
        on_host=True,
        env={},
    )
    if insists:
        with pytest.raises(UnsupportedPython, match="/named cannot be used"):
            planner._preferred_pythons()
    else:
        assert planner._preferred_pythons() == ()


@pytest.mark.processes
@pytest.mark.skipif(platform.system() != "Linux", reason="a rehearsal is of Linux")
def test_a_package_for_python_is_planned(tmp_path: Path) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = "package: {name: a, version: 1}\nrequirements: {host: [python], run: [python]}\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", recipe, f"python:\n- {python}.* *_cpython\n")
    environment = {"PATH": os.defpath}  # every Python on PATH would be started
    planner = RehearsalPlanner(
        feedstock=feedstock,
        machine=HostMachine(environment=environment, python=Path(sys.executable)),
        store=tmp_path / "store",
        folder=None,
        mirror=None,
        on_host=True,
        env=environment,
    )
    (config, *_) = matrix.configs(feedstock)
    assert planner.plan(config).python == python
