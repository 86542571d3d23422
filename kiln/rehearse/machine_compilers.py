"""Stand-ins for conda-forge's compilers, C library and runtime libraries: this machine's, with a conda triplet's names.

The names of packages and variables are those of conda-forge's ctng-compiler-activation-feedstock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.rehearse import machine_programs
from kiln.rehearse.plan_types import StandIn
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TRIPLET = "x86_64-conda-linux-gnu"
_SECONDS = 30.0
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
    return "" if machine_programs.program_paths((program,), env) else program


def toolchain_stand_ins(required: Mapping[str, Iterable[str]], env: Mapping[str, str]) -> tuple[StandIn, ...]:
    """Return the stand-ins for packages of the toolchain, each with its version constraints, and what they export."""
    constraints = {name: tuple(texts) for name, texts in required.items()}
    packages = [
        _toolchain_stand_in(name, texts, env) for name, texts in sorted(constraints.items()) if name not in _RUNTIMES
    ]
    versions = [package.version for package in packages if package.strong_exports]
    runtimes = {name for package in packages for name in _nonvirtual_package_names(package.strong_exports)} | (
        constraints.keys() & _RUNTIMES.keys()
    )
    while missing := {more for name in runtimes for more in _REQUIRED_RUNTIMES.get(name, ())} - runtimes:
        runtimes |= missing
    own = machine_programs.find_program("gcc", env)
    version = max(versions, key=Version) if versions else own.version if own else machine_programs.UNKNOWN_VERSION
    packages += [_runtime_stand_in(name, version, constraints.get(name, ()), env) for name in sorted(runtimes)]
    return tuple(packages)


def _nonvirtual_package_names(specs: Iterable[str]) -> list[str]:
    names = [spec.partition(" ")[0] for spec in specs]
    return [name for name in names if not name.startswith("__")]


def _toolchain_stand_in(name: str, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    if name == SYSROOT:
        return _sysroot_stand_in(constraints)
    base = name.removesuffix(_PLATFORM)
    if base == "binutils":
        return StandIn(
            name=name,
            version=machine_programs.fitting_stand_in_version("2", constraints),
            programs=_triplet_binutils(env),
        )
    return _compiler_stand_in(name, _COMPILERS[base], constraints, env)


def _compiler_stand_in(name: str, compiler: _Compiler, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    program = machine_programs.find_program(compiler.program, env)
    own = machine_programs.UNKNOWN_VERSION if program is None else program.version
    version = machine_programs.fitting_stand_in_version(own, constraints)
    there = machine_programs.program_paths(sorted(set(compiler.programs.values())), env)
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
    there = machine_programs.program_paths((*_BINUTILS, *_STRIPPING), env)
    return {f"{TRIPLET}-{name}": path for name, path in there.items()}


def _sysroot_stand_in(constraints: tuple[str, ...]) -> StandIn:
    version = machine_programs.fitting_stand_in_version("2.17", constraints)
    return StandIn(
        name=SYSROOT,
        version=version,
        strong_exports=(f"__glibc >={version},<3.0.a0",),
        origin="the C library and its headers of this machine",
        differs=True,
    )


def _runtime_stand_in(name: str, version: str, constraints: tuple[str, ...], env: Mapping[str, str]) -> StandIn:
    program, libraries = _RUNTIMES[name]
    version = machine_programs.fitting_stand_in_version(version, constraints)
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
    if not machine_programs.program_paths((program,), env):
        return there
    for library in libraries:
        result = process_runner.capture((program, f"-print-file-name={library}"), env=env, timeout=_SECONDS)
        path = Path(result.stdout.strip())
        if result.ok and path.is_absolute() and path.is_file():
            there[library] = str(path.resolve())
    return there
