"""Images that kiln makes: the base image that cells build in where no registry can be reached."""

from kiln.image.base import ENGINE_HOME, SUITE, Made, Recipe, base, default_tag, recipe

__all__ = ["ENGINE_HOME", "SUITE", "Made", "Recipe", "base", "default_tag", "recipe"]
