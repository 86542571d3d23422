"""Atomic writes, hashes, disk space, and file locks."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shlex
import shutil
import stat
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kiln.base.errors import AlreadyRunning, DiskFull, KilnError, NotWritable, SystemFault
from kiln.base.system import files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_REFUSED = ".refused"
_PART = ".part"
_CHUNK = 1 << 20
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SPECIAL = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_FREE_SPACE = "free some space and run the same command again; what was finished is kept"
_SIZE_LIMIT = "raise the limit on the size of files (ulimit -f) and run the same command again"
_TRIES, _PAUSE = 100, 0.02  # seconds


@contextlib.contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a path next to ``path`` to write a file or folder to; it becomes ``path`` when the block succeeds.

    If the block fails, even by a killed process, ``path`` is unchanged. A folder can only replace an empty folder, or
    a path that does not exist.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _temporary_part_path(path)
    try:
        yield part
        files.flush_to_disk(part)
        part.replace(path)
        files.flush_to_disk(path.parent)
    finally:
        # Also after success: renaming onto another hard link of the same file leaves both names.
        remove(part)


@contextlib.contextmanager
def atomic_folder_change(folder: Path) -> Iterator[Path]:
    """Yield a copy of a folder to change; it atomically replaces the folder when the block succeeds.

    Files are linked, not copied, so change them by replacing them; files in folders named ``conda-meta`` are copied,
    since installers overwrite them. Raises NotWritable where folders cannot be exchanged.
    """
    part = _temporary_part_path(folder)
    try:
        copy_tree(folder, part, _link_unless_conda_meta)
        yield part
        try:
            files.exchange_folders(part, folder)
        except OSError as error:
            why, hint = error.strerror or str(error), "use a prefix on a local disk"
            raise NotWritable(f"{folder} cannot be exchanged", why=why, hint=hint) from error
    finally:
        remove(part)


def _temporary_part_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}{_PART}")


def quarantine_path(path: Path) -> Path:
    """Return the path to which an unfinished folder is renamed when its content is refused."""
    return path.with_name(f"{path.name}{_REFUSED}")


def part_files_beside(path: Path) -> tuple[Path, ...]:
    """Return half-written or refused files next to ``path``, by the names that this module gives them."""
    pattern = re.compile(rf"\.{re.escape(path.name)}\.\d+-[0-9a-f]{{8}}{re.escape(_PART)}({re.escape(_REFUSED)})?")
    return tuple(place for place in path.parent.iterdir() if pattern.fullmatch(place.name))


def _link_unless_conda_meta(source: str, target: str) -> None:
    if os.path.basename(os.path.dirname(source)) == "conda-meta":  # noqa: PTH119, PTH120 - of many files
        shutil.copy2(source, target)
        return
    link_or_copy_new(source, target)


def link_or_copy_new(source: str, target: str) -> None:
    """Give a file or a link a second name, where nothing is yet; copy it where hard links are impossible."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def walk(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder below one, itself first, with the names of its folders and of its other files.

    As `os.walk`, which fails at a thousand levels with Python 3.11 and earlier. Links are not followed; what cannot be
    listed is left out.
    """
    pending = [os.fspath(top)]
    while pending:
        place = pending.pop()
        folders: list[str] = []
        names: list[str] = []
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                (folders if entry.is_dir(follow_symlinks=False) else names).append(entry.name)
        yield place, folders, names
        pending += (os.path.join(place, name) for name in reversed(folders))  # noqa: PTH118 - of many files


def files_below(folder: Path) -> list[Path]:
    """Return the regular files below a folder, and the links to such, sorted."""
    below = (Path(place, name) for place, _, names in walk(folder) for name in names)
    return sorted(path for path in below if path.is_file())


def files_matching(folder: Path, pattern: str, *, below: bool) -> list[Path]:
    """Return what matches a relative pattern in a folder, or with ``below`` at any depth, sorted."""
    try:
        return sorted(folder.rglob(pattern) if below else folder.glob(pattern))
    except (ValueError, NotImplementedError):  # not a relative pattern
        return []


def copy_tree(source: Path, target: Path, copy: Callable[[str, str], object]) -> None:
    """Copy a folder with all folders in it to a new path, and each other file by a function of two paths."""
    made = []
    for place, _, names in walk(source):
        there = os.fspath(target) + place.removeprefix(os.fspath(source))
        os.makedirs(there, exist_ok=True)  # noqa: PTH103 - of many files
        made.append((place, there))
        for name in names:
            copy(os.path.join(place, name), os.path.join(there, name))  # noqa: PTH118
    for place, there in reversed(made):
        shutil.copystat(place, there)


def write_bytes(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a file atomically; with a mode, it never has another one. Raises DiskFull."""
    with full_disk_as_kiln_error(path.parent), atomic_replacement(path) as part:
        if mode is not None:
            part.touch(mode=mode)
        part.write_bytes(data)


def create_empty_file(path: Path) -> None:
    """Create an empty file unless it exists, in one step: a killed process leaves no part of it.

    Raises:
        OSError: the path is a link, which is not followed.
    """
    with full_disk_as_kiln_error(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | files.NO_LINK, 0o666))


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write a text file as UTF-8; see `write_bytes`."""
    write_bytes(path, text.encode(), mode=mode)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write many files into a folder, each atomically; all of them are on the disk before the first appears.

    With ``write_bytes``, a thousand small files would wait a thousand times for the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = {folder / name: _temporary_part_path(folder / name) for name in contents}
    with full_disk_as_kiln_error(folder):
        try:
            for data, part in zip(contents.values(), parts.values(), strict=True):
                part.write_bytes(data)
            for part in parts.values():
                files.flush_to_disk(part)
            for path, part in parts.items():
                part.replace(path)
            files.flush_to_disk(folder)
        finally:
            for part in parts.values():
                remove(part)


def safe_path_inside(path: Path, root: Path, *, links: bool = False) -> Path:
    """Return a path below a folder that may be written: without links in it, or with ``links`` none that leads outside.

    Git stores links, and scripts make them: writing through one may write anywhere. Links above ``root`` are the
    owner's.

    Raises:
        NotWritable: with the link and its target.
    """
    place, target = root, root.resolve()
    for name in path.relative_to(root).parts:
        place = place / name
        if name == "..":
            raise NotWritable(f"{path} leads out of {root}", hint="name a path below it")
        if place.is_symlink() and not (links and place.resolve().is_relative_to(target)):
            raise NotWritable(
                f"{place} is a link, and nothing is written through links",
                why=f"it leads to {place.readlink()}",
                hint=f"remove the link, and kiln makes the folder: rm {shlex.quote(str(place))}",
            )
    return path


def remove(path: Path) -> None:
    """Remove a file, link or folder with its contents, if it exists.

    A folder into which another thread still writes, such as an installer's after a failure, is tried again. So is one
    without write permission, as build scripts leave them, after granting it to the owner.
    """
    for attempts_left in reversed(range(_TRIES)):
        try:
            if path.is_dir() and not path.is_symlink():
                _remove_folder(path)
            else:
                path.unlink(missing_ok=True)
        except PermissionError:
            if attempts_left < _TRIES - 1 or not files.make_removable(path):
                raise
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.ENOENT} or not attempts_left:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _remove_folder(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except (RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in {errno.ENAMETOOLONG, errno.EMFILE}:
            raise
        files.flatten_folder(path)
        shutil.rmtree(path)


def remove_part_files(folder: Path) -> None:
    """Remove partial files of killed runs from a folder; the caller holds the folder's lock."""
    for part in folder.glob(f".*{_PART}"):
        remove(part)


def link_or_copy(source: Path, target: Path) -> None:
    """Link a file to a second path, or copy it where links are impossible; replaces ``target``."""
    with full_disk_as_kiln_error(target.parent), atomic_replacement(target) as part:
        try:
            os.link(source, part)
        except OSError:
            shutil.copy2(source, part)


def copy(source: Path, target: Path) -> None:
    """Copy a file to a second path, with its mode and times; replaces ``target``. A change of one changes one."""
    with full_disk_as_kiln_error(target.parent), atomic_replacement(target) as part:
        try:
            files.copy_content(source, part)
        except OSError:
            shutil.copyfile(source, part)
        shutil.copystat(source, part)


def read_chunks(file: IO[bytes], size: int = _CHUNK) -> Iterator[bytes]:
    """Yield the content of an open file in parts."""
    while chunk := file.read(size):
        yield chunk


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return open_file_sha256(file)


def open_file_sha256(file: IO[bytes]) -> str:
    """Return the SHA-256 of an open file's content, in hexadecimal."""
    digest = hashlib.sha256()
    for chunk in read_chunks(file):
        digest.update(chunk)
    return digest.hexdigest()


def sha256_and_md5(path: Path) -> dict[str, str]:
    """Return the SHA-256 and the MD5 of a file's content, in hexadecimal, read once; indexes have both."""
    from concurrent.futures import ThreadPoolExecutor

    hashes = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
    with path.open("rb") as file, ThreadPoolExecutor(len(hashes)) as pool:
        for chunk in read_chunks(file, 4 * _CHUNK):
            for update in [pool.submit(digest.update, chunk) for digest in hashes.values()]:
                update.result()
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def text_or_empty(path: Path) -> str:
    """Return the text of a file, with replacements for invalid bytes; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def refuse_special_files(*folders: Path) -> None:
    """Refuse pipes, sockets and devices right in folders, and links to such: who opens one may wait for ever.

    Raises:
        SystemFault: there is one.
    """
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() or entry.is_dir():
                    continue
                with contextlib.suppress(OSError):  # a link that leads nowhere
                    kind = special_kind(os.stat(entry.path))  # noqa: PTH116 - of many files
                    if kind:
                        hint = "move it to another folder"
                        raise SystemFault(f"{entry.path} is {kind}, not a file", hint=hint)


def special_kind(status: os.stat_result) -> str:
    """Return what a file is that is neither a regular file nor a folder nor a link; empty for these."""
    return next((kind for is_kind, kind in _SPECIAL if is_kind(status.st_mode)), "")


def read_regular_file(path: Path, limit: int) -> bytes:
    """Return the content of a file that others may have made; a pipe or a device would block, a link lead elsewhere.

    Raises:
        OSError: it is missing, or not a regular file.
        ValueError: it has more than ``limit`` bytes.
    """
    with os.fdopen(files.open_regular_file(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} has more than {limit:,} bytes")
    return data


def end_of_file(path: Path, limit: int) -> bytes:
    """Return the last bytes of a file that others may have made; see `read_regular_file`."""
    with os.fdopen(files.open_regular_file(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
        return file.read(limit)


def csv_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table with a line of column names."""
    import csv  # slow to import, and rarely needed

    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def path_of_file_url(url_path: str) -> Path:
    """Return the path in a ``file:`` URL."""
    from urllib.parse import unquote  # slow to import, and rarely needed

    return Path(unquote(url_path))


def is_case_insensitive(folder: Path) -> bool:
    """Return whether the file system of ``folder`` ignores case in names."""
    there = files.nearest_existing_path(folder)
    place = next((place for place in (there, *there.parents) if place.name.swapcase() != place.name), there)
    other = place.with_name(place.name.swapcase()) if place.name else place
    return bool(place.name) and other.exists() and other.samefile(place)


def human_readable_size(size: int) -> str:
    """Return a number of bytes for people: ``340 kB``, ``3.4 GB``."""
    amount, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "B" else f"{amount:.1f} {unit}"


def size_on_disk(folder: Path) -> int:
    """Return the bytes that the files below a folder take on the disk; what the system does not find is left out."""
    size = 0
    for place, folders, names in walk(folder):
        for name in (*folders, *names):
            with contextlib.suppress(OSError):
                size += files.size_on_disk(os.lstat(os.path.join(place, name)))  # noqa: PTH118 - of many files
    return size


def require_disk_space(folder: Path, needed: int, *, for_what: str) -> None:
    """Raise DiskFull, with both numbers, when fewer than ``needed`` bytes are free on the disk of ``folder``."""
    free = shutil.disk_usage(files.nearest_existing_path(folder)).free
    if free < needed:
        raise DiskFull(
            f"{for_what} needs {human_readable_size(needed)} in {folder}",
            why=f"{human_readable_size(free)} are free there",
            hint="free some space, or work on another disk",
        )


class ReservedDiskSpace:
    """Bytes of the disk, reserved by a file without a name until the process ends; raises DiskFull."""

    def __init__(self, folder: Path, size: int) -> None:
        import tempfile  # slow to import, and rarely needed

        folder.mkdir(parents=True, exist_ok=True)
        with full_disk_as_kiln_error(folder):
            self._file = tempfile.TemporaryFile(dir=folder, prefix=".", suffix=_PART)  # noqa: SIM115 - held
            files.reserve_space(self._file.fileno(), size)

    def release(self) -> None:
        """Free the space."""
        self._file.close()


def create_reserve_file(path: Path, size: int) -> None:
    """Reserve bytes of the disk by a file, which is removed when the space is needed; raises DiskFull."""
    with full_disk_as_kiln_error(path.parent), path.open("wb") as file:
        files.reserve_space(file.fileno(), size)


@contextlib.contextmanager
def full_disk_as_kiln_error(folder: Path) -> Iterator[None]:
    """Turn the system's 'no space left' and 'quota exceeded' into DiskFull, and 'file too large'; other errors pass."""
    try:
        yield
    except OSError as error:
        if (fault := _full_disk_error(error, f"writing {error.filename or folder}")) is None:
            raise
        raise fault from error


def _full_disk_error(error: OSError, doing: str) -> KilnError | None:
    why = error.strerror or str(error)
    if error.errno == errno.EFBIG:
        return SystemFault(f"a file exceeded the limit on the size of files while {doing}", why=why, hint=_SIZE_LIMIT)
    if error.errno in _DISK_FULL:
        return DiskFull(f"the disk became full while {doing}", why=why, hint=_FREE_SPACE)
    return None


def os_error_as_kiln_error(error: OSError) -> KilnError | None:
    """Return a system error as kiln's, with the file's name; None where the file is unknown."""
    message = error.strerror or str(error)
    if error.filename is None:
        return _kiln_error_without_path(error, message)
    path = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
    if (fault := _full_disk_error(error, f"writing {path}")) is not None:
        return fault
    if error.errno == errno.EROFS:
        hint = "mount the file system for writing, or work in a copy of the folder on another one"
        return NotWritable(f"{path} cannot be written", why=message, hint=hint)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return NotWritable(f"{path} cannot be used", why=message, hint=f"see who owns it: ls -ld {path}")
    return SystemFault(f"{path} cannot be used", why=message, hint=f"see what is there: ls -ld {path}")


def _kiln_error_without_path(error: OSError, message: str) -> KilnError | None:
    try:
        here = os.getcwd()  # noqa: PTH109 - fails if it was removed
    except FileNotFoundError:
        return SystemFault("the working directory was removed", why=message, hint="cd into an existing folder")
    if "temporary directory" in message:
        return SystemFault("no folder for temporary files", why=message, hint="set TMPDIR to a folder")
    return _full_disk_error(error, f"working in {here}")


@contextlib.contextmanager
def held_lock_file(path: Path) -> Iterator[None]:
    """Hold the lock file ``path`` during the block; raises AlreadyRunning, naming the process that holds it.

    The lock ends with the process, the file stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            files.acquire_lock(file.fileno(), wait=False)
        except BlockingIOError as error:
            file.seek(0)
            raise already_running_error(path, file.read().strip()) from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


@contextlib.contextmanager
def held_folder_lock(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder during the block, waiting for it; for short work, without a lock file."""
    descriptor = files.open_folder_lock(folder)
    try:
        files.acquire_lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def already_running_error(lock: Path, pid: str) -> AlreadyRunning:
    """Return the error of a lock that the process ``pid`` holds, which is anything else where that is unknown."""
    holder = f"process {pid}" if pid.isdecimal() else "another process"
    hint = "wait until it has ended, or end it; then run the same command again"
    return AlreadyRunning(f"{holder} holds {lock}", hint=hint)
