"""The CUDA version of a config, and the configs that share a compile by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.model.matrix_config import BuildConfig
    from kiln.virtual_packages import VirtualPackages


ANY_GPU = "999.0"  # newer than any, so that no lower bound excludes it


def cuda_version_of_config(config: BuildConfig) -> str | None:
    """Return the CUDA version of a config, such as ``12.9``, or None."""
    version = config.variant.get("cuda_compiler_version", ("None",))[0]
    return None if version == "None" else version


def compile_group(config: BuildConfig) -> str:
    """Return the group that shares a config's compile: ``cpu``, or ``cuda12.9``, with any platform but linux-64."""
    cuda = cuda_version_of_config(config)
    group = "cpu" if cuda is None else f"cuda{cuda}"
    return group if config.platform == "linux-64" else f"{group}-{config.platform}"


def cuda_arch_of_config(config: BuildConfig) -> str:
    """Return the compute capability that tests of a CUDA config count on where there is no GPU.

    Source: conda-forge-ci-setup, which exports CONDA_OVERRIDE_CUDA_ARCH so.
    """
    return config.variant.get("cuda_arch_version", (ANY_GPU,))[0]


def virtual_packages_with_cuda(virtual_packages: VirtualPackages, config: BuildConfig) -> VirtualPackages:
    """Return a machine's virtual packages, for a CUDA config with ``__cuda`` and ``__cuda_arch`` even without a GPU."""
    cuda = cuda_version_of_config(config)
    if cuda is None:
        return virtual_packages
    return {"__cuda": (cuda, "0"), "__cuda_arch": (cuda_arch_of_config(config), "0"), **virtual_packages}
