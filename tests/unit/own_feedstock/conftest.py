"""A TensorFlow wheel of a few bytes with all that the recipe's scripts look for, and those scripts as modules."""

from __future__ import annotations

import importlib
import struct
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECIPE = Path(__file__).parents[3] / "recipe"
SCRIPTS = (
    *("machine_limits", "kernels", "remote_execution", "compile_plan", "library_files", "elf_runpath", "wheel_files"),
    *("header_files", "development_files", "wheel_metadata", "split_wheel"),
)
SOLIB = "$ORIGIN/../../_solib_x86_64/_U_S"
NVIDIA = "$ORIGIN/../../nvidia/cublas/lib:$ORIGIN/../nvidia/cublas/lib"
# As setuptools writes it; RECORD is added by the fixture.
DIST_INFO = {
    "METADATA": "Metadata-Version: 2.4\nName: tensorflow_cpu\nVersion: 2.21.0\nRequires-Dist: libclang>=13.0.0\n"
    "Requires-Dist: six>=1.12.0\n\nName: is what the text below the blank line may say.\n",
    "WHEEL": "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_27_x86_64\n",
}


def shared_object(runpath: str | None, tail: bytes = b"") -> bytes:
    """An ELF file with one loaded segment, a dynamic section and, if given, a DT_RUNPATH, followed by other strings."""
    strings = b"\0libc.so.6\0" + (runpath or "").encode() + b"\0" + tail
    entries = [(5, 0x1000), *([(29, 11)] if runpath is not None else []), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *entry) for entry in entries)
    at = 64 + 2 * 56
    loaded = struct.pack("<IIQQQQQQ", 1, 4, at, 0x1000, 0x1000, len(strings), len(strings), 4096)
    place = at + len(strings)
    linked = struct.pack("<IIQQQQQQ", 2, 4, place, 0x9000, 0x9000, len(dynamic), len(dynamic), 8)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    return head + loaded + linked + strings + dynamic


def members(runpath: str) -> dict[str, bytes]:
    """The files of the wheel below tensorflow/, the libraries with a search path."""
    return {
        "__init__.py": b"",
        "THIRD_PARTY_NOTICES.txt": b"notices",
        "libtensorflow_framework.so.2": shared_object(runpath),
        "libtensorflow_cc.so.2": shared_object(runpath),
        "python/_pywrap.so": shared_object(f"{SOLIB}:$ORIGIN/../:$ORIGIN/"),
        "python/plain.so": shared_object(None),
        "include/LICENSE": b"licence",
        "include/tensorflow/c/c_api.h": b'#include "xla/x.h"\n',
        "include/tensorflow/c/c_api_internal.h": b'#include "tensorflow/core/x.h"\n',
        "include/tensorflow/core/x.h": b'#include <vector>\n  #  include "absl/x.h"\n#include "tsl/x.h"\n',
        "include/tsl/x.h": b"",
        "include/xla/x.h": b"",
        "include/absl/x.h": b'#include "absl/base/y.h"\n#include <absl/base/y.h>\n#include "base/y.h"\n',
        "include/absl/base/y.h": b"",
        "include/external/tree/x.h": b'#include "absl/x.h"\n',
        "include/external/local_config_python/python_include/Python.h": b"",
        "include/external/python_3_11_x86_64-unknown-linux-gnu/include/python3.11/Python.h": b"",
    }


@pytest.fixture(scope="session")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the bytecode of the recipe's modules, which are compiled once, and leave none in the recipe."""
    return tmp_path_factory.mktemp("bytecode")


@pytest.fixture
def scripts(bytecode: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The recipe's modules by name, importable only as long as the test runs."""
    sys.path.insert(0, str(RECIPE))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "pycache_prefix", str(bytecode))
        patch.setattr(sys, "dont_write_bytecode", False)
        modules = {name: importlib.import_module(name) for name in SCRIPTS}
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield type("Scripts", (), modules)
    sys.path.remove(str(RECIPE))
    for name in SCRIPTS:
        del sys.modules[name]


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Writes a wheel into dist/; keyword arguments change its name, leave a member out, add or replace others."""

    def make(
        name: str = "tensorflow_cpu",
        runpath: str = f"{SOLIB}:$ORIGIN/",
        without: str = "",
        platform: str = "manylinux_2_27_x86_64",
        **extra: bytes,
    ) -> Path:
        path = tmp_path / "dist" / f"{name}-2.21.0-cp311-cp311-{platform}.whl"
        path.parent.mkdir(exist_ok=True)
        info = f"{name}-2.21.0.dist-info"
        contents = {f"tensorflow/{file}": content for file, content in members(runpath).items()} | extra
        contents.pop(without, None)
        with zipfile.ZipFile(path, "w") as wheel:
            for file, content in contents.items():
                member = zipfile.ZipInfo(file, (2026, 3, 5, 0, 16, 0))
                member.external_attr = (0o100755 if file.endswith(".so") else 0o100644) << 16
                wheel.writestr(member, content)
            for file, text in DIST_INFO.items():
                wheel.writestr(f"{info}/{file}", text)
            rows = [f"{file},sha256=old,{len(content)}" for file, content in contents.items()]
            wheel.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,", ""]))
        return path

    return make


@pytest.fixture
def split(scripts: Any, tmp_path: Path) -> Callable[..., Path]:
    """Runs the splitter for outputs, as split.sh does; returns the prefix."""

    def run(*outputs: str, code: int = 0) -> Path:
        prefix = tmp_path / "prefix"
        for output in outputs:
            folders = ["--wheels", tmp_path / "dist", "--prefix", prefix, "--licenses", tmp_path / "licenses"]
            site = ["--site-packages", prefix / "lib/python3.11/site-packages"]
            arguments = ["--output", output, "--version", "2.21.0", *folders, *site]
            assert scripts.split_wheel.main([str(item) for item in arguments]) == code
        return prefix

    return run
