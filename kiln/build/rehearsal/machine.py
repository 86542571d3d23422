"""This machine's programs and compilers, which stand in for those of a channel."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, process
from kiln.base.errors import MissingTool
from kiln.base.patterns import lazy_pattern
from kiln.build.rehearsal.wheels import StandIn
from kiln.conda.specs import Version, matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


TABLE = Path(__file__).with_name("stand_ins.csv")
UNKNOWN_VERSION = "0"
_SECONDS = 30.0
_VERSION = lazy_pattern(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
_NUMBERS = lazy_pattern(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPackage:
    """A row of the table: the programs of a conda package, and the PyPI project with the same programs, if any."""

    programs: tuple[str, ...]
    pypi: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProgram:
    """A program of this machine; ``version`` is 0 where it is unknown."""

    path: Path
    version: str


@cache
def program_packages() -> Mapping[str, ProgramPackage]:
    """Return the packages that programs can stand in for, by conda name."""
    return {
        row["conda"]: ProgramPackage(programs=tuple(row["programs"].split()), pypi=row["pypi"])
        for row in files.csv_rows(TABLE)
    }


def find_program(name: str, env: Mapping[str, str]) -> MachineProgram | None:
    """Return a program of PATH, or of the running Python's folder, with its version, or None."""
    path = program_paths((name,), env).get(name)
    if path is None:
        return None
    try:
        result = process.capture((path, "--version"), env=env, timeout=_SECONDS)
    except (MissingTool, OSError):
        return None
    match = _VERSION.search(result.stdout or result.tail)
    return MachineProgram(path=Path(path), version=match[1] if match else UNKNOWN_VERSION)


def program_paths(names: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of those programs that this machine has, by their names; of rustup's proxies the real ones."""
    search = f"{env.get('PATH', '')}:{Path(sys.executable).parent}"
    located = ((name, shutil.which(name, path=search)) for name in names)
    return {name: _behind_rustup(Path(path).absolute(), env) for name, path in located if path is not None}


def _behind_rustup(path: Path, env: Mapping[str, str]) -> str:
    """Return the program that a proxy of rustup's runs, which finds none under the HOME of a build; else the path."""
    rustup = path.with_name("rustup")
    if path.name == "rustup" or not (rustup.exists() and path.samefile(rustup)):  # a symbolic or a hard link
        return str(path)
    result = process.capture((str(rustup), "which", path.name), env=env, timeout=_SECONDS)
    real = result.stdout.strip()
    return real if result.ok and Path(real).is_file() else str(path)


def satisfies_constraints(version: str, constraints: Iterable[str]) -> bool:
    """Return whether a version satisfies all constraints, in conda's notation; an invalid one is not satisfied."""
    try:
        return all(matches(version, constraint) for constraint in constraints if constraint)
    except ValueError:
        return False


def fitting_stand_in_version(own: str, constraints: Iterable[str]) -> str:
    """Return the version for a stand-in: its own if that satisfies the constraints, else one of theirs that does.

    Without any, the own version is returned, and the solver refuses the package.
    """
    texts = [constraint for constraint in constraints if constraint]
    if satisfies_constraints(own, texts):
        return own
    numbers = [number for text in texts for number in _NUMBERS.findall(text)]
    return next((number for number in numbers if satisfies_constraints(number, texts)), own)


TRIPLET = "x86_64-conda-linux-gnu"
_BINUTILS = ("addr2line", "ar", "as", "c++filt", "ld", "nm", "objcopy", "objdump", "ranlib", "readelf", "size")
_STRIPPING = ("strings", "strip")
_HEAD = (
    f'export HOST="{TRIPLET}" BUILD="{TRIPLET}" CONDA_TOOLCHAIN_HOST="{TRIPLET}" CONDA_TOOLCHAIN_BUILD="{TRIPLET}"',
    'kiln_prefix="${PREFIX:-$CONDA_PREFIX}"',
)
_FLAGS = (
    'export CPPFLAGS="-DNDEBUG -O2 -isystem $kiln_prefix/include${CPPFLAGS:+ $CPPFLAGS}"',
    'export LDFLAGS="-Wl,-rpath,$kiln_prefix/lib -L$kiln_prefix/lib${LDFLAGS:+ $LDFLAGS}"',
    'export CMAKE_PREFIX_PATH="$kiln_prefix"',
    'export CMAKE_ARGS="-DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_PREFIX=$kiln_prefix"',
    'export MESON_ARGS="-Dbuildtype=release -Dlibdir=lib --prefix=$kiln_prefix"',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiler:
    """A compiler: its ``programs`` after the triplet, the variables that name them, those of flags, its runtimes."""

    program: str
    programs: Mapping[str, str]
    variables: Mapping[str, str]
    flags: str
    runtimes: tuple[str, ...]


_COMPILERS = {
    "gcc": _Compiler(
        program="gcc",
        programs={"gcc": "gcc", "cc": "gcc", "cpp": "cpp", "gcc-ar": "gcc-ar", "gcc-nm": "gcc-nm"},
        variables={"CC": "cc", "GCC": "gcc", "CPP": "cpp", "GCC_AR": "gcc-ar", "GCC_NM": "gcc-nm"},
        flags="CFLAGS",
        runtimes=("libgcc",),
    ),
    "gxx": _Compiler(
        program="g++",
        programs={"g++": "g++", "c++": "g++"},
        variables={"CXX": "c++", "GXX": "g++"},
        flags="CXXFLAGS",
        runtimes=("libgcc", "libstdcxx"),
    ),
    "gfortran": _Compiler(
        program="gfortran",
        programs={"gfortran": "gfortran"},
        variables={"FC": "gfortran", "F77": "gfortran", "F90": "gfortran", "GFORTRAN": "gfortran"},
        flags="FFLAGS",
        runtimes=("libgcc", "libgfortran5", "libgfortran"),
    ),
}
# The compilers of packages that the compilers themselves need; they export nothing.
_COMPILERS |= {f"{name}_bootstrap": replace(_COMPILERS[name], runtimes=()) for name in ("gcc", "gxx", "gfortran")}
_RUNTIMES = {
    "libgcc": ("gcc", ("libgcc_s.so.1", "libgomp.so.1", "libatomic.so.1")),
    "libgcc-ng": ("gcc", ()),
    "libgomp": ("gcc", ()),
    "libstdcxx": ("g++", ("libstdc++.so.6",)),
    "libstdcxx-ng": ("g++", ()),
    "libgfortran": ("gfortran", ()),
    "libgfortran-ng": ("gfortran", ()),
    "libgfortran5": ("gfortran", ("libgfortran.so.5", "libquadmath.so.0")),
}
_REQUIRED_RUNTIMES = {
    "libgcc-ng": ("libgcc",),
    "libgomp": ("libgcc",),
    "libstdcxx": ("libgcc",),
    "libstdcxx-ng": ("libstdcxx",),
    "libgfortran": ("libgfortran5",),
    "libgfortran-ng": ("libgfortran5",),
    "libgfortran5": ("libgcc",),
}
SYSROOT = "sysroot_linux-64"
_PLATFORM = "_linux-64"


def is_toolchain_package(name: str) -> bool:
    """Return whether a package is a compiler, its runtime library, binutils or the C library's headers."""
    return name == SYSROOT or name in _RUNTIMES or name.removesuffix(_PLATFORM) in {*_COMPILERS, "binutils"}


def missing_toolchain_program(name: str, env: Mapping[str, str]) -> str:
    """Return the program that a stand-in for a package of the toolchain needs and this machine lacks; else empty."""
    base = name.removesuffix(_PLATFORM)
    program = {SYSROOT: "gcc", "binutils": "ld", "binutils_linux-64": "ld"}.get(name, "")
    program = program or (_COMPILERS[base].program if base in _COMPILERS else _RUNTIMES[name][0])
    return "" if program_paths((program,), env) else program


def toolchain_stand_ins(required: Mapping[str, Iterable[str]], env: Mapping[str, str]) -> tuple[StandIn, ...]:
    """Return the stand-ins for packages of the toolchain, each with its version constraints, and what they export."""
    constraints = {name: tuple(texts) for name, texts in required.items()}
    packages = [
        _toolchain_stand_in(name, texts, env) for name, texts in sorted(constraints.items()) if name not in _RUNTIMES
    ]
    versions = [package.version for package in packages if package.strong_exports]
    exported = {spec.partition(" ")[0] for package in packages for spec in package.strong_exports}
    runtimes = {name for name in exported if not name.startswith("__")} | (constraints.keys() & _RUNTIMES.keys())
    while missing := {more for name in runtimes for more in _REQUIRED_RUNTIMES.get(name, ())} - runtimes:
        runtimes |= missing
    own = find_program("gcc", env)
    version = max(versions, key=Version) if versions else own.version if own else UNKNOWN_VERSION
    packages += [_runtime_stand_in(name, version, constraints.get(name, ()), env) for name in sorted(runtimes)]
    return tuple(packages)


def _toolchain_stand_in(name: str, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    if name == SYSROOT:
        return _sysroot_stand_in(constraints)
    base = name.removesuffix(_PLATFORM)
    if base == "binutils":
        return StandIn(name=name, version=fitting_stand_in_version("2", constraints), programs=_triplet_binutils(env))
    return _compiler_stand_in(name, _COMPILERS[base], constraints, env)


def _compiler_stand_in(name: str, compiler: _Compiler, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    program = find_program(compiler.program, env)
    own = UNKNOWN_VERSION if program is None else program.version
    version = fitting_stand_in_version(own, constraints)
    there = program_paths(sorted(set(compiler.programs.values())), env)
    programs = {f"{TRIPLET}-{alias}": there[real] for alias, real in compiler.programs.items() if real in there}
    variables = " ".join(f'{key}="{TRIPLET}-{tool}"' for key, tool in compiler.variables.items())
    tools = " ".join(f'{tool.upper()}="{TRIPLET}-{tool}"' for tool in ("ar", "ld", "nm", "objcopy", "objdump"))
    more = " ".join(f'{tool.upper()}="{TRIPLET}-{tool}"' for tool in ("ranlib", "readelf", "size", "strip"))
    flags = f'export {compiler.flags}="-O2 -fPIC -pipe -isystem $kiln_prefix/include'
    major = version.partition(".")[0]
    return StandIn(
        name=name,
        version=version,
        programs={**_triplet_binutils(env), **programs},
        activation=(
            *_HEAD,
            f"export {variables}",
            f"export {tools} {more}",
            f'{flags}${{{compiler.flags}:+ ${compiler.flags}}}"',
            *_FLAGS,
            "unset kiln_prefix",
        ),
        strong_exports=tuple(f"{runtime} >={major}" for runtime in compiler.runtimes),
        origin=f"{compiler.program} {own}" if program is None else f"{program.path} {own}",
        differs=version != own,
    )


def _triplet_binutils(env: Mapping[str, str]) -> dict[str, str]:
    there = program_paths((*_BINUTILS, *_STRIPPING), env)
    return {f"{TRIPLET}-{name}": path for name, path in there.items()}


def _sysroot_stand_in(constraints: tuple[str, ...]) -> StandIn:
    version = fitting_stand_in_version("2.17", constraints)
    return StandIn(
        name=SYSROOT,
        version=version,
        strong_exports=(f"__glibc >={version},<3.0.a0",),
        origin="the C library and its headers of this machine",
        differs=True,
    )


def _runtime_stand_in(name: str, version: str, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    program, libraries = _RUNTIMES[name]
    version = fitting_stand_in_version(version, constraints)
    required = _REQUIRED_RUNTIMES.get(name, ())
    return StandIn(
        name=name,
        version=version,
        libraries=_shared_library_paths(program, libraries, env),
        depends=required,
        origin=f"the libraries of this machine's {program}",
    )


def _shared_library_paths(program: str, libraries: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of those shared libraries that a compiler finds; none without the compiler."""
    there: dict[str, str] = {}
    if not program_paths((program,), env):
        return there
    for library in libraries:
        result = process.capture((program, f"-print-file-name={library}"), env=env, timeout=_SECONDS)
        path = Path(result.stdout.strip())
        if result.ok and path.is_absolute() and path.is_file():
            there[library] = str(path.resolve())
    return there
