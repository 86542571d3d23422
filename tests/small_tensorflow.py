"""The small workspace in the shape of TensorFlow: its image, the compilers of its two CUDAs, its Pythons.

All of it comes from Debian's mirror and PyPI. Its feedstock is fixtures/small-tensorflow, whose scripts are links to
the real recipe's; `feedstock` copies it with what they link to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.conda.channel import LocalChannel
from kiln.image import apt, worker
from kiln.image.apt import KEYRING
from tests import shared_inputs
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.container.engine import Engine

ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "small-tensorflow"
STORE = ROOT / "build_artifacts" / "small-tensorflow"
IMAGE = "localhost/kiln-bazel:trixie"
# Bazel, the rules that it would download, and the newest host compiler that both CUDAs accept (12.4: GCC below 14).
RULES = ("bazel-rules-cc", "bazel-rules-java", "bazel-rules-proto")
BAZEL = ("bazel-bootstrap", *RULES, "g++-13", "g++-13-aarch64-linux-gnu")
# By which the programs of check_link.sh find the libraries.
FINDERS = ("cmake", "make", "pkgconf")
# CUDA 12.4's nvcc, unpacked alone: the packages that it depends on have 2.5 GB, and their headers are in the wheels.
NVCC = "nvidia-cuda-toolkit"
HEADERS = "libpython{python}-dev"
# Python 3.13 is the image's own; 3.11 is Debian 12's, which runs there too.
INTERPRETER = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib")
PYTHONS = {"3.11": "bookworm", "3.13": "trixie"}
# The Python of the cross-compiled config, and what it and the libraries are linked with: qemu-user runs them by it.
ARM_PYTHON = "3.13"
ARM_LIBRARIES = ("libc6", "libexpat1", "libffi8", "libgcc-s1", "libstdc++6", "zlib1g")

PROFILE = """\
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
"""
# Run in the image: an interpreter as a conda package, as a rehearsal makes it.
PACK = """\
import os, sys
from pathlib import Path
from kiln.build.rehearsal import python_search as usable_python_search
from kiln.build.rehearsal import python_package as python_package_from_interpreter
for executable in sys.argv[2:]:
    found = usable_python_search.probe_interpreter(Path(executable), env=os.environ)
    python_package_from_interpreter.write_python_packages(found, Path(sys.argv[1]), env=os.environ)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The feedstock's other inputs, in a folder that is kept: Bazel's downloads, and a channel of Pythons.

    ``arm`` is the root of a Debian of aarch64, as far as its Python needs it.
    """

    downloads: Path
    channel: Path
    arm: Path


def ready(engine: Engine, folder: Path = STORE) -> Store:
    """Have the image in the engine and the downloads and packages in a folder; what is there is not made again."""
    shared_inputs.provide_image(engine, worker.base_image_recipe("trixie", (*BAZEL, *FINDERS)), IMAGE)
    store = Store(downloads=folder / "downloads", channel=folder / "channel", arm=folder / "arm")
    made = files.sha256(FIXTURE / "toolkits.txt") + files.sha256(Path(__file__))
    complete = folder / "complete"
    with shared_inputs.turn("small-tensorflow"):
        if not complete.exists() or complete.read_text() != made:
            with tempfile.TemporaryDirectory(prefix="small-tensorflow-") as scratch:
                make(store, Path(scratch), engine)
            files.write_text(complete, made)
    return store


def feedstock(target: Path, store: Store) -> Path:
    """Copy the feedstock, with the scripts that it links to and the channel that its variants name."""
    shutil.copytree(FIXTURE, target)
    shutil.copytree(store.channel, target / "channel")
    return target


def make(store: Store, scratch: Path, engine: Engine) -> None:
    """Fetch everything and put it into the store."""
    for place in (store.downloads, store.channel, store.arm):
        files.remove(place)
        place.mkdir(parents=True)
    wheels = fetch_wheels(scratch / "wheels")
    debian = {suite: scratch / suite for suite in ("trixie", "bookworm")}
    fetch_debian("trixie", (NVCC, HEADERS.format(python="3.13")), debian["trixie"])
    fetch_debian("bookworm", (HEADERS.format(python="3.11"), *INTERPRETER), debian["bookworm"])
    fetch_debian("trixie", (HEADERS.format(python=ARM_PYTHON),), debian["trixie"], "arm64")
    pack(cuda_12(scratch / "12", debian["trixie"], wheels), store.downloads / "cuda_nvcc-12.4.1.tar")
    pack(cuda_13(scratch / "13", wheels), store.downloads / "cuda_nvcc-13.0.0.tar")
    for python, suite in PYTHONS.items():
        pack(debian[suite] / "usr", store.downloads / f"python-{python}.tar", only="include")
    packages = pack_interpreters(debian["bookworm"], scratch / "packages", engine)
    interpreter = (f"python{ARM_PYTHON}-minimal", f"libpython{ARM_PYTHON}-minimal", f"libpython{ARM_PYTHON}-stdlib")
    fetch_debian("trixie", (*interpreter, *ARM_LIBRARIES), store.arm, "arm64")
    (store.arm / "lib").symlink_to("usr/lib")
    arm = (pack_arm_interpreter(store.arm / "usr", scratch / "arm"), "linux-aarch64")
    LocalChannel(root=store.channel).add([*((package, "linux-64") for package in packages), arm])


def fetch_wheels(folder: Path) -> Path:
    """Fetch and unpack NVIDIA's wheels, with the hashes that the fixture has of them; returns the folder with all."""
    words = ("--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    run((sys.executable, "-m", "pip", "download", *words, "--requirement", str(FIXTURE / "toolkits.txt")))
    for wheel in folder.glob("*.whl"):
        run((sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)))
    return folder / "nvidia"


def fetch_debian(suite: str, packages: Iterable[str], folder: Path, architecture: str = "amd64") -> None:
    """Fetch packages of a suite of Debian with this machine's mirrors, apart from its own apt, and unpack them."""
    lists = folder / f"apt-{architecture}"
    (lists / "lists" / "partial").mkdir(parents=True)
    trust = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = (
        line.replace("deb ", f"deb {trust}", 1) + " non-free" for line in apt.sources_list_lines(suite, env=os.environ)
    )
    (lists / "sources.list").write_text("".join(f"{line}\n" for line in lines))
    settings = {
        "Dir::Etc::sourcelist": lists / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists / "lists",
        "Dir::Cache": lists / "cache",
        "APT::Architecture": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    run(("apt-get", *words, "-q", "update"), cwd=lists)
    run(("apt-get", *words, "-q", "download", *packages), cwd=lists)
    for package in lists.glob("*.deb"):
        run(("dpkg-deb", "-x", str(package), str(folder)))


def cuda_12(folder: Path, debian: Path, wheels: Path) -> Path:
    """Lay out CUDA 12.4 as one folder: Debian's programs, the wheels' headers."""
    inside = debian / "usr" / "lib" / "nvidia-cuda-toolkit"
    programs = [
        inside / "bin" / "nvcc",
        *(debian / "usr" / "bin" / name for name in ("cudafe++", "fatbinary", "ptxas")),
    ]
    copy({program: f"bin/{program.name}" for program in programs}, folder)
    copy({inside / "bin" / "cicc": "nvvm/bin/cicc"}, folder)
    shutil.copytree(inside / "bin" / "crt", folder / "bin" / "crt")
    shutil.copytree(inside / "libdevice", folder / "nvvm" / "libdevice")
    for name in ("cuda_nvcc", "cuda_runtime"):
        shutil.copytree(wheels / name / "include", folder / "include", dirs_exist_ok=True)
    (folder / "bin" / "nvcc.profile").write_text(PROFILE)
    return folder


def cuda_13(folder: Path, wheels: Path) -> Path:
    """Lay out CUDA 13.0 as one folder: all of it is in the wheels."""
    for name in ("bin", "nvvm", "include"):
        shutil.copytree(wheels / "cu13" / name, folder / name)
    (folder / "bin" / "nvlink").unlink()
    (folder / "bin" / "nvcc.profile").write_text(PROFILE)
    return folder


def copy(places: Mapping[Path, str], folder: Path) -> None:
    """Copy files to places in a folder."""
    for source, place in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / place)


def pack(folder: Path, archive: Path, *, only: str = "") -> None:
    """Put a folder into an archive, with the right to run what is in bin/, which programs from a wheel have lost."""

    def executable(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mode |= 0o111 if "/bin/" in f"/{member.name}" else 0
        return member

    with tarfile.open(archive, "w") as tar:
        tar.add(folder / only, arcname=only or ".", filter=executable)


def pack_interpreters(debian: Path, folder: Path, engine: Engine) -> list[Path]:
    """Make conda packages of the two Pythons in the image, where both run."""
    folder.mkdir()
    mounts = {ROOT / "kiln": "/opt/kiln-source/kiln", debian: "/opt/bookworm", folder: "/opt/packages"}
    words = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}")]
    inside = (f"{worker.ENGINE_HOME}/bin/python", "-B", "-c", PACK, "/opt/packages")
    pythons = ("/usr/bin/python3.13", "/opt/bookworm/usr/bin/python3.11")
    start = (engine.executable, "run", "--rm", *engine.options, "--env", "PYTHONPATH=/opt/kiln-source", *words, IMAGE)
    run((*start, *inside, *pythons), env=engine.environment)
    return sorted(folder.glob("*.conda"))


def pack_arm_interpreter(debian: Path, folder: Path) -> Path:
    """Make a conda package of the Python of another processor, which cannot be asked what it consists of."""
    name = f"python{ARM_PYTHON}"
    library = (file for file in (debian / "lib" / name).rglob("*") if file.is_file())
    payload = {str(file.relative_to(debian)): file.read_bytes() for file in library}
    payload[f"bin/{name}"] = payload["bin/python"] = (debian / "bin" / name).read_bytes()
    build = f"0_cp{ARM_PYTHON.replace('.', '')}"
    return release_package(folder, "python", f"{ARM_PYTHON}.0", build, payload=payload, subdir="linux-aarch64")


def run(words: tuple[str, ...], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a program, and fail with all that it said."""
    ended = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}{ended.stderr}"
