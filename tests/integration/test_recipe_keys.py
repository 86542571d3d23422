"""Keys of meta.yaml, in packages that rattler-build makes: each assertion fails where the key is dropped."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed, HashMismatch, RecipeFault, TestsFailed
from kiln.conda import package_reader, package_writer
from kiln.conda.channel import LocalChannel
from tests import builders
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.base.errors import KilnError

pytestmark = pytest.mark.slow("a feedstock is built for a group of keys")

ROOT = Path(__file__).parents[2]
META = "package:\n  name: keys\n  version: '1'\n"
SCRIPT = """\
  script:
    - mkdir -p $PREFIX/share $PREFIX/lib
    - echo $PREFIX >$PREFIX/share/one
    - echo $PREFIX >$PREFIX/share/two
    - printf 'a\\0%s\\0' $PREFIX >$PREFIX/share/data
    - cp -r . $PREFIX/share/work
"""


def build(
    folder: Path, meta: str, files: Mapping[str, str] | None = None, *, variants: str = "", more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Write a feedstock and build its config; lists in brackets, which would be selectors, become blocks."""
    text = re.sub(r"^( *)([\w-]+): \[(.*)\]$", _block, meta, flags=re.MULTILINE)
    feedstock = builders.feedstock(folder / "feedstock", text, variants, files=files)
    words = (sys.executable, "-m", "kiln", "-C", str(feedstock.root))
    subprocess.run((*words, "rerender", "--no-pinning"), cwd=ROOT, check=True, capture_output=True)
    argv = (*words, "build", "--all", "--container", "none", *more)
    return subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False)


def _block(match: re.Match[str]) -> str:
    items = "".join(f"\n{match[1]}  - {item}" for item in match[3].split(", "))
    return f"{match[1]}{match[2]}:{items}"


class Built:
    """A package: its metadata as JSON, its files, and their contents."""

    def __init__(self, folder: Path, name: str = "keys") -> None:
        artifacts = folder / "feedstock" / "build_artifacts"
        (path,) = [*artifacts.glob(f"linux-64/{name}-*.conda"), *artifacts.glob(f"noarch/{name}-*.conda")]
        self.contents: dict[str, bytes] = {}
        self.modes: dict[str, int] = {}
        with package_reader.open_package_members(path) as members:
            for member, content in members:
                self.contents[member.name] = b"" if content is None else content.read()
                self.modes[member.name] = member.mode

    def info(self, name: str) -> Any:
        return json.loads(self.contents[f"info/{name}"])

    def paths(self) -> dict[str, dict[str, Any]]:
        return {entry["_path"]: entry for entry in self.info("paths.json")["paths"]}


def made(folder: Path, meta: str, files: Mapping[str, str] | None = None, *, variants: str = "") -> Built:
    ended = build(folder, meta, files, variants=variants)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return Built(folder)


def refused(folder: Path, error: type[KilnError], meta: str, files: Mapping[str, str] | None = None) -> str:
    ended = build(folder, meta, files)
    assert ended.returncode == error.exit_code, ended.stdout + ended.stderr
    return ended.stderr


def test_metadata(tmp_path: Path) -> None:
    about = """\
about:
  home: https://example.org, https://example.com
  dev_url: [https://dev.example.org, https://git.example.org]
  doc_url: not an address
  doc_source_url: https://docs.example.org/source
  license: MIT AND Something-Else
  license_family: MIT
  license_url: https://example.org/license
  license_file: LICENSE
  summary: "has {% raw %}${{ braces }}{% endraw %}"
  description: Long
  keywords: one
  identifiers: [doi:1]
  tags: [a, b]
extra:
  recipe-maintainers: [someone]
  nested:
    key: [1, text]
"""
    package = made(tmp_path, f"{META}build:\n  number: 0\n{SCRIPT}{about}", {"recipe/LICENSE": "free"})
    values = package.info("about.json")
    expected = {
        "home": "https://example.org, https://example.com",
        "dev_url": ["https://dev.example.org", "https://git.example.org"],
        "doc_url": "not an address",
        "doc_source_url": "https://docs.example.org/source",
        "license": "MIT AND Something-Else",
        "license_family": "MIT",
        "license_url": "https://example.org/license",
        "license_file": "LICENSE",
        "summary": "has ${{ braces }}",
        "description": "Long",
        "keywords": ["one"],
        "identifiers": ["doi:1"],
        "tags": ["a", "b"],
    }
    assert {key: values[key] for key in expected} == expected
    assert values["extra"]["recipe-maintainers"] == ["someone"]
    assert values["extra"]["nested"] == {"key": ["1", "text"]}
    index = package.info("index.json")
    assert (index["license"], index["license_family"]) == ("MIT AND Something-Else", "MIT")
    assert package.contents["info/licenses/LICENSE"] == b"free"


def test_files_of_a_package(tmp_path: Path) -> None:
    keys = """\
build:
  no_link: [share/one]
  has_prefix_files: [share/data]
  binary_has_prefix_files: [share/two]
  include_recipe: false
  features: [fast]
  track_features: [slow]
"""
    package = made(tmp_path, META + keys + SCRIPT, {"recipe/post-link.sh": "true", "recipe/pre-unlink.sh": "true"})
    paths = package.paths()
    assert paths["share/one"]["no_link"] is True
    assert "no_link" not in paths["share/two"]
    assert (paths["share/data"]["file_mode"], paths["share/two"]["file_mode"]) == ("text", "binary")
    assert package.modes["bin/.keys-post-link.sh"] & 0o111
    assert "bin/.keys-pre-unlink.sh" in paths
    assert not any(name.startswith("info/recipe/") for name in package.contents)
    assert package.info("index.json")["features"] == "fast"
    assert package.info("index.json")["track_features"] == "slow"


def test_the_hash_input_gives_the_build_string(tmp_path: Path) -> None:
    variants = "flavour:\n  - sweet\n"
    package = made(tmp_path, f"{META}build:\n  number: 2\n{SCRIPT}    - echo {{{{ flavour }}}}\n", variants=variants)
    values = package.info("hash_input.json")
    assert values == {"flavour": "sweet", "target_platform": "linux-64"}
    digest = hashlib.sha1(json.dumps(values, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    assert package.info("index.json")["build"] == f"h{digest[:7]}_2"


def test_ignored_prefixes(tmp_path: Path) -> None:
    package = made(tmp_path, f"{META}build:\n  ignore_prefix_files: [share/one]\n{SCRIPT}")
    assert "prefix_placeholder" not in package.paths()["share/one"]
    assert "prefix_placeholder" in package.paths()["share/two"]


C_PROGRAM = """\
  script:
    - mkdir -p $PREFIX/bin
    - echo 'int main(void) { return 0; }' >main.c
    - gcc main.c -o $PREFIX/bin/main -Wl,-rpath,/a/very/long/path/that/nobody/has/and/is/there/to/be/replaced/by/others
"""


@pytest.mark.needs("gcc", "readelf")
def test_rpaths(tmp_path: Path) -> None:
    package = made(tmp_path, f"{META}build:\n  rpaths: [lib/, lib/own]\n{C_PROGRAM}")
    (tmp_path / "main").write_bytes(package.contents["bin/main"])
    printed = subprocess.run(("readelf", "-d", tmp_path / "main"), capture_output=True, text=True, check=True).stdout
    assert "$ORIGIN/../lib/own" in printed


@pytest.mark.needs("gcc")
def test_overlinking(tmp_path: Path) -> None:
    message = refused(tmp_path / "error", BuildFailed, f"{META}build:\n  error_overlinking: true\n{C_PROGRAM}")
    assert "verlinking against" in message
    allowed = f"{META}build:\n  error_overlinking: true\n  missing_dso_whitelist: ['*libc.so*']\n{C_PROGRAM}"
    assert "bin/main" in made(tmp_path / "allowed", allowed).paths()


def channel(folder: Path) -> str:
    """Return the variants with a channel whose package exports itself, and has a file."""
    channel = LocalChannel(root=folder / "channel")
    package = release_package(folder / "built", "dep", payload={"share/dep": b"dep", "share/other": b"other"})
    channel.add([(package, "linux-64")])
    return f"channel_sources:\n  - {channel.url}\n"


REQUIRES = "requirements:\n  host: [dep]\n"


@pytest.mark.parametrize("key", ["merge_build_host: true", "number: 0"], ids=["asked", "no-host-no-compiler"])
def test_merged_environments(key: str, tmp_path: Path) -> None:
    script = "  script:\n    - mkdir -p $PREFIX/share\n    - test -f $PREFIX/share/dep && touch $PREFIX/share/x\n"
    meta = f"{META}build:\n  {key}\n{script}requirements:\n  build: [dep]\n"
    package = made(tmp_path, meta, variants=channel(tmp_path))
    assert "share/x" in package.paths()
    assert package.info("index.json")["depends"] == ["dep >=1"]


def archive(folder: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        member = tarfile.TarInfo("top/inside")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"in"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.tar.gz").write_bytes(data.getvalue())
    return data.getvalue()


def test_sources(tmp_path: Path) -> None:
    data = archive(tmp_path)
    url = (tmp_path / "a.tar.gz").as_uri()
    with zipfile.ZipFile(tmp_path / "a-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("module.py", "")
    source = f"""\
source:
  - url: {url}
    md5: {hashlib.md5(data, usedforsecurity=False).hexdigest()}
    folder: unpacked
  - url: {url}
    sha256: {hashlib.sha256(data).hexdigest()}
    fn: renamed
    folder: copied
  - path: a.tar.gz
    folder: local
  - url: {(tmp_path / "a-1-py3-none-any.whl").as_uri()}
    folder: wheel
"""
    feedstock = tmp_path / "feedstock" / "recipe"
    feedstock.mkdir(parents=True)
    shutil.copy(tmp_path / "a.tar.gz", feedstock)
    paths = made(tmp_path, f"{META}{source}build:\n  number: 0\n{SCRIPT}").paths()
    assert "share/work/unpacked/inside" in paths
    assert "share/work/copied/renamed" in paths
    assert "share/work/local/a.tar.gz" in paths
    assert {"share/work/wheel/a-1-py3-none-any.whl", "share/work/wheel/module.py"} <= paths.keys()


def test_a_wrong_md5(tmp_path: Path) -> None:
    archive(tmp_path)
    source = f"source:\n  url: {(tmp_path / 'a.tar.gz').as_uri()}\n  md5: {'0' * 32}\n"
    assert "md5 checksum validation failed" in refused(tmp_path, HashMismatch, f"{META}{source}")


@pytest.mark.needs("git")
def test_git_sources(tmp_path: Path) -> None:
    repository = tmp_path / "feedstock" / "recipe" / "repository"
    repository.mkdir(parents=True)
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    (repository / "file").write_text("one")
    for words in (("init", "-q", "-b", "main"), ("add", "."), (*identity, "commit", "-qm", "one"), ("tag", "v1")):
        subprocess.run(("git", *words), cwd=repository, check=True)
    (repository / "later").write_text("two")
    for words in (("add", "."), (*identity, "commit", "-qm", "two")):
        subprocess.run(("git", *words), cwd=repository, check=True)
    tagged = "source:\n  git_url: ./repository\n  git_tag: v1\n"
    paths = made(tmp_path, f"{META}{tagged}build:\n  number: 0\n{SCRIPT}").paths()
    assert "share/work/file" in paths
    assert "share/work/later" not in paths


def test_test_scripts(tmp_path: Path) -> None:
    meta = f"{META}build:\n  number: 0\n{SCRIPT}test:\n  commands: ['test $word = said']\n  files: ['*.dat']\n"
    files = {"recipe/run_test.sh": "test -f deep/x.dat; word=said; echo ran", "recipe/deep/x.dat": ""}
    made(tmp_path / "passing", meta, files)
    assert "fail with exit code 3" in refused(tmp_path, TestsFailed, meta, {**files, "recipe/run_test.sh": "exit 3"})


def downstream(folder: Path, name: str, script: str) -> Path:
    """Write a package with tests as conda-build packs them."""
    index = {"name": name, "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": ["keys"]}
    info = {
        "index.json": index,
        "about.json": {},
        "paths.json": {"paths": [], "paths_version": 1},
        "test/run_test.sh": "",
        "test/test_time_dependencies.json": ["dep"],
    }
    package = conda_package(folder / f"{name}-1-0.conda", {**info, "test/run_test.sh.yaml": script}, payload={})
    changed = folder / "changed" / package.name
    changed.parent.mkdir(exist_ok=True)
    package_writer.rewrite_info(
        package, changed, lambda file, data: script.encode() if file == "test/run_test.sh" else data
    )
    return changed


@pytest.mark.parametrize("passes", [True, False])
def test_downstreams(passes: bool, tmp_path: Path) -> None:
    variants = channel(tmp_path)
    script = "test -f $PREFIX/share/one\ntest -f $PREFIX/share/dep\n" + ("" if passes else "exit 3\n")
    LocalChannel(root=tmp_path / "channel").add([(downstream(tmp_path, "user", script), "linux-64")])
    test = "test:\n  downstreams: [user, absent]\n"
    ended = build(tmp_path, f"{META}build:\n  number: 0\n{SCRIPT}{test}", variants=variants)
    assert ended.returncode == (0 if passes else TestsFailed.exit_code), ended.stderr
    if not passes:
        assert "user, downstream of keys fail with exit code 3" in ended.stderr
        return
    words = (sys.executable, "-m", "kiln", "-C", str(tmp_path / "feedstock"), "report", "--json")
    report = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    assert "downstream user 1: 1 test passed" in report
    assert "downstream absent was not tested" in report


def test_unsupported_keys_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    meta = f"{META}build:\n  numbr: 1\n  pin_depends: strict\n{SCRIPT}source:\n  path: .\n  path_via_symlink: no\n"
    message = refused(tmp_path, RecipeFault, meta)
    assert "recipe/meta.yaml:5:3: unknown key 'build/numbr'" in message
    assert "did you mean 'number'" in message
    assert "recipe/meta.yaml:6:3: the engine rattler-build does not have 'build/pin_depends'" in message
    assert "'source/path_via_symlink'" in message
    assert "--engine conda-build" in message
    assert not list((tmp_path / "feedstock" / "build_artifacts").glob("work/*"))
