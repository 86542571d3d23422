"""The variables of the package that the compile of a meta.yaml with outputs reads; a staging output has none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.errors import MalformedYaml
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.rendered import Script, Staging

NAMES = ("PKG_NAME", "PKG_VERSION", "PKG_BUILDNUM")


def compile_variables(staging: Staging, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that the script of a compile names, with their values."""
    if staging.package is None:
        return {}
    text = _text(staging.script, recipe_folder)
    values = zip(NAMES, map(str, staging.package), strict=True)
    return {name: value for name, value in values if re.search(rf"\b{name}\b", text)}


def _text(script: Script, recipe_folder: Path) -> str:
    if script.file is None:
        return "\n".join(script.lines)
    path = (recipe_folder / script.file).resolve()
    if not path.is_relative_to(recipe_folder.resolve()) or not path.is_file():
        return ""
    try:
        return read_text(path, f"recipe/{script.file}")
    except MalformedYaml:  # neither text nor of a size to be read
        return ""
