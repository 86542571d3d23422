"""An image as files is what the OCI specification and Docker's loader read."""

from __future__ import annotations

import hashlib
import json
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.image import oci
from kiln.image.oci import Layer, LayerEntry, pack_layer

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = {"Entrypoint": ["/usr/bin/x"], "Env": ["A=1"], "User": "65532:65532", "Labels": {"a": "b"}}


def written(folder: Path) -> oci.WrittenImage:
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = pack_layer(
        Layer(title="all", entries=(LayerEntry(path="/f", mode=0o644, data=b"x"),)), blobs / "part", epoch=0
    )
    layer.path.rename(oci.blob_path(folder, layer.digest))
    return oci.write_image_layout(folder, (layer,), CONFIG, tag="localhost/x:1.2", epoch=0)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_blob_is_named_by_its_content_and_is_referred_to(tmp_path: Path) -> None:
    made = written(tmp_path)
    for blob in (tmp_path / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    (top,) = read(tmp_path / "index.json")["manifests"]
    assert top["digest"] == made.digest
    manifest = read(oci.blob_path(tmp_path, top["digest"]))
    assert manifest["config"]["digest"] == made.config_digest
    for part in (top, manifest["config"], *manifest["layers"]):
        assert oci.blob_path(tmp_path, part["digest"]).stat().st_size == part["size"]


def test_the_tag_is_where_docker_and_podman_look_for_it(tmp_path: Path) -> None:
    written(tmp_path)
    (listed,) = read(tmp_path / "manifest.json")
    assert listed["RepoTags"] == ["localhost/x:1.2"]
    (top,) = read(tmp_path / "index.json")["manifests"]
    assert top["annotations"]["org.opencontainers.image.ref.name"] == "1.2"
    assert top["annotations"]["io.containerd.image.name"] == "localhost/x:1.2"


def test_the_configuration_holds_what_the_image_is_to_do(tmp_path: Path) -> None:
    made = written(tmp_path)
    config = read(oci.blob_path(tmp_path, made.config_digest))
    assert config["created"] == "1970-01-01T00:00:00Z"
    assert config["config"] == CONFIG


def test_an_archive_of_a_layout_is_the_same_each_time(tmp_path: Path) -> None:
    written(tmp_path / "layout")
    for name in ("1.tar", "2.tar"):
        oci.write_layout_archive(tmp_path / "layout", tmp_path / name)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as archive:
        assert {"oci-layout", "index.json", "manifest.json"} < set(archive.getnames())


@pytest.mark.parametrize("name", ["localhost/x:1", "registry.example.org:5000/a/b-c_d:2.21.0-1", "x:latest"])
def test_names_that_engines_take(name: str) -> None:
    oci.require_valid_image_name(name)


@pytest.mark.parametrize("name", ["", "x", "BAD:1", "a/../b:1", "x:TAG:y", "x:", "x:" + "y" * 129, "x y:1", "x:1\n"])
def test_names_that_engines_refuse(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid name of an image"):
        oci.require_valid_image_name(name)
