"""A config for linux-aarch64 is cross-compiled on linux-64, in the environment of conda-forge's cross-compilations."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import expand
from kiln.channel import Channel
from kiln.conda_package.reader import read_info, reading
from tests.feedstocks import written
from tests.packages import release_package

ROOT = Path(__file__).parents[2]
META = """\
package:
  name: hello
  version: 1.0
build:
  number: 3
  script:
    - ls "$BUILD_PREFIX/share" "$PREFIX/share"
    - test -e "$BUILD_PREFIX/share/cross-tool"
    - test ! -e "$PREFIX/share/cross-tool"
    - mkdir -p "$PREFIX/share/hello"
    - env | grep -E '^(build_platform|target_platform|CONDA_BUILD_CROSS_COMPILATION|SUBDIR|ARCH)=' | sort
      > "$PREFIX/share/hello/environment"
requirements:
  build:
    - {{ compiler("c") }}
    - cross-tool   # [build_platform != target_platform]
  host:
    - library
  run:
    - {{ pin_compatible("library") }}
test:
  commands:
    - exit 3
about:
  license: MIT
"""
FORGE = """\
build_platform:
  linux_aarch64: linux_64
provider:
  linux_64: default
  linux_aarch64: default
  osx_64: null
  win_64: null
conda_build:
  zstd_compression_level: 3
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it is built on linux-64")
def test_a_package_is_built_for_another_platform_and_not_tested(tmp_path: Path) -> None:
    channel = Channel(root=tmp_path / "channel")
    compiler = release_package(tmp_path / "made", "gcc_linux-aarch64", "14")
    tool = release_package(tmp_path / "made", "cross-tool", "1")
    library = release_package(tmp_path / "made", "library", "2.1", subdir="linux-aarch64")
    wrong = release_package(tmp_path / "wrong", "library", "9", "wrong")
    (tmp_path / "channel" / "linux-aarch64").mkdir(parents=True)
    channel.add([(compiler, "linux-64"), (tool, "linux-64"), (wrong, "linux-64"), (library, "linux-aarch64")])
    variants = f"channel_sources:\n  - {channel.url}\nc_compiler:\n  - gcc\nc_compiler_version:\n  - 14\n"
    feedstock = written(tmp_path / "feedstock", META, variants, FORGE)
    expand.write(feedstock, expand.configs(feedstock))
    words = ("-C", str(feedstock.root), "build", "linux_aarch64_", "--container", "none", "--json")
    built = subprocess.run(
        [sys.executable, "-m", "kiln", *words], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (package,) = (feedstock.root / "build_artifacts" / "linux-aarch64").glob("hello-1.0-*.conda")
    index = read_info(package, "index.json")
    assert (index["subdir"], index["arch"]) == ("linux-aarch64", "aarch64")
    assert "library >=2.1,<3.0a0" in index["depends"]
    hashed = read_info(package, "hash_input.json")
    assert hashed["target_platform"] == "linux-aarch64"
    digest = hashlib.sha1(json.dumps(hashed, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    assert index["build"] == f"h{digest[:7]}_3"
    with reading(package) as members:
        texts = {member.name: content.read().decode() for member, content in members if content}
    assert texts["share/hello/environment"].splitlines() == [
        "ARCH=aarch64",
        "CONDA_BUILD_CROSS_COMPILATION=1",
        "SUBDIR=linux-aarch64",
        "build_platform=linux-64",
        "target_platform=linux-aarch64",
    ]
    index_of_channel = json.loads((package.parent / "repodata.json").read_text())
    assert package.name in index_of_channel["packages.conda"]
    assert "not tested: it is cross-compiled, for linux-aarch64 on linux-64" in built.stdout + built.stderr
