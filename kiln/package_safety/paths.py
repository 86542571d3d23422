"""The paths and links of packages in a prefix, and whether they stay inside it."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.operating_system.windows_special_paths import is_special_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

HOPS = 40  # links in a row, the kernel's own limit (path_resolution(7))
RECORDS = "conda-meta"  # the folder of a prefix with the records of installed packages; no package may write there


def resolve_links(path: str, links: Mapping[str, str]) -> str | None:
    """Return a path of a prefix with its links followed; None when it leads outside."""
    parts, position, hops = path.split("/")[::-1], list[str](), 0
    if path.startswith("/"):
        return None
    while parts:
        part = parts.pop()
        if part == "..":
            if not position:
                return None
            position.pop()
        elif part not in {"", "."}:
            position.append(part)
            destination = links.get("/".join(position))
            if destination is not None:
                hops += 1
                if hops > HOPS or destination.startswith("/") or is_special_path(destination):
                    return None
                position.pop()
                parts += destination.split("/")[::-1]
    return "/".join(position)


@dataclass(slots=True, kw_only=True)
class PrefixTree:
    """The folders and links in a prefix; with ``carried``, links may lead out, but no file is written through them.

    Where the file system ``folds_case``, names that differ in their case alone are one file.
    """

    carried: bool = False
    folds_case: bool = False
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    outward: set[str] = field(default_factory=set)

    def add_installed_paths(self, paths: Iterable[str], links: Mapping[str, str]) -> None:
        """Add what is in the prefix already; a link there that leads out is not the new packages' fault."""
        self.folders |= _parent_folders(paths)
        self._add_links(links)
        self.outward = {link for link in self.links if resolve_links(link, self.links) is None}

    def add_and_check_package(self, paths: Iterable[str], links: Mapping[str, str]) -> list[str]:
        """Add a package's paths and links; return those that lead out, or make others lead out."""
        paths = list(paths)
        escapes = [path for path in paths if is_outside_prefix(path) or is_in_conda_meta(path)]
        escapes += [f"{path}, twice" for path in duplicate_paths(paths, folds_case=self.folds_case)]
        new = self._add_links(links)
        folders = _parent_folders(path for path in paths if not is_outside_prefix(path))
        escapes += [f"{folder}/..." for folder in sorted(folders) if resolve_links(folder, self.links) is None]
        if new:
            escapes += [f"{link}, a folder elsewhere" for link in new if link in self.folders]
            escapes += [
                f"{link} -> {text}"
                for link, text in self.links.items()
                if not self.carried and link not in self.outward and resolve_links(link, self.links) is None
            ]
        self.folders |= folders
        return list(dict.fromkeys(escapes))

    def _add_links(self, links: Mapping[str, str]) -> dict[str, str]:
        """Add links by their names, and by their places behind other links; return all that are new."""
        before, new = set(self.links), dict(links)
        for _ in range(HOPS):
            if not new:
                break
            self.links.update(new)
            new = {
                place: text
                for link, text in self.links.items()
                if (place := self._resolved_link_path(link)) not in self.links
            }
        return {link: text for link, text in self.links.items() if link not in before}

    def _resolved_link_path(self, link: str) -> str:
        parent, name = posixpath.split(link)
        folder = resolve_links(parent, self.links)
        return link if folder is None else posixpath.join(folder, name)


def is_outside_prefix(path: str) -> bool:
    """Return whether a path cannot be a package's: it is absolute, goes up, or leads elsewhere on this system."""
    return path.startswith("/") or ".." in path.split("/") or is_special_path(path)


def is_in_conda_meta(path: str) -> bool:
    """Return whether a file would be among the records of installed packages: history, pins and variables too."""
    top = next((part for part in path.split("/") if part not in {"", "."}), "")
    return top.casefold() == RECORDS


def duplicate_paths(paths: Iterable[str], *, folds_case: bool) -> list[str]:
    """Return the paths that are the same file as one before them."""
    names: set[str] = set()
    repetitions: dict[str, None] = {}
    for path in paths:
        name = "/".join(part for part in path.split("/") if part not in {"", "."})
        name = name.casefold() if folds_case else name
        if name in names:
            repetitions[path] = None
        names.add(name)
    return list(repetitions)


def _parent_folders(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        parent = posixpath.dirname(path)
        while parent.strip("/") and parent not in folders:
            folders.add(parent)
            parent = posixpath.dirname(parent)
    return folders
