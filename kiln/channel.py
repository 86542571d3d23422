"""A conda channel in a folder: packages put in whole, indexed, solved and installed through py-rattler."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from kiln import files
from kiln.errors import BrokenIndex, DownloadFailed, KilnError, SolveFailed, UsageError
from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from rattler import InstallerReporter, PrefixRecord, RepoDataRecord

    from kiln.admission import Admission

VirtualPackages: TypeAlias = "Mapping[str, tuple[str, str]]"  # name to version and build, as in __cuda 12.9 0
UNINDEXED = ".unindexed"  # stands in the channel while its index does not yet tell what lies there
SUBDIRS = ("linux-64", "noarch")
OVERRIDES = {"cuda": "CONDA_OVERRIDE_CUDA", "libc": "CONDA_OVERRIDE_GLIBC", "archspec": "CONDA_OVERRIDE_ARCHSPEC"}
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,5}")
NO_ROOM, NOT_ALLOWED = f"(os error {errno.ENOSPC})", f"(os error {errno.EACCES})"  # in the installer's words
NO_INDEX = ("failed to parse repodata", "failed to extract repodata")  # in the library's words


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel in the folder ``root``."""

    root: Path

    @property
    def url(self) -> str:
        """The channel as a conda client wants it."""
        return self.root.absolute().as_uri()

    def path_of(self, package: Path, subdir: str) -> Path:
        """Where a package file lies in the channel."""
        return self.root / subdir / package.name

    def add(self, packages: Iterable[tuple[Path, str]]) -> tuple[Path, ...]:
        """Put package files, each with its subdir, into the channel and index it; returns where they lie now.

        A file is linked where the file system can, and appears whole or not at all. A run killed between the two is
        mended by the next one, see ``mend``.
        """
        places = {self.path_of(package, subdir): package for package, subdir in packages}
        self._mark()
        replaced = any(place.exists() for place in places)
        for place, package in places.items():
            files.link_or_copy(package, place)
        self._index(force=replaced)
        return tuple(places)

    def keep_only(self, wanted: Iterable[str]) -> None:
        """Remove the packages whose file names are not wanted, and index the channel when any was."""
        wanted = frozenset(wanted)
        stale = [package for package in self.packages() if package.name not in wanted]
        if stale:
            self._mark()
            for package in stale:
                package.unlink()
            self._index(force=True)

    def packages(self) -> tuple[Path, ...]:
        """Return the package files of the channel."""
        return tuple(file for subdir in SUBDIRS for file in sorted((self.root / subdir).glob("*.conda")))

    def names(self) -> frozenset[str]:
        """Return the names of all packages in the channel."""
        return frozenset(package.name.rsplit("-", 2)[0] for package in self.packages())

    def mend(self) -> None:
        """Bring a channel in order whose index is missing or was not finished, and sweep half-written files out."""
        for subdir in SUBDIRS:
            (self.root / subdir).mkdir(parents=True, exist_ok=True)
            files.remove_leftovers(self.root / subdir)
        indexed = all((self.root / subdir / "repodata.json").is_file() for subdir in SUBDIRS)
        if not indexed or (self.root / UNINDEXED).exists():
            self._mark()
            self._index(force=True)

    def _mark(self) -> None:
        files.write_text(self.root / UNINDEXED, "")

    def _index(self, *, force: bool) -> None:
        from rattler.index import index_fs

        for subdir in SUBDIRS:
            (self.root / subdir).mkdir(parents=True, exist_ok=True)
        asyncio.run(index_fs(self.root, write_shards=False, force=force))
        (self.root / UNINDEXED).unlink()


def solve(
    channels: Sequence[str],
    specs: Sequence[str],
    *,
    virtual_packages: VirtualPackages,
    platform: str = "linux-64",
    installed: Sequence[RepoDataRecord] = (),
    flexible: bool = False,
) -> list[RepoDataRecord]:
    """Find packages that satisfy match specs; ``virtual_packages`` are what the machine offers.

    What is ``installed`` stays as it is where it can. Of a package that several channels have, the first channel's are
    taken, or when ``flexible`` and these do not do, a later one's.

    Raises:
        SolveFailed: with the solver's own explanation.
        UsageError: when a spec or a channel is none.
        DownloadFailed: when a channel cannot be reached.
        BrokenIndex: when what it has for an index is none.
    """
    import rattler
    from rattler.exceptions import (
        FetchRepoDataError,
        GatewayError,
        InvalidChannelError,
        InvalidMatchSpecError,
        SolverError,
    )

    machine = [
        rattler.GenericVirtualPackage(rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build))
        for name, (version, build) in virtual_packages.items()
    ]
    platforms = [rattler.Subdir(platform), rattler.Subdir("noarch")]
    priority = rattler.ChannelPriority.Flexible if flexible else rattler.ChannelPriority.Strict
    try:
        return asyncio.run(
            rattler.solve(
                list(channels),
                list(specs),
                platforms=platforms,
                virtual_packages=machine,
                locked_packages=list(installed),
                channel_priority=priority,
            )
        )
    except InvalidMatchSpecError as error:
        raise UsageError(
            f"one of {', '.join(specs)} is no match spec", why=str(error).strip(), hint="'numpy <2', 'python=3.12'"
        ) from error
    except InvalidChannelError as error:
        raise UsageError(
            f"one of {', '.join(channels)} is no channel",
            why=str(error).strip(),
            hint="a folder, a URL, or a name such as conda-forge",
        ) from error
    except SolverError as error:
        raise SolveFailed(
            f"nothing in {', '.join(channels)} satisfies {', '.join(specs)}", why=str(error).strip()
        ) from error
    except (GatewayError, FetchRepoDataError) as error:
        if any(words in str(error) for words in NO_INDEX):
            raise BrokenIndex(
                f"the index of a channel of {', '.join(channels)} cannot be read",
                why="; ".join(line.removeprefix("Caused by: ") for line in str(error).splitlines()),
                hint="whoever keeps the channel should index it anew; in a folder, kiln publish --reindex does",
            ) from error
        raise DownloadFailed(
            f"a channel of {', '.join(channels)} cannot be reached",
            why=str(error).strip(),
            hint="see that the channels can be reached, then run the same command again",
        ) from error


def install(
    records: list[RepoDataRecord],
    prefix: Path,
    *,
    cache: Path,
    seen_at: str | None = None,
    carried: bool = False,
) -> None:
    """Install solved packages into a prefix, their link scripts not run; what is there besides is removed.

    ``seen_at`` is the path that the files are to name as their prefix, where they will be used at another one.
    With ``carried``, packages may have links that lead out of the prefix; nothing is written through them.

    Raises:
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one is not what the channel's index tells of.
        UnsafePackage: when one reaches out of the prefix; nothing was written there.
        DiskFull: when there is no room for them.
    """
    from kiln.admission import Admission, explained

    cache.mkdir(parents=True, exist_ok=True)
    with files.no_room_as_disk_full(prefix.parent):
        watch = Admission(records, prefix, cache, carried=carried)
        watch.admit_installed()
        try:
            asyncio.run(_install(records, watch, seen_at))
        except KilnError:
            raise
        except Exception as error:  # the library's own, and its panics, which have no type to be named by
            if watch.refusal is not None:
                raise watch.refusal from error
            if NO_ROOM in str(error):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(prefix)) from error
            if NOT_ALLOWED in str(error):
                raise PermissionError(errno.EACCES, str(error).splitlines()[-1], str(prefix)) from error
            raise explained(error, records) from error
        finally:
            files.remove(watch.aside)


async def _install(records: list[RepoDataRecord], watch: Admission, seen_at: str | None) -> None:
    import rattler

    from kiln.admission import require_intact

    await require_intact(records, watch.cache)
    await rattler.install(
        records,
        watch.prefix,
        cache_dir=watch.cache,
        show_progress=False,
        reporter=cast("InstallerReporter", watch),  # it needs no more of its methods than it has
        execute_link_scripts=False,
        alternative_target_prefix=seen_at,
    )
    if watch.refusal is not None:
        raise watch.refusal


def remember(prefix: Path, asked: Iterable[str]) -> None:
    """Write down, in a prefix's own records, which specs were asked for; its ``history`` makes it one for conda.

    py-rattler 0.28 cannot do so while it installs: it hands specs on in a type that it does not take itself.
    """
    specs: dict[str, list[str]] = {}
    for spec in asked:
        specs.setdefault(package_name(spec.rpartition("::")[2]), []).append(spec)
    for record in installed(prefix):
        record.requested_specs = specs.get(record.name.normalized, [])
        record.write_to_path(
            prefix / "conda-meta" / f"{record.name.normalized}-{record.version}-{record.build}.json", True
        )
    (prefix / "conda-meta" / "history").touch()


def installed(prefix: Path) -> list[PrefixRecord]:
    """Return what is installed in a prefix; nothing where none is.

    Raises:
        BrokenIndex: when a record of it cannot be read.
    """
    from rattler import PrefixRecord

    found = []
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            found.append(PrefixRecord.from_path(file))
        except Exception as error:  # rattler's bindings raise bare Exceptions here
            raise BrokenIndex(f"{file} is no record of an installed package", why=str(error).strip()) from error
    return found


def machine_virtual_packages(overrides: Mapping[str, str] | None = None) -> VirtualPackages:
    """Return this machine's virtual packages, ``__glibc`` and ``__cuda`` among them.

    ``overrides`` hold conda's variables: CONDA_OVERRIDE_CUDA, CONDA_OVERRIDE_GLIBC and CONDA_OVERRIDE_ARCHSPEC say
    what to take the machine for, and an empty one that it has no such thing.

    Raises:
        UsageError: when one of them is no version.
    """
    from rattler import VirtualPackage, VirtualPackageOverrides
    from rattler.virtual_package import Override

    given = {kind: (overrides or {}).get(name) for kind, name in OVERRIDES.items()}
    for kind, value in given.items():
        if value and kind != "archspec" and not _VERSION.fullmatch(value):
            raise UsageError(f"{OVERRIDES[kind]}={value!r} is no version", hint=f"{OVERRIDES[kind]}=12.9 is one")
    said = {kind: Override.string(value) for kind, value in given.items() if value is not None}
    detected = VirtualPackage.detect(VirtualPackageOverrides(**said))
    found = (package.into_generic() for package in detected)
    return {package.name.normalized: (str(package.version), str(package.build_string)) for package in found}
