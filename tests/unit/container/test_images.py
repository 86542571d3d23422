"""An engine's description of an image, and the error for a missing one."""

from __future__ import annotations

import pytest

from kiln.base.errors import DownloadFailed, UsageError
from kiln.container.engine import Engine, EngineKind
from kiln.container.images import (
    digest_in_description,
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


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"Os": "linux", "Architecture": "amd64"}, "linux/amd64"),
        ({"Os": "linux", "Architecture": "arm64", "Variant": "v8"}, "linux/arm64"),
        ({"Os": "linux", "Architecture": "arm", "Variant": "v7"}, "linux/arm/v7"),
        ({"Architecture": "amd64"}, ""),
    ],
)
def test_the_platform_of_an_image_is_written_as_engines_take_it(described: dict[str, str], expected: str) -> None:
    assert platform_in_description(described) == expected


def test_an_image_of_this_machine_is_not_fetched_for_another_platform() -> None:
    with pytest.raises(UsageError, match=r"is of linux/amd64, the config needs one of linux/arm64"):
        refuse_local_image_of_other_platform("localhost/kiln-base:bookworm", "linux/amd64", "linux/arm64")
    refuse_local_image_of_other_platform("quay.io/condaforge/linux-anvil:1", "linux/amd64", "linux/arm64")
