"""The results of py-rattler-build for recipes: requests as JSON on standard input, answers on standard output.

A program of its own, for its library starts threads, and kiln's rendering forks.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rattler_build import JinjaConfig, PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig


def answer(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Render a recipe for one set of variants."""
    platform = PlatformConfig(target_platform=asked["target"], build_platform=asked["build"])
    if "files" in asked:
        variants = VariantConfig.from_files_with_context(asked["files"], JinjaConfig(platform=platform))
    else:
        variants = VariantConfig.from_yaml(json.dumps(asked["variants"]))
    rendered = Stage0Recipe.from_file(asked["recipe"]).render(variants, RenderConfig(platform=platform))
    return [output(each) for each in rendered]


def output(each: Any) -> dict[str, Any]:
    """Return one output; a pin is the bare name of its package, as long as it is open."""
    needs = each.recipe.to_dict().get("requirements", {})
    exports = needs.get("run_exports") or {}
    return {
        "name": each.recipe.package.name,
        "version": str(each.recipe.package.version),
        "build": each.recipe.build.string,
        "build_number": each.recipe.build.number or 0,
        "used": dict(each.variant),
        "build_requirements": list(map(text, needs.get("build", []))),
        "host": list(map(text, needs.get("host", []))),
        "run": list(map(text, needs.get("run", []))),
        "run_constrained": list(map(text, needs.get("run_constraints", []))),
        "run_exports": {kind: list(map(text, specs)) for kind, specs in exports.items() if specs},
    }


def text(spec: Any) -> str:
    """Return a requirement as text."""
    if isinstance(spec, str):
        return spec
    ((_, pin),) = spec.items()
    return str(pin["name"])


if __name__ == "__main__":
    json.dump([answer(asked) for asked in json.load(sys.stdin)], sys.stdout)
