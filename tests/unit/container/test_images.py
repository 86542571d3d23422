"""An engine's description of an image, and the error for a missing one."""

from __future__ import annotations

import pytest

from kiln.container import Engine, EngineKind
from kiln.container.images import digest_of, pull, unavailable
from kiln.errors import DownloadFailed

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
    failure = unavailable(ENGINE, image, said)
    assert image in failure.what
    assert failure.why == (said or "no reason was given")
    for hint in hints:
        assert hint in failure.hint


def test_a_local_image_is_not_fetched_from_a_registry() -> None:
    with pytest.raises(DownloadFailed, match="localhost/none:1"):
        pull(ENGINE, "localhost/none:1")


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
    assert digest_of(described) == expected
