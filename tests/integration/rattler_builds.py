"""Build all variants of a recipe with py-rattler-build alone; the request is JSON on standard input.

A program of its own, for its library starts threads.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rattler_build import JinjaConfig, PlatformConfig, RenderConfig, Stage0Recipe, ToolConfiguration, VariantConfig


def build(asked: dict[str, Any]) -> None:
    """Build every output of a recipe, in the order in which they can be built."""
    platform = PlatformConfig(target_platform="linux-64", build_platform="linux-64")
    variants = VariantConfig.from_files_with_context(asked["files"], JinjaConfig(platform=platform))
    rendered = Stage0Recipe.from_file(asked["recipe"]).render(variants, RenderConfig(platform=platform))
    channels = [f"file://{asked['folder']}", *asked["channels"]]
    for name in asked["order"]:
        for item in rendered:
            if item.recipe.package.name == name:
                item.run_build(ToolConfiguration(test_strategy="skip"), output_dir=asked["folder"], channels=channels)


if __name__ == "__main__":
    build(json.load(sys.stdin))
