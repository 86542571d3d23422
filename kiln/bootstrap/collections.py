"""Ansible's collections, a part of one large wheel."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# What the playbooks use. The wheel of PyPI's `ansible` holds these among a hundred others, ten times their size.
WANTED = ("amazon.aws", "openstack.cloud")


def unpack(wheel: Path, site_packages: Path) -> None:
    """Unpack the wanted collections where Ansible finds them by itself; the wheel's hash was checked before."""
    parts = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in WANTED)
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(parts) and "/tests/" not in name]
        archive.extractall(site_packages, members)
