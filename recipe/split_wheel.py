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
# Python's own headers, which every `python` package has. Of the libraries' files they alone differ between the wheels
# of two Pythons, so without them one libtensorflow_cc serves every Python.
PYTHON_HEADERS = re.compile(r"tensorflow/include/external/(local_config_python|python_3_\d+_[^/]*)/")
# absl/, google/ and Eigen/ directly in include/ would overwrite those of other packages, so TensorFlow's copies have a
# separate folder. TensorFlow's own folders, which its interfaces name, are directly in include/. They are folders and
# not links: other packages install files there, too (tsl_robin_map has include/tsl), and a link instead of a folder
# would hide these files, or put them into TensorFlow's.
OWN_HEADERS = ("tensorflow/", "tsl/", "xla/")
INCLUDED_HEADERS = Path("include/libtensorflow_cc")

PKG_CONFIG = """\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: tensorflow_cc
Description: TensorFlow for C and C++
Version: {version}
Libs: -L${{libdir}} -ltensorflow_cc -ltensorflow_framework
Cflags: -I${{includedir}}/libtensorflow_cc -I${{includedir}}
"""

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
    for name in (f"{INCLUDE}LICENSE", "tensorflow/THIRD_PARTY_NOTICES.txt"):
        (folder / Path(name).name).write_bytes(content(wheel, name))


def fill_framework(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install libtensorflow_framework and its links into lib/; return the number of files."""
    return install_library(request, wheel, "tensorflow_framework")


def fill_cc(request: Request, wheel: zipfile.ZipFile) -> int:
    """Install libtensorflow_cc, its links, all headers and the pkg-config file into the prefix."""
    items = [Item(member=member, target=header(request, member.filename)) for member in headers(wheel)]
    extract(wheel, items)
    pkg_config = request.prefix / "lib/pkgconfig/tensorflow_cc.pc"
    pkg_config.parent.mkdir(parents=True, exist_ok=True)
    pkg_config.write_text(PKG_CONFIG.format(version=request.version), encoding="utf-8")
    return install_library(request, wheel, "tensorflow_cc") + len(items) + 1


def headers(wheel: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the wheel's headers, without those of Python."""
    return [m for m in files(wheel) if m.filename.startswith(INCLUDE) and not PYTHON_HEADERS.match(m.filename)]


def header(request: Request, name: str) -> Path:
    """Return the path of a header in the prefix, by its name in the wheel."""
    path = name.removeprefix(INCLUDE)
    return request.prefix / ("include" if path.startswith(OWN_HEADERS) else INCLUDED_HEADERS) / path


def install_library(request: Request, wheel: zipfile.ZipFile, name: str) -> int:
    """Install one library into lib/ under its full version, with the links for the loader and the linker."""
    item = library(request, wheel, name)
    extract(wheel, [item])
    if elf_runpath.rewrite(item.target, library_runpath):
        stamp(item)
    soname = Path(item.member.filename).name
    link(item.target.with_name(soname), item.target)
    link(item.target.with_name(f"lib{name}.so"), item.target.with_name(soname))
    return 3


def library(request: Request, wheel: zipfile.ZipFile, name: str) -> Item:
    """Return a library of the wheel with its path in the prefix."""
    for member in files(wheel):
        match = LIBRARY.fullmatch(member.filename)
        if match and match["name"] == name:
            return Item(member=member, target=request.prefix / "lib" / f"lib{name}.so.{request.version}")
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
    changed = [item for item in items if item.target.suffix == ".so" and clean_runpath(item)]
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
    return name.startswith("tensorflow/") and not name.startswith(INCLUDE) and not LIBRARY.fullmatch(name)


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
    header_names = [member.filename for member in headers(wheel)]
    for name in header_names:
        link(site_packages / name, header(request, name))
    return [*libraries, *header_names]


def fill_nothing(_request: Request, _wheel: zipfile.ZipFile) -> int:
    """Leave the prefix unchanged: the output only requires others."""
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
