"""A slim image of installed conda packages on the smallest system, with its metadata."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.base import files
from kiln.base.errors import NotWritable, UsageError
from kiln.compat import tables
from kiln.image import contents as content_assembly
from kiln.image import debian, oci
from kiln.image.contents import PACKAGE_LIST, PREFIX, ImageContents, ImageRequest
from kiln.image.oci import pack_layer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from kiln.base.text import CommandStep
    from kiln.image.contents import InstalledPackage

__all__ = ["ImageRequest", "SlimImage", "make_slim_image"]


# The first process of a container gets only the signals that it handles; without an init, 'docker stop' waits.
INIT = ("/usr/bin/tini", "-s", "--")
_SECOND = 1_000_000_000  # Docker counts the times of a health check in nanoseconds
_CUDA = re.compile(r"__cuda(?:\s+>=?\s*(\d+(?:\.\d+)?))?")


def image_configuration(request: ImageRequest, contents: ImageContents) -> dict[str, Any]:
    """Return the configuration with which an engine runs the image, in the format of the OCI specification.

    ``Healthcheck``, a program whose exit code is 0 for a healthy container, is of Docker's image specification 1.3.
    """
    kind = request.kind
    environment = {
        "HOME": debian.HOME,
        "PATH": f"{PREFIX}/bin:/usr/bin",
        "LANG": "C.UTF-8",
        "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
        **kind.environment,
        **(_gpu_variables(contents.packages) if request.cuda else {}),
    }
    times = {"Interval": 30 * _SECOND, "Timeout": 10 * _SECOND, "StartPeriod": 120 * _SECOND, "Retries": 3}
    settings = {
        "User": f"{debian.NONROOT}:{debian.NONROOT}",
        "ExposedPorts": {f"{port}/tcp": {} for port in kind.ports},
        "Env": [f"{name}={value}" for name, value in sorted(environment.items())],
        "Entrypoint": [*INIT, *kind.entrypoint],
        "WorkingDir": kind.folder,
        "Labels": image_labels(request, contents),
        "Healthcheck": {"Test": ["CMD", *kind.health], **times} if kind.health else {},
    }
    return {name: value for name, value in settings.items() if value}


def image_labels(request: ImageRequest, contents: ImageContents) -> dict[str, str]:
    """Return the labels: the package whose version the image has, the Debian packages, and the version of kiln."""
    product = contents.packages[0]
    values = {
        "org.opencontainers.image.title": f"{request.kind.name} {'for GPUs' if request.cuda else 'for CPUs'}",
        "org.opencontainers.image.description": request.kind.summary,
        "org.opencontainers.image.version": product.version,
        "org.opencontainers.image.licenses": product.license,
        "kiln.version": __version__,
        "kiln.package": product.file_name,
        "kiln.package.sha256": product.sha256,
        "kiln.packages": PACKAGE_LIST,
        "kiln.debian": " ".join(f"{deb.name}={deb.version}" for deb in contents.debs),
        "kiln.rehearsal": "true" if any(package.rehearsal for package in contents.packages) else "",
        **(_driver_labels(lowest_required_cuda(contents.packages)) if request.cuda else {}),
    }
    return {name: value for name, value in values.items() if value}


def lowest_required_cuda(packages: Iterable[InstalledPackage]) -> str:
    """Return the lowest CUDA version that satisfies all packages' ``__cuda`` specs, or an empty text."""
    specs = [spec for package in packages for spec in (*package.depends, *package.constrains)]
    versions = [match.group(1) for spec in specs if (match := _CUDA.match(spec))]
    return max(filter(None, versions), key=lambda version: tuple(map(int, version.split("."))), default="")


def _driver_labels(cuda: str) -> dict[str, str]:
    """Return labels of the required CUDA version, and of the oldest driver for it in the doctor's tables."""
    row = tables.minor_compatibility_driver_row(cuda) or tables.oldest_driver_row_for_cuda(cuda) if cuda else None
    return {"kiln.cuda": cuda, "kiln.cuda.driver": f">={row['driver']}" if row else ""}


def _gpu_variables(packages: Iterable[InstalledPackage]) -> dict[str, str]:
    """Return the variables by which NVIDIA's container toolkit refuses to start the image on a too old driver."""
    least = lowest_required_cuda(packages)
    return {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        **({"NVIDIA_REQUIRE_CUDA": f"cuda>={least}"} if least else {}),
    }


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
    if request.cuda and not tables.is_version(request.cuda):
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
    written = oci.write_image_layout(layout, packed, image_configuration(request, image), tag=tag, epoch=image.epoch)
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
