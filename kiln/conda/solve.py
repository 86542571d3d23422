"""Packages solved and installed through py-rattler, for a machine's virtual packages."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from kiln.base import files, http, locks
from kiln.base.errors import BrokenIndex, BrokenPackage, UsageError
from kiln.base.patterns import lazy_pattern
from kiln.conda.rattler import client
from kiln.conda.rattler.client import records_from_json, records_to_json
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from rattler import PrefixRecord, RepoDataRecord


VirtualPackages: TypeAlias = "Mapping[str, tuple[str, str]]"  # name to version and build, as in __cuda 12.9 0
_ARCHSPEC = {"64": "x86_64", "32": "x86"}  # the architecture in a subdir: its build of __archspec, where they differ
OVERRIDES = {"cuda": "CONDA_OVERRIDE_CUDA", "libc": "CONDA_OVERRIDE_GLIBC", "archspec": "CONDA_OVERRIDE_ARCHSPEC"}
_VERSION = lazy_pattern(r"\d{1,9}(\.\d{1,9}){0,5}")


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

    from kiln.compat import machine as compat_machine

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
    arch = compat_machine.cuda_arch_version(
        overrides or {},
        has_cuda="__cuda" in packages,
        capabilities=lambda: compat_machine.compute_capabilities(overrides or {}),
    )
    return packages if arch is None else {**packages, compat_machine.NAME: (arch, "0")}


_LITTLE = 1 << 20  # bytes; with less, a disk is full


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
        SystemFault: when a folder that is a channel has a pipe, a socket or a device.
    """
    urls = list(http.register_credentials(channels))
    for url in urls:
        place = files.path_of_file_url(url.removeprefix("file://")) if url.startswith("file://") else Path(url)
        if place.is_absolute():  # a folder, and no URL of a server or name
            files.refuse_special_files(place / platform, place / "noarch")
    records = client.run_operation(
        "solve",
        channels=urls,
        specs=list(specs),
        virtual_packages=dict(virtual_packages),
        platform=platform,
        installed=records_to_json(installed),
        priority=priority,
    )
    return records_from_json(records)


def install(
    records: list[RepoDataRecord],
    prefix: Path,
    *,
    cache: Path,
    seen_at: str | None = None,
    carried: bool = False,
    lock: int | None = None,
    on_received: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> None:
    """Install solved packages into a prefix, without running link scripts; other packages there are removed.

    ``seen_at`` is the prefix that the files name, where they will be used at another path than they are installed to.
    With ``carried``, packages may have links that lead out of the prefix; nothing is written through them.
    ``lock`` is the descriptor of a lock that is held until nothing is written into the prefix any more, even when this
    process is killed. ``on_received`` gets how many bytes of the packages are there, of how many, if known.

    Raises:
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one is not the package in the channel's index.
        UnsafePackage: when one reaches out of the prefix; nothing was written there.
        DiskFull: when the disk has not enough space.
        LimitExceeded: when one is larger than it may be.
    """
    cache.mkdir(parents=True, exist_ok=True)
    before = {file.name for file in (prefix / "conda-meta").glob("*.json")}
    with files.full_disk_as_kiln_error(prefix.parent):
        try:
            client.run_operation(
                "install",
                lock=lock,
                on_received=on_received,
                records=records_to_json(records),
                prefix=str(prefix.absolute()),
                cache=str(cache.absolute()),
                seen_at=seen_at,
                carried=carried,
            )
            _require_written_packages(prefix, before)
        finally:
            files.remove(files.quarantine_path(prefix))  # here, since the process may have ended before it could


def _require_written_packages(prefix: Path, before: Container[str]) -> None:
    """Read again what the library wrote: on a full disk some of its writes are lost without an error.

    ``before`` are the names of records that are not new.
    """
    for file in (prefix / "conda-meta").glob("*.json"):
        if file.name in before:
            continue
        try:
            record = json.loads(file.read_bytes())
            cached = Path(record.get("extracted_package_dir") or "")
            entries = record["paths_data"]["paths"]
        except (ValueError, LookupError, TypeError, AttributeError):
            _raise_unwritten(file)
        for entry in entries:
            if not _is_written(f"{prefix}/{entry['_path']}", f"{cached}/{entry['_path']}", entry):
                _raise_unwritten(prefix / entry["_path"])


def _is_written(file: str, source: str, entry: Mapping[str, Any]) -> bool:
    """Return whether a file is there as its package has it: other packages may have a size that is not their file's.

    The paths are text, since a prefix may have 100,000 files.
    """
    try:
        status = os.lstat(file)
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode):
        return True
    if entry.get("sha256_in_prefix"):
        return bool(files.sha256(Path(file)) == entry["sha256_in_prefix"])
    if entry.get("prefix_placeholder") is None and status.st_size != entry.get("size_in_bytes"):
        try:
            return status.st_size == os.stat(source).st_size  # noqa: PTH116
        except OSError:
            pass  # the cache has it no more
    return status.st_size > 0 or not entry.get("size_in_bytes")


def _raise_unwritten(file: Path) -> NoReturn:
    files.require_disk_space(file.parent, _LITTLE, for_what=f"{file}, which was not written completely")
    raise BrokenPackage(f"{file} was not written completely", hint="try again")


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
    with locks.exclusive_folder_lock(prefix, wait=wait) as lock:
        if folder_identity(prefix) == replaced:
            files.remove(prefix)
            with files.atomic_replacement(prefix) as part:
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
    texts = {}
    for record in installed_package_records(prefix):
        record.requested_specs = specs.get(record.name.normalized, [])
        texts[f"{record.name.normalized}-{record.version}-{record.build}.json"] = record.to_json().encode()
    files.write_files(prefix / "conda-meta", texts)  # the library's own writer loses the error of a full disk
    (prefix / "conda-meta" / "history").touch()


def installed_package_records(prefix: Path) -> list[PrefixRecord]:
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
