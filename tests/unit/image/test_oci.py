"""An image as files is what the OCI specification and Docker's loader read."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.image import oci
from kiln.image.oci import Layer, LayerEntry, PackedLayer, dead_links, entries_of_tree, pack_layer, with_parent_folders

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


def test_tag_and_configuration_are_where_docker_and_podman_look_for_them(tmp_path: Path) -> None:
    made = written(tmp_path)
    config = read(oci.blob_path(tmp_path, made.config_digest))
    assert (config["created"], config["config"]) == ("1970-01-01T00:00:00Z", CONFIG)
    (listed,) = read(tmp_path / "manifest.json")
    assert listed["RepoTags"] == ["localhost/x:1.2"]
    (top,) = read(tmp_path / "index.json")["manifests"]
    assert top["annotations"]["org.opencontainers.image.ref.name"] == "1.2"
    assert top["annotations"]["io.containerd.image.name"] == "localhost/x:1.2"


def test_an_archive_of_a_layout_is_the_same_each_time(tmp_path: Path) -> None:
    written(tmp_path / "layout")
    for name in ("1.tar", "2.tar"):
        oci.write_layout_archive(tmp_path / "layout", tmp_path / name)
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()
    with tarfile.open(tmp_path / "1.tar") as archive:
        assert {"oci-layout", "index.json", "manifest.json"} < set(archive.getnames())


@pytest.mark.parametrize("name", ["", "x", "BAD:1", "a/../b:1", "x:TAG:y", "x:", "x:" + "y" * 129, "x y:1", "x:1\n"])
def test_names_that_engines_refuse(name: str) -> None:
    for good in ("localhost/x:1", "registry.example.org:5000/a/b-c_d:2.21.0-1", "x:latest"):
        oci.require_valid_image_name(good)
    with pytest.raises(UsageError, match="is not a valid name of an image"):
        oci.require_valid_image_name(name)


def tree(root: Path, *, mode: int) -> tuple[LayerEntry, ...]:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("#!/bin/sh\n")
    (root / "bin" / "run").chmod(0o700 | mode)
    (root / "note").write_text("a note")
    (root / "note").chmod(0o600 | mode)
    (root / "bin" / "link").symlink_to("run")
    return tuple(entries_of_tree(root, ("note", "bin/run", "bin/link"), below="/opt/x"))


def packed(entries: tuple[LayerEntry, ...], path: Path) -> PackedLayer:
    return pack_layer(Layer(title="t", entries=entries), path, epoch=1_700_000_000)


def test_neither_time_nor_order_nor_umask_is_in_a_layer(tmp_path: Path) -> None:
    first = packed(tree(tmp_path / "a", mode=0), tmp_path / "1")
    entries = tree(tmp_path / "b", mode=0o055)
    os.utime(tmp_path / "b" / "note", (1, 1))
    second = packed(entries[::-1], tmp_path / "2")
    assert first.digest == second.digest
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_all_can_read_and_the_time_is_the_given_one(tmp_path: Path) -> None:
    made = packed(tree(tmp_path / "a", mode=0), tmp_path / "layer")
    data = (tmp_path / "layer").read_bytes()
    assert (made.size, made.digest) == (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}")
    assert made.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"
    with tarfile.open(made.path) as archive:
        members = {member.name: member for member in archive}
    assert list(members) == ["opt", "opt/x", "opt/x/bin", "opt/x/bin/link", "opt/x/bin/run", "opt/x/note"]
    assert {name: oct(members[name].mode) for name in ("opt/x", "opt/x/bin/run", "opt/x/note")} == {
        "opt/x": "0o755",
        "opt/x/bin/run": "0o755",
        "opt/x/note": "0o644",
    }
    assert members["opt/x/bin/link"].linkname == "run"
    assert {member.mtime for member in members.values()} == {1_700_000_000}
    assert {(member.uid, member.gid, member.uname) for member in members.values()} == {(0, 0, "")}


def test_a_folder_of_ones_own_keeps_its_mode_and_owner() -> None:
    entries = (LayerEntry(path="/a/b", mode=0o700, owner=7), LayerEntry(path="/a/b/c", mode=0o644, data=b""))
    assert [(entry.path, entry.mode, entry.owner) for entry in with_parent_folders(entries)] == [
        ("/a", 0o755, 0),
        ("/a/b", 0o700, 7),
        ("/a/b/c", 0o644, 0),
    ]


def test_links_to_what_was_left_out_are_found_and_others_are_not() -> None:
    links = {
        "/p/lib/x": "../include/x",
        "/p/lib/y": "y.1",
        "/p/lib/z": "/p/share/deep/z",
        "/p/share": "lib",
        "/p/certificates": "/etc/ssl/all",
        "/p/round": "round",
    }
    files = ("/p/lib/y.1", "/p/lib/deep/z")
    entries = [LayerEntry(path=path, mode=0o777, link=link) for path, link in links.items()]
    entries += [LayerEntry(path=path, mode=0o644, data=b"") for path in files]
    assert dead_links(entries, below="/p") == {"/p/lib/x"}
