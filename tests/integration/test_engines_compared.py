"""Packages of the default engine and of conda-build, from the same recipes, compared file by file.

The differences that stay are those of docs/reference/packages.md; everything else must be equal.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kiln.conda_package import reader
from kiln.local_channel import Channel
from tests.feedstocks import written
from tests.packages import release_package
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
ENGINES = ("rattler-build", "conda-build")
pytestmark = [pytest.mark.needs("conda-build", "gcc", "readelf")]

SINGLE = """\
{% set version = "1.5" %}
package:
  name: keys
  version: {{ version }}

source:
  path: src  # a comment
  patches:
    - fix.patch

build:
  number: 2
  has_prefix_files:
    - share/data
    - share/one
  binary_has_prefix_files:
    - share/two
  ignore_prefix_files:
    - share/ignored
  no_link:
    - share/one
  script_env:
    - FIXED=1
  run_exports:
    - {{ pin_subpackage("keys", max_pin="x") }}
  features:
    - fast
  track_features:
    - slow
  script:
    - mkdir -p $PREFIX/share $PREFIX/bin $PREFIX/lib $PREFIX/empty
    - echo $PREFIX $FIXED $flavour >$PREFIX/share/one
    - echo $PREFIX >$PREFIX/share/two
    - echo $PREFIX >$PREFIX/share/three
    - echo $PREFIX >$PREFIX/share/ignored
    - printf 'a\\0%s\\0' $PREFIX >$PREFIX/share/data
    - printf 'a\\0%s/x\\0%s/yy\\0' $PREFIX $PREFIX >$PREFIX/share/binary
    - echo plain >$PREFIX/share/plain
    - printf '#!/bin/sh\\necho hello\\n' >$PREFIX/bin/hello
    - chmod 755 $PREFIX/bin/hello
    - chmod 600 $PREFIX/share/plain
    - ln -s one $PREFIX/share/link
    - ln -s $PREFIX/share/one $PREFIX/share/absolute
    - ln -s ../share $PREFIX/bin/folder
    - ln -s nowhere $PREFIX/share/dangling
    - ln $PREFIX/share/plain $PREFIX/share/hard
    - cp file.txt $PREFIX/share/
    - printf 'int f(void) { return 0; }' >f.c
    - printf 'int f(void); int main(void) { return f(); }' >main.c
    - gcc -shared -fPIC f.c -o $PREFIX/lib/libf.so
    - gcc main.c -o $PREFIX/bin/main -L$PREFIX/lib -lf -Wl,-rpath,$PREFIX/lib

requirements:
  build:
    - tool
  host:
    - dep
    - other >=1
  run:
    - runner >=1.0,<2
    - {{ pin_compatible("other") }}
  run_constrained:
    - rival >=3

test:
  requires:
    - tool
  files:
    - '*.dat'
  source_files:
    - file.txt
    - tests
  commands:
    - test -f deep/x.dat
    - test -f $PREFIX/share/one
    - test -f file.txt
    - main
    - echo tested keys

about:
  home: https://example.org
  license: MIT
  license_file:
    - LICENSE
    - licenses/OTHER
  license_family: MIT
  summary: Tests keys
  description: |
    Long
    text.
  dev_url: https://dev.example.org
  doc_url: https://doc.example.org
  keywords:
    - a
    - b

extra:
  recipe-maintainers:
    - abc
    - zed
  feedstock-name: keys
"""
SINGLE_FILES = {
    "recipe/src/file.txt": "old\n",
    "recipe/src/tests/one.txt": "t",
    "recipe/src/licenses/OTHER": "other",
    "recipe/LICENSE": "free",
    "recipe/fix.patch": "--- a/file.txt\n+++ b/file.txt\n@@ -1 +1 @@\n-old\n+new\n",
    "recipe/deep/x.dat": "dat",
    "recipe/run_test.sh": "echo ran\n",
    "recipe/post-link.sh": "true\n",
    "recipe/.hidden": "h",
}
OUTPUTS = """\
package:
  name: top
  version: "1"
source:
  path: src
build:
  number: 1
outputs:
  - name: first
    script: first.sh
    test:
      script: check.sh
      files:
        - '*.dat'
    about:
      summary: First
    build:
      run_exports:
        strong:
          - {{ pin_subpackage("first", exact=True) }}
  - name: second
    build:
      noarch: generic
    script: second.sh
    requirements:
      host:
        - dep
      run:
        - {{ pin_subpackage("first", max_pin="x") }}
    test:
      commands:
        - test -f $PREFIX/share/second
        - echo tested second
      requires:
        - tool
  - name: third
    files:
      - share/third*
    test:
      commands:
        - echo tested third
  - name: pure
    build:
      noarch: python
      entry_points:
        - pure = pure:main
    script: pure.sh
    requirements:
      run:
        - python
about:
  home: https://example.org
  license: MIT
  license_file: LICENSE
  summary: Top
extra:
  recipe-maintainers:
    - zed
"""
OUTPUTS_FILES = {
    "recipe/build.sh": "mkdir -p $PREFIX/share; cd $PREFIX/share; echo $PREFIX >third; echo $flavour >third-x\n",
    "recipe/src/a": "a",
    "recipe/first.sh": "mkdir -p $PREFIX/share; echo first >$PREFIX/share/first\n",
    "recipe/second.sh": "mkdir -p $PREFIX/share; echo $PREFIX >$PREFIX/share/second\n",
    "recipe/pure.sh": 'sp="$PREFIX/lib/python3.11/site-packages"; mkdir -p "$sp"; echo "main = print" >"$sp/pure.py"\n',
    "recipe/check.sh": "test -f $PREFIX/share/first && echo tested first\n",
    "recipe/a.dat": "d",
    "recipe/LICENSE": "free",
}
RECIPES = {"single": (SINGLE, SINGLE_FILES), "outputs": (OUTPUTS, OUTPUTS_FILES)}
# What of a package is of its engine, its build or its machine: docs/reference/packages.md gives the reasons.
ABOUT_ALONE = {"channels", "conda_build_version", "conda_version", "env_vars", "rattler_build_version", "root_pkgs"}
EXTRA_ALONE = {"copy_test_source_files", "final", "flow_run_id", "parent_recipe", "remote_url", "sha"}
PLACEHOLDER = re.compile(rb"/[^\s\0:\"']*_env_placehold[^\s\0:\"'/]*")


@dataclass(frozen=True)
class Package:
    """The members of a package: their contents, whether they can be executed, and what links point to."""

    path: Path
    contents: Mapping[str, bytes]
    modes: Mapping[str, tuple[bool, str]]

    @classmethod
    def read(cls, path: Path) -> Package:
        contents, modes = {}, {}
        with reader.reading(path) as members:
            for member, content in members:
                if not member.isdir():
                    contents[member.name] = b"" if content is None else PLACEHOLDER.sub(b"PREFIX", content.read())
                    modes[member.name] = (bool(member.mode & 0o100) or member.issym(), member.linkname)
        return cls(path, contents, modes)

    def json(self, name: str) -> Any:
        return json.loads(self.contents[f"info/{name}"])

    def yaml(self, name: str) -> Any:
        return yaml.safe_load(self.contents[f"info/{name}"])

    def payload(self) -> dict[str, bytes]:
        return {name: data for name, data in self.contents.items() if not name.startswith("info/")}


@pytest.fixture(scope="module", params=sorted(RECIPES))
def pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Package, ...]]:
    """The packages of a recipe by name, each of both engines."""
    folder = tmp_path_factory.mktemp(request.param)
    meta, files = RECIPES[request.param]
    channel = Channel(root=folder / "channel")
    for name in ("tool", "dep", "other", "runner"):
        channel.add([(release_package(folder / "made", name, "1.2"), "linux-64")])
    channel.add([(python(folder / "made"), "linux-64")])
    variants = f"channel_sources:\n  - {channel.url}\nflavour:\n  - sweet\n"
    made = [packages(folder / engine, engine, meta, variants, files) for engine in ENGINES]
    assert made[0].keys() == made[1].keys()
    return {name: tuple(each[name] for each in made) for name in made[0]}


def python(folder: Path) -> Path:
    """Return a package whose python is the running one."""
    program = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    return release_package(folder, "python", "3.11.0", payload={"bin/python": program.encode()})


def packages(folder: Path, engine: str, meta: str, variants: str, files: Mapping[str, str]) -> dict[str, Package]:
    feedstock = written(folder / "feedstock", meta, variants, files=files)
    words = (sys.executable, "-m", "kiln", "-C", str(feedstock.root))
    subprocess.run((*words, "rerender", "--no-pinning"), cwd=ROOT, check=True, capture_output=True)
    argv = (*words, "build", "--all", "--container", "none", "--engine", engine)
    ended = subprocess.run(argv, cwd=ROOT, text=True, capture_output=True, check=False, timeout=CEILING)
    assert ended.returncode == 0, ended.stderr
    paths = (feedstock.root / "build_artifacts").glob("*/*.conda")
    return {path.name: Package.read(path) for path in paths}


def test_files_modes_and_links_are_equal(pairs: dict[str, tuple[Package, ...]]) -> None:
    for own, other in pairs.values():
        assert own.modes == {name: mode for name, mode in other.modes.items() if name != "info/git"}
        elf = {name for name, data in own.payload().items() if data.startswith(b"\x7fELF")}
        for name in own.payload().keys() - elf:
            assert own.contents[name] == other.contents[name], name


def test_search_paths_of_binaries_are_equal(pairs: dict[str, tuple[Package, ...]], tmp_path: Path) -> None:
    for own, other in pairs.values():
        for name, data in own.payload().items():
            if data.startswith(b"\x7fELF"):
                assert dynamic(data, tmp_path / "own") == dynamic(other.contents[name], tmp_path / "other"), name


def dynamic(data: bytes, file: Path) -> list[str]:
    """Return the needed libraries and the search path of a binary."""
    file.write_bytes(data)
    printed = subprocess.run(("readelf", "-d", file), capture_output=True, text=True, check=True).stdout
    return sorted(re.findall(r"\((?:NEEDED|RUNPATH|RPATH|SONAME)\).*", printed.replace("$ORIGIN/.]", "$ORIGIN/]")))


def test_metadata_is_equal(pairs: dict[str, tuple[Package, ...]]) -> None:
    for own, other in pairs.values():
        assert own.json("hash_input.json") == other.json("hash_input.json")
        indices = [{**package.json("index.json"), "timestamp": 0} for package in (own, other)]
        assert indices[0] == indices[1]
        for name in ("run_exports.json", "link.json"):
            if f"info/{name}" in other.contents:
                assert own.json(name) == other.json(name)
        assert about(own) == about(other)
        for name in ("files", "no_link", *(name for name in own.contents if name.startswith("info/licenses/"))):
            assert own.contents.get(f"info/{name}") == other.contents.get(f"info/{name}")


def about(package: Package) -> dict[str, Any]:
    values = {key: value for key, value in package.json("about.json").items() if key not in ABOUT_ALONE}
    extra = {key: value for key, value in values["extra"].items() if key not in EXTRA_ALONE}
    return {**values, "extra": extra}


def test_paths_are_equal(pairs: dict[str, tuple[Package, ...]]) -> None:
    for own, other in pairs.values():
        entries = [package.json("paths.json")["paths"] for package in (own, other)]
        for entry, expected in zip(*entries, strict=True):
            alone = {"sha256", "size_in_bytes"} if varies(entry, own) else set[str]()
            assert {key: value for key, value in entry.items() if key not in alone} == {
                key: value for key, value in expected.items() if key not in alone
            }


def varies(entry: Mapping[str, Any], package: Package) -> bool:
    """Return whether the bytes of a file, or of a link's target, are those of a build or of a compiler's run."""
    data = package.contents.get(entry["_path"], b"")
    return entry["path_type"] == "softlink" or b"PREFIX" in data or data.startswith(b"\x7fELF")


def test_the_recipe_is_equal(pairs: dict[str, tuple[Package, ...]]) -> None:
    for own, other in pairs.values():
        for name in own.contents:
            generated = name in {"info/recipe/meta.yaml", "info/recipe/conda_build_config.yaml"}
            if name.startswith("info/recipe/") and not generated:
                assert own.contents[name] == other.contents[name], name
        assert recipe(own) == recipe(other)
        assert variant(own) == variant(other)


def recipe(package: Package) -> Any:
    """Return the rendered recipe without the order of lists, the types of numbers, and what the engines alone have."""
    values = package.yaml("recipe/meta.yaml")
    source = {**values["source"], "path": Path(values["source"]["path"]).name}
    extra = {key: value for key, value in values["extra"].items() if key not in EXTRA_ALONE - {"final"}}
    build = {key: value for key, value in values["build"].items() if value is not False}
    needs = {key: value for key, value in values["requirements"].items() if value}
    return ordered({**values, "source": source, "extra": extra, "build": build, "requirements": needs})


def variant(package: Package) -> Any:
    values = package.yaml("recipe/conda_build_config.yaml")
    return ordered({key: value for key, value in values.items() if key != "channel_sources"})


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(item) for key, item in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else str(value)


def test_the_files_of_tests_are_equal_but_for_blank_lines(pairs: dict[str, tuple[Package, ...]]) -> None:
    for own, other in pairs.values():
        for name, data in own.contents.items():
            if name.startswith("info/test/"):
                assert data.split() == other.contents[name].split(), name


def test_conda_build_tests_a_package_from_itself(pairs: dict[str, tuple[Package, ...]], tmp_path: Path) -> None:
    """Without its feedstock: the recipe, the scripts and the files of the tests are those in the package."""
    own = [package for package, _ in pairs.values()]
    channel = tmp_path / "channel"
    for package in own:
        folder = channel / package.path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.path, folder)
    settings = {"channels": [(own[0].path.parents[4] / "channel").as_uri()], "default_channels": []}
    (tmp_path / "condarc").write_text(json.dumps(settings))
    environment = {**os.environ, "CONDARC": str(tmp_path / "condarc"), "CONDA_PKGS_DIRS": str(tmp_path / "pkgs")}
    tested = [package for package in own if "info/test/run_test.sh" in package.contents]
    assert tested
    for package in tested:
        file = channel / package.path.parent.name / package.path.name
        argv = ("conda-build", "--test", str(file), "--croot", str(tmp_path / "croot"))
        ended = subprocess.run(argv, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"tested {package.json('index.json')['name']}" in ended.stdout
