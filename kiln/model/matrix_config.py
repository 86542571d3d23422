"""One config of the matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """A build config, such as one of CUDA x Python: ``name`` is the stem of its file in .ci_support.

    ``variant`` maps each key to its values, in the file's order; more than one value means that the config loops over
    them itself (all Pythons in one config, say). ``zip_keys`` are the groups of keys that advance together.
    ``build_platform`` is the subdir of the machine that builds it; empty until conda-forge.yml was asked.
    """

    name: str
    platform: str
    variant: Mapping[str, tuple[str, ...]]
    zip_keys: tuple[tuple[str, ...], ...] = ()
    pin_run_as_build: Mapping[str, Mapping[str, str] | str]
    image: str | None = None
    build_platform: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its file besides the variant, by their names there; none that are empty."""
        settings = {"zip_keys": self.zip_keys, "pin_run_as_build": self.pin_run_as_build}
        return {name: value for name, value in settings.items() if value}

    @property
    def is_cross(self) -> bool:
        """True when the config is cross-compiled."""
        return self.build_platform not in {"", self.platform}
