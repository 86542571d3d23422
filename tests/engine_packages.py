"""Packages that an engine makes of a recipe, read whole, and the channel that the recipes use."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kiln.base import files as base_files
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.conda import package_reader
from kiln.conda.channel import LocalChannel
from tests import builders, warm
from tests.git_repositories import git
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
PLACEHOLDER = re.compile(rb"/[^\s\0:\"']*_env_placehold[^\s\0:\"'/]*")
# The bytecode of the standard library, which the channel's Python lacks: the engine's own Python writes it on import.
STANDARD_LIBRARY = re.compile(r"lib/python[\d.]+/(?!site-packages/)(.*/)?__pycache__/")
STRENGTHS = ("weak", "strong", "noarch", "weak_constrains", "strong_constrains")


@dataclass(frozen=True)
class Package:
    """The members of a package: their contents, whether they can be executed, and what links point to."""

    path: Path
    contents: Mapping[str, bytes]
    modes: Mapping[str, tuple[bool, str]]

    @classmethod
    def read(cls, path: Path) -> Package:
        contents, modes = {}, {}
        with package_reader.open_package_members(path) as members:
            for member, content in members:
                if not member.isdir() and not STANDARD_LIBRARY.match(member.name):
                    contents[member.name] = b"" if content is None else PLACEHOLDER.sub(b"PREFIX", content.read())
                    modes[member.name] = (bool(member.mode & 0o100) or member.issym(), member.linkname)
        return cls(path, contents, modes)

    def lines(self, name: str) -> list[str] | None:
        """Return the lines of a list in ``info``; None without it."""
        data = self.contents.get(f"info/{name}")
        return None if data is None else [x for x in data.decode().splitlines() if not STANDARD_LIBRARY.match(x)]

    def paths(self) -> list[dict[str, Any]]:
        return [entry for entry in self.json("paths.json")["paths"] if not STANDARD_LIBRARY.match(entry["_path"])]

    def json(self, name: str) -> Any:
        return json.loads(self.contents[f"info/{name}"])

    def yaml(self, name: str) -> Any:
        return yaml.safe_load(self.contents[f"info/{name}"])

    def payload(self) -> dict[str, bytes]:
        return {name: data for name, data in self.contents.items() if not name.startswith("info/")}


def channel(folder: Path) -> LocalChannel:
    """Return a channel with this Python, packages without content, and two that export under each strength."""
    channel = LocalChannel(root=folder / "channel")
    for name in ("tool", "dep", "other", "runner"):
        channel.add([(release_package(folder / "made", name, "1.2"), "linux-64")])
    exported = [f"{name}-{strength}".replace("_", "-") for name in ("strengths", "tools") for strength in STRENGTHS]
    for name in exported:
        channel.add([(release_package(folder / "made", name), "linux-64")])
    for name in ("strengths", "tools"):
        channel.add([(exporting(folder / "made", name), "linux-64")])
    interpreter = python_search.probe_interpreter(Path(sys.executable), env=os.environ)
    channel.add((made, "linux-64") for made in write_python_packages(interpreter, folder / "made", env=os.environ))
    return channel


def exporting(folder: Path, name: str) -> Path:
    """Write a package that exports, under each strength, a package of the strength's name."""
    index = {"name": name, "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    exports = {strength: [f"{name}-{strength.replace('_', '-')} >=1"] for strength in STRENGTHS}
    info = {"index.json": index, "about.json": {}, "paths.json": {"paths": [], "paths_version": 1}}
    return conda_package(folder / f"{name}-1-0.conda", {**info, "run_exports.json": exports}, payload={})


def packages(folder: Path, engine: str, meta: str, variants: str, files: Mapping[str, str]) -> dict[str, Package]:
    """Return the packages that an engine makes of a recipe, by their file names."""
    feedstock = builders.feedstock(folder / "feedstock", meta, variants, files=files)
    words = ("-C", str(feedstock.root))
    warm.kiln(*words, "rerender", "--no-pinning", check=True)
    ended = warm.kiln(*words, "build", "--all", "--container", "none", "--engine", engine)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    paths = (feedstock.root / "build_artifacts").glob("*/*.conda")
    return {path.name: Package.read(path) for path in paths}


def sources(folder: Path) -> dict[str, str]:
    """Write an archive and a git repository; return the texts that stand for them in a recipe, by their names there."""
    folder.mkdir(parents=True)
    with tarfile.open(folder / "a.tar.gz", mode="w:gz") as tar:
        member = tarfile.TarInfo("top/inside")
        member.size = 2
        tar.addfile(member, BytesIO(b"in"))
    archive = folder / "a.tar.gz"
    return {
        "ARCHIVE": archive.as_uri(),
        "MD5": hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest(),
        "SHA256": base_files.sha256(archive),
        "REVISION": repository(folder / "repository"),
        "REPOSITORY": (folder / "repository").as_uri(),
    }


def repository(folder: Path) -> str:
    """Make a git repository with a tag and a branch; return its first revision."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for name in ("first", "second", "third"):
        (folder / name).write_text(name)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", name)
        if name == "second":
            git(folder, "tag", "v1")
            git(folder, "branch", "side")
    return git(folder, "rev-list", "--max-parents=0", "HEAD")
