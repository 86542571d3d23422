"""One target platform of a rendering, with the environment that variant files and recipes may read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kiln.template.namespace import RestrictedOs, language_version_names, platform_names

if TYPE_CHECKING:
    from collections.abc import Mapping

# conda-build's defaults for keys that no variant file sets (conda_build/variants.py).
_LANGUAGE_VERSIONS = {"python": "3.11", "numpy": "1.23", "perl": "5.26.2", "lua": "5"}
_COMPILERS = {
    "linux": {"c": "gcc", "cxx": "gxx", "fortran": "gfortran"},
    "osx": {"c": "clang", "cxx": "clangxx", "fortran": "gfortran"},
    "win": {"c": "vs2017", "cxx": "vs2017", "fortran": "gfortran"},
}
EXTEND_KEYS = ("pin_run_as_build", "ignore_version", "ignore_build_only_deps", "extend_keys")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform such as ``linux`` with an architecture such as ``64``.

    ``build`` is the subdir of the build machine when the recipe is cross-compiled.
    """

    system: str
    arch: str
    environ: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    _names_cache: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, init=False, compare=False)

    @property
    def subdir(self) -> str:
        """The channel folder, such as ``linux-64``."""
        return f"{self.system}-{self.arch}"

    @property
    def compilers(self) -> Mapping[str, str]:
        """The build machine's compilers by language; empty for systems other than Linux, macOS and Windows."""
        return _COMPILERS.get((self.build or self.system).partition("-")[0], {})

    @cached_property
    def os(self) -> RestrictedOs:
        """The ``os`` that selectors and templates see."""
        return RestrictedOs(self.environ)

    def fixed_names(self, variant: Mapping[str, Any], host_subdir: str) -> dict[str, Any]:
        """Return the names that do not come from the variant itself."""
        versions = [str(variant.get(key) or default) for key, default in _LANGUAGE_VERSIONS.items()]
        key = (*versions, host_subdir)
        names: dict[str, Any] | None = self._names_cache.get(key)
        if names is None:
            names = self._names_cache[key] = {
                **platform_names(host_subdir),
                "os": self.os,
                "environ": self.os.environ,
                **language_version_names(*versions),
                "build_platform": self.build or self.subdir,
                **self.environ,
            }
        return names

    def default_variant(self) -> dict[str, Any]:
        """Return conda-build's default variant."""
        compilers = {f"{language}_compiler": package for language, package in self.compilers.items()}
        windows = {"vc": "14"} if self.system == "win" else {}
        return {
            **_LANGUAGE_VERSIONS,
            "r_base": "3.5",
            "cpu_optimization_target": "nocona",
            "pin_run_as_build": {
                "python": {"min_pin": "x.x", "max_pin": "x.x"},
                "r-base": {"min_pin": "x.x", "max_pin": "x.x"},
            },
            "ignore_version": [],
            "ignore_build_only_deps": ["python", "numpy"],
            "extend_keys": list(EXTEND_KEYS),
            "cran_mirror": "https://cran.r-project.org",
            "target_platform": self.subdir,
            **compilers,
            **windows,
        }
