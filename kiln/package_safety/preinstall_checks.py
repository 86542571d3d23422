"""The admission of packages: each is checked when it is unpacked, before any file of it is installed."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import BrokenPackage, KilnError, UnsafePackage
from kiln.package_safety import unpacked_metadata_reader
from kiln.package_safety.paths import RECORDS, PrefixTree, is_outside_prefix
from kiln.package_safety.refusals import (
    metadata_mismatch_error,
    package_display_name,
    too_large_package_error,
    unsafe_package_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rattler import RepoDataRecord

    from kiln.model.channel_reading_and_install_limits import Limits


class PreinstallChecker:
    """A reporter of rattler's installer that checks packages.

    The installer continues whatever is raised here. So when a package is refused, it is removed from the cache, and the
    unfinished prefix is renamed: nothing can then be written into it, nor past it. ``refusal`` is the error.
    """

    def __init__(
        self,
        records: Sequence[RepoDataRecord],
        prefix: Path,
        cache: Path,
        *,
        carried: bool,
        limits: Limits,
        send: Callable[[Mapping[str, Any]], None],
        stop: Callable[[KilnError], None],
    ) -> None:
        self.records = {record.name.normalized: record for record in records}
        self.prefix, self.cache = prefix, cache
        python = self.records.get("python")
        self.site_packages = _site_packages_folder(python)
        self.programs = "Scripts" if _is_for_windows(python) else "bin"
        self.tree = PrefixTree(carried=carried, folds_case=files.is_case_insensitive(prefix.parent))
        self.limits, self.send, self.stop = limits, send, stop
        self.refusal: KilnError | None = None
        self.exceeded: Callable[[], KilnError | None] = lambda: None  # a limit that the installation has exceeded
        self.fetched: list[RepoDataRecord] = []
        self.pending: dict[int, RepoDataRecord] = {}

    def on_populate_cache_start(self, operation: int, package_name: str) -> int:  # noqa: ARG002 - the library's names
        """Note that a package is about to be fetched and unpacked, and report it to the parent process."""
        record = self.records[package_name]
        number = len(self.fetched)
        self.fetched.append(record)
        self.pending[number] = record
        folder = self._unpacked_folder(record)
        self.send({"unpacking": str(folder), "new": not folder.exists()})
        return number

    def on_populate_cache_complete(self, cache_entry: int) -> None:
        """Note that a package is complete in the cache; refuse one that exceeded a limit."""
        record = self.pending.pop(cache_entry, None)
        if record is None:
            return
        if (breach := self.exceeded()) is not None:
            self._refuse_package(breach, self._unpacked_folder(record))
        else:
            self.send({"unpacked": str(self._unpacked_folder(record))})

    def on_download_start(self, cache_entry: int) -> int:
        """Return the package's number as that of the download."""
        return cache_entry

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:  # noqa: ARG002
        """Stop the installation when a server sends more than the size in its index."""
        record = self.fetched[download_idx]
        limit = record.size or self.limits.package
        if progress > limit:
            self.stop(too_large_package_error(record, limit))

    def in_flight_urls(self) -> list[str]:
        """Return the URLs of the packages that are being fetched or unpacked."""
        return [str(record.url) for record in list(self.pending.values())]

    def on_link_start(self, operation: int, package_name: str) -> int:
        """Admit a package, or end the installation."""
        record = self.records[package_name]
        folder = self._unpacked_folder(record)
        try:
            self._require_within_limits()
            self._check_package(record, folder)
        except KilnError as error:
            self._refuse_package(error, folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, rattler would ignore it and continue
            self._refuse_package(
                BrokenPackage(f"{package_display_name(record)} is not a package", why=repr(error)), folder
            )
        return operation

    def check_installed_packages(self) -> None:
        """Check the packages in the prefix, which may be removed or stay.

        Raises:
            UnsafePackage: when a record there names files outside, which would be removed with its package.
        """
        for file in sorted((self.prefix / RECORDS).glob("*.json")):
            installed = json.loads(file.read_text(encoding="utf-8"))
            paths = [str(path) for path in installed.get("files", ())]
            if outside := [path for path in paths if is_outside_prefix(path)]:
                raise unsafe_package_error(f"the record {file}", outside)
            record = self.records.get(str(installed.get("name")))
            if record is not None and _version_and_build(record) == (installed.get("version"), installed.get("build")):
                self.tree.add_installed_paths(paths, unpacked_metadata_reader.link_targets(self.prefix, paths))

    def _unpacked_folder(self, record: RepoDataRecord) -> Path:
        return self.cache / f"{record.name.normalized}-{record.version}-{record.build}"

    def _require_within_limits(self) -> None:
        """Raise the error of a limit that was exceeded in less time than the watchdog's interval."""
        if (breach := self.exceeded()) is not None:
            raise breach

    def _check_package(self, record: RepoDataRecord, folder: Path) -> None:
        index = unpacked_metadata_reader.read_unpacked_info_json(folder, "index.json")
        _require_same_name_version_build(record, index)
        paths = unpacked_metadata_reader.listed_paths(folder)
        links = unpacked_metadata_reader.link_targets(folder, [path for path in paths if not is_outside_prefix(path)])
        if index.get("noarch") == "python":
            paths = [self._noarch_python_install_path(path) for path in paths]
            links = {self._noarch_python_install_path(path): text for path, text in links.items()}
        if escapes := self.tree.add_and_check_package(paths, links):
            raise unsafe_package_error(package_display_name(record), escapes)

    def _noarch_python_install_path(self, path: str) -> str:
        """Return the path at which a file of a noarch Python package is installed."""
        top, _, rest = path.partition("/")
        return posixpath.join(
            {"site-packages": self.site_packages, "python-scripts": self.programs}.get(top, top), rest
        )

    def _refuse_package(self, error: KilnError, folder: Path) -> None:
        self.refusal = self.refusal or error
        if not files.quarantine_path(self.prefix).exists():
            with contextlib.suppress(FileNotFoundError):  # a package may be complete before the prefix is made
                self.prefix.rename(files.quarantine_path(self.prefix))
        self._remove_unpacked_package(folder)

    def _remove_unpacked_package(self, folder: Path) -> None:
        """Remove a package from the cache, where no half of it may stay when this process is ended meanwhile.

        So it gets the name of an unfinished one first, which the parent process removes.
        """
        self.send({"unpacking": str(folder), "new": True})
        part = folder.with_name(f".{folder.name}{os.urandom(3).hex()}")
        with contextlib.suppress(FileNotFoundError):  # a package that is refused twice
            folder.rename(part)
        files.remove(part)


def _version_and_build(record: RepoDataRecord) -> tuple[str, str]:
    return str(record.version), str(record.build)


def _require_same_name_version_build(record: RepoDataRecord, index: Mapping[str, Any]) -> None:
    name, *version = (str(index.get(key)) for key in ("name", "version", "build"))
    expected = (record.name.normalized, *_version_and_build(record))
    if (name.lower(), *version) != expected:
        raise metadata_mismatch_error(record, (name, *version), expected)


def _is_for_windows(python: RepoDataRecord | None) -> bool:
    return python is not None and python.subdir.startswith("win-")


def _site_packages_folder(python: RepoDataRecord | None) -> str:
    """Return the folder of Python's packages, as rattler derives it from the record of Python.

    Raises:
        UnsafePackage: when it is outside the prefix.
    """
    if python is None:
        return "site-packages"
    minor = ".".join(str(python.version).split(".")[:2])
    usual = "Lib/site-packages" if _is_for_windows(python) else f"lib/python{minor}/site-packages"
    folder = python.python_site_packages_path or usual
    if is_outside_prefix(folder):
        raise UnsafePackage(
            f"{package_display_name(python)} has its modules in {folder!r}", why="that is outside of a prefix"
        )
    return folder
