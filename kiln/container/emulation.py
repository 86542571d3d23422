"""Programs of other platforms on this machine: the kernel runs them by a registered interpreter, as qemu-user is.

Sources: the kernel's documentation of binfmt_misc, and the machines' numbers in ELF headers (gABI).
"""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from kiln.base import files

if TYPE_CHECKING:
    from collections.abc import Mapping

REGISTRY = Path("/proc/sys/fs/binfmt_misc")
EMULATORS = ("CROSSCOMPILING_EMULATOR", "CMAKE_CROSSCOMPILING_EMULATOR")  # keys that conda-forge adds to a variant
LIBRARIES = "QEMU_LD_PREFIX"  # the folder in which qemu-user looks for the target's loader and C library
IN_CONTAINERS = "F"  # the flag of an interpreter that the kernel keeps open, so that containers need no file of it
_SYSTEMS = {"darwin": "osx", "windows": "win"}  # the system's name: that in a subdir, where they differ
_EMULATED_BY_ENGINES = frozenset({"linux-64", "linux-aarch64"})  # in the virtual machine of Docker or Podman on macOS
_QEMU = {"64": "x86_64", "32": "i386", "armv6l": "arm", "armv7l": "arm"}  # qemu's name, where it differs
_OCI = {"64": "amd64", "32": "386", "aarch64": "arm64", "armv6l": "arm/v6", "armv7l": "arm/v7"}  # an image's, likewise
_MACHINES: Mapping[str, tuple[int, int, Literal["little", "big"]]] = {
    "32": (3, 32, "little"),
    "64": (62, 64, "little"),
    "aarch64": (183, 64, "little"),
    "armv6l": (40, 32, "little"),
    "armv7l": (40, 32, "little"),
    "loong64": (258, 64, "little"),
    "ppc64": (21, 64, "big"),
    "ppc64le": (21, 64, "little"),
    "riscv32": (243, 32, "little"),
    "riscv64": (243, 64, "little"),
    "s390x": (22, 64, "big"),
}  # the architecture in a subdir: the number of its ELF files, their bits and their byte order


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryInterpreter:
    """A program by which the kernel runs programs of another platform, with its flags in binfmt_misc."""

    program: Path
    flags: str

    @property
    def works_in_containers(self) -> bool:
        """True when programs in containers are run by it, too."""
        return IN_CONTAINERS in self.flags


def machine_subdir() -> str:
    """Return the subdir of this machine, such as ``linux-64``."""
    system, machine = platform.system().lower(), platform.machine()
    known = {"x86_64": "64", "AMD64": "64", "ARM64": "arm64", **({} if system == "darwin" else {"arm64": "aarch64"})}
    return f"{_SYSTEMS.get(system, system)}-{known.get(machine, machine)}"


def container_subdir() -> str:
    """Return the subdir of containers' programs here: on macOS, engines run Linux in a virtual machine."""
    system, _, architecture = machine_subdir().partition("-")
    return machine_subdir() if system != "osx" else f"linux-{'aarch64' if architecture == 'arm64' else architecture}"


def oci_platform(subdir: str) -> str:
    """Return the platform of a container image for a subdir, such as ``linux/arm64``."""
    system, _, architecture = subdir.partition("-")
    return f"{system}/{_OCI.get(architecture, architecture)}"


def binfmt_interpreter(subdir: str, registry: Path = REGISTRY) -> BinaryInterpreter | None:
    """Return the registered interpreter for programs of a Linux platform; None without one that exists."""
    system, _, architecture = subdir.partition("-")
    is_enabled = files.text_or_empty(registry / "status").split() == ["enabled"]  # empty if binfmt_misc is not mounted
    if system != "linux" or architecture not in _MACHINES or not is_enabled:
        return None
    header = _make_elf_header(*_MACHINES[architecture])
    for file in sorted(registry.iterdir()):
        fields = _read_binfmt_entry(file) if file.name not in {"register", "status"} else {}
        if fields and _matches_magic_number(header, fields):
            result = BinaryInterpreter(program=Path(fields["interpreter"]), flags=fields.get("flags:", ""))
            if result.works_in_containers or result.program.exists():
                return result
    return None


def can_run_platform(subdir: str, *, in_container: bool) -> bool:
    """Return whether programs of a platform run on this machine, or in its containers."""
    if subdir in {container_subdir() if in_container else machine_subdir(), "noarch"}:
        return True
    if in_container and machine_subdir().startswith("osx-"):
        return subdir in _EMULATED_BY_ENGINES
    program = binfmt_interpreter(subdir)
    return program is not None and (program.works_in_containers or not in_container)


def qemu_user_path(subdir: str, environment: Mapping[str, str]) -> str | None:
    """Return the path of qemu-user for a Linux platform, as conda-forge's builds call it; None where it is missing."""
    system, _, architecture = subdir.partition("-")
    name = f"qemu-{_QEMU.get(architecture, architecture)}"
    path = environment.get("PATH", os.defpath)
    return (shutil.which(f"{name}-static", path=path) or shutil.which(name, path=path)) if system == "linux" else None


def cross_libc_folder(subdir: str, root: Path = Path("/usr")) -> Path | None:
    """Return the folder in which Debian's packages for cross-compilation put a platform's C library, if it is there."""
    architecture = subdir.partition("-")[2]
    folder = root / f"{_QEMU.get(architecture, architecture)}-linux-gnu"
    return folder if next(folder.glob("lib/ld*.so*"), None) else None


def _read_binfmt_entry(file: Path) -> dict[str, str]:
    """Return the fields of an enabled entry for a magic number; empty for another."""
    lines = [line.split() for line in files.text_or_empty(file).splitlines()]
    fields = {line[0]: " ".join(line[1:]) for line in lines if line}
    return fields if "enabled" in fields and {"interpreter", "magic", "offset"} <= fields.keys() else {}


def _matches_magic_number(header: bytes, fields: Mapping[str, str]) -> bool:
    magic = bytes.fromhex(fields["magic"])
    mask = bytes.fromhex(fields["mask"]) if "mask" in fields else b"\xff" * len(magic)
    part = header[int(fields["offset"]) :][: len(magic)]
    return len(part) == len(magic) and all(
        (byte & bits) == (expected & bits) for byte, expected, bits in zip(part, magic, mask, strict=True)
    )


def _make_elf_header(machine: int, bits: int, order: Literal["little", "big"]) -> bytes:
    """Return the beginning of a program in the ELF format, up to its machine."""
    ident = b"\x7fELF" + bytes((bits // 32, 1 if order == "little" else 2, 1)) + bytes(9)
    return ident + b"".join(number.to_bytes(2, order) for number in (2, machine))
