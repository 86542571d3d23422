"""An engine's description of an image, and the error for a missing one."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import DownloadFailed, UsageError
from kiln.container.engine import Engine, EngineKind
from kiln.container.images import (
    OwnerProcess,
    digest_in_description,
    has_ended,
    image_unavailable_error,
    platform_in_description,
    pull_image,
    refuse_local_image_of_other_platform,
)

ENGINE = Engine(kind=EngineKind.DOCKER, executable="docker", version="20.10", environment={})


REFUSED = (
    (
        "quay.io/condaforge/linux-anvil-x86_64:alma9",
        'Error response from daemon: Get "https://quay.io/v2/": dial tcp: lookup quay.io on 10.0.0.1:53: no such host',
        ("out of reach", "kiln image base", "--container none", "DOCKER_IMAGE"),
    ),
    (
        "quay.io/private/image:1",
        "Error response from daemon: unauthorized: access to the requested resource is not authorized",
        ("docker login quay.io",),
    ),
    ("quay.io/condaforge/misspelt:1", "Error response from daemon: manifest unknown", ("name is right",)),
    ("localhost/kiln-base:bookworm", "", ("kiln image base --tag localhost/kiln-base:bookworm --container docker",)),
)


@pytest.mark.parametrize(("image", "said", "hints"), REFUSED)
def test_an_image_that_cannot_be_fetched_is_an_error_with_a_hint(image: str, said: str, hints: tuple[str, ...]) -> None:
    failure = image_unavailable_error(ENGINE, image, said)
    assert image in failure.what
    assert failure.why == (said or "no reason was given")
    for hint in hints:
        assert hint in failure.hint


def test_a_local_image_is_not_fetched_from_a_registry() -> None:
    with pytest.raises(DownloadFailed, match="localhost/none:1"):
        pull_image(ENGINE, "localhost/none:1")


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"Id": "sha256:aa", "RepoDigests": ["quay.io/b@sha256:22", "docker.io/a@sha256:11"]}, "sha256:11"),
        ({"Id": "sha256:aa", "RepoDigests": []}, "sha256:aa"),
        ({"Id": "aa", "RepoDigests": ["localhost/kiln-base@sha256:33"]}, "sha256:aa"),
        ({"Id": "aa"}, "sha256:aa"),
    ],
)
def test_a_digest_is_the_registrys_or_else_the_hash_of_the_image(described: dict[str, object], expected: str) -> None:
    assert digest_in_description(described) == expected


def test_the_platform_of_an_image_is_written_as_engines_take_it() -> None:
    arm = {"Os": "linux", "Architecture": "arm"}
    assert platform_in_description({"Os": "linux", "Architecture": "amd64"}) == "linux/amd64"
    assert platform_in_description({**arm, "Architecture": "arm64", "Variant": "v8"}) == "linux/arm64"
    assert platform_in_description({**arm, "Variant": "v7"}) == "linux/arm/v7"
    assert platform_in_description({"Architecture": "amd64"}) == ""


def test_an_image_of_this_machine_is_not_fetched_for_another_platform() -> None:
    with pytest.raises(UsageError, match=r"is of linux/amd64, the config needs one of linux/arm64"):
        refuse_local_image_of_other_platform("localhost/kiln-base:bookworm", "linux/amd64", "linux/arm64")
    refuse_local_image_of_other_platform("quay.io/condaforge/linux-anvil:1", "linux/amd64", "linux/arm64")


HERE = OwnerProcess(machine="here", boot="boot", namespace="pid:[1]", pid=7, started="100")


OTHER = dataclasses.replace(HERE, pid=8, started="50")


@pytest.mark.parametrize(
    ("owner", "now", "expected"),
    [
        (HERE, HERE, False),
        (OTHER, OTHER, False),
        (OTHER, None, True),
        (OTHER, dataclasses.replace(OTHER, started="90"), True),
        (dataclasses.replace(OTHER, boot="earlier"), OTHER, True),
        (dataclasses.replace(OTHER, machine="elsewhere"), None, False),
        (dataclasses.replace(OTHER, machine="elsewhere", boot="its own"), None, False),
        (dataclasses.replace(OTHER, namespace="pid:[2]"), None, False),
    ],
    ids=["me", "runs", "ended", "number reused", "rebooted", "elsewhere", "elsewhere, its boot", "cannot be seen"],
)
def test_who_is_gone(owner: OwnerProcess, now: OwnerProcess | None, expected: bool) -> None:
    assert has_ended(owner, HERE, now) is expected


WORDS = st.text(st.characters(exclude_characters="/", exclude_categories=("Cs", "Cc")))


@given(machine=WORDS, boot=WORDS, namespace=WORDS, pid=st.integers(min_value=1), started=WORDS)
def test_an_owner_survives_being_a_label(machine: str, boot: str, namespace: str, pid: int, started: str) -> None:
    owner = OwnerProcess(machine=machine, boot=boot, namespace=namespace, pid=pid, started=started)
    assert OwnerProcess.parse(str(owner)) == owner


@pytest.mark.parametrize("label", ["", "somebody else's", "a/b/c/x/e", "a/b/c/1"])
def test_another_label_has_no_owner(label: str) -> None:
    assert OwnerProcess.parse(label) is None


@pytest.mark.processes
def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = OwnerProcess.of_process(process.pid)
        assert owner is not None
        assert not has_ended(owner, OwnerProcess.of_this_process(), OwnerProcess.of_process(process.pid))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table
        assert has_ended(owner, OwnerProcess.of_this_process(), OwnerProcess.of_process(process.pid))
    finally:
        process.kill()
        process.communicate()
