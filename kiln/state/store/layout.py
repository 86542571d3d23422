"""The folders of builds and rehearsals below build_artifacts."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import files, git
from kiln.base.errors import MissingTool, NotWritable, UsageError
from kiln.base.patterns import existing_subdirs
from kiln.conda.channel import LocalChannel
from kiln.state.store.compile_cache import DiskCaches

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLayout:
    """The paths of builds; the folder itself is the channel of finished packages.

    A ``rehearsal`` has separate paths for everything but the ledger and the logs. ``compile_cache`` is the folder of
    Bazel's caches where several feedstocks or machines share one.
    """

    root: Path
    rehearsal: bool = False
    compile_cache: Path | None = None

    @classmethod
    def for_feedstock(
        cls, feedstock: Feedstock, *, rehearsal: bool = False, compile_cache: Path | None = None
    ) -> ArtifactLayout:
        """Return the folders of a feedstock."""
        refuse_tracked_link(feedstock)
        root = feedstock.artifacts
        files.refuse_special_files(root, *(root / name for name in (*existing_subdirs(root), "locks", "finished")))
        return cls(root=feedstock.artifacts, rehearsal=rehearsal, compile_cache=compile_cache)

    def safe_path(self, *names: str) -> Path:
        """Return a path below the folder, without links; raises NotWritable."""
        return files.safe_path_inside(self.root.joinpath(*names), self.root)

    @property
    def channel(self) -> LocalChannel:
        """The channel of finished packages."""
        return LocalChannel(root=self.root)

    @property
    def ledger(self) -> Path:
        """The ledger of all runs."""
        return self.root / "ledger.sqlite"

    @property
    def values_key(self) -> Path:
        """The key of the hashes of scripts' variables in the ledger."""
        return self.safe_path("values.key")

    @property
    def package_cache(self) -> Path:
        """Fetched packages, shared by all configs and runs on the host."""
        return self.safe_path("cache")

    @property
    def container_package_cache(self) -> Path:
        """Fetched packages, shared by containers; the host runs no files that containers have written."""
        return self.safe_path("container-cache")

    @property
    def engines(self) -> Path:
        """The engine for images that have none, a folder for each Python."""
        return self.safe_path("engines")

    @property
    def rehearsal_pythons(self) -> Path:
        """The interpreters that were fetched for rehearsals."""
        return self.safe_path("pythons")

    @property
    def compile_caches(self) -> DiskCaches:
        """Bazel's caches, one for each key."""
        return DiskCaches(root=self.compile_cache or self.safe_path("compile-cache"))

    # A config may have any name, so what belongs to configs has folders in which nothing else is.

    def lock_file(self, config: str) -> Path:
        """Return the lock file of a config's build."""
        return self.safe_path("locks", "rehearsals" if self.rehearsal else "builds", f"{config}.lock")

    def common_lock_file(self, name: str) -> Path:
        """Return the lock file of what configs share, such as the channel."""
        return self.safe_path("locks", f"{'rehearsal-' if self.rehearsal else ''}{name}.lock")

    def work_folder(self, config: str) -> Path:
        """Return the folder of a config's build; removed at its end, except a rehearsal's with its channel."""
        return self._folder_of_configs("", config)

    def staging_folder(self, config: str) -> Path:
        """Return the folder of a config's packages between its work folder and the channel."""
        return self._folder_of_configs("-packages", config)

    def container_marker_file(self, config: str) -> Path:
        """Return the file that marks a config's folder as a container's."""
        return self._folder_of_configs("-in-container", config)

    def published_marker_file(self, config: str) -> Path:
        """A file that exists from just before a config is recorded as finished until its folder is removed."""
        return self._folder_of_configs("-published", config)

    def _folder_of_configs(self, kind: str, config: str) -> Path:
        return self.safe_path(f"{'rehearsal' if self.rehearsal else 'work'}{kind}", config)

    def log_file(self, run: int, config: str) -> Path:
        """Return the log of a config's build in a run."""
        return self.safe_path("logs", f"{run:04d}", f"{config}.log")

    def hide_from_git(self) -> None:
        """Have git ignore the folder, in a feedstock that does not: built packages are not to be committed."""
        ignored = self.safe_path(".gitignore")
        if not ignored.exists():
            files.write_text(ignored, "*\n")

    def conda_forge_done_canary(self, config: str) -> Path:
        """Return the file that conda-forge's scripts look for after a build."""
        return self.safe_path(f"conda-forge-build-done-{config}")


def refuse_tracked_link(feedstock: Feedstock) -> None:
    """Refuse a ``build_artifacts`` that is a link which came with the feedstock.

    A user's own link to another disk is not tracked by git, which ignores the folder.
    """
    link = feedstock.artifacts
    if link.is_symlink() and may_be_of_checkout(link):
        raise NotWritable(
            f"{link} is a link that came with the feedstock, and nothing is written through it",
            why=f"it leads to {link.readlink()}; a link of your own is followed where git does not track it",
            hint=f"if it is to stay, git rm --cached {link.name}; else rename the link",
        )


def may_be_of_checkout(path: Path) -> bool:
    """Return whether a file may have come with the feedstock: git tracks it, or there is no git to say so."""
    try:
        result = git.run(path.parent, "ls-files", "--", path.name, env=os.environ)
    except (MissingTool, UsageError):
        return True
    return not result.ok or bool(result.stdout)
