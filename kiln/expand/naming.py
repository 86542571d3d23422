"""The names of configs, which are also the names of their files."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_FORBIDDEN = lazy_pattern(r"[<>:?*,\"\/\|\\]")
# The longest path that Windows allows, less the folder into which a GitHub runner checks out a feedstock.
_LONGEST_PATH = 259
_SUFFIX = len("_h01234567.yaml")


def config_name(platform: str, config: Mapping[str, Any], loops: Iterable[str], feedstock: str) -> str:
    """Return a config's name: its platform, then each looping key with its value; a long name is cut and hashed."""
    values = "".join(f"{key}{config[key][0]}" for key in sorted(loops) if key != "target_platform")
    name = _FORBIDDEN.sub("", f"{platform}_{values.replace('*', '_').replace(' ', '_')}")
    folder = len(f"C:/Users/runnerx/_work/{feedstock}-feedstock/{feedstock}-feedstock/.ci_support/")
    if folder + len(f"{name}.yaml") <= _LONGEST_PATH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_PATH - folder - _SUFFIX]}_h{digest}"
