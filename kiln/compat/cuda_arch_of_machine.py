"""The virtual package ``__cuda_arch``: the lowest compute capability of this machine's GPUs.

Source: CEP 46, https://github.com/conda/ceps/blob/main/cep-0046.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.version_ranges import version_numbers
from kiln.errors import UsageError
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NAME = "__cuda_arch"
OVERRIDE = "CONDA_OVERRIDE_CUDA_ARCH"
CUDA_OVERRIDE = "CONDA_OVERRIDE_CUDA"
_CAPABILITY = lazy_pattern(r"\d{1,4}\.\d{1,4}")


def cuda_arch_version(
    overrides: Mapping[str, str], *, has_cuda: bool, capabilities: Callable[[], Iterable[str]]
) -> str | None:
    """Return the version of the package, None if it is absent: without ``__cuda``, a GPU or with an empty override.

    ``capabilities`` detects those of the GPUs, such as ``9.0``; it is called only if the answer depends on them.

    Raises:
        UsageError: when CONDA_OVERRIDE_CUDA_ARCH is not a compute capability.
    """
    override = overrides.get(OVERRIDE)
    if override and not _CAPABILITY.fullmatch(override):
        raise UsageError(f"{OVERRIDE}={override!r} is not a compute capability", hint=f"{OVERRIDE}=9.0, for example")
    if not has_cuda:
        return None
    if override is not None:
        return override or None
    versions = [capability for capability in capabilities() if _CAPABILITY.fullmatch(capability)]
    return min(versions, key=version_numbers, default=None)


def has_virtual_cuda_package(overrides: Mapping[str, str], cuda: str | None) -> bool:
    """Return whether ``__cuda`` exists: what CONDA_OVERRIDE_CUDA says, else whether the driver knows a CUDA."""
    return bool(overrides.get(CUDA_OVERRIDE, cuda))
