"""The folders of builds, below build_artifacts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files, git
from kiln.bazel.disk_caches import DiskCaches
from kiln.errors import MissingTool, NotWritable, UsageError
from kiln.local_channel import LocalChannel
from kiln.name_rules import existing_subdirs

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock


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

    Raises:
        NotWritable: for a link that git tracks, or where git fails.
    """
    link = feedstock.artifacts
    if link.is_symlink() and _is_tracked_by_git(link) is not False:
        raise NotWritable(
            f"{link} is a link that came with the feedstock, and nothing is written through it",
            why=f"it leads to {link.readlink()}; a link of your own is followed where git does not track it",
            hint=f"if it is to stay, git rm --cached {link.name}; else rename the link",
        )


def _is_tracked_by_git(link: Path) -> bool | None:
    """Return whether git tracks a file; None where git fails."""
    try:
        result = git.run(link.parent, "ls-files", "--", link.name, env=os.environ)
    except (MissingTool, UsageError):
        return None
    return bool(result.stdout) if result.ok else None
