"""The metadata of a slim image: how an engine runs it, and the labels that say what it contains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.compat import tables
from kiln.image import debian
from kiln.image.content_assembly import PACKAGE_LIST, PREFIX, ImageContents, ImageRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.image.file_selection import InstalledPackage

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
    """Return the labels: the first requested package, the Debian packages, and the version of kiln."""
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
