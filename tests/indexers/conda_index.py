"""Index a channel with conda-index, which PyPI has, where conda is missing, which PyPI has not: what it needs is here.

Arguments: a channel, then arguments of ``ChannelIndex`` as JSON. Where conda is installed, it is taken.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

SUBDIRS = ("noarch", "linux-64", "linux-aarch64", "osx-64", "osx-arm64", "win-64")


def lend(name: str, **names: object) -> None:
    """Have a module of conda with these names."""
    module = types.ModuleType(name)
    for key, value in names.items():
        setattr(module, key, value)
    sys.modules[name] = module


def main(channel: str, told: str) -> None:
    """Index a channel, and write ``channeldata.json``."""
    expected: dict[str, Any] = {"write_current_repodata": False, **json.loads(told)}
    if importlib.util.find_spec("conda") is None:
        from rattler import Version

        for package in ("conda", "conda.models", "conda.base"):
            lend(package, __path__=[])
        lend("conda.models.version", VersionOrder=Version)
        lend("conda.base.constants", PLATFORM_DIRECTORIES=SUBDIRS)
    from conda_index.index import ChannelIndex

    index: Any = ChannelIndex(Path(channel), "channel", threads=1, **expected)
    index.index(patch_generator=None)
    index.update_channeldata(rss=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
