"""Images that kiln makes: the base image that cells build in, and machines of the fleet on this computer."""

from kiln.image.base import ENGINE_HOME, SUITE, Made, Recipe, base, default_tag, recipe
from kiln.image.disk import Disk, disk, disk_recipe
from kiln.image.machine import machine_recipe, machine_tag

__all__ = [
    "ENGINE_HOME",
    "SUITE",
    "Disk",
    "Made",
    "Recipe",
    "base",
    "default_tag",
    "disk",
    "disk_recipe",
    "machine_recipe",
    "machine_tag",
    "recipe",
]
