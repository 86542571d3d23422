"""The conda packages of a rehearsal: converted from wheels, or stand-ins for a channel's."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from threading import Event
from typing import IO, TYPE_CHECKING

from packaging.version import Version

from kiln.base import files
from kiln.base.errors import Interrupted
from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import to_json
from kiln.build.rehearsal.wheels import EntryPoint, Wheel, WheelMember, broken_wheel_error, license_files, open_wheel
from kiln.conda import pypi as conda_pypi
from kiln.conda.package_writer import ARCHITECTURES, PLACEHOLDER, SUBDIR, PackageMetadata, PackageWriter, write_package

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kiln.build.rehearsal.wheels import LockedWheel, StandIn


CONVERTER = 2  # raise it when the same wheel gives another package
_WORKERS = 2
_SCRIPT = b"#!python"
_PYTHON_SHEBANG = re.compile(rb"\A#!pythonw?(?=\s)")
_LEGACY = lazy_pattern(r"manylinux(?:1|2010|2014)(?=_)")
_MANYLINUX = lazy_pattern(r"manylinux_(\d+)_(\d+)_")
_MACOS = lazy_pattern(r"macosx_(\d+)_(\d+)_")
_COMPONENT = lazy_pattern(r"nvidia/([^/]+)/(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTarget:
    """The target of packages: a Python, ``3.11``, and a CUDA version, ``12.9``, or None.

    ``as_conda_forge`` gives packages the requirements that conda-forge's have besides the wheels'. ``subdir`` is the
    platform.
    """

    python: str
    cuda: str | None = None
    as_conda_forge: bool = False
    subdir: str = SUBDIR

    @property
    def python_build_tag(self) -> str:
        """The Python in the form of build strings, ``py311``."""
        return f"py{self.python.replace('.', '')}"

    @property
    def cuda_tag(self) -> str:
        """The CUDA version in the form of build strings, ``cuda129``."""
        return f"cuda{(self.cuda or '').replace('.', '')}"

    @property
    def cuda_requirements(self) -> tuple[str, ...]:
        """The match specs that pin a library to this CUDA version."""
        return (f"cuda-version {self.cuda}.*",) if self.cuda else ()

    @property
    def site_packages(self) -> str:
        """The folder of Python packages, relative to the prefix."""
        return f"lib/python{self.python}/site-packages"

    @property
    def python_requirements(self) -> tuple[str, ...]:
        """The match specs that pin a package to this Python, in conda-forge's form."""
        major, minor = self.python.split(".")
        return (f"python >={self.python},<{major}.{int(minor) + 1}.0a0", conda_pypi.abi_spec(self.python))

    def marker_environment(self) -> dict[str, str]:
        """Return the values of environment markers (PEP 508) for this target."""
        macos = self.subdir.startswith("osx-")
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "os_name": "posix",
            "platform_machine": ARCHITECTURES[self.subdir],
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Darwin" if macos else "Linux",
            "platform_version": "",
            "python_full_version": f"{self.python}.0",
            "python_version": self.python,
            "sys_platform": "darwin" if macos else "linux",
        }


def convert_wheel(wheel: Path, sha256: str, folder: Path, target: PackageTarget, *, stop: Event | None = None) -> Path:
    """Write a wheel as a conda package into ``folder``, unless it exists, and return its path.

    Its name identifies its content, see ``_content_key``. Raises BrokenPackage for a wheel that is damaged or writes
    outside its package, DiskFull, and Interrupted soon after ``stop`` is set.
    """
    with open_wheel(wheel) as source:
        facts = package_metadata(source, sha256, target)
        path = folder / f"{facts.stem}.conda"
        if not path.is_file():
            files.require_disk_space(
                folder, sum(member.size for member in source.members), for_what=f"packing {wheel.name}"
            )
            with write_package(folder, facts) as archive:
                _write_members(archive, source, target, stop or Event())
        return path


def convert_wheels(wheels: Sequence[tuple[Path, str]], folder: Path, target: PackageTarget) -> tuple[Path, ...]:
    """Convert wheels, each with its SHA-256, in parallel; return the packages in the same order."""
    stop = Event()
    # The largest first, so that no thread works alone at the end.
    order = sorted(range(len(wheels)), key=lambda index: -wheels[index][0].stat().st_size)
    with ThreadPoolExecutor(_WORKERS) as pool:
        try:
            futures = {index: pool.submit(convert_wheel, *wheels[index], folder, target, stop=stop) for index in order}
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            for failed in (future for future in done if future.exception()):
                failed.result()
            return tuple(futures[index].result() for index in range(len(wheels)))
        finally:
            stop.set()  # after Ctrl-C or a failure the others need not continue
            pool.shutdown(cancel_futures=True)


def package_metadata(wheel: Wheel, sha256: str, target: PackageTarget) -> PackageMetadata:
    """Return the metadata of a wheel's package."""
    row = conda_pypi.name_mapping(wheel.name)
    libraries = row.layout is conda_pypi.WheelLayout.LIBRARIES
    added = conda_pypi.requirements_missing_in_wheel(wheel.name, target.python) if target.as_conda_forge else ()
    exported = conda_pypi.run_exports_missing_in_wheel(wheel.name, wheel.version) if target.as_conda_forge else ()
    required = {
        *conda_pypi.conda_requirements(wheel.requirements, target.marker_environment()),
        *map(conda_pypi.conda_name, added),
    }
    interpreter_requirements = target.cuda_requirements if libraries else target.python_requirements
    platform = () if target.subdir == SUBDIR else (target.subdir,)  # one wheel can be for all
    build_tag = target.cuda_tag if libraries else target.python_build_tag
    own = library_run_exports(wheel.name, wheel.version) if row.exported_by == row.conda else {}
    return PackageMetadata(
        name=row.conda,
        version=str(wheel.version),
        build=f"{build_tag}_rehearsal_{_wheel_key(sha256, (*added, *exported, *platform))}_0",
        subdir=target.subdir,
        depends=tuple(sorted({*interpreter_requirements, *required, *system_requirements(wheel.platforms)})),
        license=wheel.metadata.get("license_expression")
        or (wheel.metadata.get("license") or "").strip().partition("\n")[0],
        about={"summary": wheel.metadata.get("summary", ""), "home": wheel.metadata.get("home_page", "")},
        run_exports={"weak": exported} if exported else own,
        made_from={"wheel": wheel.path.name, "wheel_sha256": sha256},
    )


def system_requirements(platforms: Iterable[str]) -> tuple[str, ...]:
    """Return the match spec of the oldest C library, or macOS, that a wheel runs on, by its platform tags.

    It is empty for a wheel that runs on all systems.

    Source: PEP 600, which defines the older names by their versions too.
    """
    legacy = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}
    names = [_LEGACY.sub(lambda match: legacy[match[0]], platform) for platform in platforms]
    for pattern, spec in ((_MANYLINUX, "__glibc >={}.{},<3.0.a0"), (_MACOS, "__osx >={}.{}")):
        if versions := [(int(match[1]), int(match[2])) for match in map(pattern.match, names) if match]:
            return (spec.format(*min(versions)),)
    return ()


def library_run_exports(pypi: str, version: Version) -> dict[str, tuple[str, ...]]:
    """Return a library's run exports: at least its version, below its next major version."""
    return {"weak": (f"{conda_pypi.conda_name(pypi)} >={version},<{version.release[0] + 1}.0a0",)}


def _wheel_key(sha256: str, added: Iterable[str]) -> str:
    """Return a key of a package's content: a hash of the wheel, this code's version, names, and added requirements."""
    content = " ".join((sha256, str(CONVERTER), conda_pypi.names_table_digest(), *added))
    return f"h{hashlib.sha256(content.encode()).hexdigest()[:7]}"


def _write_members(archive: PackageWriter, wheel: Wheel, target: PackageTarget, stop: Event) -> None:
    layout = conda_pypi.name_mapping(wheel.name).layout
    as_libraries = layout is conda_pypi.WheelLayout.LIBRARIES
    for member in wheel.members:
        path = _library_install_path(member) if as_libraries else _python_install_path(member, wheel, target)
        if path is not None:
            _add_member(archive, wheel, member, path, stop)
    if as_libraries:
        _add_component_links(archive, wheel)
    else:
        _add_console_scripts(archive, wheel.entry_points)
        _add_installer_and_record(archive, wheel, target)
    for name, path in license_files(wheel).items():
        archive.add_info(f"licenses/{name}", wheel.read_member(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoppableStream:
    """A stream that another thread can stop, because the largest files take many seconds."""

    source: IO[bytes]
    stop: Event

    def read(self, size: int = -1, /) -> bytes:
        if self.stop.is_set():
            raise Interrupted("the conversion of wheels was stopped")
        return self.source.read(size)


def _add_member(archive: PackageWriter, wheel: Wheel, member: WheelMember, path: str, stop: Event) -> None:
    if PurePosixPath(path).parts[0] == "info" or path in archive:
        raise broken_wheel_error(wheel.path, f"its member {member.path!r} would overwrite {path!r}")
    is_program = path.startswith("bin/") and ".data/scripts/" in member.path
    with wheel.open_member(member.path) as source:
        is_script = is_program and source.read(len(_SCRIPT)) == _SCRIPT
    if is_script:
        text = _PYTHON_SHEBANG.sub(f"#!{PLACEHOLDER}/bin/python".encode(), wheel.read_member(member.path))
        archive.add_bytes(path, text, executable=True)
        return
    executable = member.executable or is_program  # a compiled program may be as large as maturin
    with wheel.open_member(member.path) as source:
        archive.add_stream(path, _StoppableStream(source=source, stop=stop), member.size, executable=executable)


def _python_install_path(member: WheelMember, wheel: Wheel, target: PackageTarget) -> str | None:
    """Return the path of a Python package's file: the wheel specification's install schemes in a conda prefix."""
    top, _, rest = member.path.partition("/")
    if member.path == f"{wheel.dist_info}/RECORD":
        return None  # written again, for the installed files
    if top != f"{wheel.dist_info.removesuffix('.dist-info')}.data":
        return f"{target.site_packages}/{member.path}"
    scheme, _, path = rest.partition("/")
    folders = {
        "purelib": f"{target.site_packages}/",
        "platlib": f"{target.site_packages}/",
        "scripts": "bin/",
        "headers": f"include/python{target.python}/{wheel.name}/",
        "data": "",
    }
    if scheme not in folders or not path:
        raise broken_wheel_error(wheel.path, f"its member {member.path!r} has an unknown install scheme")
    return folders[scheme] + path


def _library_install_path(member: WheelMember) -> str | None:
    """Return the path of a CUDA library's file: ``nvidia/<component>/lib/x`` becomes ``lib/x`` of the prefix."""
    match = _COMPONENT.fullmatch(member.path)
    if match is None or PurePosixPath(member.path).name == "__init__.py":
        return None
    return match[2]


def _add_component_links(archive: PackageWriter, wheel: Wheel) -> None:
    """Link ``nvidia/<component>`` to the prefix, where upstream's libraries look for CUDA."""
    matches = (_COMPONENT.fullmatch(member.path) for member in wheel.members)
    for component in sorted({match[1] for match in matches if match and match[2] != "__init__.py"}):
        archive.add_link(f"nvidia/{component}", "..")


def _add_console_scripts(archive: PackageWriter, entry_points: Iterable[EntryPoint]) -> None:
    for entry in entry_points:
        if f"bin/{entry.script}" not in archive:
            archive.add_bytes(f"bin/{entry.script}", console_script_text(entry).encode(), executable=True)


def console_script_text(entry: EntryPoint) -> str:
    """Return the console script of an entry point; the installer writes the prefix into its first line."""
    return (
        f"#!{PLACEHOLDER}/bin/python\n"
        "import sys\n"
        "\n"
        f"from {entry.module} import {entry.attribute.partition('.')[0]}\n"
        "\n"
        'if __name__ == "__main__":\n'
        f"    sys.exit({entry.attribute}())\n"
    )


def _add_installer_and_record(archive: PackageWriter, wheel: Wheel, target: PackageTarget) -> None:
    """Write INSTALLER and RECORD as an installer does, so that Python's own tools find the package."""
    dist_info = f"{target.site_packages}/{wheel.dist_info}"
    if f"{dist_info}/INSTALLER" not in archive:
        archive.add_bytes(f"{dist_info}/INSTALLER", b"conda\n")
    above = "../" * len(PurePosixPath(target.site_packages).parts)
    rows = []
    for name, sha256, size in archive.written:
        inside = name.startswith(f"{target.site_packages}/")
        path = name.removeprefix(f"{target.site_packages}/") if inside else above + name
        digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
        # The installer changes the hash of a file into which it writes the prefix.
        rows.append(f'"{path}",,' if path.startswith("../") else f'"{path}",sha256={digest},{size}')
    archive.add_bytes(
        f"{dist_info}/RECORD", "".join(f"{row}\n" for row in [*rows, f'"{wheel.dist_info}/RECORD",,']).encode()
    )


MAKER = 1  # raise it when the same stand-in gives another package
_NOTE = "this stands in for the channel's package, in rehearsals on the machine that made it"
NAME = "_x86_64-microarch-level"
# The processors that archspec knows, by the highest level of the x86-64 psABI that they have. Those of level 4 are not
# listed: a name that is unknown here is that of a newer processor.
PROCESSORS = {
    1: ("x86_64", "nocona", "core2", "k10"),
    2: (
        *("x86_64_v2", "nehalem", "westmere", "sandybridge", "ivybridge"),
        *("bulldozer", "piledriver", "steamroller"),
    ),
    3: (
        *("x86_64_v3", "haswell", "broadwell", "skylake", "mic_knl", "cannonlake", "excavator"),
        *("zen", "zen2", "zen3"),
    ),
}


def write_stand_in_package(stand_in: StandIn, folder: Path) -> Path:
    """Write the package of a stand-in into ``folder``, unless it exists, and return its path."""
    facts = stand_in_metadata(stand_in)
    path = folder / f"{facts.stem}.conda"
    if path.is_file():
        return path
    with write_package(folder, facts) as archive:
        for name, program in sorted(stand_in.programs.items()):
            text = f'#!/bin/sh\nexec {shlex.quote(program)} "$@"\n'
            archive.add_bytes(f"bin/{name}", text.encode(), executable=True)
        for name, library in sorted(stand_in.libraries.items()):
            archive.add_bytes(f"lib/{name}", Path(library).read_bytes(), executable=True)
        if stand_in.activation:
            text = "".join(f"{line}\n" for line in stand_in.activation)
            archive.add_bytes(f"etc/conda/activate.d/{stand_in.name}.sh", text.encode())
    return path


def stand_in_metadata(stand_in: StandIn) -> PackageMetadata:
    """Return the metadata of a stand-in's package; its build string contains a hash of its content."""
    return PackageMetadata(
        name=stand_in.name,
        version=stand_in.version,
        build=f"rehearsal_{_stand_in_key(stand_in)}_0",
        depends=stand_in.depends,
        about={"summary": f"Stand-in for {stand_in.name}"},
        run_exports={"strong": stand_in.strong_exports} if stand_in.strong_exports else {},
        made_from={"stand_in_for": stand_in.name, "origin": stand_in.origin, "note": _NOTE},
    )


def _stand_in_key(stand_in: StandIn) -> str:
    status = [(path, Path(path).stat().st_size) for path in stand_in.libraries.values()]
    content = json.dumps([MAKER, to_json(stand_in), status], sort_keys=True)
    return f"h{hashlib.sha256(content.encode()).hexdigest()[:7]}"


def microarch_level_metadata() -> Iterator[PackageMetadata]:
    """Yield the metadata of each level, which excludes the processors below it by ``__archspec``."""
    for level in (1, *(at + 1 for at in PROCESSORS)):
        lower = "|".join(name for at, processors in PROCESSORS.items() if at < level for name in processors)
        yield PackageMetadata(
            name=NAME,
            version=str(level),
            build="rehearsal_0",
            depends=(f"__archspec 1.* ^(?!({lower})$).*$" if lower else "__archspec 1.*",),
            about={"summary": f"Asks for a processor of level {level} of the x86-64 psABI, or a higher one"},
        )


def cuda_metadata(wheels: Iterable[LockedWheel], target: PackageTarget) -> Iterator[PackageMetadata]:
    """Yield the metadata of ``cuda-version`` and of the ``-dev`` packages of the wheels' libraries; none without CUDA.

    A ``-dev`` package requires its library and has the same ``run_exports`` as conda-forge's; the headers are in the
    library's package.
    """
    if not target.cuda:
        return
    build = f"{target.cuda_tag}_rehearsal_{CONVERTER}"
    yield PackageMetadata(name="cuda-version", version=str(target.cuda), build=build)
    for wheel in wheels:
        row = conda_pypi.name_mapping(wheel.name)
        if row.exported_by and row.exported_by != row.conda:
            yield PackageMetadata(
                name=row.exported_by,
                version=wheel.version,
                build=build,
                depends=(*target.cuda_requirements, f"{row.conda} =={wheel.version}"),
                run_exports=library_run_exports(wheel.name, Version(wheel.version)),
            )
