"""Fills a prefix with one output of this recipe, taking from a TensorFlow wheel only what belongs to that output.

It does not matter who made the wheel: Bazel a moment ago, or upstream. Standard library only, Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import elf_runpath
import wheel_metadata
from wheel_files import BadWheel, Item, content, extract, files, link, stamp, the_wheel

LIBRARY = re.compile(r"tensorflow/lib(?P<name>tensorflow_framework|tensorflow_cc)\.so\.\d+")
INCLUDE = "tensorflow/include/"
# Python's own headers, which every `python` package has; they are all that differs between the wheels of two Pythons in
# what the libraries install, and without them one libtensorflow_cc serves every Python.
PYTHON_HEADERS = re.compile(r"tensorflow/include/external/(local_config_python|python_3_\d+_[^/]*)/")
# All headers lie in one folder, because absl/, google/ and Eigen/ straight in include/ would overwrite those of other
# packages. Links lead from include/ to the folders that are TensorFlow's own and that its interfaces name.
HEADERS = Path("include/libtensorflow_cc")
LINKED_HEADERS = ("tensorflow", "tsl", "xla")

PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include/libtensorflow_cc

Name: tensorflow_cc
Description: TensorFlow for C and C++
Version: {version}
Libs: -L${{libdir}} -ltensorflow_cc -ltensorflow_framework
Cflags: -I${{includedir}}
"""

# The folders below site-packages/nvidia in which NVIDIA's wheels bring the libraries that TensorFlow opens as it runs.
NVIDIA = (
    *("cublas", "cuda_cupti", "cuda_nvrtc", "cuda_runtime", "cudnn", "cufft"),
    *("curand", "cusolver", "cusparse", "nccl", "nvjitlink", "nvshmem"),
)
# A folder that site-packages/tensorflow has and lib/ has not; see library_runpath.
LANDMARK = "_api"


@dataclass(frozen=True)
class Request:
    """What to fill a prefix with: the output's name and version, and every folder that takes part."""

    output: str
    version: str
    wheels: Path
    prefix: Path
    licenses: Path
    site_packages: Path | None


def main(arguments: list[str]) -> int:
    """Fill the prefix that the command line names; return the exit code."""
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
    parser.add_argument("--licenses", required=True, type=Path, help="where to put the licence texts")
    parser.add_argument("--site-packages", type=Path, help="the prefix's site-packages (tensorflow-base only)")
    return Request(**vars(parser.parse_args(arguments)))


def minor_of_python(request: Request) -> str | None:
    """Return "11" where the output holds modules for Python 3.11; None where it serves every Python."""
    if request.output != "tensorflow-base":
        return None
    found = re.search(r"/python3\.(\d+)", str(request.site_packages))
    return found[1] if found else None


def write_licenses(wheel: zipfile.ZipFile, folder: Path) -> None:
    """Write the wheel's licence texts where the recipe's ``license_file`` looks for them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (f"{INCLUDE}LICENSE", "tensorflow/THIRD_PARTY_NOTICES.txt"):
        (folder / Path(name).name).write_bytes(content(wheel, name))


def fill_framework(request: Request, wheel: zipfile.ZipFile) -> int:
    """Put libtensorflow_framework and its links into lib/; return the number of files."""
    return install_library(request, wheel, "tensorflow_framework")


def fill_cc(request: Request, wheel: zipfile.ZipFile) -> int:
    """Put libtensorflow_cc, its links, all headers and the pkg-config file into the prefix."""
    headers = request.prefix / HEADERS
    items = [
        Item(member=member, target=headers / member.filename.removeprefix(INCLUDE))
        for member in files(wheel)
        if member.filename.startswith(INCLUDE) and not PYTHON_HEADERS.match(member.filename)
    ]
    extract(wheel, items)
    for name in LINKED_HEADERS:
        link(headers.parent / name, headers / name)
    pkg_config = request.prefix / "lib/pkgconfig/tensorflow_cc.pc"
    pkg_config.parent.mkdir(parents=True, exist_ok=True)
    pkg_config.write_text(PKG_CONFIG.format(version=request.version), encoding="utf-8")
    return install_library(request, wheel, "tensorflow_cc") + len(items) + len(LINKED_HEADERS) + 1


def install_library(request: Request, wheel: zipfile.ZipFile, name: str) -> int:
    """Put one library into lib/ under its full version, with the links for the loader and the linker."""
    item = library(request, wheel, name)
    extract(wheel, [item])
    if elf_runpath.rewrite(item.target, library_runpath):
        stamp(item)
    soname = Path(item.member.filename).name
    link(item.target.with_name(soname), item.target)
    link(item.target.with_name(f"lib{name}.so"), item.target.with_name(soname))
    return 3


def library(request: Request, wheel: zipfile.ZipFile, name: str) -> Item:
    """Return a library of the wheel with its place in the prefix."""
    for member in files(wheel):
        found = LIBRARY.fullmatch(member.filename)
        if found and found["name"] == name:
            return Item(member=member, target=request.prefix / "lib" / f"lib{name}.so.{request.version}")
    raise BadWheel(f"the wheel has no library lib{name}")


def library_runpath(old: str) -> str:
    """Return the search path of a library that lies in lib/ and is also reached by its link in site-packages.

    ``$ORIGIN`` is the folder of the path that was taken. From lib/ it finds everything that a conda prefix has. From
    site-packages/tensorflow, lib/ is three folders up; but three folders up from lib/ is outside of the prefix, where
    anyone might put a library, so the way leads through a folder that exists beside the link alone.
    """
    entries = ["$ORIGIN"]
    if "/nvidia/" in old:
        entries.append(f"$ORIGIN/{LANDMARK}/../../../..")
        entries += [f"$ORIGIN/{LANDMARK}/../../nvidia/{name}/lib" for name in NVIDIA]
    return ":".join(entries)


def fill_base(request: Request, wheel: zipfile.ZipFile) -> int:
    """Put the Python package into site-packages, with links in place of the libraries and headers."""
    site = request.site_packages
    if site is None:
        raise BadWheel("tensorflow-base goes into site-packages; give --site-packages")
    refuse_strays(wheel)
    items = [Item(member=m, target=site / m.filename) for m in files(wheel) if is_package(m.filename)]
    extract(wheel, items)
    changed = [item for item in items if item.target.suffix == ".so" and cleaned(item)]
    links = link_back(request, wheel, site)
    wheel_metadata.write(
        wheel,
        site / f"tensorflow-{request.version}.dist-info",
        package=is_package,
        changed={item.member.filename: item.target for item in changed},
        links=links,
    )
    return len(items) + len(links)


def is_package(name: str) -> bool:
    """Say whether a member belongs to the Python package: neither library nor header nor metadata."""
    return name.startswith("tensorflow/") and not name.startswith(INCLUDE) and not LIBRARY.fullmatch(name)


def refuse_strays(wheel: zipfile.ZipFile) -> None:
    """Raise BadWheel where a file of the wheel would end up in no output at all."""
    known = ("tensorflow/", f"{wheel_metadata.folder_in(wheel)}/")
    for member in files(wheel):
        if not member.filename.startswith(known):
            raise BadWheel(f"the wheel has a file that belongs to no output: {member.filename}")


def cleaned(item: Item) -> bool:
    """Take the folders of the build machine out of a module's search path; say whether anything changed."""
    try:
        changed = elf_runpath.rewrite(item.target, lambda old: ":".join(kept(old)))
    except elf_runpath.NotElf as error:
        raise BadWheel(f"{item.member.filename} is not a shared object for 64 bits: {error}") from error
    if changed:
        stamp(item)
    return changed


def kept(runpath: str) -> list[str]:
    """Return the folders of a search path, each once, without those of Bazel's build tree."""
    entries = dict.fromkeys(entry.rstrip("/") for entry in runpath.split(":"))
    return [entry for entry in entries if "_solib_" not in entry and ".runfiles/" not in entry]


def link_back(request: Request, wheel: zipfile.ZipFile, site: Path) -> list[str]:
    """Put links where the Python package looks for its libraries and headers; return their paths in site-packages.

    The loader tells libraries apart by file, not by path, so no library is loaded twice. It matters that Python takes
    this way: TensorFlow looks for ptxas, libdevice and NVIDIA's wheels at places relative to the path by which its
    library was loaded, and four folders up from site-packages/tensorflow is one of them, the conda prefix.
    """
    libraries = [member.filename for member in files(wheel) if LIBRARY.fullmatch(member.filename)]
    for name in libraries:
        link(site / name, request.prefix / "lib" / Path(name).name)
    link(site / INCLUDE.rstrip("/"), request.prefix / HEADERS)
    return [*libraries, INCLUDE.rstrip("/")]


def fill_nothing(_request: Request, _wheel: zipfile.ZipFile) -> int:
    """Leave the prefix as it is: the output does nothing but require others."""
    return 0


OUTPUTS = {
    "libtensorflow_framework": fill_framework,
    "libtensorflow_cc": fill_cc,
    "tensorflow-base": fill_base,
    "tensorflow": fill_nothing,
    "tensorflow-cpu": fill_nothing,
    "tensorflow-gpu": fill_nothing,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
