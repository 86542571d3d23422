"""Fills a prefix with one output of this recipe, taking from a TensorFlow wheel only what belongs to that output.

It does not matter who made the wheel: Bazel a moment ago, or upstream. The libraries for C and C++ are those that Bazel
made for themselves, if it did, else those of the wheel. Standard library only, Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import development_files
import elf_runpath
import header_files
import wheel_metadata
from wheel_files import (
    BadWheel,
    Item,
    content,
    copied,
    extract,
    files,
    in_parallel,
    is_of_macos,
    library_file,
    link,
    stamp,
    the_wheel,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LIBRARY = re.compile(r"tensorflow/lib(?P<name>tensorflow_framework|tensorflow_cc)(\.so\.\d+|\.\d+\.dylib)")
# The folders below site-packages/nvidia for the libraries of NVIDIA's wheels that TensorFlow loads at run time.
NVIDIA = (
    *("cublas", "cuda_cupti", "cuda_nvrtc", "cuda_runtime", "cudnn", "cufft"),
    *("curand", "cusolver", "cusparse", "nccl", "nvjitlink", "nvshmem"),
)
# A folder that exists in site-packages/tensorflow and not in lib/; see library_runpath.
LANDMARK = "_api"


@dataclass(frozen=True)
class Request:
    """A request to fill a prefix: the output's name and version, and the folders."""

    output: str
    version: str
    wheels: Path
    prefix: Path
    licenses: Path
    site_packages: Path | None

    @property
    def libraries(self) -> Path:
        """The folder of the libraries that Bazel made without the wheel; it does not exist in a rehearsal."""
        return self.wheels / "libraries"


def main(arguments: list[str]) -> int:
    """Fill the prefix of the command line; return the exit code."""
    request = parse(arguments)
    began = time.monotonic()
    try:
        path = the_wheel(request.wheels, version=request.version, python=minor_of_python(request))
        with zipfile.ZipFile(path) as wheel:
            write_licenses(wheel, request.licenses)
            count = OUTPUTS[request.output](request, wheel)
    except (BadWheel, zipfile.BadZipFile) as error:
        sys.stderr.write(f"split_wheel.py: {error}\n")
        return 1
    sys.stdout.write(f"{request.output}: {count} files from {path.name} in {time.monotonic() - began:.1f} s\n")
    return 0


def parse(arguments: list[str]) -> Request:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, choices=sorted(OUTPUTS), help="the package to fill the prefix with")
    parser.add_argument("--version", required=True, help="the version that the wheel must have")
    parser.add_argument("--wheels", required=True, type=Path, help="folder with exactly one wheel")
    parser.add_argument("--prefix", required=True, type=Path, help="the prefix to fill")
    parser.add_argument("--licenses", required=True, type=Path, help="the folder for the license texts")
    parser.add_argument("--site-packages", type=Path, help="the prefix's site-packages (tensorflow-base only)")
    return Request(**vars(parser.parse_args(arguments)))


def minor_of_python(request: Request) -> str | None:
    """Return "11" for an output with modules for Python 3.11; None for one that serves every Python."""
    if request.output != "tensorflow-base":
        return None
    match = re.search(r"/python3\.(\d+)", str(request.site_packages))
    return match[1] if match else None


def write_licenses(wheel: zipfile.ZipFile, folder: Path) -> None:
    """Write the wheel's license texts to the paths of the recipe's ``license_file``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"{header_files.INCLUDE}LICENSE", "tensorflow/THIRD_PARTY_NOTICES.txt"):
        (folder / Path(name).name).write_bytes(content(wheel, name))


def fill_framework(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install libtensorflow_framework and the headers of the C interface; return the number of files.

    Both other libraries have the C interface and require this one.
    """
    headers = header_files.of_wheel(wheel)
    names = header_files.of_c_interface(wheel, headers)
    return install_headers(request, wheel, names) + install_library(request, wheel, "tensorflow_framework")


def fill_c(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install libtensorflow, the library of the C interface alone; return the number of files."""
    if not request.libraries.is_dir():
        raise BadWheel("there is no libtensorflow in a wheel, and the compile left no dist/libraries")
    return install_library(request, wheel, "tensorflow") + write_development_files(request, wheel, "tensorflow")


def fill_cc(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install libtensorflow_cc and all headers but those of the C interface; return the number of files."""
    headers = header_files.of_wheel(wheel)
    names = headers.keys() - header_files.of_c_interface(wheel, headers)
    count = install_headers(request, wheel, names) + install_more_headers(request, headers)
    count += install_library(request, wheel, "tensorflow_cc")
    return count + write_development_files(request, wheel, "tensorflow_cc")


def write_development_files(request: Request, wheel: zipfile.ZipFile, name: str) -> int:
    """Write the files for pkg-config and CMake; return their number."""
    complete = request.libraries.is_dir()
    return development_files.write(
        request.prefix, name, request.version, client_session=complete, macos=is_of_macos(wheel)
    )


def install_headers(request: Request, wheel: zipfile.ZipFile, names: Iterable[str]) -> int:
    """Install headers of the wheel; return their number."""
    members = header_files.of_wheel(wheel)
    apart = {name for name in members if header_files.is_apart(name)}

    def install(name: str) -> None:
        text = header_files.with_places(wheel.read(members[name]), name, apart)
        written(Item(member=members[name], target=include(request, name)), text)

    names = sorted(names)
    in_parallel(install, names)
    return len(names)


def install_more_headers(request: Request, headers: Mapping[str, zipfile.ZipInfo]) -> int:
    """Install TensorFlow's own headers that Bazel's install_headers has and the wheel has not; return their number."""
    folder = request.libraries / "include"
    files_there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    names = sorted(name for name in files_there.keys() - headers.keys() if name.startswith(header_files.OWN))
    apart = {name for name in headers if header_files.is_apart(name)}
    date = next(iter(headers.values()))
    for name in names:
        text = header_files.with_places(files_there[name].read_bytes(), name, apart)
        written(Item(member=date, target=include(request, name)), text)
    return len(names)


def include(request: Request, name: str) -> Path:
    """Return the path of a header in the prefix."""
    return request.prefix / "include" / header_files.place(name)


def install_library(request: Request, wheel: zipfile.ZipFile, name: str) -> int:
    """Install one library into lib/ under its full version, with the links for the loader and the linker.

    Those of macOS stay as they are: they find each other by the search paths of what loads them, and a change would
    break their signatures, without which the system ends the process.
    """
    target = request.prefix / "lib" / library_file(wheel, name, request.version)
    major = library_file(wheel, name, request.version.partition(".")[0])
    if request.libraries.is_dir():
        item = Item(member=library(wheel, "tensorflow_framework"), target=target)
        copied(request.libraries / "lib" / major, item)
    else:
        item = Item(member=library(wheel, name), target=target)
        extract(wheel, [item])
    if not is_of_macos(wheel) and elf_runpath.rewrite(target, library_runpath):
        stamp(item)
    soname = target.with_name(major)
    link(soname, target)
    link(target.with_name(library_file(wheel, name)), soname)
    return 3


def library(wheel: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """Return the member of the wheel that is a library."""
    for member in files(wheel):
        match = LIBRARY.fullmatch(member.filename)
        if match and match["name"] == name:
            return member
    raise BadWheel(f"the wheel has no library lib{name}")


def library_runpath(old: str) -> str:
    """Return the search path of a library in lib/ that is also loaded through its link in site-packages.

    ``$ORIGIN`` is the folder of the path by which it is loaded. From lib/ it finds everything in a conda prefix. From
    site-packages/tensorflow, lib/ is three folders up; but three folders up from lib/ is outside of the prefix, where
    anyone might put a library, so the path goes through a folder that exists only in the link's folder.
    """
    entries = ["$ORIGIN"]
    if "/nvidia/" in old:
        entries.append(f"$ORIGIN/{LANDMARK}/../../../..")
        entries += [f"$ORIGIN/{LANDMARK}/../../nvidia/{name}/lib" for name in NVIDIA]
    return ":".join(entries)


def fill_base(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install the Python package into site-packages, with links instead of the libraries and headers."""
    site_packages = request.site_packages
    if site_packages is None:
        raise BadWheel("tensorflow-base needs --site-packages")
    require_known_files(wheel)
    items = [Item(member=m, target=site_packages / m.filename) for m in files(wheel) if is_package(m.filename)]
    extract(wheel, items)
    modules = [] if is_of_macos(wheel) else [item for item in items if item.target.suffix == ".so"]
    changed = [item for item in modules if clean_runpath(item)]
    links = link_back(request, wheel, site_packages)
    wheel_metadata.write(
        wheel,
        site_packages / f"tensorflow-{request.version}.dist-info",
        package=is_package,
        changed={item.member.filename: item.target for item in changed},
        links=links,
    )
    return len(items) + len(links)


def is_package(name: str) -> bool:
    """Return whether a member belongs to the Python package: neither library nor header nor metadata."""
    return name.startswith("tensorflow/") and not name.startswith(header_files.INCLUDE) and not LIBRARY.fullmatch(name)


def require_known_files(wheel: zipfile.ZipFile) -> None:
    """Raise BadWheel for a file of the wheel that would be in no output."""
    prefixes = ("tensorflow/", f"{wheel_metadata.folder_in(wheel)}/")
    for member in files(wheel):
        if not member.filename.startswith(prefixes):
            raise BadWheel(f"the wheel has a file that belongs to no output: {member.filename}")


def clean_runpath(item: Item) -> bool:
    """Remove the folders of the build machine from a module's search path; return whether it changed."""
    try:
        changed = elf_runpath.rewrite(item.target, lambda old: ":".join(clean_entries(old)))
    except elf_runpath.NotElf as error:
        raise BadWheel(f"{item.member.filename} is not a shared object for 64 bits: {error}") from error
    if changed:
        stamp(item)
    return changed


def clean_entries(runpath: str) -> list[str]:
    """Return the distinct folders of a search path, without those of Bazel's build tree."""
    entries = dict.fromkeys(entry.rstrip("/") for entry in runpath.split(":"))
    return [entry for entry in entries if "_solib_" not in entry and ".runfiles/" not in entry]


def link_back(request: Request, wheel: zipfile.ZipFile, site_packages: Path) -> list[str]:
    """Create the links through which the Python package finds libraries and headers; return their paths there.

    Each header has a link: a link to their folder would remain when conda removes the package, and Python would still
    find a package there.

    The loader distinguishes libraries by file, not by path, so no library is loaded twice. Python must use these links:
    TensorFlow looks for ptxas, libdevice and NVIDIA's wheels at paths relative to the path by which its library was
    loaded, and four folders up from site-packages/tensorflow is one of them, the conda prefix.
    """
    libraries = [member.filename for member in files(wheel) if LIBRARY.fullmatch(member.filename)]
    for name in libraries:
        link(site_packages / name, request.prefix / "lib" / Path(name).name)
    headers = {f"{header_files.INCLUDE}{path}": name for name in header_files.of_wheel(wheel) for path in paths(name)}
    for path, name in headers.items():
        link(site_packages / path, include(request, name))
    return [*libraries, *headers]


def paths(name: str) -> set[str]:
    """Return the paths by which a header is included: its own, and the one by which other headers include it."""
    return {name, header_files.place(name)} if header_files.is_apart(name) else {name}


def fill_nothing(_request: Request, _wheel: zipfile.ZipFile) -> int:
    """Leave the prefix unchanged: the output only requires others."""
    return 0


OUTPUTS = {
    "libtensorflow": fill_c,
    "libtensorflow_framework": fill_framework,
    "libtensorflow_cc": fill_cc,
    "tensorflow-base": fill_base,
    "tensorflow": fill_nothing,
    "tensorflow-cpu": fill_nothing,
    "tensorflow-gpu": fill_nothing,
    "tensorflow-sse3": fill_nothing,
    "tensorflow-avx2": fill_nothing,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
