"""What cells' compiles share: which of them share a cache, and what a recipe's compile step is told of its place.

The names of the variables are the contract with the recipe's compile step; a recipe that knows none of them is built as
ever.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.pipeline.cuda import cuda_of
from kiln.pipeline.memo import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.model.cell import Cell

DISK_CACHE, REMOTE_CACHE, EVENTS = "BAZEL_DISK_CACHE", "BAZEL_REMOTE_CACHE", "BAZEL_BUILD_EVENTS"
CPUS, MEMORY, DISTDIR, CACHE_KEY = "BAZEL_CPUS", "BAZEL_MEMORY_MB", "BAZEL_DISTDIR", "BAZEL_CACHE_KEY"
SECRETS = (REMOTE_CACHE,)  # its address may hold a password

# Of a variant, what differs between cells that may share a cache: Python and what goes with it, the image, whose digest
# counts instead of its name, and where packages come from and go to.
PYTHONS = frozenset({"python", "python_impl", "python_min", "is_python_min", "numpy", "interpreter"})
ELSEWHERE = frozenset({"docker_image", "channel_sources", "channel_targets", "build_number_decrement"})
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "ld", "as", "nvcc", "bazel")


def group_of(cell: Cell) -> str:
    """Return what a cell shares a compile with: its CUDA version, or ``cpu``."""
    cuda = cuda_of(cell)
    return "cpu" if cuda is None else f"cuda{cuda}"


def cache_key(cell: Cell, *, where: str) -> str:
    """Return the name of the cache that a cell's compile uses: a hash of what decides its result beside its sources.

    ``where`` is the digest of the image, or the hash of a machine's own compilers. All of the variant counts (compiler,
    CUDA, flags, platform) but what makes the difference between Pythons. Sources, command lines and environment are in
    Bazel's own keys, inside of a cache.
    """
    zipped = {key for group in cell.zip_keys if "python" in group for key in group}
    zipped = zipped - {"cuda_compiler_version"}  # where CUDA and Python advance together, it still tells them apart
    left_out = PYTHONS | ELSEWHERE | zipped
    variant = {key: values for key, values in cell.variant.items() if key not in left_out}
    return digest([cell.platform, variant, where])[:16]


def toolchain(path: str) -> str:
    """Return a hash of the compilers that a PATH leads to: where they lie, their size and time of change."""
    found = [shutil.which(name, path=path) for name in COMPILERS]
    return digest([_identity(Path(each).resolve()) for each in found if each])


def _identity(program: Path) -> tuple[str, int, int]:
    status = program.stat()
    return str(program), status.st_size, status.st_mtime_ns


def settings(variables: Mapping[str, str]) -> str:
    """Return the shell lines that tell a compile step of its place."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(variables.items()))


def secrets(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the names of the secret variables that are set."""
    return tuple(name for name in SECRETS if environment.get(name))
