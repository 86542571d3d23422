"""The locked wheels of rehearsals, downloaded by pip and used only with the hash of the lock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, locks, process
from kiln.base.errors import DiskFull, DownloadFailed, HashMismatch, UnsupportedPython, VariantFault
from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import mapping_or_empty
from kiln.build.rehearsal.wheels import LockedWheel, RehearsalPlan
from kiln.conda.package_writer import ARCHITECTURES, SUBDIR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def verified_upstream_wheel(upstream: LockedWheel, store: Path) -> Path:
    """Return the fetched wheel that replaces the compile; raises HashMismatch when it is not the lock's."""
    verify_wheels([upstream], store)
    return store / upstream.file


def convert_dependencies(rehearsal_plan: RehearsalPlan, store: Path, folder: Path) -> tuple[Path, ...]:
    """Convert the fetched wheels of a plan, except upstream's, to conda packages in ``folder``, and return these.

    Stand-ins are made, too.

    Raises BrokenPackage for an invalid or harmful wheel, HashMismatch and DiskFull.
    """
    from kiln.build.rehearsal.packages import (
        PackageTarget,
        convert_wheels,
        cuda_metadata,
        microarch_level_metadata,
        write_stand_in_package,
    )
    from kiln.conda.package_writer import write_metadata_only_package

    wheels = rehearsal_plan.dependencies
    verify_wheels(wheels, store)
    compiled = rehearsal_plan.upstream is None
    target = PackageTarget(
        python=rehearsal_plan.python, cuda=rehearsal_plan.cuda, as_conda_forge=compiled, subdir=rehearsal_plan.subdir
    )
    on_x86_64 = target.subdir == SUBDIR
    wheel_files = [(store / wheel.file, wheel.sha256) for wheel in wheels]
    return (
        *convert_wheels(wheel_files, folder, target),
        *(
            write_metadata_only_package(folder, facts)
            for facts in (*cuda_metadata(wheels, target), *(microarch_level_metadata() if on_x86_64 else ()))
        ),
        *(write_stand_in_package(stand_in, folder) for stand_in in rehearsal_plan.stand_ins),
    )


LOCKS = Path(__file__).parent / "locks"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
UPSTREAM = frozenset({"tensorflow", "tensorflow-cpu"})
GAPS = Path(__file__).with_name("missing.csv")


def cuda_versions() -> tuple[str, ...]:
    """Return the CUDA versions that can be rehearsed, such as ``12.5``."""
    return tuple(sorted(file.stem.removeprefix("cuda") for file in LOCKS.glob("cuda*.json")))


def other_platforms() -> frozenset[str]:
    """Return the platforms other than this machine's whose packages are made of upstream's wheel."""
    return frozenset(file.stem for file in LOCKS.glob("*.json")) & ARCHITECTURES.keys()


@cache
def read_lock(lock: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of a lock: ``cpu``, ``cuda12.9``, or a platform's."""
    rows = json.loads((LOCKS / f"{lock}.json").read_text(encoding="utf-8"))["wheels"]
    return tuple(LockedWheel(**{**row, "pythons": tuple(row["pythons"])}) for row in rows)


def has_upstream_wheel(outputs: Iterable[str]) -> bool:
    """Return whether a wheel of the locks replaces the compile of outputs with these names."""
    return not UPSTREAM.isdisjoint(outputs)


def plan_from_locks(*, python: str, cuda: str | None = None, subdir: str = SUBDIR) -> RehearsalPlan:
    """Return the wheels of a rehearsal for a Python, ``3.11``, a CUDA version, ``12.9``, or None, and a platform.

    Raises UnsupportedPython and VariantFault for versions without a lock.
    """
    if python not in PYTHONS:
        raise UnsupportedPython(
            f"a rehearsal has no wheels for Python {python}",
            hint=f"use Python {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]}",
        )
    if cuda is not None and (subdir != SUBDIR or cuda not in cuda_versions()):
        raise VariantFault(
            f"a rehearsal has no wheels for CUDA {cuda}{'' if subdir == SUBDIR else f' on {subdir}'}",
            hint=f"rehearse a config with CUDA {' or '.join(cuda_versions())}, or one without CUDA",
        )
    lock = f"cuda{cuda}" if cuda else "cpu" if subdir == SUBDIR else subdir
    wheels = [wheel for wheel in read_lock(lock) if python in wheel.pythons]
    (upstream,) = (wheel for wheel in wheels if wheel.name in UPSTREAM)
    return RehearsalPlan(
        python=python,
        cuda=cuda,
        subdir=subdir,
        upstream=upstream,
        dependencies=tuple(wheel for wheel in wheels if wheel is not upstream),
        notes=() if subdir == SUBDIR else (f"a rehearsal has no Python for {subdir}: its packages are not tested",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamWheelGap:
    """A row of missing.csv: what an output lacks, and whether a rehearsal makes the output without it."""

    output: str
    lacks: str
    is_made: bool
    source: str

    @property
    def note(self) -> str:
        """The note for the user."""
        consequence = f"{self.output} is made without it" if self.is_made else f"{self.output} is not made"
        return f"upstream's wheel has no {self.lacks}: {consequence}"


@cache
def known_upstream_wheel_gaps() -> tuple[UpstreamWheelGap, ...]:
    """Return the rows of missing.csv."""
    return tuple(
        UpstreamWheelGap(output=row["output"], lacks=row["lacks"], is_made=row["made"] == "yes", source=row["source"])
        for row in files.csv_rows(GAPS)
    )


def upstream_wheel_gaps(names: Iterable[str]) -> tuple[UpstreamWheelGap, ...]:
    """Return the gaps of outputs, by the outputs' names."""
    names = frozenset(names)
    return tuple(gap for gap in known_upstream_wheel_gaps() if gap.output in names)


_REPORTS = 0.5  # seconds between two looks at a download
_STAMPS = ".verified.json"
_UNFINISHED = ".fetch-"
_BROKEN = lazy_pattern(r"after connection broken by '(.*)': ")
_MISMATCH = lazy_pattern(
    r"DO NOT MATCH THE HASHES.*?(?P<what>\S+)(?: from [^\n]*)?\n\s*Expected sha256 (?P<expected>[0-9a-f]{64})"
    r"\s+Got\s+(?P<got>[0-9a-f]{64})",
    re.DOTALL,
)


def missing_wheels(wheels: Iterable[LockedWheel], store: Path) -> tuple[LockedWheel, ...]:
    """Return the wheels that are not in ``store``; existing files are not read."""
    return tuple(wheel for wheel in wheels if not (store / wheel.file).is_file())


def fetch_wheels(
    wheels: Sequence[LockedWheel],
    store: Path,
    *,
    env: Mapping[str, str],
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
    on_received: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[Path, ...]:
    """Fetch the wheels that are missing from ``store`` and return all wheels' files, in the same order.

    An existing file is read once to verify it, and again only when its size or time has changed. ``env`` is the
    environment for pip: its settings, its index and its cache are used. ``on_received`` gets how many bytes of how many
    are there. Raises HashMismatch (after removing the bad file), DownloadFailed and DiskFull. For one process at a
    time, and for wheels that have a Python in common.
    """
    store.mkdir(parents=True, exist_ok=True)
    verify_wheels(wheels, store)
    absent = missing_wheels(wheels, store)
    if absent:
        with locks.temporary_folder(store, _UNFINISHED) as folder:  # what killed processes left there is gone
            total, before = sum(wheel.size for wheel in absent), 0
            files.require_disk_space(store, total, for_what="fetching the wheels")
            for batch in _batches_with_distinct_projects(absent):
                with _reporting_received(batch, folder, lambda done: on_received(before + done, total)):  # noqa: B023
                    _download_wheels(batch, folder, env=env, log=log, on_line=on_line)
                before += sum(wheel.size for wheel in batch)
                for wheel in batch:
                    _move_into_store(wheel, folder / wheel.file, store)
    return tuple(store / wheel.file for wheel in wheels)


def _batches_with_distinct_projects(wheels: Iterable[LockedWheel]) -> tuple[tuple[LockedWheel, ...], ...]:
    """Return wheels in groups that have each project once, as pip downloads one version of a project at a time."""
    batches: list[dict[str, LockedWheel]] = []
    for wheel in wheels:
        batch = next((batch for batch in batches if wheel.name not in batch), None)
        if batch is None:
            batches.append({wheel.name: wheel})
        else:
            batch[wheel.name] = wheel
    return tuple(tuple(batch.values()) for batch in batches)


def verify_wheels(wheels: Iterable[LockedWheel], store: Path) -> None:
    """Raise HashMismatch for a file of ``store`` that differs from the lock's, after removing it."""
    stamps = _read_verified_stamps(store)
    for wheel in wheels:
        path = store / wheel.file
        if path.is_file() and stamps.get(wheel.file) != _file_stamp(path, wheel):
            _require_hash(wheel, path)
            _record_verified_stamp(wheel, store)


def _move_into_store(wheel: LockedWheel, fetched: Path, store: Path) -> None:
    """Move a fetched wheel to its place after verifying it."""
    if not fetched.is_file():
        raise DownloadFailed(f"pip did not download {wheel.file}", hint="run the same command again")
    _require_hash(wheel, fetched)
    fetched.replace(store / wheel.file)
    _record_verified_stamp(wheel, store)


def _require_hash(wheel: LockedWheel, path: Path) -> None:
    actual = files.sha256(path)
    if actual != wheel.sha256:
        path.unlink()
        raise _hash_mismatch_error(wheel.file, wheel.sha256, actual)


def _hash_mismatch_error(file: str, expected: str, actual: str) -> HashMismatch:
    return HashMismatch(
        f"{file} is not the file of the lock; it is not used",
        why=f"its SHA-256 is {actual}, the lock has {expected}",
        hint="run the same command again to fetch it again; if it fails again, the index or a proxy is wrong:"
        " check it, or update kiln, whose locks have the hashes",
    )


def _file_stamp(path: Path, wheel: LockedWheel) -> list[object]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino, wheel.sha256]


def _read_verified_stamps(store: Path) -> dict[str, list[object]]:
    """Read the record of verified files; without a readable record they are verified again."""
    try:
        return mapping_or_empty(json.loads((store / _STAMPS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _record_verified_stamp(wheel: LockedWheel, store: Path) -> None:
    stamps = {**_read_verified_stamps(store), wheel.file: _file_stamp(store / wheel.file, wheel)}
    files.write_text(store / _STAMPS, json.dumps(stamps, indent=0, sort_keys=True))


def download_command(wheels: Sequence[LockedWheel], requirements: Path, folder: Path) -> tuple[str, ...]:
    """Return the argv of kiln's own pip for the wheels' Python and platforms, so the target needs no pip."""
    python = min(set.intersection(*(set(wheel.pythons) for wheel in wheels)))
    tags = (tag for wheel in wheels for tag in wheel.file.removesuffix(".whl").rpartition("-")[2].split("."))
    return (
        *(sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=3"),
        *pip_target_options(python, sorted({*tags} - {"any"})),
        *("--dest", str(folder), "--requirement", str(requirements)),
    )


def pip_target_options(python: str, platforms: Iterable[str]) -> tuple[str, ...]:
    """Return the options with which pip chooses wheels for another Python and other platforms than its own."""
    abis = (f"cp{python.replace('.', '')}", "abi3", "none")
    return (
        *(f"--python-version={python}", "--implementation=cp"),
        *(f"--abi={abi}" for abi in abis),
        *(f"--platform={platform}" for platform in platforms),
    )


def requirements_text(wheels: Iterable[LockedWheel]) -> str:
    """Return the text of pip's requirements file: each version with its only valid hash."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels)


def _download_wheels(
    wheels: Sequence[LockedWheel],
    folder: Path,
    *,
    env: Mapping[str, str],
    log: Path | None,
    on_line: Callable[[str], None] | None,
) -> None:
    requirements = folder / "requirements.txt"
    requirements.write_text(requirements_text(wheels), encoding="utf-8")
    argv = download_command(wheels, requirements, folder)
    # pip unpacks and joins files in the temporary folder, which is often too small for these wheels.
    result = process.run(argv, env={**env, "TMPDIR": str(folder)}, log=log, on_line=on_line, tail_lines=200)
    if not result.ok:
        raise _pip_failure_error(result.tail, wheels, folder)


@contextlib.contextmanager
def _reporting_received(
    wheels: Sequence[LockedWheel], folder: Path, on_received: Callable[[int], None]
) -> Iterator[None]:
    """Report the bytes of a download until the block ends: pip has no progress that a program can read."""
    finished = threading.Event()
    on_received(0)

    def report_progress() -> None:
        last = 0
        while not finished.wait(_REPORTS):
            if (received := received_size(wheels, folder)) > last:
                on_received(received)
                last = received

    thread = threading.Thread(target=report_progress, name="download progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
    on_received(sum(wheel.size for wheel in wheels))


def received_size(wheels: Iterable[LockedWheel], folder: Path) -> int:
    """Return the bytes of wheels in ``folder`` and below it: pip moves a wheel when it is complete."""
    sizes = {wheel.file: 0 for wheel in wheels}
    for place, _, names in os.walk(folder):
        for name in sizes.keys() & set(names):
            with contextlib.suppress(FileNotFoundError):  # moved since
                sizes[name] = max(sizes[name], Path(place, name).stat().st_size)
    return sum(sizes.values())


def _pip_failure_error(
    output: str, wheels: Sequence[LockedWheel], folder: Path
) -> HashMismatch | DiskFull | DownloadFailed:
    if match := _MISMATCH.search(output):
        names = [wheel.file for wheel in wheels if wheel.sha256 == match["expected"]]
        return _hash_mismatch_error(names[0] if names else match["what"], match["expected"], match["got"])
    if "No space left on device" in output:
        return DiskFull(f"the disk became full while fetching wheels into {folder.parent}", hint="free some disk space")
    return DownloadFailed(
        "pip could not fetch the wheels",
        why=_reason_in_pip_output(output),
        hint="check the network; pip's own settings (PIP_INDEX_URL, PIP_PROXY, pip.conf) apply; finished downloads"
        " stay in pip's cache",
    )


def _reason_in_pip_output(output: str) -> str:
    """Return why pip failed: a broken connection before its consequences, errors before any other line."""
    if broken := _BROKEN.findall(output):
        return str(broken[-1])
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    return "; ".join(errors) or "\n".join(output.splitlines()[-3:])
