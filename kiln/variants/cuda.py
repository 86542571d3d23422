"""The CUDA version of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.channel import VirtualPackages
    from kiln.model.build_config import BuildConfig


def cuda_of(config: BuildConfig) -> str | None:
    """Return the CUDA version of a config, such as ``12.9``, or None."""
    version = config.variant.get("cuda_compiler_version", ("None",))[0]
    return None if version == "None" else version


def offered(virtual_packages: VirtualPackages, config: BuildConfig) -> VirtualPackages:
    """Return a machine's virtual packages, with ``__cuda`` for a CUDA config even where there is no GPU."""
    cuda = cuda_of(config)
    return (
        virtual_packages
        if cuda is None or "__cuda" in virtual_packages
        else {**virtual_packages, "__cuda": (cuda, "0")}
    )
