"""The names of cells, which are the names of their files."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_FORBIDDEN = re.compile(r"[<>:?*,\"\/\|\\]")
# What Windows allows for a whole path, the end included, less where a runner of GitHub puts a feedstock.
_LONGEST_PATH = 259
_SUFFIX = len("_h01234567.yaml")


def cell_name(platform: str, config: Mapping[str, Any], loops: Iterable[str], feedstock: str) -> str:
    """The name of a cell: its platform, then every looping key with its value; long names end in a hash instead."""
    values = "".join(f"{key}{config[key][0]}" for key in sorted(loops) if key != "target_platform")
    name = _FORBIDDEN.sub("", f"{platform}_{values.replace('*', '_').replace(' ', '_')}")
    folder = len(f"C:/Users/runnerx/_work/{feedstock}-feedstock/{feedstock}-feedstock/.ci_support/")
    if folder + len(f"{name}.yaml") <= _LONGEST_PATH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_PATH - folder - _SUFFIX]}_h{digest}"
