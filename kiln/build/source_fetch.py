"""Fetch the sources that the engine does not have, verify them, and give it local files and folders in their place.

A file with a hash is kept by its strongest hash, and is verified each time that it is used. What the engine verifies
by itself stays its job.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files, folder_lock, masking, source_download
from kiln.archive_kinds import is_archive, is_misnamed
from kiln.build import patch_check, sources_fetched_by_engine_or_kiln
from kiln.build.engine_recipe import local_source_entry
from kiln.build.rattler_build_failure_kinds import HASH
from kiln.build.source_repository_checkout import check_out_repository
from kiln.build.source_unpack import unpack_source
from kiln.build.unpacked_source_content_hash import folder_content_hash
from kiln.errors import DownloadFailed, HashMismatch, KilnError, RecipeFault
from kiln.model.rendered import Checkout, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.build.source_mirrors import SourceMirrors
    from kiln.model.build_and_test_steps import FetchedSource

ALGORITHMS = ("sha512", "sha384", "sha256", "sha224", "sha1", "md5")  # the strongest one first
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]+")
_ADDRESS = ("url", "sha256", "md5", "file_name")  # of a source that the engine would fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFetcher:
    """Fetch into ``folder``, which is the step's own; ``origins`` are further places of files, and that of kept ones.

    ``env`` is the environment of the programs that are run.
    """

    folder: Path
    origins: SourceMirrors
    env: Mapping[str, str]
    on_line: Callable[[str], None]

    def recipe_with_fetched_sources(
        self, recipe: Mapping[str, Any], fetched: tuple[FetchedSource, ...]
    ) -> dict[str, Any]:
        """Return the engine's recipe with the addresses of the fetched sources.

        Raises:
            HashMismatch: a file or its content does not have the recipe's hash.
            DownloadFailed: a source cannot be fetched.
            RecipeFault: a hash, a name, a revision or a patch is invalid.
            BuildFailed: an archive cannot be unpacked.
            MissingTool: a program for a source is missing.
        """
        entries = list(recipe.get("source", ()))
        for entry in entries:
            patch_check.require_safe_patches(map(Path, entry.get("patches", ())))
        for number, item in enumerate(fetched):
            try:
                address = self._fetch_source(item.source, self.folder / str(number))
            except KilnError as error:  # the log has all of it, a run's summary the first line
                for line in error.why.splitlines():
                    self.on_line(line.strip())
                raise
            if item.position is not None and address:
                rest = {key: value for key, value in entries[item.position].items() if key not in _ADDRESS}
                entries[item.position] = {**rest, **address}
        return {**recipe, "source": entries} if entries else dict(recipe)

    @property
    def download_folder(self) -> Path:
        """The folder of downloaded files: the one that is kept, or the step's own."""
        return self.origins.kept or self.folder

    def _fetch_source(self, source: Source, folder: Path) -> Mapping[str, Any]:
        """Fetch and verify a source, and return what is missing in its entry."""
        if source.url:
            return self._fetch_source_file(source, folder)
        checkout = _checkout_of_source(source)
        if checkout is not None:
            return local_source_entry(self._check_out_source(source, checkout, folder).absolute())
        if source.path is not None and sources_fetched_by_engine_or_kiln.is_unpacked_by_kiln(source):
            archive = Path(source.path)
            return local_source_entry(
                unpack_source(archive, archive.name, folder / "tree", hoist=True, env=self.env).absolute()
            )
        if source.path is not None:
            self._verify_local_source(source, Path(source.path), folder)
        return {}

    def _fetch_source_file(self, source: Source, folder: Path) -> Mapping[str, Any]:
        path, sha256 = self._cached_or_downloaded_file(source, folder)
        misnamed = is_archive(path.name) and is_misnamed(path, path.name)
        if not sources_fetched_by_engine_or_kiln.is_unpacked_by_kiln(source) and not misnamed:
            name = {} if source.file_name is None else {"file_name": source.file_name}
            return {"url": [path.absolute().as_uri()], "sha256": sha256, **name}
        tree = unpack_source(path, path.name, folder / "tree", hoist=not source.no_hoist, env=self.env)
        _verify_content_hashes(source, tree, path.name)
        return local_source_entry(tree.absolute())

    def _check_out_source(self, source: Source, checkout: Checkout, folder: Path) -> Path:
        self.on_line(f"{checkout.url}: {checkout.program} checks out {checkout.revision or 'the newest revision'}")
        tree = folder / "tree"
        revision = check_out_repository(checkout, tree, env=self.env)
        self.on_line(f"{checkout.url}: revision {revision}")
        _verify_content_hashes(source, tree, checkout.url)
        return tree

    def _verify_local_source(self, source: Source, path: Path, folder: Path) -> None:
        if path.is_file():
            folder.mkdir(parents=True)
            files.link_or_copy(path, folder / path.name)
        _verify_content_hashes(source, folder if path.is_file() else path, path.name)

    def _cached_or_downloaded_file(self, source: Source, folder: Path) -> tuple[Path, str]:
        """Return the file of a source, and its SHA-256: one that was kept, if it has all hashes, or a new one."""
        name, hashes = _validated_file_name(source), _validated_hashes(source)
        place = self.download_folder.joinpath(*next(iter(hashes.items())), name) if hashes else folder / name
        if place.is_file():
            url, algorithms = place.absolute().as_uri(), (*hashes, "sha256")
            actual = source_download.fetch_and_hash(
                url, folder, algorithms=algorithms, verify_kind=False
            )  # its name is fn's
            if _first_mismatched_hash(hashes, actual) is None:
                self.on_line(f"{name}: fetched before")
                return place, actual["sha256"]
        place.parent.mkdir(parents=True, exist_ok=True)
        reasons: list[str] = []
        mismatch: HashMismatch | None = None
        for url in self.origins.urls_to_try(source.url, source.sha256 or ""):
            try:
                return place, self._download_file(url, place, hashes)
            except DownloadFailed as error:
                reasons.append(f"{masking.with_masked_credentials(url)}: {error.why}")
            except HashMismatch as error:
                mismatch = error
        if mismatch is not None:
            raise mismatch
        hint = "see that the sources can be reached, then run the same command again, or name a --distdir or --mirror"
        raise DownloadFailed(f"{name} cannot be downloaded", why="\n       ".join(reasons), hint=hint)

    def _download_file(self, url: str, place: Path, hashes: Mapping[str, str]) -> str:
        """Download a file with hashes, and return its SHA-256."""
        public_url = masking.with_masked_credentials(url)
        self.on_line(f"{place.name}: {public_url}")
        with folder_lock.temporary_folder(
            self.download_folder if hashes else place.parent, source_download.UNFINISHED
        ) as folder:
            part = folder / place.name
            actual = source_download.fetch_and_hash(url, place.parent, algorithms=(*hashes, "sha256"), target=part)
            if (algorithm := _first_mismatched_hash(hashes, actual)) is not None:
                what = f"{place.name} is not the recipe's source; it is not used"
                why = f"its {algorithm} is {actual[algorithm]}, the recipe has {hashes[algorithm]}"
                raise HashMismatch(what, why=f"{why}; it came from {public_url}", hint=HASH.hint)
            part.replace(place)
        return actual["sha256"]


def _checkout_of_source(source: Source) -> Checkout | None:
    if source.git_url is None:
        return source.checkout
    return Checkout(program="git", url=source.git_url, revision=source.git_rev, depth=source.git_depth)


def _validated_file_name(source: Source) -> str:
    name = sources_fetched_by_engine_or_kiln.source_file_name(source)
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise RecipeFault(f"source/fn: {name[:80]!r} is not the name of a file")
    return name


def _validated_hashes(source: Source) -> dict[str, str]:
    """Return the hashes of a source's file, the strongest one first."""
    given = {**source.hashes, "sha256": source.sha256, "md5": source.md5}
    hashes = {name: text for name in ALGORITHMS if (text := given.get(name))}
    for name, text in hashes.items():
        digits = 2 * hashlib.new(name, usedforsecurity=False).digest_size
        if len(text) != digits or not _HEXADECIMAL.fullmatch(text):
            raise RecipeFault(f"source/{name} is {text[:140]!r}", why=f"it has {digits} hexadecimal digits")
    return {name: text.lower() for name, text in hashes.items()}


def _first_mismatched_hash(hashes: Mapping[str, str], actual: Mapping[str, str]) -> str | None:
    return next((name for name, text in hashes.items() if actual[name] != text), None)


def _verify_content_hashes(source: Source, tree: Path, name: str) -> None:
    for algorithm, expected in source.content_hashes.items():
        actual = folder_content_hash(tree, algorithm, source.content_hash_skip)
        if actual != expected:
            raise HashMismatch(
                f"the content of {name} is not the recipe's",
                why=f"its content_{algorithm} is {actual}, the recipe has {expected}",
                hint="see that the recipe's hash belongs to this version, and what content_hash_skip leaves out",
            )
