"""YAML as plain Python values, for files that are not edited: by libyaml where PyYAML has it, ten times as fast."""

from __future__ import annotations

from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> Any:
    """Return the values of a document.

    Raises:
        yaml.YAMLError: when it is not YAML.
    """
    return yaml.load(text, _LOADER)  # noqa: S506 - both are safe ones
