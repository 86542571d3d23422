"""Parse recipes as kiln's engine does: recipes as JSON on standard input, their packages on standard output.

A program of its own, for its library starts threads, and kiln's rendering forks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kiln.build.engine.worker import render_variant
from kiln.recipe.rendered import BuildPlatforms

if __name__ == "__main__":
    recipes = [render_variant(recipe, Path(sys.argv[1]), BuildPlatforms()).recipe for recipe in json.load(sys.stdin)]
    json.dump([[item.package.name, str(item.package.version), item.build.string] for item in recipes], sys.stdout)
