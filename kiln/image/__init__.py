"""The images that kiln makes: base images for builds, slim images of packages, and images of fleet workers."""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.image.build_container_image import (
        ENGINE_HOME,
        SUITE,
        ImageRecipe,
        ProvidedImage,
        base_image_recipe,
        base_image_tag,
        provide_image,
    )
    from kiln.image.local_worker_container_image import worker_recipe, worker_tag
    from kiln.image.worker_vm_disk_image import WorkerDisk, disk_recipe, provide_disk

__all__ = [
    "ENGINE_HOME",
    "SUITE",
    "ImageRecipe",
    "ProvidedImage",
    "WorkerDisk",
    "base_image_recipe",
    "base_image_tag",
    "disk_recipe",
    "provide_disk",
    "provide_image",
    "worker_recipe",
    "worker_tag",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "build_container_image": (
            "ENGINE_HOME SUITE ImageRecipe ProvidedImage base_image_tag provide_image base_image_recipe"
        ),
        "worker_vm_disk_image": "WorkerDisk disk_recipe provide_disk",
        "local_worker_container_image": "worker_recipe worker_tag",
    },
)
