"""A machine's virtual packages, such as ``__cuda``: detected, overridden, or those of an emulated platform."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kiln.errors import UsageError
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

VirtualPackages: TypeAlias = "Mapping[str, tuple[str, str]]"  # name to version and build, as in __cuda 12.9 0
_ARCHSPEC = {"64": "x86_64", "32": "x86"}  # the architecture in a subdir: its build of __archspec, where they differ
OVERRIDES = {"cuda": "CONDA_OVERRIDE_CUDA", "libc": "CONDA_OVERRIDE_GLIBC", "archspec": "CONDA_OVERRIDE_ARCHSPEC"}
_VERSION = lazy_pattern(r"\d{1,9}(\.\d{1,9}){0,5}")


def emulated_virtual_packages(subdir: str, machine: VirtualPackages) -> VirtualPackages:
    """Return the virtual packages for a platform whose programs are emulated: this machine's, of another processor."""
    architecture = subdir.partition("-")[2]
    return {**machine, "__archspec": ("1", _ARCHSPEC.get(architecture, architecture))}


def machine_virtual_packages(overrides: Mapping[str, str] | None = None) -> VirtualPackages:
    """Return this machine's virtual packages, ``__glibc``, ``__cuda`` and ``__cuda_arch`` among them.

    ``overrides`` hold conda's variables CONDA_OVERRIDE_CUDA, CONDA_OVERRIDE_CUDA_ARCH, CONDA_OVERRIDE_GLIBC and
    CONDA_OVERRIDE_ARCHSPEC, which replace what was detected; an empty one removes it. rattler detects all but
    ``__cuda_arch``.

    Raises:
        UsageError: when one of them is not a version.
    """
    from rattler import VirtualPackage, VirtualPackageOverrides
    from rattler.virtual_package import Override

    from kiln.compat import cuda_arch_of_machine, machine_facts

    values = {kind: (overrides or {}).get(name) for kind, name in OVERRIDES.items()}
    for kind, value in values.items():
        if value and kind != "archspec" and not _VERSION.fullmatch(value):
            raise UsageError(
                f"{OVERRIDES[kind]}={value!r} is not a version", hint=f"{OVERRIDES[kind]}=12.9, for example"
            )
    replacements = {kind: Override.string(value) for kind, value in values.items() if value is not None}
    detected = VirtualPackage.detect(VirtualPackageOverrides(**replacements))
    generic = (package.into_generic() for package in detected)
    packages = {package.name.normalized: (str(package.version), str(package.build_string)) for package in generic}
    arch = cuda_arch_of_machine.cuda_arch_version(
        overrides or {},
        has_cuda="__cuda" in packages,
        capabilities=lambda: machine_facts.compute_capabilities(overrides or {}),
    )
    return packages if arch is None else {**packages, cuda_arch_of_machine.NAME: (arch, "0")}
