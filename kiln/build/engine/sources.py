"""Sources that the engine does not have: fetched, checked out, unpacked, verified by their content."""

from __future__ import annotations

import calendar
import contextlib
import errno
import hashlib
import io
import lzma
import os
import posixpath
import re
import shutil
import stat
import subprocess
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from kiln.base import files, http, locks, masking, process, secret_forms
from kiln.base.errors import BuildFailed, DownloadFailed, HashMismatch, KilnError, LimitExceeded, RecipeFault
from kiln.base.patterns import HEADER, is_archive, is_misnamed, is_wheel, kind_of_content, kind_of_name
from kiln.base.zstd import zstd
from kiln.build.engine import patches, source_plan
from kiln.build.engine.failures import HASH
from kiln.build.engine.recipe import local_source_entry
from kiln.conda.rattler import limits
from kiln.recipe.rendered import Checkout, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from kiln.build.engine.source_plan import SourceMirrors
    from kiln.build.steps import FetchedSource

    # Those that check out, the first one next to the new folder; and the one that prints the revision.
    Commands: TypeAlias = tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]


_CHARACTERS = 1 << 20


def folder_content_hash(folder: Path, algorithm: str, skip: Iterable[str] = ()) -> str:
    """Return the hash of all paths below a folder, and of what they are and contain, in the order of the paths.

    Text has the line ends of Unix, a path slashes for backslashes; of a link counts what it leads to. ``skip`` are
    relative paths that do not count; one that ends with a slash is a folder with all that is below.
    """
    digest, skip = hashlib.new(algorithm), tuple(skip)
    for path in sorted(_relative_paths(folder)):
        name = path.replace("\\", "/")
        if any(item in {name, f"{name}/"} or (item.endswith("/") and name.startswith(item)) for item in skip):
            continue
        digest.update(os.fsencode(name))
        for part in _path_kind_and_content(folder / path, name):
            digest.update(part)
        digest.update(b"-")
    return digest.hexdigest()


def _relative_paths(folder: Path) -> Iterator[str]:
    for top, folders, names in files.walk(folder):
        for name in (*folders, *names):
            yield Path(top, name).relative_to(folder).as_posix()


def _path_kind_and_content(path: Path, name: str) -> Iterator[bytes]:
    if path.is_symlink():
        yield b"L"
        yield os.fsencode(path.readlink()).replace(b"\\", b"/")
    elif path.is_dir():
        yield b"D"
    elif path.is_file():
        yield b"F"
        if _is_text_file(path):
            yield from _normalized_text(path)
        else:
            with path.open("rb") as file:
                yield from files.read_chunks(file)
    else:
        raise BuildFailed(f"{name[:200]!r} is not a file, folder or link", why="its content has no hash")


def _is_text_file(path: Path) -> bool:
    try:
        for _ in _normalized_text(path):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _normalized_text(path: Path) -> Iterator[bytes]:
    """Yield a file's text with the line ends of Unix, so that the result is the same for checkouts on Windows."""
    with io.TextIOWrapper(path.open("rb"), encoding="utf-8", newline=None) as file:
        while text := file.read(_CHARACTERS):
            yield text.encode()


# No questions, and messages in English that this module reads; without UTF-8, Subversion refuses names of files.
_SETTINGS = {"HGPLAIN": "1", "HGRCSKIPREPO": "1", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
_NO_REVISION = re.compile(
    r"unknown revision|No such revision|Syntax error in revision|E205000|ambiguous identifier"
    r"|invalid reference|reference is not a tree|unable to read tree"
)
_HINT = "see that the repository can be reached and read from here, then run the same command again"


def check_out_repository(checkout: Checkout, folder: Path, *, env: Mapping[str, str]) -> str:
    """Check out a repository into a new folder, and return the revision that it has."""
    for value in (checkout.url, checkout.revision or "", checkout.user or ""):
        if value.startswith("-"):
            raise RecipeFault(f"source/{checkout.program}_url: {value[:80]!r} is an option", hint="give an address")
    masking.register_secrets([checkout.password] if checkout.password else ())
    environment = {**env, **_SETTINGS}
    folder.parent.mkdir(parents=True, exist_ok=True)
    commands_of = {"hg": _mercurial_commands, "svn": _subversion_commands, "git": _git_commands}
    (checkout_command, *commands), revision_command = commands_of[checkout.program](checkout, str(folder))
    stdin = checkout.password if checkout.program == "svn" else None
    _run_checkout_command(checkout, checkout_command, folder.parent, environment, stdin=stdin)
    for argv in commands:
        _run_checkout_command(checkout, argv, folder, environment)
    result = process.capture(revision_command, env=environment, cwd=folder)
    return result.stdout.strip() if result.ok else ""


def _mercurial_commands(checkout: Checkout, folder: str) -> Commands:
    program = ("hg", "--noninteractive")
    clone = (*program, "clone", "--noupdate", "--", checkout.url, folder)
    update = (*program, "update", "--clean", f"--rev={checkout.revision or 'tip'}")
    return (clone, update), (*program, "log", "--rev=.", "--template={node}")


def _subversion_commands(checkout: Checkout, folder: str) -> Commands:
    argv = ["svn", "checkout", "--non-interactive", "--revision", checkout.revision or "HEAD"]
    if not checkout.externals:
        argv.append("--ignore-externals")
    if checkout.user is not None and checkout.password is not None:
        argv += ["--no-auth-cache", "--username", checkout.user, "--password-from-stdin"]
    return ((*argv, "--", checkout.url, folder),), ("svn", "info", "--show-item", "last-changed-revision", ".")


def _git_commands(checkout: Checkout, folder: str) -> Commands:
    depth = () if checkout.depth is None else ("--depth", str(checkout.depth))
    clone = ("git", "clone", "--quiet", *depth, "--", checkout.url, folder)
    switch = ("git", "checkout", "--quiet", checkout.revision or "HEAD", "--")
    submodules = ("git", "submodule", "--quiet", "update", "--init", "--recursive")
    return (clone, switch, submodules), ("git", "rev-parse", "HEAD")


def _run_checkout_command(
    checkout: Checkout, argv: tuple[str, ...], folder: Path, env: Mapping[str, str], stdin: str | None = None
) -> None:
    idle = limits.current_limits().stall
    result = process.run(argv, env=env, cwd=folder, stdin=stdin, idle=idle)
    if result.idle:
        raise DownloadFailed(f"{checkout.url} has sent nothing for {idle} s", hint=_HINT)
    if result.ok:
        return
    if _NO_REVISION.search(result.tail):
        raise RecipeFault(f"{checkout.url} has no revision {checkout.revision!r}", why=result.tail)
    raise DownloadFailed(f"{checkout.url} cannot be checked out", why=result.tail, hint=_HINT)


_FAULTS = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, zstd.ZstdError, EOFError),
    # of members: passwords, odd methods, odd names, odd times
    *(KeyError, RuntimeError, NotImplementedError, ValueError, OverflowError),
)
_ALL = 0o777
_LONGEST_LINK = 4096  # bytes, of which Linux makes no link any more
_DOS_EPOCH = 315532800  # 1980-01-01, for members of zip files without a date


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArchiveMember:
    """A member of an archive: a folder, a link to ``link``, another name of the file ``same``, or a file."""

    name: str
    mode: int
    time: float
    link: str | None = None
    same: str | None = None
    content: Callable[[], IO[bytes] | None] | None = None


class _Room:
    """What an archive may still unpack: its own size says nothing, a bomb of 40 kB has 300 MB."""

    def __init__(self, archive: str) -> None:
        most = limits.current_limits()
        self.archive, self.bytes, self.files = archive, most.unpacked, most.files

    def take(self, size: int) -> None:
        """Take bytes of a file, or none for a new member; raises LimitExceeded."""
        self.bytes -= size
        self.files -= not size
        if min(self.bytes, self.files) < 0:
            name = "unpacked" if self.bytes < 0 else "files"
            raise LimitExceeded(
                f"{self.archive} is not unpacked",
                why=f"it has more than the limit of {name}, {getattr(limits.current_limits(), name):,}",
                hint=f"if you trust the source, set a higher one: KILN_LIMITS='{name}=...'",
            )


def unpack_source(archive: Path, name: str, folder: Path, *, hoist: bool, env: Mapping[str, str]) -> Path:
    """Unpack a file that is called ``name`` into a new folder, and return the folder with its content.

    With ``hoist``, that is the single folder at the top of the archive, if it has one. A file that is not an archive is
    copied, and a wheel is both.
    """
    folder.mkdir(parents=True)
    with files.full_disk_as_kiln_error(folder):
        if is_archive(name):
            _unpack_archive(archive, name, folder, env)
        if not is_archive(name) or is_wheel(name):
            shutil.copy2(archive, folder / name)
    entries = list(folder.iterdir())
    has_top = hoist and len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink()
    return entries[0] if has_top else folder


def _unpack_archive(archive: Path, name: str, folder: Path, env: Mapping[str, str]) -> None:
    reader = _archive_member_reader(archive, name)
    members = _members_by_bsdtar(archive, env) if reader is None else reader(archive)
    try:
        with contextlib.closing(members):  # or bsdtar stays until the garbage collector finds the generator
            _write_members(members, folder, name)
    except subprocess.CalledProcessError as error:
        raise BuildFailed(f"{name} cannot be unpacked", why=error.stderr) from error
    except _FAULTS as error:
        raise BuildFailed(f"{name} cannot be unpacked", why=f"{type(error).__name__}: {error}") from error
    except OSError as error:  # a file in the place of a folder, a name that is too long
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise
        raise BuildFailed(f"{name} cannot be unpacked", why=str(error)) from error


def _write_members(members: Iterable[_ArchiveMember], folder: Path, archive: str) -> None:
    folders: list[tuple[Path, _ArchiveMember]] = []
    room = _Room(archive)
    for member in members:
        room.take(0)
        place = _safe_member_path(folder, member.name, archive)
        if place == folder:
            continue
        _write_member(member, place, folder, archive, room)
        if place.is_dir() and not place.is_symlink():
            folders.append((place, member))
    for place, member in reversed(folders):  # files in them change their times
        place.chmod((member.mode & _ALL) | stat.S_IRWXU)
        os.utime(place, (member.time, member.time))


def _archive_member_reader(archive: Path, name: str) -> Callable[[Path], Generator[_ArchiveMember, None, None]] | None:
    """Return the reader for an archive's content, as in conda-build; without a mark, for its name."""
    with archive.open("rb") as file:
        kind = kind_of_content(file.read(HEADER)) or kind_of_name(name)
    if kind is None and name.lower().endswith(".tar.lzma"):  # a kind without a mark
        return _tar_file_members
    return None if kind is None else _READERS.get(kind)


def _tar_file_members(archive: Path) -> Generator[_ArchiveMember, None, None]:
    with tarfile.open(archive, "r:*") as tar:
        yield from _members_of_tar(tar)


def _zstd_tar_members(archive: Path) -> Generator[_ArchiveMember, None, None]:
    with zstd.ZstdFile(archive) as plain, tarfile.open(fileobj=plain, mode="r|") as tar:
        yield from _members_of_tar(tar)


def _members_by_bsdtar(archive: Path, env: Mapping[str, str]) -> Generator[_ArchiveMember, None, None]:
    """Yield what bsdtar reads of a kind that Python has not, which it writes as a tar archive; it unpacks nothing."""
    argv = ("bsdtar", "-c", "--format=pax", "-f", "-", f"@{archive}")
    with process.piped(argv, env=env) as pipe, tarfile.open(fileobj=pipe, mode="r|") as tar:
        yield from _members_of_tar(tar)


def _members_of_tar(tar: tarfile.TarFile) -> Generator[_ArchiveMember, None, None]:
    for member in tar:
        if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
            raise tarfile.TarError(f"{member.name[:200]!r} is a device or a pipe")
        yield _ArchiveMember(
            name=member.name,
            mode=member.mode,
            time=member.mtime,
            link=member.linkname if member.issym() else None,
            same=member.linkname if member.islnk() else None,
            content=(lambda member=member: tar.extractfile(member)) if member.isfile() else None,  # type: ignore[misc]
        )


def _zip_members(archive: Path) -> Generator[_ArchiveMember, None, None]:
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            mode = member.external_attr >> 16
            is_link = stat.S_ISLNK(mode)
            yield _ArchiveMember(
                name=member.filename,
                mode=stat.S_IMODE(mode) or (0o755 if member.is_dir() else 0o644),
                time=_zip_member_time(member),
                link=_zip_link_target(file, member) if is_link else None,
                content=None if is_link or member.is_dir() else (lambda member=member: file.open(member)),  # type: ignore[misc]
            )


_READERS = {
    "tar": _tar_file_members,
    "gzip": _tar_file_members,
    "bzip2": _tar_file_members,
    "xz": _tar_file_members,
    "zstd": _zstd_tar_members,
    "zip": _zip_members,
}


def _zip_member_time(member: zipfile.ZipInfo) -> int:
    try:
        return calendar.timegm((*member.date_time, 0, 0, 0))
    except ValueError:  # month 0: the date was not set
        return _DOS_EPOCH


def _zip_link_target(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> str:
    with file.open(member) as content:
        return os.fsdecode(content.read(_LONGEST_LINK))


def _safe_member_path(folder: Path, name: str, archive: str) -> Path:
    """Return the path of a member: inside of the folder, and below no link."""
    parts = [part for part in name.split("/") if part not in {"", "."}]
    place = folder
    for part in parts:
        if part == ".." or name.startswith("/") or place.is_symlink():
            why = "it is below a link" if place.is_symlink() else "it leads out of the archive's folder"
            raise BuildFailed(f"{archive} is not unpacked: it has {name[:200]!r}", why=why)
        place /= part
    return place


def _write_member(member: _ArchiveMember, place: Path, folder: Path, archive: str, room: _Room) -> None:
    """Make a file, folder or link; a later member of the same name replaces an earlier one."""
    if member.link is None and member.same is None and member.content is None:
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(parents=True, exist_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_symlink() or place.is_file():
        place.unlink()
    if member.link is not None:
        place.symlink_to(member.link)
    elif member.same is not None:
        _make_hard_link(_safe_member_path(folder, member.same, archive), place)
    elif member.content is not None:
        _write_file_member(member, place, room)


def _make_hard_link(target: Path, place: Path) -> None:
    if target.is_symlink():
        place.symlink_to(target.readlink())
    elif target.is_file():
        os.link(target, place)
    else:
        raise KeyError(f"{posixpath.basename(target)[:200]!r} is a link to a file that is not there")


def _write_file_member(member: _ArchiveMember, place: Path, room: _Room) -> None:
    content = member.content() if member.content is not None else None
    if content is None:
        raise KeyError(f"{member.name[:200]!r} has no content")
    with content, place.open("xb") as file:
        for chunk in files.read_chunks(content, 1 << 18):
            room.take(len(chunk))
            if chunk.count(0) == len(chunk):  # a hole of a sparse file takes no space on the disk
                file.seek(len(chunk), os.SEEK_CUR)
            else:
                file.write(chunk)
        file.truncate()
    place.chmod((member.mode & _ALL) | stat.S_IRUSR)
    os.utime(place, (member.time, member.time))


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
        """Return the engine's recipe with the addresses of the fetched sources."""
        entries = list(recipe.get("source", ()))
        for entry in entries:
            patches.require_safe_patches(map(Path, entry.get("patches", ())))
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
        if source.path is not None and source_plan.is_unpacked_by_kiln(source):
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
        if not source_plan.is_unpacked_by_kiln(source) and not misnamed:
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
            actual = http.fetch_and_hash(url, folder, algorithms=algorithms, verify_kind=False)  # its name is fn's
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
                reasons.append(f"{secret_forms.with_masked_credentials(url)}: {error.why}")
            except HashMismatch as error:
                mismatch = error
        if mismatch is not None:
            raise mismatch
        hint = "see that the sources can be reached, then run the same command again, or name a --distdir or --mirror"
        raise DownloadFailed(f"{name} cannot be downloaded", why="\n       ".join(reasons), hint=hint)

    def _download_file(self, url: str, place: Path, hashes: Mapping[str, str]) -> str:
        """Download a file with hashes, and return its SHA-256."""
        public_url = secret_forms.with_masked_credentials(url)
        self.on_line(f"{place.name}: {public_url}")
        with locks.temporary_folder(self.download_folder if hashes else place.parent, http.UNFINISHED) as folder:
            part = folder / place.name
            actual = http.fetch_and_hash(url, place.parent, algorithms=(*hashes, "sha256"), target=part)
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
    name = source_plan.source_file_name(source)
    if name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise RecipeFault(f"source/fn: {name[:80]!r} is not the name of a file")
    return name


def _validated_hashes(source: Source) -> dict[str, str]:
    """Return the hashes of a source's file, the strongest one first."""
    for _, what, why in impossible_hashes(source):
        raise RecipeFault(what, why=why)
    return {name: text.lower() for name, text in _given_hashes(source).items()}


def impossible_hashes(source: Source) -> Iterator[tuple[str, str, str]]:
    """Yield the hashes that no file has, each with what is wrong and why."""
    for name, text in _given_hashes(source).items():
        digits = 2 * hashlib.new(name, usedforsecurity=False).digest_size
        if len(text) != digits or not _HEXADECIMAL.fullmatch(text):
            yield text, f"source/{name} is {text[:140]!r}", f"a {name} has {digits} hexadecimal digits"


def _given_hashes(source: Source) -> dict[str, str]:
    given = {**source.hashes, "sha256": source.sha256, "md5": source.md5}
    return {name: text for name in ALGORITHMS if (text := given.get(name))}


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
