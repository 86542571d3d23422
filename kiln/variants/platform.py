"""One target platform of a rendering, with the environment that variant files and recipes may ask about."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from kiln.template.names import Os, language_names, platform_names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# What conda-build takes where no variant file says anything (conda_build/variants.py).
PYTHON, NUMPY, PERL, LUA, R_BASE = "3.11", "1.23", "5.26.2", "5", "3.5"
_COMPILERS = {
    "linux": {"c": "gcc", "cxx": "gxx", "fortran": "gfortran"},
    "osx": {"c": "clang", "cxx": "clangxx", "fortran": "gfortran"},
    "win": {"c": "vs2017", "cxx": "vs2017", "fortran": "gfortran"},
}
EXTEND_KEYS = ("pin_run_as_build", "ignore_version", "ignore_build_only_deps", "extend_keys")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform such as ``linux`` with an architecture such as ``64``."""

    system: str
    arch: str
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def subdir(self) -> str:
        """The channel folder, such as ``linux-64``."""
        return f"{self.system}-{self.arch}"

    @property
    def compilers(self) -> Mapping[str, str]:
        """The native compilers by language; none are known for the rarer systems."""
        return _COMPILERS.get(self.system, {})

    @cached_property
    def os(self) -> Os:
        """The ``os`` that selectors and templates see."""
        return Os(self.environ)

    def names(self, variant: Mapping[str, Any], host_subdir: str) -> dict[str, Any]:
        """Every name that does not come from the variant itself."""
        return self._languages(
            str(variant.get("python") or PYTHON),
            str(variant.get("numpy") or NUMPY),
            str(variant.get("perl") or PERL),
            str(variant.get("lua") or LUA),
            host_subdir,
        )

    def _languages(self, python: str, numpy: str, perl: str, lua: str, host_subdir: str) -> dict[str, Any]:
        key = (python, numpy, perl, lua, host_subdir)
        found: dict[str, Any] | None = self._names.get(key)
        if found is None:
            found = self._names[key] = {
                **platform_names(host_subdir),
                "os": self.os,
                "environ": self.os.environ,
                **language_names(python, numpy, perl, lua),
                "build_platform": self.subdir,
                **self.environ,
            }
        return found

    @cached_property
    def _names(self) -> dict[tuple[str, ...], dict[str, Any]]:
        return {}

    def defaults(self) -> dict[str, Any]:
        """The variant that applies where no file says otherwise."""
        compilers = {f"{language}_compiler": package for language, package in self.compilers.items()}
        windows = {"vc": "14"} if self.system == "win" else {}
        return {
            "python": PYTHON,
            "numpy": NUMPY,
            "perl": PERL,
            "lua": LUA,
            "r_base": R_BASE,
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
