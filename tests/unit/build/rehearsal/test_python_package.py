"""The package ``python``: its names match the variants, and nothing in it leads back to where it came from."""

from __future__ import annotations

import json
import os
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import rattler

from kiln.base import process
from kiln.base.errors import BuildFailed, UnsupportedPython
from kiln.build.rehearsal import python_package
from kiln.build.rehearsal.python_package import (
    foreign_python_metadata,
    python_abi_metadata,
    python_metadata,
    relocatable_rpath,
    with_conda_install_schemes,
    write_python_packages,
)
from kiln.build.rehearsal.python_search import Interpreter
from kiln.conda.package_writer import PLACEHOLDER, write_metadata_only_package
from tests.unit.build.sample import content, info, interpreter, unpacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.conda.package_writer import PackageMetadata

SYSCONFIG = (
    "def _get_preferred_schemes():\n    return {'prefix': 'posix_local'}\n\n\n"
    "def get_preferred_scheme(key):\n    return _get_preferred_schemes()[key]\n"
)


def installed(root: Path, python: str = "3.12", *, standard_layout: bool = True) -> Interpreter:
    """An interpreter's files, small."""
    name = f"python{python}"
    stdlib = root / "lib" / name
    files = {
        root / "bin" / name: f"\x7fELF {root}/lib",
        stdlib / "os.py": "import sys",
        stdlib / "sysconfig.py": SYSCONFIG,
        stdlib / "_sysconfigdata__linux_x86_64-linux-gnu.py": f"build = {{'LIBDIR': '{root}/lib'}}",
        stdlib / "LICENSE.txt": "PSF",
        stdlib / "lib-dynload" / "_ssl.so": "\x7fELF",
        stdlib / "config-3" / "Makefile": f"prefix={root}",
        stdlib / "config-3" / "libpython.a": "static",
        stdlib / "site-packages" / "other.py": "x",
        stdlib / "dist-packages" / "other.py": "x",
        stdlib / "__pycache__" / "os.pyc": "x",
        stdlib / "test" / "test_os.py": "x",
        stdlib / "EXTERNALLY-MANAGED": "x",
        stdlib / "sitecustomize.py": "x",
        root / "include" / name / "Python.h": "header",
        root / "lib" / f"lib{name}.so.1.0": f"\x7fELF {root}/lib",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "lib" / f"lib{name}.so").symlink_to(f"lib{name}.so.1.0")
    return Interpreter(
        executable=root / "bin" / name,
        version=f"{python}.7",
        base_prefix=root,
        stdlib=stdlib,
        lib_dynload=stdlib / "lib-dynload",
        include=root / "include" / name,
        libraries=(root / "lib" / f"lib{name}.so.1.0",),
        standard_layout=standard_layout,
    )


class Patchelf:
    """Stands where processes start: the old search path is the library folder, the new one is noted."""

    def __init__(self, root: Path, *, works: bool = True) -> None:
        self.root, self.works, self.set = root, works, {}  # type: tuple[Path, bool, dict[str, str]]

    def __call__(self, argv: Sequence[str | Path], *, env: object) -> process.ProcessResult:
        words = [str(word) for word in argv]
        if "--set-rpath" in words:
            self.set[Path(words[-1]).name] = words[-2]
        exit_code, tail = (0, "") if self.works else (1, "not an ELF executable")
        return process.ProcessResult(argv=(), exit_code=exit_code, tail=tail, seconds=0.1, stdout=f"{self.root}/lib\n")


@pytest.fixture
def patchelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Patchelf:
    stand_in = Patchelf(tmp_path / "base")
    monkeypatch.setattr(process, "capture", stand_in)
    monkeypatch.setattr(process, "find_program", lambda program, env: Path(program))
    return stand_in


def matches(spec: str, facts: PackageMetadata) -> bool:
    record = rattler.PackageRecord(
        name=facts.name,
        version=facts.version,
        build=rattler.BuildString(facts.build),
        build_number=0,
        subdir="linux-64",
    )
    return rattler.MatchSpec(spec).matches(record)


@pytest.mark.parametrize(
    ("python", "spec"),
    [
        ("3.10", "3.10.* *_cpython"),
        ("3.11", "3.11.* *_cpython"),
        ("3.12", "3.12.* *_cpython"),
        ("3.13", "3.13.* *_cp313"),
    ],
)
def test_the_build_strings_match_the_variants(python: str, spec: str, tmp_path: Path) -> None:
    facts = python_metadata(installed(tmp_path, python), key="h0123456")
    assert matches(f"python {spec}", facts)
    assert matches(f"python_abi {python}.* *_cp{python.replace('.', '')}", python_abi_metadata(python))
    assert facts.run_exports == {"noarch": ("python",), "weak": facts.constrains}
    assert matches(python_abi_metadata(python).constrains[0], facts)


def test_the_package_holds_the_interpreter_and_no_one_elses_packages(tmp_path: Path, patchelf: Patchelf) -> None:
    package, abi = write_python_packages(installed(tmp_path / "base"), tmp_path, env={})
    result = unpacked(package)
    stdlib = "lib/python3.12"
    assert {name for name in result if not name.startswith("info/")} == {
        *("bin/python", "bin/python3", "bin/python3.12", "lib/libpython3.12.so", "lib/libpython3.12.so.1.0"),
        *(f"{stdlib}/os.py", f"{stdlib}/sysconfig.py", f"{stdlib}/_sysconfigdata__linux_x86_64-linux-gnu.py"),
        *(f"{stdlib}/LICENSE.txt", f"{stdlib}/lib-dynload/_ssl.so", f"{stdlib}/config-3/Makefile"),
        *(f"{stdlib}/site-packages/README.txt", "include/python3.12/Python.h"),
    }
    assert (result["bin/python"].linkname, result["bin/python3.12"].mode) == ("python3.12", 0o755)
    assert result["lib/libpython3.12.so"].linkname == "libpython3.12.so.1.0"
    assert content(package, "info/licenses/LICENSE.txt") == b"PSF"
    extra = info(package, "about")["extra"]
    assert extra["rehearsal"] is True
    assert extra["interpreter"] == str(tmp_path / "base/bin/python3.12")
    assert all(name.startswith("info/") for name in unpacked(abi))


def test_the_old_prefix_is_replaced_where_text_holds_it(tmp_path: Path, patchelf: Patchelf) -> None:
    package, _ = write_python_packages(installed(tmp_path / "base"), tmp_path, env={})
    assert patchelf.set == {"python3.12": "$ORIGIN/../lib", "libpython3.12.so.1.0": "$ORIGIN/../lib"}
    rows = {row["_path"]: row for row in info(package, "paths")["paths"]}
    data = "lib/python3.12/_sysconfigdata__linux_x86_64-linux-gnu.py"
    assert content(package, data).decode() == f"build = {{'LIBDIR': '{PLACEHOLDER}/lib'}}"
    assert content(package, "lib/python3.12/config-3/Makefile").decode() == f"prefix={PLACEHOLDER}"
    assert {path for path, row in rows.items() if "prefix_placeholder" in row} == {
        data,
        "lib/python3.12/config-3/Makefile",
    }


def test_a_file_that_cannot_be_patched_leaves_no_package(tmp_path: Path, patchelf: Patchelf) -> None:
    patchelf.works = False
    with pytest.raises(BuildFailed, match="movable") as caught:
        write_python_packages(installed(tmp_path / "base"), tmp_path / "out", env={})
    assert caught.value.why == "not an ELF executable"
    assert list((tmp_path / "out").iterdir()) == []


def test_an_interpreter_that_did_not_change_is_not_packaged_again(tmp_path: Path, patchelf: Patchelf) -> None:
    interpreter = installed(tmp_path / "base")
    first = write_python_packages(interpreter, tmp_path, env={})
    times = [package.stat().st_mtime_ns for package in first]
    assert write_python_packages(interpreter, tmp_path, env={}) == first
    assert [package.stat().st_mtime_ns for package in first] == times
    os.utime(interpreter.stdlib / "os.py", ns=(1, 1))
    assert write_python_packages(interpreter, tmp_path, env={})[0] != first[0]


@pytest.mark.parametrize(
    ("rpath", "path", "moved"),
    [
        ("/opt/py/lib", "bin/python3", "$ORIGIN/../lib"),
        ("", "bin/python3", "$ORIGIN/../lib"),
        ("$ORIGIN/../lib", "bin/python3", "$ORIGIN/../lib"),
        (
            "/opt/py/openssl/lib:/usr/lib/x",
            "lib/python3.12/lib-dynload/_ssl.so",
            "$ORIGIN/../../../openssl/lib:/usr/lib/x",
        ),
        ("/opt/python/lib", "lib/libpython3.so", "/opt/python/lib"),
    ],
)
def test_library_search_paths_are_made_relative(rpath: str, path: str, moved: str, tmp_path: Path) -> None:
    base = Path("/opt/py")
    found = interpreter(base / "bin/python3", base, libraries=(base / "lib/libpython3.12.so",))
    assert relocatable_rpath(rpath, found, path) == moved


def test_another_layout_is_led_to_condas(tmp_path: Path, patchelf: Patchelf) -> None:
    package, _ = write_python_packages(installed(tmp_path / "base", standard_layout=False), tmp_path, env={})
    text = content(package, "lib/python3.12/sysconfig.py").decode()
    namespace: dict[str, object] = {}
    exec(text, namespace)
    assert eval("get_preferred_scheme('prefix')", namespace) == "posix_prefix"
    assert b"addsitedir" in content(package, "lib/python3.12/sitecustomize.py")


def test_an_unknown_way_to_prefer_schemes_is_refused() -> None:
    with pytest.raises(UnsupportedPython, match="/usr/bin/python3"):
        with_conda_install_schemes("nothing known", Path("/usr/bin/python3"))


def test_the_site_folder_of_a_prefix_is_found_and_the_systems_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setattr(sys, "path", ["/usr/lib/python3", "/usr/lib/python3/dist-packages"])
    monkeypatch.setattr(site, "getsitepackages", site.getsitepackages)
    exec(python_package._SITECUSTOMIZE, {})
    assert sys.path == ["/usr/lib/python3", str(packages)]
    assert site.getsitepackages() == [str(packages)]


@pytest.mark.parametrize(("python", "spec"), [("3.11", "3.11.* *_cpython"), ("3.13", "3.13.* *_cp313")])
def test_the_python_of_another_platform_is_an_empty_package_and_says_so(python: str, spec: str, tmp_path: Path) -> None:
    empty, abi = foreign_python_metadata(python, "linux-aarch64")
    assert matches(f"python {spec}", empty)
    assert matches(empty.constrains[0], abi)
    assert matches(abi.constrains[0], empty)
    assert empty.run_exports["weak"] == empty.constrains
    package = write_metadata_only_package(tmp_path, empty)
    assert info(package, "index")["subdir"] == "linux-aarch64"
    assert "empty package" in json.dumps(empty.made_from)
