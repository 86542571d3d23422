"""The checks of packages before they are installed: they are what their index says, and stay inside the prefix."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from rattler import PackageCache, RepoDataRecord

from kiln.base import files
from kiln.base.errors import BrokenPackage, DownloadFailed, HashMismatch, KilnError, LimitExceeded, UnsafePackage
from kiln.base.system.files import open_regular_file
from kiln.base.text import first_of
from kiln.conda import package_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.conda.rattler.limits import Limits


_REPORTS = 0.25  # seconds between two reports of the bytes of downloads
LARGEST_LIST = 1 << 28  # bytes of a package's list of files; 100,000 files take a tenth of that


def _read_unpacked_info_json(folder: Path, name: str) -> Any:
    return package_reader.parse_strict_json(_read_regular_file(folder / "info" / name).encode())


def _listed_paths(folder: Path) -> list[str]:
    """Return the paths that a package lists; older packages have them in a file for each purpose."""
    if (folder / "info" / "paths.json").exists():
        listed = [str(item["_path"]) for item in _read_unpacked_info_json(folder, "paths.json")["paths"]]
    else:
        listed = _read_regular_file(folder / "info" / "files").splitlines()
    if (longest := max(map(len, listed), default=0)) > package_reader.LONGEST_PATH:
        raise ValueError(f"it has a path of {longest:,} characters")
    return listed


def _link_targets(folder: Path, names: Iterable[str]) -> dict[str, str]:
    targets: dict[str, str] = {}
    for name in names:
        try:
            targets[name] = os.readlink(f"{folder}/{name}")  # noqa: PTH115 - a Path for each of 100,000 files takes longer
        except OSError:  # it is no link
            continue
    return targets


def _read_regular_file(file: Path) -> str:
    """Return the text of a regular file; a link or a device is not read."""
    with os.fdopen(open_regular_file(file), "rb") as opened:
        if (size := os.fstat(opened.fileno()).st_size) > LARGEST_LIST:
            raise ValueError(f"{file.name} has {size:,} bytes")
        return opened.read(LARGEST_LIST).decode()


NOT_FETCHED = "failed to fetch"  # rattler's words, as in the next two
OTHER_HASH = re.compile(r"hash mismatch .* expected ([0-9a-f]+), got ([0-9a-f]+)")
NO_PACKAGE = re.compile(r"invalid zip|failed to unpack|failed to iterate over archive|zstd|unsupported", re.IGNORECASE)
PATHS = 5  # of one package in a message


def _package_display_name(record: RepoDataRecord) -> str:
    """Return the name of a package in messages: its file and its channel."""
    return f"{record.file_name} from {record.channel or record.url}"


def unsafe_package_error(name: str, escapes: Sequence[str]) -> UnsafePackage:
    """Return the error of a package whose paths or links lead out of the prefix."""
    return UnsafePackage(
        f"{name} reaches out of the prefix",
        why=f"its paths or links: {first_of(map(repr, escapes), PATHS)}",
        hint="nothing was installed; do not trust its channel, or report it to the package's maintainers",
    )


def _hash_mismatch_error(record: RepoDataRecord, digest: str, kind: str = "SHA-256") -> HashMismatch:
    indexed = record.md5 if kind == "MD5" else record.sha256
    return HashMismatch(
        f"{_package_display_name(record)} is not the package in the channel's index",
        why=f"its {kind} is {digest}, the index has {indexed.hex() if indexed else 'another'}",
        hint="it was damaged in transit or exchanged: try again; if that fails, the channel's owner should index it "
        "again, and publish the package anew",
    )


def _size_mismatch_error(record: RepoDataRecord, size: int) -> HashMismatch:
    return HashMismatch(
        f"{_package_display_name(record)} is not the package in the channel's index",
        why=f"it has {size:,} bytes, the index says {record.size:,}",
        hint="it was damaged in transit or exchanged, or the index is wrong: the channel's owner should index it again",
    )


def too_large_package_error(record: RepoDataRecord, limit: int) -> KilnError:
    """Return the error of a package that is larger than its index or the limit allows."""
    if record.size:
        return HashMismatch(
            f"{_package_display_name(record)} is not the package in the channel's index",
            why=f"it is larger than the {files.human_readable_size(limit)} that the index has for it",
            hint="it was exchanged: try again; if that fails, the channel's owner should index it again",
        )
    return LimitExceeded(
        f"{_package_display_name(record)} is larger than {files.human_readable_size(limit)}",
        why="the channel's index does not have its size",
        hint=f"if you trust the channel, allow more: KILN_LIMITS='package={2 * limit // 10**6}MB'",
    )


def installation_error(error: Exception, records: Iterable[RepoDataRecord]) -> KilnError:
    """Return the error that a failure of rattler's installer means."""
    what, *lines = str(error).splitlines() or [repr(error)]
    why = "; ".join(line.removeprefix("Caused by: ") for line in lines)
    record = next((record for record in records if what.endswith(f" {record.file_name}")), None)
    if record and (hashes := OTHER_HASH.search(why)):
        return _hash_mismatch_error(record, hashes[2], kind="SHA-256" if len(hashes[2]) == 64 else "MD5")
    is_local = record is not None and (file := _local_package_file(record)) is not None and file.is_file()
    if NOT_FETCHED in what and not is_local and not NO_PACKAGE.search(why):
        hint = "check that the channels can be reached, then run the same command again"
        return DownloadFailed(what, why=why, hint=hint)
    what = f"{_package_display_name(record)} cannot be installed" if record else what
    return BrokenPackage(what, why=why, hint="it is damaged, or not a package")


def _local_package_file(record: RepoDataRecord) -> Path | None:
    """Return the file of a package in a folder; None when a server has it."""
    address = urlsplit(str(record.url))
    return Path(unquote(address.path)) if address.scheme == "file" else None


async def uncached_packages(records: Iterable[RepoDataRecord], cache: Path) -> list[RepoDataRecord]:
    """Return the packages that a cache does not have."""
    index = await PackageCache(cache).index()
    return [record for record in records if not index.contains_record(record)]


def require_matching_hashes(records: Iterable[RepoDataRecord]) -> None:
    """Compare the sizes and hashes of packages in folders; those in the cache were compared before.

    An MD5 counts where the index has no other hash.
    """
    for record in records:
        file = _local_package_file(record)
        if file is None or not file.is_file():
            continue
        if record.size is not None and (size := file.stat().st_size) != record.size:
            raise _size_mismatch_error(record, size)
        if record.sha256:
            if (digest := files.sha256(file)) != record.sha256.hex():
                raise _hash_mismatch_error(record, digest)
        elif record.md5 and (digest := files.sha256_and_md5(file)["md5"]) != record.md5.hex():
            raise _hash_mismatch_error(record, digest, kind="MD5")


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
                if hops > HOPS or destination.startswith("/"):
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
        escapes = [path for path in paths if _is_outside_prefix(path) or is_in_conda_meta(path)]
        escapes += [f"{path}, twice" for path in duplicate_paths(paths, folds_case=self.folds_case)]
        new = self._add_links(links)
        folders = _parent_folders(path for path in paths if not _is_outside_prefix(path))
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


def _is_outside_prefix(path: str) -> bool:
    """Return whether a path cannot be a package's: it is absolute, or goes up."""
    return path.startswith("/") or ".." in path.split("/")


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
        self.received: dict[int, int] = {}  # bytes of downloads
        self.expected = 0  # bytes of all downloads by the index
        self._reported = 0.0

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
        """Note that a package is complete in the cache; refuse one that exceeded a limit, or has another size."""
        record = self.pending.pop(cache_entry, None)
        if record is None:
            return
        size = self.received.get(cache_entry, record.size)
        if (breach := self.exceeded()) is not None:
            self._refuse_package(breach, self._unpacked_folder(record))
        elif record.size and size is not None and size != record.size:
            self._refuse_package(_size_mismatch_error(record, size), self._unpacked_folder(record))
        else:
            self.send({"unpacked": str(self._unpacked_folder(record))})

    def on_download_start(self, cache_entry: int) -> int:
        """Return the package's number as that of the download."""
        return cache_entry

    def on_download_progress(self, download_idx: int, progress: int, total: int | None) -> None:  # noqa: ARG002
        """Stop the installation when a server sends more than the size in its index; report the bytes now and then."""
        record = self.fetched[download_idx]
        limit = record.size or self.limits.package
        self.received[download_idx] = progress
        if progress > limit:
            self.stop(too_large_package_error(record, limit))
        now = time.monotonic()
        if progress == record.size or now - self._reported >= _REPORTS:
            self._reported = now
            self.send({"received": sum(list(self.received.values())), "total": self.expected or None})

    def in_flight_urls(self) -> list[str]:
        """Return the URLs of the packages that are being fetched or unpacked."""
        return [str(record.url) for record in list(self.pending.values())]

    def on_link_start(self, operation: int, package_name: str) -> int:
        """Admit a package, or end the installation."""
        record = self.records[package_name]
        folder = self._unpacked_folder(record)
        if (breach := self.exceeded()) is not None:  # in less time than the watchdog's interval
            self._refuse_package(breach, folder)
            return operation
        try:
            self._check_package(record, folder)
        except KilnError as error:
            self._refuse_package(error, folder)
        except Exception as error:  # noqa: BLE001 - whatever it is, rattler would ignore it and continue
            self._refuse_package(
                BrokenPackage(f"{_package_display_name(record)} is not a package", why=repr(error)), folder
            )
        return operation

    def check_installed_packages(self) -> None:
        """Check the packages in the prefix, which may be removed or stay."""
        for file in sorted((self.prefix / RECORDS).glob("*.json")):
            installed = json.loads(file.read_text(encoding="utf-8"))
            paths = [str(path) for path in installed.get("files", ())]
            if outside := [path for path in paths if _is_outside_prefix(path)]:
                raise unsafe_package_error(f"the record {file}", outside)
            record = self.records.get(str(installed.get("name")))
            if record is not None and _version_and_build(record) == (installed.get("version"), installed.get("build")):
                self.tree.add_installed_paths(paths, _link_targets(self.prefix, paths))

    def _unpacked_folder(self, record: RepoDataRecord) -> Path:
        return self.cache / f"{record.name.normalized}-{record.version}-{record.build}"

    def _check_package(self, record: RepoDataRecord, folder: Path) -> None:
        index = _read_unpacked_info_json(folder, "index.json")
        name, *version = (str(index.get(key)) for key in ("name", "version", "build"))
        expected = (record.name.normalized, *_version_and_build(record))
        if (name.lower(), *version) != expected:
            raise BrokenPackage(
                f"{_package_display_name(record)} is another package",
                why=f"its metadata says {' '.join((name, *version))}, the channel's index {' '.join(expected)}",
                hint="the file was renamed: the channel's owner should index it again",
            )
        paths = _listed_paths(folder)
        links = _link_targets(folder, [path for path in paths if not _is_outside_prefix(path)])
        if index.get("noarch") == "python":
            paths = [self._noarch_python_install_path(path) for path in paths]
            links = {self._noarch_python_install_path(path): text for path, text in links.items()}
        if escapes := self.tree.add_and_check_package(paths, links):
            raise unsafe_package_error(_package_display_name(record), escapes)

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
        # No half of it may stay in the cache when this process is ended meanwhile: so it gets the name of an unfinished
        # one first, which the parent process removes.
        self.send({"unpacking": str(folder), "new": True})
        part = folder.with_name(f".{folder.name}{os.urandom(3).hex()}")
        with contextlib.suppress(FileNotFoundError):  # a package that is refused twice
            folder.rename(part)
        files.remove(part)


def _version_and_build(record: RepoDataRecord) -> tuple[str, str]:
    return str(record.version), str(record.build)


def _is_for_windows(python: RepoDataRecord | None) -> bool:
    return python is not None and python.subdir.startswith("win-")


def _site_packages_folder(python: RepoDataRecord | None) -> str:
    """Return the folder of Python's packages, as rattler derives it from the record of Python."""
    if python is None:
        return "site-packages"
    minor = ".".join(str(python.version).split(".")[:2])
    usual = "Lib/site-packages" if _is_for_windows(python) else f"lib/python{minor}/site-packages"
    folder = python.python_site_packages_path or usual
    if _is_outside_prefix(folder):
        raise UnsafePackage(
            f"{_package_display_name(python)} has its modules in {folder!r}", why="that is outside of a prefix"
        )
    return folder
