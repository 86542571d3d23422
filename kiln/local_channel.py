"""A conda channel in a folder, and the solving and installing of packages through py-rattler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from kiln import channel_credentials, files, folder_lock, rattler_process
from kiln.errors import BrokenIndex, UsageError
from kiln.lazy_pattern import lazy_pattern
from kiln.matchspec_notation import package_name
from kiln.names import channel_folders
from kiln.rattler_process.package_records import dumped, loaded

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rattler import PrefixRecord, RepoDataRecord

VirtualPackages: TypeAlias = "Mapping[str, tuple[str, str]]"  # name to version and build, as in __cuda 12.9 0
UNINDEXED = ".unindexed"  # exists in the channel while the index differs from the files
SUBDIRS = ("linux-64", "noarch")  # of every channel that is made here
_ARCHSPEC = {"64": "x86_64", "32": "x86"}  # the architecture in a subdir: its build of __archspec, where they differ
OVERRIDES = {"cuda": "CONDA_OVERRIDE_CUDA", "libc": "CONDA_OVERRIDE_GLIBC", "archspec": "CONDA_OVERRIDE_ARCHSPEC"}
_VERSION = lazy_pattern(r"\d{1,9}(\.\d{1,9}){0,5}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel in the folder ``root``."""

    root: Path

    @property
    def url(self) -> str:
        """The channel's URL, as conda clients take it."""
        return self.root.absolute().as_uri()

    @property
    def subdirs(self) -> tuple[str, ...]:
        """The channel's folders of packages; those of a channel that is made here are among them."""
        return (*SUBDIRS, *(name for name in channel_folders(self.root) if name not in SUBDIRS))

    def path_of(self, package: Path, subdir: str) -> Path:
        """Return the path of a package file in the channel; raises NotWritable for a link that leads out of it."""
        return files.safe_path_inside(self.root / subdir / package.name, self.root, links=True)

    def add(self, packages: Iterable[tuple[Path, str]]) -> tuple[Path, ...]:
        """Add package files, each with its subdir, index the channel, and return their paths there.

        A file is linked where the file system can, and appears whole or not at all. After a run killed between the two
        steps, the next one repairs the channel, see ``repair``.
        """
        places = {self.path_of(package, subdir): package for package, subdir in packages}
        self._mark()
        replaced = any(place.exists() for place in places)
        for place, package in places.items():
            files.link_or_copy(package, place)
        self._index(force=replaced)
        return tuple(places)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove the packages with other file names, and index the channel when there were any."""
        names = frozenset(names)
        stale = [package for package in self.packages() if package.name not in names]
        if stale:
            self._mark()
            for package in stale:
                package.unlink()
            self._index(force=True)

    def packages(self) -> tuple[Path, ...]:
        """Return the package files of the channel."""
        return tuple(file for subdir in self.subdirs for file in sorted((self.root / subdir).glob("*.conda")))

    def names(self) -> frozenset[str]:
        """Return the names of all packages in the channel."""
        return frozenset(package.name.rsplit("-", 2)[0] for package in self.packages())

    def repair(self) -> None:
        """Index a channel whose index is missing or unfinished, and remove half-written files."""
        for subdir in self.subdirs:
            folder = files.safe_path_inside(self.root / subdir, self.root, links=True)
            folder.mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(folder)
        indexed = all((self.root / subdir / "repodata.json").is_file() for subdir in self.subdirs)
        if not indexed or (self.root / UNINDEXED).exists():
            self._mark()
            self._index(force=True)

    def _mark(self) -> None:
        files.create_empty(self.root / UNINDEXED)

    def _index(self, *, force: bool) -> None:
        for subdir in self.subdirs:
            folder = files.safe_path_inside(self.root / subdir, self.root, links=True)
            folder.mkdir(parents=True, exist_ok=True)
            for index in folder.glob("repodata*"):
                files.safe_path_inside(index, self.root, links=True)
        with files.full_disk_as_error(self.root):
            rattler_process.call("index", root=str(self.root.absolute()), force=force)
        (self.root / UNINDEXED).unlink()


def solve(
    channels: Sequence[str],
    specs: Sequence[str],
    *,
    virtual_packages: VirtualPackages,
    platform: str = "linux-64",
    installed: Sequence[RepoDataRecord] = (),
    priority: str = "strict",
) -> list[RepoDataRecord]:
    """Return packages that satisfy match specs; ``virtual_packages`` are the machine's.

    ``installed`` packages stay as they are where possible. Of a package in several channels, the first channel's builds
    are chosen: with the ``priority`` flexible a later one's if these do not fit, with disabled the newest of all.

    Raises:
        SolveFailed: with the solver's own explanation.
        UsageError: when a spec or a channel is invalid.
        DownloadFailed: when a channel cannot be reached, or its server sends nothing.
        BrokenIndex: when its index is invalid.
        LimitExceeded: when its index is too large, or solving takes too long.
    """
    records = rattler_process.call(
        "solve",
        channels=list(channel_credentials.register(channels)),
        specs=list(specs),
        virtual_packages=dict(virtual_packages),
        platform=platform,
        installed=dumped(installed),
        priority=priority,
    )
    return loaded(records)


def install(
    records: list[RepoDataRecord],
    prefix: Path,
    *,
    cache: Path,
    seen_at: str | None = None,
    carried: bool = False,
    lock: int | None = None,
) -> None:
    """Install solved packages into a prefix, without running link scripts; other packages there are removed.

    ``seen_at`` is the prefix that the files name, where they will be used at another path than they are installed to.
    With ``carried``, packages may have links that lead out of the prefix; nothing is written through them.
    ``lock`` is the descriptor of a lock that is held until nothing is written into the prefix any more, even when this
    process is killed.

    Raises:
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one is not the package in the channel's index.
        UnsafePackage: when one reaches out of the prefix; nothing was written there.
        DiskFull: when the disk has not enough space.
        LimitExceeded: when one is larger than it may be.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with files.full_disk_as_error(prefix.parent):
        rattler_process.call(
            "install",
            lock=lock,
            records=dumped(records),
            prefix=str(prefix.absolute()),
            cache=str(cache.absolute()),
            seen_at=seen_at,
            carried=carried,
        )


def install_atomically(
    records: list[RepoDataRecord], prefix: Path, *, replaced: tuple[int, int] | None, wait: float
) -> None:
    """Install solved packages into a prefix that appears whole, in the place of the folder ``replaced`` there.

    ``replaced`` is its `folder_identity`, None for no folder; another folder, made by another process since, stays.

    Raises:
        AlreadyRunning: another process makes the prefix for longer than ``wait`` seconds.
        KilnError: those of ``install``.
    """
    cache = prefix.with_name(f"cache-{prefix.name}")
    with folder_lock.exclusive(prefix, wait=wait) as lock:
        if folder_identity(prefix) == replaced:
            files.remove(prefix)
            with files.replacing(prefix) as part:
                install(records, part, cache=cache, seen_at=str(prefix), lock=lock)
        files.remove(cache)


def folder_identity(folder: Path) -> tuple[int, int] | None:
    """Return the identity of a folder, which changes when another one replaces it; None without the folder."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


def record_requested_specs(prefix: Path, requested: Iterable[str]) -> None:
    """Write the requested specs into a prefix's records; a file ``history`` makes it an environment for conda.

    py-rattler 0.28 cannot do so while it installs: it passes specs on in a type that it does not accept itself.
    """
    specs: dict[str, list[str]] = {}
    for spec in requested:
        specs.setdefault(package_name(spec), []).append(spec)
    for record in installed(prefix):
        record.requested_specs = specs.get(record.name.normalized, [])
        record.write_to_path(
            prefix / "conda-meta" / f"{record.name.normalized}-{record.version}-{record.build}.json", True
        )
    (prefix / "conda-meta" / "history").touch()


def installed(prefix: Path) -> list[PrefixRecord]:
    """Return the records of the packages in a prefix.

    Raises:
        BrokenIndex: when a record cannot be read.
    """
    from rattler import PrefixRecord

    records = []
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            records.append(PrefixRecord.from_path(file))
        except Exception as error:  # rattler's bindings raise bare Exceptions here
            raise BrokenIndex(f"{file} is not a record of an installed package", why=str(error).strip()) from error
    return records


def emulated_virtual_packages(subdir: str, machine: VirtualPackages) -> VirtualPackages:
    """Return the virtual packages for a platform whose programs are emulated: this machine's, of another processor."""
    architecture = subdir.partition("-")[2]
    return {**machine, "__archspec": ("1", _ARCHSPEC.get(architecture, architecture))}


def machine_virtual_packages(overrides: Mapping[str, str] | None = None) -> VirtualPackages:
    """Return this machine's virtual packages, ``__glibc``, ``__cuda`` and ``__cuda_arch`` among them.

    ``overrides`` hold conda's variables CONDA_OVERRIDE_CUDA, CONDA_OVERRIDE_CUDA_ARCH, CONDA_OVERRIDE_GLIBC and
    CONDA_OVERRIDE_ARCHSPEC, which replace what was detected; an empty one removes it. rattler detects all but
    ``__cuda_arch``.

    Raises:
        UsageError: when one of them is not a version.
    """
    from rattler import VirtualPackage, VirtualPackageOverrides
    from rattler.virtual_package import Override

    from kiln.compat import probe, virtual_cuda_arch

    values = {kind: (overrides or {}).get(name) for kind, name in OVERRIDES.items()}
    for kind, value in values.items():
        if value and kind != "archspec" and not _VERSION.fullmatch(value):
            raise UsageError(
                f"{OVERRIDES[kind]}={value!r} is not a version", hint=f"{OVERRIDES[kind]}=12.9, for example"
            )
    replacements = {kind: Override.string(value) for kind, value in values.items() if value is not None}
    detected = VirtualPackage.detect(VirtualPackageOverrides(**replacements))
    generic = (package.into_generic() for package in detected)
    packages = {package.name.normalized: (str(package.version), str(package.build_string)) for package in generic}
    arch = virtual_cuda_arch.version(
        overrides or {}, has_cuda="__cuda" in packages, capabilities=lambda: probe.capabilities(overrides or {})
    )
    return packages if arch is None else {**packages, virtual_cuda_arch.NAME: (arch, "0")}
