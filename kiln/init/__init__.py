"""New feedstocks: from nothing, from a project on PyPI, or from a checkout that lacks kiln's files."""

from __future__ import annotations

from kiln.init import kiln_requirement, pypi, scaffold
from kiln.init.kiln_requirement import KilnRequirement
from kiln.init.python_recipe import python_recipe
from kiln.init.scaffold import PlannedFiles
from kiln.init.starter_recipe import NewRecipe, starter_recipe
from kiln.init.yaml_snippets import RecipeFormat

__all__ = [
    "KilnRequirement",
    "NewRecipe",
    "PlannedFiles",
    "RecipeFormat",
    "kiln_requirement",
    "pypi",
    "python_recipe",
    "scaffold",
    "starter_recipe",
]
