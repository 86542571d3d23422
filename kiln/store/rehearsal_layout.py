"""The folders of a rehearsal, below build_artifacts/rehearsal."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files
from kiln.local_channel import LocalChannel

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SIGN = "REHEARSAL.txt"
SIGN_TEXT = """\
The packages in this channel are a rehearsal of a release, not a release: what they depend on was published as wheels,
and the Python and the compilers come from the machine, or the container's image, that they were made on. TensorFlow's
compile was replaced by its own project's wheel. They are for trying this feedstock there. kiln refuses to publish them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalLayout:
    """The paths of one config's rehearsal: ``config`` is its own folder.

    A rehearsal that is ``apart``, in a container, shares only the wheels with others, read-only.
    """

    config: Path
    apart: bool = False

    @property
    def root(self) -> Path:
        """The folder that all configs share."""
        return self.config if self.apart else self.config.parent

    @property
    def wheels_lock_file(self) -> Path:
        """The lock file of fetching and converting wheels."""
        return files.safe_path_inside(self.root / ".lock", self.root)

    @property
    def wheels(self) -> Path:
        """The fetched wheels, shared by all configs."""
        return files.safe_path_inside(self.config.parent / "wheels", self.config.parent)

    @property
    def sources(self) -> Path:
        """The fetched sources of recipes, each in a folder named by its SHA-256; shared by all configs."""
        return files.safe_path_inside(self.config.parent / "sources", self.config.parent)

    @property
    def converted_packages(self) -> Path:
        """Packages made from wheels and interpreters, shared by all configs and named by their content."""
        return files.safe_path_inside(self.root / "converted", self.root)

    @property
    def package_cache(self) -> Path:
        """The package cache, from which prefixes are linked."""
        return files.safe_path_inside(self.root / "cache", self.root)

    @property
    def channel(self) -> LocalChannel:
        """The channel of this config: its own packages and their dependencies."""
        return LocalChannel(root=files.safe_path_inside(self.config / "channel", self.config))

    @property
    def earlier_channel(self) -> LocalChannel:
        """The channel as it was before a rehearsal that is not complete yet; empty otherwise."""
        return LocalChannel(root=files.safe_path_inside(self.config / "channel.earlier", self.config))

    def back_up_channel(self, needed: Iterable[str]) -> bool:
        """Copy the channel if some of its packages are not ``needed``; return whether there is an earlier one.

        The copy stays over interruptions, also of its copying, and is not replaced by what those left in the channel.
        """
        root = self.earlier_channel.root
        names = {package.name for package in self.channel.packages()}
        if not root.exists() and names - set(needed):
            with files.atomic_replacement(root) as part:
                files.copy_tree(self.channel.root, part, _link_or_copy)
        return root.exists()

    def remove_earlier_channel(self) -> None:
        """Remove the earlier channel, when the rehearsal is complete."""
        files.remove(self.earlier_channel.root)

    @property
    def work(self) -> Path:
        """The folder in which packages are made and tested."""
        return files.safe_path_inside(self.config / "work", self.config)

    def prepare_folders(self) -> None:
        """Make the folders, remove leftovers of killed runs, and mark the channel as a rehearsal's."""
        for folder in (self.wheels, self.converted_packages, self.work):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.parent == self.config:
                files.remove_part_files(folder)
        self.channel.repair_index()
        files.write_text(self.channel.root / SIGN, SIGN_TEXT)


def _link_or_copy(source: str, target: str) -> str:
    """Link a package, which never changes, and copy a file of the index."""
    if source.endswith(".conda"):
        try:
            os.link(source, target)
        except OSError:
            pass
        else:
            return target
    return str(shutil.copy2(source, target))
