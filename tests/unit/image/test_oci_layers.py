"""Layers are the same bytes for the same files, whoever packs them and when."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from typing import TYPE_CHECKING

from kiln.image.oci import Layer, LayerEntry, PackedLayer, dead_links, entries_of_tree, pack_layer, with_parent_folders

if TYPE_CHECKING:
    from pathlib import Path


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


def test_digests_are_those_of_the_file_and_of_what_it_unpacks_to(tmp_path: Path) -> None:
    made = packed(tree(tmp_path / "a", mode=0), tmp_path / "layer")
    data = (tmp_path / "layer").read_bytes()
    assert made.size == len(data)
    assert made.digest == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert made.diff_id == f"sha256:{hashlib.sha256(gzip.decompress(data)).hexdigest()}"


def test_all_can_read_and_the_time_is_the_given_one(tmp_path: Path) -> None:
    made = packed(tree(tmp_path / "a", mode=0), tmp_path / "layer")
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
