"""The contents of a slim image: Debian packages, the files of conda packages, and kiln's own, in layers.

The same packages give the same contents: no time, name or order of this machine is in them.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import solve_and_install
from kiln.errors import BuildFailed, SolveFailed
from kiln.image import bytecode_compilation, debian, file_selection, missing_shared_libraries
from kiln.image.layers import PROGRAM, Layer, LayerEntry, dead_links
from kiln.provenance import cyclonedx
from kiln.provenance.resolved_package_reader import package_from_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rattler import RepoDataRecord

    from kiln.console.command_steps import CommandStep
    from kiln.image.debian import DownloadedDeb
    from kiln.image.file_selection import InstalledPackage
    from kiln.image.slim_image_programs import ImageKind

PREFIX = "/opt/conda"
SYSTEM = ("base-files", "ca-certificates", "libc6", "netbase", "tini", "tzdata")
PACKAGE_LIST = "/usr/share/kiln/packages.json"
BILL = "/usr/share/kiln/packages.cdx.json"  # scanners know bills of materials by such names
_ROUNDS = 8  # of adding libraries that the previously added libraries need


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRequest:
    """The request for an image: match specs and channels, a suite of Debian and additional Debian packages.

    ``cuda`` is the CUDA version that the machines' driver supports, empty for machines without a GPU.
    """

    kind: ImageKind
    channels: tuple[str, ...]
    specs: tuple[str, ...]
    suite: str
    debian: tuple[str, ...] = ()
    cuda: str = ""

    @property
    def tag(self) -> str:
        """The default name of the image, without its version."""
        return f"localhost/{self.kind.name}-{'gpu' if self.cuda else 'cpu'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContents:
    """The contents of an image: its layers, rarely changing ones first, and the packages in them."""

    layers: tuple[Layer, ...]
    packages: tuple[InstalledPackage, ...]
    debs: tuple[DownloadedDeb, ...]

    @property
    def epoch(self) -> int:
        """The time of the newest package in seconds since 1970, used for the image and all of its files."""
        return newest_package_time(self.packages)

    @property
    def version(self) -> str:
        """The version of the first requested package."""
        return self.packages[0].version


def assemble_contents(
    request: ImageRequest,
    scratch: Path,
    work: Path,
    *,
    env: Mapping[str, str],
    step: Callable[[str], AbstractContextManager[CommandStep]],
) -> ImageContents:
    """Download, solve and install the packages, and return the files that programs need."""
    names = (*SYSTEM, *request.kind.debian, *request.debian)
    with step(f"fetch {len(names)} packages of Debian {request.suite}") as progress:
        debs = debian.fetch_packages(request.suite, names, folder=work, env=env, on_line=progress.show_output_line)
    with step("solve"):
        records = _solve_packages(request, debs)
    prefix = scratch / "prefix"
    with step(f"install {len(records)} packages"):
        solve_and_install.install(records, prefix, cache=work / "cache", seen_at=PREFIX)
    packages = _requested_packages_first(file_selection.installed_packages(prefix), request.specs)
    with step("select the files that programs need"):
        selection = file_selection.read_file_selection(request.kind.left_out)
        contents = {
            package: tuple(file_selection.included_entries(prefix, package, selection, below=PREFIX))
            for package in packages
        }
    with step("compile Python's modules"):
        bytecode_compilation.compile_modules(itertools.chain.from_iterable(contents.values()), prefix, seen_at=PREFIX)
        contents = {
            package: bytecode_compilation.with_compiled_modules(entries) for package, entries in contents.items()
        }
    dead = dead_links(itertools.chain.from_iterable(contents.values()), below=PREFIX)
    contents = {
        package: tuple(entry for entry in entries if entry.path not in dead) for package, entries in contents.items()
    }
    with step("find missing libraries") as progress:
        system, debs = _add_missing_debian_packages(request, debs, contents, scratch, work, env=env, progress=progress)
    return ImageContents(
        layers=split_into_layers(request, system, contents, _kiln_entries(request.kind, packages)),
        packages=packages,
        debs=debs,
    )


def virtual_packages(glibc: str, cuda: str) -> dict[str, tuple[str, str]]:
    """Return the virtual packages of the image; the solve is for it, not for the machine that makes it.

    Its processor is of level 2 of the x86-64 psABI, for which TensorFlow is compiled by default.
    """
    machine = {
        "__unix": ("0", "0"),
        "__linux": ("5.10", "0"),
        "__glibc": (glibc, "0"),
        "__archspec": ("1", "x86_64_v2"),
    }
    return {**machine, "__cuda": (cuda, "0")} if cuda else machine


def split_into_layers(
    request: ImageRequest,
    system: Iterable[LayerEntry],
    packages: Mapping[InstalledPackage, tuple[LayerEntry, ...]],
    kiln: Iterable[LayerEntry],
) -> tuple[Layer, ...]:
    """Return the layers, rarely changing ones first."""

    def is_product(package: InstalledPackage) -> bool:
        return any(fnmatch.fnmatchcase(package.name, pattern) for pattern in request.kind.product)

    others = itertools.chain.from_iterable(entries for package, entries in packages.items() if not is_product(package))
    product = itertools.chain.from_iterable(entries for package, entries in packages.items() if is_product(package))
    layers = (
        Layer(title=f"Debian {request.suite}: {', '.join(SYSTEM)} and further libraries", entries=tuple(system)),
        Layer(title="conda packages: dependencies", entries=tuple(others)),
        Layer(title=f"conda packages: {request.kind.name}", entries=tuple(product)),
        Layer(title="scripts and package list", entries=tuple(kiln)),
    )
    return tuple(layer for layer in layers if layer.entries)


def _solve_packages(request: ImageRequest, debs: Iterable[DownloadedDeb]) -> list[RepoDataRecord]:
    glibc = next(deb.upstream_version for deb in debs if deb.name == "libc6")
    try:
        return solve_and_install.solve(
            request.channels, request.specs, virtual_packages=virtual_packages(glibc, request.cuda)
        )
    except SolveFailed as error:
        if request.cuda or "__cuda" not in error.why:
            raise
        raise SolveFailed(error.what, why=error.why, hint="for machines with a GPU: --cuda 12.9") from error


def _requested_packages_first(
    packages: Sequence[InstalledPackage], specs: Sequence[str]
) -> tuple[InstalledPackage, ...]:
    requested = {re.split(r"[\s=<>!~\[]", spec.split("::")[-1])[0]: index for index, spec in enumerate(specs)}
    return tuple(sorted(packages, key=lambda package: requested.get(package.name, len(requested))))


def _add_missing_debian_packages(
    request: ImageRequest,
    debs: tuple[DownloadedDeb, ...],
    contents: Mapping[InstalledPackage, tuple[LayerEntry, ...]],
    scratch: Path,
    work: Path,
    *,
    env: Mapping[str, str],
    progress: CommandStep,
) -> tuple[tuple[LayerEntry, ...], tuple[DownloadedDeb, ...]]:
    """Add Debian packages until no library and no license is missing; return files and packages.

    Packages of a conda channel include all libraries but glibc. A rehearsal's Python uses libraries of the machine that
    it comes from; if that machine has the same suite, its dpkg database has the packages of these libraries.
    """
    conda = tuple(itertools.chain.from_iterable(contents.values()))
    missing: dict[str, str] = {}
    for _ in range(_ROUNDS):
        system = debian.system_entries(debs, scratch / "debian", env=env)
        missing = missing_shared_libraries.missing_libraries((*system, *conda))
        owners = {soname: debian.package_of_library(soname, request.suite, env=env) for soname in missing}
        others = debian.missing_license_packages(system)
        if not missing and not others:
            return system, debs
        if unknown := [soname for soname, owner in owners.items() if owner is None]:
            raise _missing_libraries_error({soname: missing[soname] for soname in unknown}, request.suite)
        added = sorted({*others, *(owner for owner in owners.values() if owner is not None)})
        progress.note(f"from Debian: {', '.join(added)}")
        names = (*(deb.name for deb in debs), *added)
        debs = debian.fetch_packages(request.suite, names, folder=work, env=env, on_line=progress.show_output_line)
    raise _missing_libraries_error(missing, request.suite)


def _missing_libraries_error(missing: Mapping[str, str], suite: str) -> BuildFailed:
    return BuildFailed(
        f"the image lacks {', '.join(sorted(missing))}",
        why="\n".join(f"    {path} needs {soname}" for soname, path in sorted(missing.items())[:10]),
        hint=f"add the packages of Debian {suite} that contain them: --with PACKAGE ...",
    )


def _kiln_entries(kind: ImageKind, packages: Sequence[InstalledPackage]) -> Iterator[LayerEntry]:
    """Yield the entries that belong to no package: scripts, folders, the list of packages."""
    for folder in kind.folders:
        yield LayerEntry(path=folder, mode=0o775, owner=debian.NONROOT)
    for path, script in kind.scripts.items():
        yield LayerEntry(path=path, mode=PROGRAM, source=script)
    names = ("name", "version", "build", "sha256", "license")
    records = [{name: getattr(package, name) for name in names} for package in packages]
    yield LayerEntry(path=PACKAGE_LIST, mode=0o644, data=_indented_json(records))
    yield LayerEntry(path=BILL, mode=0o644, data=_bill_of_materials(kind, packages))
    for package, record in zip(packages, records, strict=True):  # scanners look for conda packages there
        file = f"{PREFIX}/conda-meta/{package.name}-{package.version}-{package.build}.json"
        yield LayerEntry(
            path=file, mode=0o644, data=_indented_json({**record, "fn": package.file_name, "depends": package.depends})
        )


def _bill_of_materials(kind: ImageKind, packages: Sequence[InstalledPackage]) -> bytes:
    """Return the bill of materials of the packages, for scanners that know no conda packages."""
    names = ("name", "version", "build", "subdir", "url", "sha256")
    resolved = [package_from_record("run", {name: getattr(item, name) for name in names}) for item in packages]
    licenses = {item.name: item.license for item in packages}
    return cyclonedx.bill_of_installed_packages(kind.name, resolved, licenses, newest_package_time(packages))


def newest_package_time(packages: Iterable[InstalledPackage]) -> int:
    """Return the time of the newest package in seconds since 1970."""
    return max((package.timestamp for package in packages), default=0) // 1000


def _indented_json(value: object) -> bytes:
    return f"{json.dumps(value, indent=1)}\n".encode()
