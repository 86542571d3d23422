"""From a plan to an engine's exact words."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kiln.base.errors import UsageError
from kiln.container import images
from kiln.container.engine import Engine, EngineKind
from kiln.container.plan import ContainerLimits, ContainerRun, ContainerUser, Mount, create_command, start_command

DOCKER = Engine(kind=EngineKind.DOCKER, executable="/usr/bin/docker", version="20.10", environment={})
PODMAN = dataclasses.replace(DOCKER, kind=EngineKind.PODMAN, executable="/usr/bin/podman")
PLAN = ContainerRun(image="image:tag", argv=("bash", "-c", "make it"))

HEAD = ("create", "--name", "kiln-1", "--pull", "never", "--log-driver", "none")
OWNER = ("--label", "kiln.owner=me")
NOTHING = ("--cap-drop", "ALL", "--security-opt", "no-new-privileges")
OFFLINE = ("--network", "none")
END = ("image:tag", "bash", "-c", "make it")


def words(engine: Engine = DOCKER, **changes: object) -> tuple[str, ...]:
    plan = dataclasses.replace(PLAN, **changes)  # type: ignore[arg-type]
    return create_command(engine, plan, name="kiln-1", labels={"kiln.owner": "me"})


def test_a_plan_that_grants_nothing_gets_nothing() -> None:
    assert words() == ("/usr/bin/docker", *HEAD, *OWNER, *NOTHING, *OFFLINE, *END)
    assert words(PODMAN) == ("/usr/bin/podman", *words()[1:])


def test_what_an_engine_needs_comes_before_the_plans_options() -> None:
    engine = dataclasses.replace(PODMAN, options=("--runtime", "/usr/sbin/runc"), selinux=True)
    said = words(engine, options=("--runtime", "other"), platform="linux/arm64")
    assert said.index("/usr/sbin/runc") < said.index("other")
    assert {"label=disable", "linux/arm64"} < set(said), "mounts are read without relabeling them"


def test_a_client_ends_on_a_signal_whatever_the_program_does() -> None:
    assert start_command(DOCKER, "kiln-1") == ("/usr/bin/docker", "start", "--attach", "kiln-1")
    assert start_command(PODMAN, "kiln-1") == ("/usr/bin/podman", "start", "--attach", "--sig-proxy=false", "kiln-1")


def test_all_that_a_plan_grants_stands_in_its_place() -> None:
    assert words(
        environment={"CONFIG": "linux_64_", "TWO": "a b"},
        secrets={"TOKEN": "hidden"},
        mounts=(
            Mount(source=Path("/feed/recipe"), target="/home/conda/recipe_root"),
            Mount(source=Path("/feed/out"), target="/out", read_only=False),
        ),
        user=ContainerUser(uid=1000, gid=100),
        limits=ContainerLimits(cores=1.5, memory=64 << 20, processes=50),
        network=True,
        workdir="/home/conda",
        capabilities=("SETUID", "SETGID"),
        labels={"kiln.config": "linux_64_"},
        options=("--shm-size", "1g"),
    ) == (
        "/usr/bin/docker",
        *HEAD,
        *OWNER,
        *("--label", "kiln.config=linux_64_"),
        *("--cap-drop", "ALL", "--cap-add", "SETUID", "--cap-add", "SETGID"),
        *("--security-opt", "no-new-privileges"),
        *("--user", "1000:100"),
        *("--cpus", "1.5", "--memory", "67108864", "--memory-swap", "67108864", "--pids-limit", "50"),
        *("--mount", "type=bind,source=/feed/recipe,target=/home/conda/recipe_root,readonly"),
        *("--mount", "type=bind,source=/feed/out,target=/out"),
        *("--env", "CONFIG=linux_64_", "--env", "TWO=a b", "--env", "TOKEN"),
        *("--workdir", "/home/conda"),
        *("--shm-size", "1g"),
        *END,
    )


@pytest.mark.parametrize(
    ("kind", "rootless", "expected"),
    [
        (EngineKind.DOCKER, False, "--user 1000:100"),
        (EngineKind.PODMAN, False, "--user 1000:100"),
        (EngineKind.DOCKER, True, "--user 0:0"),
        (EngineKind.PODMAN, True, "--userns keep-id --user 1000:100"),
    ],
)
def test_files_are_the_callers_in_every_kind_of_engine(kind: EngineKind, rootless: bool, expected: str) -> None:
    said = words(dataclasses.replace(DOCKER, kind=kind, rootless=rootless), user=ContainerUser(uid=1000, gid=100))
    assert said[len(HEAD) + len(OWNER) + len(NOTHING) + 1 : -len(OFFLINE) - len(END)] == tuple(expected.split())


def test_secrets_are_in_no_command_line_and_no_representation() -> None:
    plan = dataclasses.replace(PLAN, secrets={"TOKEN": "hidden"})
    assert not any("hidden" in word for word in create_command(DOCKER, plan, name="n", labels={}))
    assert "hidden" not in repr(plan)


@pytest.mark.parametrize("image", ["--privileged", "-v/:/host", "", "two words", "a\n", "$(reboot)"])
def test_a_variant_file_cannot_pass_an_option_for_an_image(image: str) -> None:
    with pytest.raises(UsageError, match="not a valid name of a container image"):
        words(image=image)
    with pytest.raises(UsageError, match="not a valid name of a container image"):
        images.pull_if_missing(DOCKER, image)


def test_real_names_of_images_pass() -> None:
    for image in ("quay.io/condaforge/linux-anvil-x86_64:alma9", "localhost:5000/a/b@sha256:" + "0" * 64, "debian"):
        assert image in words(image=image)


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [("/a,b", "/x", "'/a,b'"), ("/a", "x", "'x'"), ("a", "/x", "'a'"), ("/a", "/x,readonly=false", "readonly")],
)
def test_a_path_that_would_mean_something_else_to_an_engine_is_refused(source: str, target: str, why: str) -> None:
    with pytest.raises(UsageError, match="cannot be mounted") as caught:
        words(mounts=(Mount(source=Path(source), target=target),))
    assert why in str(caught.value)
