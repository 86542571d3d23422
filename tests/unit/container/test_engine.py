"""An engine counts when it answers, not when its program exists."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MissingTool, UsageError
from kiln.base.system import machine
from kiln.container.engine import (
    ON_THE_HOST,
    REFUSALS,
    Engine,
    EngineKind,
    KnownRefusal,
    avoid_refusal,
    choose_engine,
    engine_from_info,
    find_engine,
    trial_command,
)

if TYPE_CHECKING:
    from pathlib import Path


PODMAN_INFO = {
    "host": {"cgroupVersion": "v1", "security": {"rootless": True, "selinuxEnabled": False}},
    "version": {"Version": "4.3.1"},
}


def program(folder: Path, name: str, version: str, info: str, code: int = 0) -> None:
    """A program that answers like an engine's client."""
    script = f"#!/bin/sh\ncase $1 in --version) echo '{version}';; info) echo '{info}'; exit {code};; esac\n"
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


def test_the_host_is_chosen_by_name_and_notes_the_missing_isolation() -> None:
    choice = choose_engine("none", env={})
    assert choice.engine is None
    assert choice.notes == ON_THE_HOST
    assert {word for note in choice.notes for word in ("file system", "network", "memory") if word in note} == {
        "file system",
        "network",
        "memory",
    }


def test_without_an_engine_the_host_is_used_with_the_reasons(tmp_path: Path) -> None:
    choice = choose_engine(None, env={"PATH": str(tmp_path)})
    assert choice.engine is None
    assert [note.split(" is ")[0] for note in choice.notes[:2]] == ["'docker'", "'podman'"]
    assert choice.notes[2:] == ON_THE_HOST


def test_an_engine_that_is_requested_by_name_must_exist(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="'podman' is not on this machine"):
        choose_engine("podman", env={"PATH": str(tmp_path)})
    with pytest.raises(UsageError, match="no such container engine: 'lxc'"):
        choose_engine("lxc", env={})
    with pytest.raises(MissingTool) as told:
        choose_engine("docker", env={"PATH": str(tmp_path)}, executable="/nope")
    assert told.value.hint.startswith("let DOCKER_EXECUTABLE name a program that is here")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["docker", "podman"])
def test_an_installed_engine_that_does_not_answer_is_not_replaced_by_the_host(tmp_path: Path, name: str) -> None:
    program(tmp_path, name, f"{name} version 4", '{"ServerErrors":["Cannot connect to the daemon"]}', 1)
    env = {"PATH": str(tmp_path)}
    with pytest.raises(MissingTool, match="its engine does not answer") as caught:
        choose_engine(None, env=env)
    assert "--container none" in caught.value.hint
    assert choose_engine("none", env=env).engine is None


@pytest.mark.processes
def test_a_client_without_its_daemon_is_passed_over_for_the_next_engine(tmp_path: Path) -> None:
    program(tmp_path, "docker", "Docker version 28.2.2", '{"ServerErrors":["Cannot connect to the daemon"]}', 1)
    program(tmp_path, "podman", "podman version 4.3.1", json.dumps(PODMAN_INFO))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    choice = choose_engine(None, env=env)
    assert choice.engine is not None
    assert (choice.engine.kind, choice.engine.version, choice.engine.rootless) == (EngineKind.PODMAN, "4.3.1", True)
    assert "its engine does not answer (Cannot connect to the daemon)" in choice.notes[0]
    with pytest.raises(MissingTool, match="does not answer") as caught:
        choose_engine("docker", env=env)
    assert caught.value.why == "Cannot connect to the daemon"


@pytest.mark.processes
def test_a_program_is_what_it_calls_itself_whatever_its_name(tmp_path: Path) -> None:
    program(tmp_path, "docker", "podman version 4.3.1", "", 1)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with pytest.raises(UsageError, match="docker is podman, not docker"):
        find_engine(EngineKind.DOCKER, env=env)
    program(tmp_path, "docker", "something else", "")
    with pytest.raises(MissingTool, match="neither Docker nor Podman"):
        find_engine(None, env=env, executable="docker")


def test_what_an_engine_says_of_itself_is_read() -> None:
    def docker(**answer: object) -> Engine:
        return engine_from_info(EngineKind.DOCKER, "docker", {"ServerVersion": "28", **answer}, environment={})

    engine = docker(SecurityOptions=["name=seccomp,profile=default", "name=rootless", "name=selinux"])
    assert (engine.rootless, engine.selinux, engine.version) == (True, True, "28")
    assert docker(MemoryLimit=False).lacks, "it cannot bound memory"
    assert not docker(MemoryLimit=True).lacks
    assert engine_from_info(EngineKind.PODMAN, "podman", PODMAN_INFO, environment={}).lacks


def test_the_cores_and_memory_are_those_of_the_engines_machine() -> None:
    engine = engine_from_info(EngineKind.DOCKER, "docker", {"NCPU": 4, "MemTotal": 8 << 30}, environment={})
    assert (engine.cores, engine.memory) == (4, 8 << 30)
    again = Engine.from_json(engine.as_json(), environment={})
    assert (again.cores, again.memory) == (4, 8 << 30)
    unknown = engine_from_info(EngineKind.DOCKER, "docker", {}, environment={})
    assert (unknown.cores, unknown.memory) == (None, None)


RLIMITS, CRUN = REFUSALS


SAID = (
    ("Error: runc: runc create failed: error setting rlimits for ready process: error setting rlimit type 7", RLIMITS),
    ("Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied", RLIMITS),
    ("Error: OCI runtime error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroupv2", CRUN),
    ("Error: short-name resolution enforced but cannot prompt without a TTY", None),
)


def engine(path: str = "") -> Engine:
    return Engine(kind=EngineKind.PODMAN, executable="podman", version="4.3.1", environment={"PATH": path})


@pytest.mark.parametrize(("said", "expected"), SAID)
def test_a_refusal_is_known_by_its_words(said: str, expected: KnownRefusal | None) -> None:
    assert [item for item in REFUSALS if item.words.search(said)] == ([expected] if expected else [])


def test_limits_are_this_processs_but_not_above_what_podman_leaves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = {"nofile": 20000, "nproc": 96365}
    monkeypatch.setattr(machine, "resource_hard_limit", lambda name: hard[name])
    assert avoid_refusal(engine(), RLIMITS).options == (
        *("--ulimit", "nofile=20000:20000"),
        *("--ulimit", "nproc=32768:32768"),
    )
    answered = avoid_refusal(engine(), RLIMITS)
    assert answered.notes == (RLIMITS.note,)
    assert set(answered.options) < set(trial_command(answered, "image"))
    hard["nofile"] = machine.UNLIMITED
    assert "nofile=1048576:1048576" in avoid_refusal(engine(), RLIMITS).options


def test_runc_takes_cruns_place(tmp_path: Path) -> None:
    (tmp_path / "runc").touch(mode=0o755)
    assert avoid_refusal(engine(str(tmp_path)), CRUN).options == ("--runtime", str(tmp_path / "runc"))


def test_without_runc_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(MissingTool, match="runc, which can, is not here"):
        avoid_refusal(engine(), CRUN)


def test_a_foreign_image_is_tried_as_its_platform() -> None:
    assert "--platform" not in trial_command(engine(), "image:1")
    assert trial_command(engine(), "image:1", "linux/arm64")[-5:] == (
        *("--platform", "linux/arm64", "--entrypoint", "true", "image:1"),
    )
