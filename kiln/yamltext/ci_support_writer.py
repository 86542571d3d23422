"""Write a mapping of lists in PyYAML's block style, the format of .ci_support files."""

from __future__ import annotations

import pickle
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from kiln.yamltext.text_with_typed_value import TypedText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from yaml import Node


class _CiSupportDumper(yaml.SafeDumper):
    """A dumper that keeps the order of nested mappings, writes true and false unquoted, and repeats equal values."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the library's name
        return True


def _represent_text(dumper: yaml.SafeDumper, data: str) -> Node:
    # Variant files hold text only; conda-smithy writes these two words as the booleans that they were.
    if data in {"true", "false"}:
        return dumper.represent_bool(data == "true")
    return dumper.represent_str(data)


_CiSupportDumper.add_representer(str, _represent_text)
_CiSupportDumper.add_representer(TypedText, lambda dumper, data: dumper.represent_data(data.typed))
_CiSupportDumper.add_representer(dict, lambda dumper, data: dumper.represent_dict(data.items()))


def ci_support_text(data: Mapping[str, Any]) -> str:
    """Return the text of a mapping with sorted outermost keys; values are text, tuples, or mappings in their order."""
    return "".join(_entry_text(key, pickle.dumps(data[key])) for key in sorted(data))


@lru_cache(maxsize=4096)
def _entry_text(key: str, pickled: bytes) -> str:
    """Return the text of one key; its value is pickled to be remembered by, since 1 and true are equal."""
    value = pickle.loads(pickled)  # noqa: S301 - pickled here
    return str(yaml.dump({key: value}, Dumper=_CiSupportDumper, default_flow_style=False))
