"""A config for linux-aarch64 is cross-compiled on linux-64, in the environment of conda-forge's cross-compilations."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import open_package_members, read_info_json
from kiln.container import emulation
from kiln.feedstock import matrix, rerender
from tests import builders, emulating
from tests.emulating import QEMU
from tests.packages import release_package

ROOT = Path(__file__).parents[2]
CC = "aarch64-linux-gnu-gcc"
COMPILED = """\
package:
  name: greeting
  version: 1.2
source:
  path: src
build:
  number: 0
  script: test -n "$CC"
requirements:
  build:
    - {{ compiler("c") }}
outputs:
  - name: libgreeting
    script: library.sh
    build:
      run_exports:
        - {{ pin_subpackage("libgreeting") }}
    requirements:
      build:
        - {{ compiler("c") }}
  - name: greeting
    script: program.sh
    requirements:
      build:
        - {{ compiler("c") }}
      host:
        - {{ pin_subpackage("libgreeting", exact=True) }}
    test:
      commands:
        - greeting
about:
  license: MIT
"""
SOURCES = {
    "recipe/src/greeting.c": '#include <stdio.h>\nvoid greet(void) { puts("hello from aarch64"); }\n',
    "recipe/src/main.c": "void greet(void);\nint main(void) { greet(); return 0; }\n",
    "recipe/library.sh": 'mkdir -p "$PREFIX/lib"\n$CC -shared -fPIC greeting.c -o "$PREFIX/lib/libgreeting.so"\n',
    "recipe/program.sh": 'mkdir -p "$PREFIX/bin"\n'
    '$CC main.c -L"$PREFIX/lib" -lgreeting -Wl,-rpath,"$PREFIX/lib" -o "$PREFIX/bin/greeting"\n',
}
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
    channel = LocalChannel(root=tmp_path / "channel")
    compiler = release_package(tmp_path / "made", "gcc_linux-aarch64", "14")
    tool = release_package(tmp_path / "made", "cross-tool", "1")
    library = release_package(tmp_path / "made", "library", "2.1", subdir="linux-aarch64")
    wrong = release_package(tmp_path / "wrong", "library", "9", "wrong")
    (tmp_path / "channel" / "linux-aarch64").mkdir(parents=True)
    channel.add([(compiler, "linux-64"), (tool, "linux-64"), (wrong, "linux-64"), (library, "linux-aarch64")])
    variants = f"channel_sources:\n  - {channel.url}\nc_compiler:\n  - gcc\nc_compiler_version:\n  - 14\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", META, variants, FORGE)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    words = ("-C", str(feedstock.root), "build", "linux_aarch64_", "--container", "none", "--json")
    before = emulating.prefix(emulated=False) if emulation.can_run_platform("linux-aarch64", in_container=False) else ()
    command = [*before, sys.executable, "-m", "kiln", *words]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert built.returncode == 0, built.stdout + built.stderr
    (package,) = (feedstock.root / "build_artifacts" / "linux-aarch64").glob("hello-1.0-*.conda")
    index = read_info_json(package, "index.json")
    assert (index["subdir"], index["arch"]) == ("linux-aarch64", "aarch64")
    assert "library >=2.1,<3.0a0" in index["depends"]
    hashed = read_info_json(package, "hash_input.json")
    assert hashed["target_platform"] == "linux-aarch64"
    digest = hashlib.sha1(json.dumps(hashed, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    assert index["build"] == f"h{digest[:7]}_3"
    with open_package_members(package) as members:
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


def compiler(folder: Path) -> Path:
    """Return a package that stands for conda-forge's cross compiler: it names Debian's."""
    hook = f"export CC={shutil.which(CC)}\n"
    return release_package(folder, "gcc_linux-aarch64", "14", payload={"etc/conda/activate.d/gcc.sh": hook.encode()})


@pytest.mark.sampled
@pytest.mark.needs(CC, QEMU)
def test_what_debians_cross_compiler_makes_runs_on_the_target(tmp_path: Path) -> None:
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(compiler(tmp_path / "made"), "linux-64")])
    variants = f"channel_sources:\n  - {channel.url}\nc_compiler:\n  - gcc\nc_compiler_version:\n  - 14\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", COMPILED, variants, FORGE, SOURCES)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    words = ("-C", str(feedstock.root), "build", "linux_aarch64_", "--container", "none")
    built = subprocess.run(
        [sys.executable, "-m", "kiln", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    packages = sorted((feedstock.root / "build_artifacts" / "linux-aarch64").glob("*.conda"))
    prefix = tmp_path / "prefix"
    for package in packages:
        index = read_info_json(package, "index.json")
        assert index["subdir"] == "linux-aarch64"
        unpacked(package, prefix)
    library = json.loads((packages[0].parent / "repodata.json").read_text())["packages.conda"][packages[1].name]
    assert library["name"] == "libgreeting"
    depends = read_info_json(packages[0], "index.json")["depends"]
    assert depends == ["libgreeting >=1.2,<2.0a0"]
    libc = subprocess.run([CC, "-print-sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    roots = (os.environ.get("QEMU_LD_PREFIX"), f"{libc.rstrip('/')}/usr/aarch64-linux-gnu")
    root = next(folder for folder in roots if folder and Path(folder).is_dir())
    said = subprocess.run(
        [QEMU, "-L", root, str(prefix / "bin" / "greeting")], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout) == (0, "hello from aarch64\n"), said.stderr


def unpacked(package: Path, prefix: Path) -> None:
    """Unpack a package's files, without its metadata, into a folder other than the one that it was built in."""
    with open_package_members(package) as members:
        for member, content in members:
            if content is not None and not member.name.startswith("info/"):
                target = prefix / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
                target.chmod(member.mode)
