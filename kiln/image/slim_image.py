"""A slim image of installed conda packages: the files that programs need to run, on the smallest system.

It is made without a container engine. The same packages give the same bytes.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files
from kiln.compat import version_ranges
from kiln.errors import NotWritable, UsageError
from kiln.image import content_assembly, oci, slim_image_oci_configuration
from kiln.image.content_assembly import ImageContents, ImageRequest
from kiln.image.layers import pack_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from kiln.console.command_steps import CommandStep

__all__ = ["ImageRequest", "SlimImage", "make_slim_image"]

REQUIRED_SPACE = 8_000_000_000  # bytes: packages, prefix and layers of the largest image, one with CUDA
_INVALID_IN_TAGS = re.compile(r"[^A-Za-z0-9_.-]")  # in versions such as 1!2.0+local


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimImage:
    """An image in a file: its tag, digests, and its layers' titles and unpacked sizes in bytes."""

    tag: str
    path: Path
    digest: str
    config_digest: str
    size: int  # bytes of the file
    layers: tuple[tuple[str, int], ...]
    packages: int


def make_slim_image(
    request: ImageRequest,
    output: Path | None,
    *,
    tag: str | None,
    work: Path,
    env: Mapping[str, str],
    step: Callable[[str], AbstractContextManager[CommandStep]],
) -> SlimImage:
    """Make an image and write it to ``output``: an archive if its name ends in ``.tar``, a folder otherwise.

    Raises:
        SolveFailed: if the channels have no matching packages.
        BuildFailed: if no package contains a required library.
        MissingTool: if mmdebstrap is missing.
        DiskFull: if the disk space does not suffice.
        NotWritable: if ``output`` cannot be written.
        UsageError: for an invalid name or CUDA version.
    """
    _require_valid_request(request, tag)
    files.require_disk_space(work, REQUIRED_SPACE if request.cuda else REQUIRED_SPACE // 3, for_what="making the image")
    with files.held_lock_file(work / ".lock"):
        files.remove_part_files(work)
        with tempfile.TemporaryDirectory(dir=work, prefix=".image-", suffix=".part") as folder:
            scratch = Path(folder)
            image_contents = content_assembly.assemble_contents(request, scratch, work, env=env, step=step)
            tag = tag or f"{request.tag}:{_INVALID_IN_TAGS.sub('-', image_contents.version)}"
            with step("pack the layers"):
                layout, written = _write_layout(request, image_contents, scratch, tag=tag)
            target = output or work / f"{tag.rpartition('/')[2].replace(':', '-')}.tar"
            with step(f"write {target.name}"):
                _write_output(layout, target)
            return SlimImage(
                tag=tag,
                path=target,
                digest=written.digest,
                config_digest=written.config_digest,
                size=_total_size(target),
                layers=tuple((layer.title, layer.size) for layer in image_contents.layers),
                packages=len(image_contents.packages),
            )


def _require_valid_request(request: ImageRequest, tag: str | None) -> None:
    """Refuse invalid values before the work begins."""
    if tag is not None:
        oci.require_valid_image_name(tag)
    if request.cuda and not version_ranges.is_version(request.cuda):
        raise UsageError(f"--cuda {request.cuda!r} is not a version", hint="--cuda 12.9, as nvidia-smi shows it")


def _write_layout(
    request: ImageRequest, image: ImageContents, scratch: Path, *, tag: str
) -> tuple[Path, oci.WrittenImage]:
    layout = scratch / "layout"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    packed = []
    for number, layer in enumerate(image.layers):
        blob = pack_layer(layer, blobs / f"{number}.part", epoch=image.epoch)
        packed.append(replace(blob, path=blob.path.rename(oci.blob_path(layout, blob.digest))))
    written = oci.write_image_layout(
        layout, packed, slim_image_oci_configuration.image_configuration(request, image), tag=tag, epoch=image.epoch
    )
    return layout, written


def _write_output(layout: Path, target: Path) -> None:
    """Write a layout to the target, replacing an earlier image."""
    try:
        if target.suffix == ".tar":
            oci.write_layout_archive(layout, target)
            return
        if target.exists() and not (target / "oci-layout").is_file():
            raise NotWritable(f"{target} exists and is not an image", hint="use another folder, or a .tar file")
        with files.full_disk_as_kiln_error(target.parent), files.atomic_replacement(target) as part:
            shutil.copytree(layout, part)
            files.remove(target)
    except OSError as error:
        raise NotWritable(f"{target} cannot be written", why=error.strerror or str(error)) from error


def _total_size(path: Path) -> int:
    parts = path.rglob("*") if path.is_dir() else (path,)
    return sum(part.stat().st_size for part in parts if part.is_file())
