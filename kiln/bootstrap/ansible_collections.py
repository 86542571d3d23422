"""Ansible's collections, which are part of one large wheel."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# The collections of the playbooks. The wheel of PyPI's `ansible` also holds a hundred others, ten times their size.
NEEDED_COLLECTIONS = ("amazon.aws", "openstack.cloud")


def unpack(wheel: Path, site_packages: Path) -> None:
    """Unpack the needed collections where Ansible finds them; the caller has verified the wheel's hash."""
    parts = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in NEEDED_COLLECTIONS)
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(parts) and "/tests/" not in name]
        archive.extractall(site_packages, members)
