"""Rendering of a config: every output with its version, build string, requirements and tests."""

from __future__ import annotations

from kiln.render.json_output import as_plain_data
from kiln.render.render import build_platform, build_platforms, key_fault_warnings, render, require_supported_keys
from kiln.render.static_pins import close_static_pins

__all__ = [
    "as_plain_data",
    "build_platform",
    "build_platforms",
    "close_static_pins",
    "key_fault_warnings",
    "render",
    "require_supported_keys",
]
