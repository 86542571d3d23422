"""Parts of the texts of new recipes, in both formats: scalars and lists as YAML, free of Jinja and of selectors."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

import yaml

from kiln import name_rules

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIDTH = 1 << 20  # characters; a scalar stays on its line


class RecipeFormat(Enum):
    """The formats of recipes: conda-build's meta.yaml (v0) and rattler-build's recipe.yaml (v1)."""

    V0 = "v0"
    V1 = "v1"

    @property
    def recipe_path(self) -> str:
        """The path of the recipe in the feedstock."""
        return "recipe/recipe.yaml" if self is RecipeFormat.V1 else "recipe/meta.yaml"


def yaml_scalar(text: str) -> str:
    """Return a text as a YAML scalar of one line, quoted where needed."""
    quoted = yaml.safe_dump(text, width=_WIDTH, allow_unicode=True).removesuffix("...\n").rstrip("\n")
    return quoted if "\n" not in quoted else yaml.safe_dump(text, width=_WIDTH, default_style='"').strip()


def yaml_scalar_of_prose(text: str) -> str:
    """Return foreign prose as a YAML scalar on one line, without templates and selectors."""
    return yaml_scalar(_without_templates_and_selectors(" ".join(text.split())))


def yaml_list_lines(values: Iterable[str], indent: int) -> str:
    """Return the lines of a list of scalars, which may be foreign text."""
    return "".join(f"{' ' * indent}- {yaml_scalar(_without_templates_and_selectors(value))}\n" for value in values)


def yaml_comment(text: str) -> str:
    """Return foreign text as a comment, which Jinja evaluates like any other text."""
    return _without_templates_and_selectors(f"# {text}")


def _without_templates_and_selectors(text: str) -> str:
    """Return foreign text in which nothing is a template, a selector, or hidden."""
    text = re.sub(r"\{(?=[{%#])", "{ ", name_rules.HIDDEN.sub("", text))
    # conda-build reads `# [win]` as a selector, also inside of quotes, and `[win]` at the end of a line.
    return text.replace("[", "(").replace("]", ")") if "#" in text or text.endswith("]") else text
