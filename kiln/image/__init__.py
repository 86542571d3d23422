"""The images that kiln makes: base images for builds, slim images of packages, and images of fleet workers."""

from kiln.image.build_base import ENGINE_HOME, SUITE, ImageRecipe, ImageResult, base, default_tag, recipe
from kiln.image.local_worker_container import worker_recipe, worker_tag
from kiln.image.local_worker_disk import Disk, disk, disk_recipe

__all__ = [
    "ENGINE_HOME",
    "SUITE",
    "Disk",
    "ImageRecipe",
    "ImageResult",
    "base",
    "default_tag",
    "disk",
    "disk_recipe",
    "recipe",
    "worker_recipe",
    "worker_tag",
]
