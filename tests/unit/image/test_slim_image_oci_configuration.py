"""The metadata of a slim image."""

from __future__ import annotations

from dataclasses import replace

from kiln.image import content_assembly, slim_image_oci_configuration
from tests.unit.image.packages import NUMPY, PACKAGE, REQUEST


def test_an_image_for_gpus_names_the_required_driver() -> None:
    image = content_assembly.ImageContents(layers=(), packages=(PACKAGE, NUMPY), debs=())
    config = slim_image_oci_configuration.image_configuration(REQUEST, image)
    assert config.environment["NVIDIA_REQUIRE_CUDA"] == "cuda>=12.5"
    assert (config.labels["kiln.cuda"], config.labels["kiln.cuda.driver"]) == ("12.5", ">=525")
    assert config.labels["org.opencontainers.image.version"] == "2.21.0"
    assert config.user == "65532:65532"
    plain = slim_image_oci_configuration.image_configuration(replace(REQUEST, cuda=""), image)
    assert not any(name.startswith("NVIDIA") for name in plain.environment)
    assert "kiln.rehearsal" not in config.labels
    rehearsal = replace(image, packages=(PACKAGE, replace(NUMPY, rehearsal=True)))
    assert slim_image_oci_configuration.image_labels(REQUEST, rehearsal)["kiln.rehearsal"] == "true"
