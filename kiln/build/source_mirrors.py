"""Further places of a source archive besides its own address: a folder of downloads, a mirror.

The content does not change: the engine takes the first file whose hash is the recipe's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMirrors:
    """A folder with files under the names that they have at their addresses, and the address of a mirror.

    ``by_hash`` has such files in folders named by their SHA-256.
    A mirror has a file under its own address without the scheme, ``MIRROR/github.com/...``, as in TensorFlow's
    (third_party/repo.bzl of its sources, tf_mirror_urls). ``kept`` is the folder of the files that kiln fetches.
    """

    folder: Path | None = None
    mirror: str | None = None
    by_hash: Path | None = None
    kept: Path | None = None

    def urls_to_try(self, urls: Iterable[str], sha256: str = "") -> list[str]:
        """Return the addresses to try for a file, in order; a file that is not remote has only its own."""
        originals = list(urls)
        remote = [urlsplit(url) for url in originals if url.startswith(("http://", "https://"))]
        names = dict.fromkeys(Path(unquote(url.path)).name for url in remote)
        folders = (self.by_hash / sha256 if self.by_hash is not None and sha256 else None, self.folder)
        here = [folder / name for folder in folders for name in names if folder is not None and name]
        mirrored = [f"{self.mirror.rstrip('/')}/{url.netloc}{url.path}" for url in remote if self.mirror is not None]
        return [*(file.absolute().as_uri() for file in here if file.is_file()), *mirrored, *originals]


def recipe_with_mirror_urls(recipe: Mapping[str, Any], origins: SourceMirrors) -> dict[str, Any]:
    """Return a concrete recipe whose sources have the addresses of the mirrors, too."""
    sources = [
        {**entry, "url": origins.urls_to_try(entry["url"], entry["sha256"])}
        if "url" in entry and "sha256" in entry
        else entry
        for entry in recipe.get("source", ())
    ]
    return {**recipe, "source": sources} if sources else dict(recipe)
