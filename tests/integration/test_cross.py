"""Configs for linux-aarch64 are cross-compiled on linux-64, in the environment of conda-forge's cross-compilations."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import open_package_members, read_info_json
from kiln.conda.solve import solve
from kiln.container import emulation
from kiln.feedstock import matrix, rerender
from tests import builders
from tests.packages import compiler_stand_in, release_package

if TYPE_CHECKING:
    from kiln.recipe.feedstock import Feedstock

ROOT = Path(__file__).parents[2]
CC, QEMU = "aarch64-linux-gnu-gcc", "qemu-aarch64-static"
# A user namespace has registrations of its own since Linux 6.7, and none at first.
WITHOUT_EMULATION = (
    *("unshare", "--user", "--map-root-user", "--mount", "bash", "-c"),
    *('set -e; mount -t binfmt_misc none /proc/sys/fs/binfmt_misc; "$@"', "bash"),
)
ENVIRONMENT = """\
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
    feedstock = builders.feedstock(tmp_path / "feedstock", ENVIRONMENT, variants, FORGE)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    words = ("-C", str(feedstock.root), "build", "linux_aarch64_", "--container", "none", "--json")
    before = WITHOUT_EMULATION if emulation.can_run_platform("linux-aarch64", in_container=False) else ()
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


CONFIG, AARCH64 = "linux_aarch64_", 183
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SUFFIX = f".cpython-{sys.version_info.major}{sys.version_info.minor}-aarch64-linux-gnu.so"
SYSCONFIG = "_sysconfigdata__linux_aarch64-linux-gnu"
SYSROOT = Path("/usr/aarch64-linux-gnu/lib")
SETTINGS = f"CONDA_BUILD_SYSROOT=/ QEMU_LD_PREFIX={SYSROOT.parent}"
META = """\
package:
  name: greetings
  version: 1.2
source:
  path: src
build:
  number: 0
outputs:
  - name: libgreeting
    script: library.sh
    build:
      run_exports:
        - {{ pin_subpackage("libgreeting") }}
    requirements:
      build:
        - {{ compiler("c") }}
    test:
      commands:
        - test -f $PREFIX/lib/libgreeting.so
    about: &about
      license: MIT
      license_file: LICENSE
  - name: greeting
    script: program.sh
    requirements:
      build:
        - {{ compiler("c") }}
      host:
        - {{ pin_subpackage("libgreeting", exact=True) }}
    test:
      commands:
        - test "$(greeting)" = "hello from aarch64"
        - test "$($PREFIX/bin/greeting)" = "hello from aarch64"
    about: *about
  - name: py-greeting
    script: binding.sh
    requirements:
      build:
        - {{ compiler("c") }}
        - python                              # [build_platform != target_platform]
        - cross-python_{{ target_platform }}  # [build_platform != target_platform]
      host:
        - python
        - {{ pin_subpackage("libgreeting", exact=True) }}
      run:
        - python
    test:
      commands:
        - test -f $PREFIX/lib/python*/site-packages/greeting.cpython-*-aarch64-linux-gnu.so
    about: *about
about:
  license: MIT
  license_file: LICENSE
"""
BINDING_SOURCES = {
    "recipe/src/LICENSE": "Do as you like.\n",
    "recipe/src/greeting.c": '#include <stdio.h>\nvoid greet(void) { puts("hello from aarch64"); }\n',
    "recipe/src/main.c": "void greet(void);\nint main(void) { greet(); return 0; }\n",
    "recipe/src/binding.c": """\
#include <Python.h>
void greet(void);
static PyObject *call(PyObject *self, PyObject *nothing) { greet(); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"greet", call, METH_NOARGS, "Greet."}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "greeting", 0, -1, methods};
PyMODINIT_FUNC PyInit_greeting(void) { return PyModule_Create(&module); }
""",
    "recipe/library.sh": 'mkdir -p "$PREFIX/lib"\n$CC -shared -fPIC greeting.c -o "$PREFIX/lib/libgreeting.so"\n',
    # A recipe's own check runs by the emulator that conda-forge's builds name.
    "recipe/program.sh": """\
mkdir -p "$PREFIX/bin"
$CC main.c -L"$PREFIX/lib" -lgreeting -Wl,-rpath,"$PREFIX/lib" -o "$PREFIX/bin/greeting"
test "$($CROSSCOMPILING_EMULATOR "$PREFIX/bin/greeting")" = "hello from aarch64"
test "$CMAKE_CROSSCOMPILING_EMULATOR" = "$CROSSCOMPILING_EMULATOR"
""",
    # As a build backend does: the interpreter of the build machine is asked about the target's Python.
    "recipe/binding.sh": """\
suffix=$($PYTHON -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
include=$($PYTHON -c 'import sysconfig; print(sysconfig.get_path("include"))')
test "$(python -c 'import sysconfig; print(sysconfig.get_platform())')" = linux-aarch64
mkdir -p "$SP_DIR"
$CC -shared -fPIC -I"$include" binding.c -L"$PREFIX/lib" -lgreeting -Wl,-rpath,"$PREFIX/lib" \\
    -o "$SP_DIR/greeting$suffix"
""",
    "outputs.txt": "*greeting\n",
}
# What conda-forge's cross-python does at its activation, without crossenv: after it, both `$PYTHON` and the `python` on
# PATH are the build machine's interpreter, which takes itself for the target's.
CROSS_PYTHON = f"""\
if [ "${{CONDA_BUILD:-0}}" = 1 ] && [ "${{CONDA_BUILD_STATE:-}}" != TEST ]; then
    : "${{BUILD_PREFIX:?}}" "${{PREFIX:?}}" "${{PY_VER:?}}" "${{PYTHON:?}}" "${{CONDA_BUILD_SYSROOT:?}}"
    mkdir -p "$PREFIX/bin"
    mv "$BUILD_PREFIX/bin/python" "$BUILD_PREFIX/bin/build-python"
    for place in "$PREFIX/bin/python" "$BUILD_PREFIX/bin/python"; do
        rm -f "$place"
        printf '%s\\n' '#!/bin/sh' \\
            "export _PYTHON_HOST_PLATFORM=linux-aarch64 _PYTHON_SYSCONFIGDATA_NAME={SYSCONFIG}" \\
            "export PYTHONPATH=$PREFIX/lib/python$PY_VER" \\
            "exec $BUILD_PREFIX/bin/build-python \\"\\$@\\"" > "$place"
        chmod +x "$place"
    done
fi
"""


def build_python(folder: Path) -> Path:
    """Return a package that stands for the build machine's Python: it runs the one of these tests."""
    script = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    return release_package(folder, "python", f"{PYTHON}.0", "0_cpython", payload={"bin/python": script.encode()})


def host_python(folder: Path) -> Path:
    """Return a package that stands for the target's Python: headers, and the values that `sysconfig` reads."""
    headers = Path(sysconfig.get_path("include"))
    library = f"lib/python{PYTHON}"
    values = f'build_time_vars = {{"EXT_SUFFIX": "{SUFFIX}", "INCLUDEPY": "@", "Py_ENABLE_SHARED": 0}}\n'
    payload = {
        f"include/python{PYTHON}/{file.relative_to(headers)}": file.read_bytes() for file in headers.rglob("*.h")
    }
    payload |= {f"{library}/{SYSCONFIG}.py": values.encode(), "bin/python": b"#!/bin/sh\nexit 1\n"}
    return release_package(folder, "python", f"{PYTHON}.0", "0_cpython", payload=payload, subdir="linux-aarch64")


def sysroot(folder: Path) -> Path:
    """Return a package that stands for conda-forge's C library of the target: it has Debian's."""
    names = ("ld-linux-aarch64.so.1", "libc.so.6")
    payload = {f"aarch64-conda-linux-gnu/sysroot/lib/{name}": (SYSROOT / name).read_bytes() for name in names}
    return release_package(folder, "sysroot_linux-aarch64", "2.28", payload=payload, subdir="noarch")


@pytest.fixture
def channel(tmp_path: Path) -> LocalChannel:
    """Return a channel of packages that stand for conda-forge's."""
    result, folder = LocalChannel(root=tmp_path / "channel"), tmp_path / "made"
    hook = {"etc/conda/activate.d/activate_z-cross-python.sh": CROSS_PYTHON.encode()}
    cross = release_package(folder, "cross-python_linux-aarch64", PYTHON, payload=hook)
    target = host_python(folder / "target")
    result.add(
        [
            *(
                (package, "linux-64")
                for package in (compiler_stand_in(folder, CC, "linux-aarch64", SETTINGS), build_python(folder), cross)
            ),
            (target, "linux-aarch64"),
            (sysroot(folder), "noarch"),
        ]
    )
    return result


def kiln(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run kiln in a feedstock, where the kernel runs no programs of the target."""
    command = (*WITHOUT_EMULATION, sys.executable, "-m", "kiln", "-C", str(folder), *words)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)


def said(result: subprocess.CompletedProcess[str]) -> str:
    return result.stdout + result.stderr


@pytest.fixture
def feedstock(channel: LocalChannel, tmp_path: Path) -> Feedstock:
    """Return the feedstock, with one config: for linux-aarch64 on linux-64."""
    if subprocess.run((*WITHOUT_EMULATION, "true"), check=False, capture_output=True).returncode:
        pytest.skip("no binfmt_misc in user namespaces")
    variants = (
        f"channel_sources:\n  - {channel.url}\nc_compiler:\n  - gcc\nc_compiler_version:\n  - 14\n"
        f"python:\n  - {PYTHON}.* *_cpython\n"
    )
    result = builders.feedstock(tmp_path / "feedstock", META, variants, FORGE, BINDING_SOURCES)
    rerender.write_ci_support(result, [config for config in matrix.configs(result) if config.name == CONFIG])
    assert [file.stem for file in result.config_folder.glob("*.yaml")] == [CONFIG]
    return result


@pytest.mark.sampled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="it is built on linux-64")
@pytest.mark.needs(CC, QEMU, "unshare")
def test_a_cross_compiled_binding_is_published_without_tests_on_request_alone(
    feedstock: Feedstock, tmp_path: Path
) -> None:
    built = kiln(feedstock.root, "build", CONFIG, "--container", "none")
    assert built.returncode == 0, said(built)
    assert said(built).count("not tested: it is cross-compiled, for linux-aarch64 on linux-64") == 3
    binding = next((feedstock.root / "build_artifacts" / "linux-aarch64").glob("py-greeting-*.conda"))
    assert f"lib/python{PYTHON}/site-packages/greeting{SUFFIX}" in (members := elf_machines(binding))
    assert set(members.values()) == {AARCH64}
    assert "libgreeting >=1.2,<2.0a0" in read_info_json(binding, "index.json")["depends"]

    release = ("publish", "--to", str(tmp_path / "release"))
    refused = kiln(feedstock.root, *release)
    assert refused.returncode == 21, said(refused)
    assert said(refused).count("--allow-untested linux-aarch64 accepts that") == 3
    published = kiln(feedstock.root, *release, "--allow-untested", "linux-aarch64", "--json")
    assert published.returncode == 0, said(published)
    assert len(json.loads(published.stdout)["published"]) == 3
    assert "install py-greeting" in published.stderr
    records = recorded(tmp_path / "release")
    facts = {(record["tests"], record["cross_compiled"]) for record in records}
    assert facts == {("skipped", "cross-compiled for linux-aarch64 on linux-64")}
    found = solve([(tmp_path / "release").as_uri()], ["greeting"], virtual_packages={}, platform="linux-aarch64")
    assert {record.subdir for record in found} == {"linux-aarch64"}
    verified = kiln(feedstock.root, "verify", str(next((tmp_path / "release/linux-aarch64").glob("greeting-*.conda"))))
    assert verified.returncode == 0, said(verified)
    assert "cross-compiled for linux-aarch64 on linux-64, without its tests" in verified.stdout
    assert "the channel's index has the same hash" in verified.stdout


def recorded(channel: Path) -> list[dict[str, str]]:
    """Return the records of a channel's packages."""
    statements = [json.loads(file.read_text()) for file in channel.glob("provenance/*/*.intoto.json")]
    return [statement["predicate"]["buildDefinition"]["internalParameters"] for statement in statements]


def elf_machines(package: Path) -> dict[str, int]:
    """Return the machine of each binary of a package, by the number in its header."""
    with open_package_members(package) as members:
        texts = {member.name: content.read() for member, content in members if content}
    binaries = {name: data for name, data in texts.items() if data.startswith(b"\x7fELF")}
    return {name: int.from_bytes(data[18:20], "little") for name, data in binaries.items()}
