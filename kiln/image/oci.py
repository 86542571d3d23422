"""An image as files: the OCI image layout, with the manifest that ``docker load`` reads.

Implements the OCI image specification 1.1 (image-layout, manifest, config) and, for ``manifest.json``, Docker's image
specification 1.3.
"""

from __future__ import annotations

import hashlib
import re
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import UsageError
from kiln.serialization import canonical_json, iso_timestamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.image.layers import PackedLayer

_OCI = "application/vnd.oci.image"
# HOST[:PORT]/PATH:TAG as engines accept it; without a tag they would add a default.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:[A-Za-z0-9][A-Za-z0-9.-]{{0,253}}(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*:\w[\w.-]{{0,127}}", re.ASCII
)
_LONGEST = 255  # characters of a name


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenImage:
    """A written image; ``digest`` is its manifest's, ``config_digest`` the image id of engines."""

    digest: str
    config_digest: str


def require_valid_image_name(tag: str) -> None:
    """Raise UsageError for an invalid name of an image."""
    if len(tag) > _LONGEST or not _NAME.fullmatch(tag):
        raise UsageError(f"{tag!r} is not a valid name of an image", hint="--tag localhost/mine:1")


def write_image_layout(
    folder: Path, layers: Sequence[PackedLayer], config: Mapping[str, Any], *, tag: str, epoch: int
) -> WrittenImage:
    """Complete a folder with packed layers in ``blobs/sha256`` to an image layout.

    ``config`` says how an engine runs the image, in the format of the OCI specification.
    """
    image = _write_blob(folder, _config_document(config, layers, epoch=epoch))
    manifest = _write_blob(
        folder,
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": {"mediaType": f"{_OCI}.config.v1+json", **image},
            "layers": [
                {"mediaType": f"{_OCI}.layer.v1.tar+gzip", "digest": layer.digest, "size": layer.size}
                for layer in layers
            ],
        },
    )
    names = {"io.containerd.image.name": tag, "org.opencontainers.image.ref.name": tag.rpartition(":")[2]}
    top = {"mediaType": f"{_OCI}.manifest.v1+json", **manifest, "annotations": names}
    _write_json(folder / "index.json", {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [top]})
    _write_json(folder / "oci-layout", {"imageLayoutVersion": "1.0.0"})
    docker = {
        "Config": _relative_blob_path(image["digest"]),
        "RepoTags": [tag],
        "Layers": [_relative_blob_path(layer.digest) for layer in layers],
    }
    _write_json(folder / "manifest.json", [docker])
    return WrittenImage(digest=manifest["digest"], config_digest=image["digest"])


def _config_document(config: Mapping[str, Any], layers: Sequence[PackedLayer], *, epoch: int) -> dict[str, Any]:
    created = iso_timestamp(epoch)
    return {
        "created": created,
        "architecture": "amd64",
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
        "history": [{"created": created, "created_by": f"kiln image: {layer.title}"} for layer in layers],
    }


def write_layout_archive(folder: Path, target: Path) -> None:
    """Write an image layout as a reproducible tar archive, completely or not at all."""
    with (
        files.full_disk_as_kiln_error(target.parent),
        files.atomic_replacement(target) as part,
        tarfile.open(part, "w") as file,
    ):
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(path.relative_to(folder).as_posix())
            member.size, member.mode = path.stat().st_size, 0o644
            with path.open("rb") as content:
                file.addfile(member, content)


def blob_path(folder: Path, digest: str) -> Path:
    """Return the path of a blob in a layout."""
    return folder / _relative_blob_path(digest)


def _relative_blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _write_blob(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    data = canonical_json(content)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    blob_path(folder, digest).write_bytes(data)
    return {"digest": digest, "size": len(data)}


def _write_json(path: Path, content: Any) -> None:
    path.write_bytes(canonical_json(content))
