"""Programs for C and C++ with the small TensorFlow's libraries in a clean prefix, in the three ways of check_link.sh.

The machine's compiler makes the libraries; the recipe's scripts put them and the headers of a wheel into the prefix.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "fixtures" / "small-tensorflow" / "recipe"
SOURCE = RECIPE / "source"
VERSION = "2.0.1"
INTERFACE = ("tensorflow/c/c_api.cc", "tensorflow/core/kernels/saxpy.cc", "tensorflow/core/kernels/no_cuda.cc")
PKG_CONFIG, CMAKE = "by pkg-config", "by CMake"
# The headers of the wheel (tools/pip_package/BUILD), by their places in the sources.
HEADERS = {
    "tensorflow/c/": ("tensorflow/c/c_api.h",),
    "tensorflow/core/framework/": ("tensorflow/core/framework/op_kernel.h", "tensorflow/core/framework/registry.h"),
    "absl/status/": ("third_party/absl/status/status.h",),
    "google/protobuf/": ("third_party/protobuf/message.h",),
    "tsl/": ("third_party/tsl/types.h",),
    "xla/": ("third_party/xla/types.h",),
}

pytestmark = [
    pytest.mark.slow("programs are compiled and linked with each of pkg-config, CMake and the compiler"),
    pytest.mark.needs("g++", "gcc", "cmake", "make", "pkg-config"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder dist/ as build.sh leaves it: a wheel, whose library has no ClientSession, and the libraries."""
    dist = tmp_path_factory.mktemp("dist")
    lib, wheel = dist / "libraries" / "lib", dist / "wheel"
    lib.mkdir(parents=True)
    wheel.mkdir()
    link(lib, "libtensorflow_framework", sources("core/framework"))
    operations = (*sources("core/ops"), *INTERFACE)
    link(lib, "libtensorflow", operations, lib)
    link(lib, "libtensorflow_cc", (*operations, "tensorflow/cc/client/client_session.cc"), lib)
    link(wheel, "libtensorflow_cc", operations, lib)
    for header in ("cc/client/client_session.h", "cc/framework/scope.h"):
        target = dist / "libraries" / "include" / "tensorflow" / header
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCE / "tensorflow" / header, target)
    pip_package = SOURCE / "tensorflow" / "tools" / "pip_package"
    with zipfile.ZipFile(dist / f"tensorflow-{VERSION}-cp311-cp311-linux_x86_64.whl", "w") as archive:
        archive.write(lib / "libtensorflow_framework.so.2", "tensorflow/libtensorflow_framework.so.2")
        archive.write(wheel / "libtensorflow_cc.so.2", "tensorflow/libtensorflow_cc.so.2")
        archive.write(pip_package / "LICENSE", "tensorflow/include/LICENSE")
        archive.write(pip_package / "THIRD_PARTY_NOTICES.txt", "tensorflow/THIRD_PARTY_NOTICES.txt")
        for place, headers in HEADERS.items():
            for header in headers:
                archive.write(SOURCE / header, f"tensorflow/include/{place}{Path(header).name}")
    shutil.rmtree(wheel)
    return dist


def sources(folder: str) -> list[str]:
    """Return the sources of C++ in a folder of the workspace."""
    return sorted(path.relative_to(SOURCE).as_posix() for path in (SOURCE / "tensorflow" / folder).glob("*.cc"))


def link(folder: Path, name: str, files: tuple[str, ...] | list[str], framework: Path | None = None) -> None:
    """Compile and link a library as the workspace's Bazel does."""
    words = ["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-I.", "-Ithird_party", *files]
    words += ["-o", str(folder / f"{name}.so.2"), f"-Wl,-soname,{name}.so.2", "-Wl,-rpath,$ORIGIN", "-ldl"]
    words += [str(framework / "libtensorflow_framework.so.2")] if framework else []
    subprocess.run(words, cwd=SOURCE, check=True)


def filled(prefix: Path, wheels: Path, outputs: tuple[str, ...]) -> Path:
    """Fill a prefix with outputs, by the recipe's script."""
    for output in outputs:
        words = [sys.executable, "-B", str(ROOT / "recipe" / "split_wheel.py"), "--output", output]
        words += ["--version", VERSION, "--wheels", str(wheels), "--prefix", str(prefix)]
        subprocess.run([*words, "--licenses", str(prefix / "licenses")], check=True, capture_output=True)
    return prefix


def check_link(prefix: Path, library: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the recipe's test of a library, with nothing of this machine's own search paths."""
    words = ("bash", "check_link.sh", library, VERSION)
    keep = {"PATH": os.environ["PATH"], "PREFIX": str(prefix), "HOME": str(prefix), **env}
    return subprocess.run(words, cwd=RECIPE, env=keep, text=True, capture_output=True, check=False)


def found(text: str, source: str) -> list[str]:
    """Return the ways in which a source's program was found to work, in the order of the test."""
    return re.findall(rf"(?m)^{re.escape(source)}, found (.*):\n", text)


def test_a_program_for_c_links_with_libtensorflow_alone(built: Path, tmp_path: Path) -> None:
    prefix = filled(tmp_path / "prefix", built, ("libtensorflow_framework", "libtensorflow"))
    ended = check_link(prefix, "tensorflow")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert found(ended.stdout, "check_link.c") == [PKG_CONFIG, CMAKE]
    assert ended.stdout.count("C: 1 + 2 + 3 = 6\n") == 2
    assert "skipped" not in ended.stdout


@pytest.mark.sampled
def test_programs_for_c_and_cpp_link_with_libtensorflow_cc_in_each_way(built: Path, tmp_path: Path) -> None:
    prefix = filled(tmp_path / "prefix", built, ("libtensorflow_framework", "libtensorflow_cc"))
    ended = check_link(prefix, "tensorflow_cc")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for source, way in (("check_link.c", PKG_CONFIG), ("check_link.cc", CMAKE), ("check_client_session.cc", CMAKE)):
        assert f"{source}, preprocessed with -I$PREFIX/include\n" in ended.stdout
        assert found(ended.stdout, source) == [way]
    for said in ("C: 1 + 2 + 3 = 6", "C++: done, 1 x 1 + 2 x 2 + 3 x 3 = 14", "ClientSession: the largest of 1, 7, 3"):
        assert ended.stdout.count(f"\n{said}") == 1
    assert "skipped" not in ended.stdout


@pytest.mark.sampled
def test_a_wheels_library_is_tested_without_the_session_that_it_lacks(built: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    shutil.copytree(built, wheels, ignore=shutil.ignore_patterns("libraries"))
    prefix = filled(tmp_path / "prefix", wheels, ("libtensorflow_framework", "libtensorflow_cc"))
    ended = check_link(prefix, "tensorflow_cc")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert found(ended.stdout, "check_link.cc") == [CMAKE]
    assert re.findall(r"(?m)^(.*): skipped", ended.stdout) == ["check_client_session.cc"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["tensorflow_cc.pc", "tensorflow_cc-config.cmake", "libtensorflow_cc.so"])
def test_a_file_that_is_missing_fails_the_test(built: Path, tmp_path: Path, name: str) -> None:
    prefix = filled(tmp_path / "prefix", built, ("libtensorflow_framework", "libtensorflow_cc"))
    (path,) = prefix.rglob(name)
    path.unlink()
    assert check_link(prefix, "tensorflow_cc").returncode != 0
