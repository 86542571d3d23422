"""The contents of a slim image: Debian packages, the files of conda packages that programs need, layers."""

from __future__ import annotations

import fnmatch
import functools
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base import process, serialization
from kiln.base.errors import BuildFailed, SolveFailed, program_output_with_margin
from kiln.base.files import csv_rows
from kiln.base.text import first_of
from kiln.conda import solve
from kiln.conda.provenance import sbom
from kiln.conda.provenance.contents import package_from_record
from kiln.image import debian as image_debian
from kiln.image.oci import FILE, PROGRAM, Layer, LayerEntry, dead_links, entries_of_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rattler import RepoDataRecord

    from kiln.base.text import CommandStep
    from kiln.image.debian import DownloadedDeb


KINDS = Path(__file__).with_name("kinds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKind:
    """A kind of slim image.

    ``product`` are patterns of the packages that change with each release, ``needs`` those of the files in the prefix
    without which it is no such image, ``left_out`` the packages that programs do not need, ``debian`` additional
    packages of the system, ``scripts`` kiln's scripts by their path in the image, ``folders`` mount points.
    """

    name: str
    summary: str
    specs: tuple[str, ...]
    product: tuple[str, ...]
    needs: tuple[str, ...]
    left_out: tuple[str, ...]
    debian: tuple[str, ...]
    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    ports: tuple[int, ...]
    scripts: Mapping[str, Path]
    folders: tuple[str, ...]
    health: tuple[str, ...]


def read_image_kind(name: str) -> ImageKind:
    """Read a kind."""
    data = json.loads((KINDS / f"{name}.json").read_text(encoding="utf-8"))
    scripts = {path: str(KINDS / script) for path, script in data["scripts"].items()}
    return serialization.from_json_values(ImageKind, {**data, "name": name, "scripts": scripts})


_ELF = b"\x7fELF"
# The driver's libraries come from the machine that runs the image, through NVIDIA's container toolkit.
DRIVER_LIBRARIES = frozenset({"libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1"})


def missing_libraries(entries: Iterable[LayerEntry]) -> dict[str, str]:
    """Return each library that the image needs and lacks, with the path of a file that needs it.

    A file of the library's name in any folder counts: search paths are not followed, for programs also load libraries
    explicitly. Libraries that a program opens by name at run time are not checked.
    """
    entries = tuple(entries)
    names = {PurePosixPath(entry.path).name for entry in entries} | DRIVER_LIBRARIES
    absent: dict[str, str] = {}
    for entry in entries:
        for soname in needed_libraries(entry.source) if entry.source is not None else ():
            if soname not in names:
                absent.setdefault(soname, entry.path)
    return absent


@functools.cache
def needed_libraries(path: Path) -> tuple[str, ...]:
    """Return the libraries that an ELF file needs; none for other files."""
    with path.open("rb") as file:
        if file.read(4) != _ELF:
            return ()
        from elftools.common.exceptions import ELFError
        from elftools.elf.dynamic import DynamicSection
        from elftools.elf.elffile import ELFFile

        try:
            sections = [section for section in ELFFile(file).iter_sections() if isinstance(section, DynamicSection)]
            return tuple(
                str(vars(tag)["needed"])  # set by pyelftools outside of its types
                for section in sections
                for tag in section.iter_tags("DT_NEEDED")
            )
        except ELFError:
            return ()


CACHE = "__pycache__"
_MODULE = re.compile(r".*/lib/python3\.\d+/.*\.py")


def compile_modules(entries: Iterable[LayerEntry], prefix: Path, *, seen_at: str) -> None:
    """Compile the modules among the entries in place with the prefix's Python, if it has one.

    One process compiles all of them in a fixed order with a fixed hash seed, for the result depends on these. Invalid
    modules, such as templates, are skipped.
    """
    python = prefix / "bin" / "python"
    modules = sorted({entry.source for entry in entries if entry.source is not None and _is_python_module(entry)})
    if not modules or not python.exists():
        return
    for cache in {module.parent / CACHE for module in modules}:
        _remove_compiled_modules(cache)
    listing = prefix.parent / "modules.txt"
    listing.write_text("".join(f"{module}\n" for module in modules), encoding="utf-8")
    words = (python, "-sS", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash")
    result = process.run((*words, "-s", prefix, "-p", seen_at, "-i", listing), env={"PYTHONHASHSEED": "0"})
    if result.exit_code not in {0, 1}:
        raise BuildFailed("the image's Python cannot compile its modules", why=program_output_with_margin(result.tail))


def with_compiled_modules(entries: Iterable[LayerEntry]) -> tuple[LayerEntry, ...]:
    """Return entries with the compiled modules added."""
    return tuple(item for entry in entries for item in (entry, *_compiled_module_entries(entry)))


def _compiled_module_entries(entry: LayerEntry) -> Iterator[LayerEntry]:
    if entry.source is None or not _is_python_module(entry):
        return
    folder = entry.path.rpartition("/")[0]
    for file in (entry.source.parent / CACHE).glob(f"{entry.source.stem}.*.pyc"):
        yield LayerEntry(path=f"{folder}/{CACHE}/{file.name}", mode=FILE, source=file)


def _is_python_module(entry: LayerEntry) -> bool:
    return entry.source is not None and _MODULE.fullmatch(entry.path) is not None


def _remove_compiled_modules(cache: Path) -> None:
    """Remove a package's compiled modules: links into the package cache, which must not be changed."""
    for file in cache.glob("*.pyc") if cache.is_dir() else ():
        file.unlink()


LEFT_OUT = Path(__file__).with_name("left_out.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPackage:
    """An installed package: its record, its files (paths in the prefix), and whether it is a rehearsal's."""

    name: str
    version: str
    build: str
    file_name: str
    sha256: str
    license: str
    depends: tuple[str, ...]
    constrains: tuple[str, ...]
    timestamp: int  # milliseconds since 1970
    files: tuple[str, ...]
    rehearsal: bool
    subdir: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSelection:
    """The packages and files that are excluded from an image."""

    packages: frozenset[str]
    files: re.Pattern[str]

    def includes(self, path: str) -> bool:
        """Return whether the image includes the file at a path in the prefix."""
        return self.files.fullmatch(path) is None


def read_file_selection(excluded: Iterable[str]) -> FileSelection:
    """Read the table of excluded packages and files, fnmatch patterns; ``excluded`` are more packages."""
    rows = csv_rows(LEFT_OUT)
    patterns = (fnmatch.translate(row["pattern"]) for row in rows if row["kind"] == "file")
    return FileSelection(
        packages=frozenset([*excluded, *(row["pattern"] for row in rows if row["kind"] == "package")]),
        files=re.compile("|".join(patterns)),
    )


def installed_packages(prefix: Path) -> tuple[InstalledPackage, ...]:
    """Return the packages in a prefix, sorted by name."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in (prefix / "conda-meta").glob("*.json")]
    return tuple(sorted(map(_package_from_record, records), key=lambda package: package.name))


def included_entries(
    prefix: Path, package: InstalledPackage, selection: FileSelection, *, below: str
) -> Iterator[LayerEntry]:
    """Yield the files of a package that the image includes, in its folder ``below``."""
    if package.name not in selection.packages:
        yield from entries_of_tree(prefix, filter(selection.includes, sorted(package.files)), below=below)


def _package_from_record(record: dict[str, Any]) -> InstalledPackage:
    return InstalledPackage(
        name=record["name"],
        version=record["version"],
        build=record["build"],
        file_name=record["fn"],
        sha256=record.get("sha256") or "",
        license=record.get("license") or "",
        depends=tuple(record.get("depends") or ()),
        constrains=tuple(record.get("constrains") or ()),
        timestamp=int(record.get("timestamp") or 0),
        files=tuple(record.get("files") or ()),
        rehearsal=_is_rehearsal_package(Path(record.get("extracted_package_dir") or "")),
        subdir=record.get("subdir") or "",
        url=record.get("url") or "",
    )


def _is_rehearsal_package(package: Path) -> bool:
    about = package / "info" / "about.json"
    return about.is_file() and bool(json.loads(about.read_text(encoding="utf-8")).get("extra", {}).get("rehearsal"))


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
        """The version of the first package, which is one of the image's kind if there is any."""
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
        debs = image_debian.fetch_packages(
            request.suite, names, folder=work, env=env, on_line=progress.show_output_line
        )
    with step("solve"):
        records = _solve_packages(request, debs)
    prefix = scratch / "prefix"
    with step(f"install {len(records)} packages"):
        solve.install(records, prefix, cache=work / "cache", seen_at=PREFIX)
    packages = product_first(installed_packages(prefix), request)
    with step("select the files that programs need"):
        selection = read_file_selection(request.kind.left_out)
        contents = {package: tuple(included_entries(prefix, package, selection, below=PREFIX)) for package in packages}
    require_files_of_kind(request, contents)
    with step("compile Python's modules"):
        compile_modules(itertools.chain.from_iterable(contents.values()), prefix, seen_at=PREFIX)
        contents = {package: with_compiled_modules(entries) for package, entries in contents.items()}
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


def require_files_of_kind(request: ImageRequest, packages: Mapping[InstalledPackage, tuple[LayerEntry, ...]]) -> None:
    """Refuse packages that are not those of the image's kind, which they would be called, or that it cannot start."""
    kind, paths = request.kind, [entry.path for entries in packages.values() for entry in entries]
    if lacking := [path for path in kind.needs if not fnmatch.filter(paths, f"{PREFIX}/{path}")]:
        raise BuildFailed(
            f"{', '.join(request.specs)} makes no image of {kind.name}: no package has {' or '.join(lacking)}",
            why="it would not start, or be called what it is not; installed are "
            + first_of((f"{package.name} {package.version}" for package in packages), 5),
            hint=f"request {' '.join(kind.specs)}, too, from a channel where it has these files (--from)",
        )


def virtual_packages(glibc: str, cuda: str) -> dict[str, tuple[str, str]]:
    """Return the virtual packages of the image; the solve is for it, not for the machine that makes it.

    Its processor is of level 2 of the x86-64 psABI, as upstream's wheels, so that an image runs nearly everywhere.
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
    products = {package for package in packages if is_product(package, request.kind)}
    others = itertools.chain.from_iterable(entries for package, entries in packages.items() if package not in products)
    product = itertools.chain.from_iterable(packages[package] for package in packages if package in products)
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
        return solve.solve(request.channels, request.specs, virtual_packages=virtual_packages(glibc, request.cuda))
    except SolveFailed as error:
        if request.cuda or "__cuda" not in error.why:
            raise
        raise SolveFailed(error.what, why=error.why, hint="for machines with a GPU: --cuda 12.9") from error


def product_first(packages: Sequence[InstalledPackage], request: ImageRequest) -> tuple[InstalledPackage, ...]:
    """Return packages with those of the image's kind first, whose version it has, and in the order of the request."""
    names = [re.split(r"[\s=<>!~\[]", spec.split("::")[-1])[0] for spec in request.specs]
    requested = {name: index for index, name in enumerate(names)}
    return tuple(
        sorted(packages, key=lambda each: (not is_product(each, request.kind), requested.get(each.name, len(names))))
    )


def is_product(package: InstalledPackage, kind: ImageKind) -> bool:
    """Return whether a package is one of those that change with each release of an image's kind."""
    return any(fnmatch.fnmatchcase(package.name, pattern) for pattern in kind.product)


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
        system = image_debian.system_entries(debs, scratch / "debian", env=env)
        missing = missing_libraries((*system, *conda))
        owners = {soname: image_debian.package_of_library(soname, request.suite, env=env) for soname in missing}
        others = image_debian.missing_license_packages(system)
        if not missing and not others:
            return system, debs
        if unknown := [soname for soname, owner in owners.items() if owner is None]:
            raise _missing_libraries_error({soname: missing[soname] for soname in unknown}, request.suite)
        added = sorted({*others, *(owner for owner in owners.values() if owner is not None)})
        progress.note(f"from Debian: {', '.join(added)}")
        names = (*(deb.name for deb in debs), *added)
        debs = image_debian.fetch_packages(
            request.suite, names, folder=work, env=env, on_line=progress.show_output_line
        )
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
        yield LayerEntry(path=folder, mode=0o775, owner=image_debian.NONROOT)
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
    return sbom.bill_of_installed_packages(kind.name, resolved, licenses, newest_package_time(packages))


def newest_package_time(packages: Iterable[InstalledPackage]) -> int:
    """Return the time of the newest package in seconds since 1970."""
    return max((package.timestamp for package in packages), default=0) // 1000


def _indented_json(value: object) -> bytes:
    return f"{json.dumps(value, indent=1)}\n".encode()
