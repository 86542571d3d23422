"""The caches that configs' compiles share: their keys."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.store.digests import json_digest

if TYPE_CHECKING:
    from kiln.model.matrix_config import BuildConfig


# Variant keys that may differ between configs that share a cache: Python and related keys, the image, whose digest
# counts instead of its name, and the channels.
PYTHONS = frozenset({"python", "python_impl", "python_min", "is_python_min", "numpy", "interpreter"})
ELSEWHERE = frozenset({"docker_image", "channel_sources", "channel_targets", "build_number_decrement"})
COMPILERS = ("cc", "c++", "gcc", "g++", "clang", "ld", "as", "nvcc", "bazel")


def compile_cache_name(config: BuildConfig, *, where: str) -> str:
    """Return the name of the cache that a config's compile uses: a hash of the inputs other than sources.

    ``where`` is the digest of the image, or the hash of a machine's own compilers. All of the variant counts (compiler,
    CUDA, flags, platform) except the keys that differ between Pythons. Sources, command lines and environment are in
    Bazel's own keys, inside a cache.
    """
    zipped = {key for group in config.zip_keys if "python" in group for key in group}
    zipped = zipped - {"cuda_compiler_version"}  # it counts even where CUDA and Python are zipped
    left_out = PYTHONS | ELSEWHERE | zipped
    variant = {key: values for key, values in config.variant.items() if key not in left_out}
    return json_digest([config.platform, variant, where])[:16]


def toolchain_digest(path: str) -> str:
    """Return a hash of the compilers on a PATH: their paths, sizes and modification times."""
    programs = [shutil.which(name, path=path) for name in COMPILERS]
    return json_digest([_path_size_and_mtime(Path(program).resolve()) for program in programs if program])


def _path_size_and_mtime(program: Path) -> tuple[str, int, int]:
    status = program.stat()
    return str(program), status.st_size, status.st_mtime_ns
