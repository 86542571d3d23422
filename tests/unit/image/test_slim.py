"""The metadata of a slim image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.image import contents, slim
from tests.unit.image.packages import NUMPY, PACKAGE, REQUEST

if TYPE_CHECKING:
    from pathlib import Path


def test_an_image_for_gpus_names_the_required_driver() -> None:
    image = contents.ImageContents(layers=(), packages=(PACKAGE, NUMPY), debs=())
    config = slim.image_configuration(REQUEST, image)
    labels = config["Labels"]
    assert "NVIDIA_REQUIRE_CUDA=cuda>=12.5" in config["Env"]
    assert (labels["kiln.cuda"], labels["kiln.cuda.driver"]) == ("12.5", ">=525.60.13")
    assert labels["org.opencontainers.image.version"] == "2.21.0"
    assert config["User"] == "65532:65532"
    plain = slim.image_configuration(replace(REQUEST, cuda=""), image)
    assert not any(entry.startswith("NVIDIA") for entry in plain["Env"])
    assert "kiln.rehearsal" not in labels
    rehearsal = replace(image, packages=(PACKAGE, replace(NUMPY, rehearsal=True)))
    assert slim.image_labels(REQUEST, rehearsal)["kiln.rehearsal"] == "true"


def test_an_image_has_the_version_of_its_kind_whatever_is_requested_first() -> None:
    request = replace(REQUEST, specs=("numpy", "tensorflow"))
    packages = contents.product_first([NUMPY, replace(PACKAGE, name="libtensorflow"), PACKAGE], request)
    assert [package.name for package in packages] == ["tensorflow", "libtensorflow", "numpy"]


def test_an_engine_learns_how_to_run_the_image() -> None:
    image = contents.ImageContents(layers=(), packages=(PACKAGE,), debs=())
    kind = replace(REQUEST.kind, environment={"B": "2", "A": "1"}, ports=(8500, 8501), health=("/usr/bin/well",))
    config = slim.image_configuration(replace(REQUEST, kind=kind, cuda=""), image)
    assert [entry for entry in config["Env"] if entry in {"A=1", "B=2"}] == ["A=1", "B=2"]
    assert config["ExposedPorts"] == {"8500/tcp": {}, "8501/tcp": {}}
    assert config["Healthcheck"]["Test"] == ["CMD", "/usr/bin/well"]
    assert config["Healthcheck"]["Interval"] == 30_000_000_000
    assert config["Entrypoint"][: len(slim.INIT)] == list(slim.INIT)
    assert "Cmd" not in config
    silent = replace(kind, ports=(), health=())
    config = slim.image_configuration(replace(REQUEST, kind=silent), image)
    assert not {"ExposedPorts", "Healthcheck"} & config.keys()


def test_invalid_requests_are_refused_before_any_download(tmp_path: Path) -> None:
    for request, tag in ((replace(REQUEST, cuda="twelve"), None), (REQUEST, "NO NAME")):
        with pytest.raises(UsageError):
            slim.make_slim_image(request, None, tag=tag, work=tmp_path / "work", env={}, step=pytest.fail)
    assert not (tmp_path / "work").exists()
