"""The wheels of a lock, fetched by pip into a folder, each used only with the hash that the lock gives."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import command, files
from kiln.errors import DiskFull, DownloadFailed, HashMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.rehearse.lock import LockedWheel

_STAMPS = ".verified.json"
_UNFINISHED = ".fetch-"
_BROKEN = re.compile(r"after connection broken by '(.*)': ")
_MISMATCH = re.compile(
    r"DO NOT MATCH THE HASHES.*?(?P<what>\S+)(?: from [^\n]*)?\n\s*Expected sha256 (?P<expected>[0-9a-f]{64})"
    r"\s+Got\s+(?P<got>[0-9a-f]{64})",
    re.DOTALL,
)


def missing(wheels: Iterable[LockedWheel], store: Path) -> tuple[LockedWheel, ...]:
    """Return the wheels that are not in ``store``, without reading those that are."""
    return tuple(wheel for wheel in wheels if not (store / wheel.file).is_file())


def fetch(
    wheels: Sequence[LockedWheel],
    store: Path,
    *,
    env: Mapping[str, str],
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> tuple[Path, ...]:
    """Return the wheels' files in ``store``, in the same order, after fetching those that are missing.

    A file that is there is read once to verify it, and again only when its size or time has changed. ``env`` is the
    environment for pip: its settings, its index and its cache are used. Raises HashMismatch (the bad file is then
    gone), DownloadFailed and DiskFull. For one process at a time, and for wheels that have a Python in common.
    """
    store.mkdir(parents=True, exist_ok=True)
    for unfinished in store.glob(f"{_UNFINISHED}*"):
        files.remove(unfinished)
    verify(wheels, store)
    wanted = missing(wheels, store)
    if wanted:
        files.require_room(store, sum(wheel.size for wheel in wanted), for_what="fetching the wheels")
        with tempfile.TemporaryDirectory(dir=store, prefix=_UNFINISHED) as folder:
            _download(wanted, Path(folder), env=env, log=log, on_line=on_line)
            for wheel in wanted:
                _keep(wheel, Path(folder) / wheel.file, store)
    return tuple(store / wheel.file for wheel in wheels)


def verify(wheels: Iterable[LockedWheel], store: Path) -> None:
    """Raise HashMismatch for a file of ``store`` that is not the one of the lock; such a file is removed."""
    stamps = _stamps(store)
    for wheel in wheels:
        path = store / wheel.file
        if path.is_file() and stamps.get(wheel.file) != _stamp(path, wheel):
            _require_hash(wheel, path)
            _remember(wheel, store)


def _keep(wheel: LockedWheel, fetched: Path, store: Path) -> None:
    """Move a fetched wheel to its place, once it is known to be the right one."""
    if not fetched.is_file():
        raise DownloadFailed(f"pip did not bring {wheel.file}", hint="run the same command again")
    _require_hash(wheel, fetched)
    fetched.replace(store / wheel.file)
    _remember(wheel, store)


def _require_hash(wheel: LockedWheel, path: Path) -> None:
    found = files.sha256(path)
    if found != wheel.sha256:
        path.unlink()
        raise _mismatch(wheel.file, wheel.sha256, found)


def _mismatch(file: str, expected: str, found: str) -> HashMismatch:
    return HashMismatch(
        f"{file} is not the file that the lock names; it is not used",
        why=f"its SHA-256 is {found}, the lock has {expected}",
        hint="run the same command again to fetch it anew; when that ends the same, the index or a proxy gives"
        " another file: ask it, or write the locks anew (docs/how-to/update-the-locks.md)",
    )


def _stamp(path: Path, wheel: LockedWheel) -> list[object]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino, wheel.sha256]


def _stamps(store: Path) -> dict[str, list[object]]:
    """Read which files were verified; a file that cannot be read only means that they are verified again."""
    try:
        found = json.loads((store / _STAMPS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(wheel: LockedWheel, store: Path) -> None:
    stamps = {**_stamps(store), wheel.file: _stamp(store / wheel.file, wheel)}
    files.write_text(store / _STAMPS, json.dumps(stamps, indent=0, sort_keys=True))


def download_command(wheels: Sequence[LockedWheel], requirements: Path, folder: Path) -> tuple[str, ...]:
    """Return pip's argv: kiln's own pip, told for which Python and platforms to choose, so the target needs none."""
    python = min(set.intersection(*(set(wheel.pythons) for wheel in wheels)))
    platforms = sorted({tag for wheel in wheels for tag in _platforms(wheel.file)} - {"any"})
    return (
        *(sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=3"),
        *(f"--python-version={python}", "--implementation=cp", f"--abi=cp{python.replace('.', '')}"),
        *("--abi=abi3", "--abi=none"),
        *(f"--platform={platform}" for platform in platforms),
        *("--dest", str(folder), "--requirement", str(requirements)),
    )


def requirements_text(wheels: Iterable[LockedWheel]) -> str:
    """Return what pip reads: each version with the one hash that it may have."""
    return "".join(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n" for wheel in wheels)


def _platforms(file: str) -> list[str]:
    return file.removesuffix(".whl").rpartition("-")[2].split(".")


def _download(
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
    # pip unpacks and joins files in the temporary folder, which is often too small for these.
    result = command.run(argv, env={**env, "TMPDIR": str(folder)}, log=log, on_line=on_line, tail_lines=200)
    if not result.ok:
        raise _failure(result.tail, wheels, folder)


def _failure(said: str, wheels: Sequence[LockedWheel], folder: Path) -> HashMismatch | DiskFull | DownloadFailed:
    """Tell what pip's last words mean."""
    if found := _MISMATCH.search(said):
        names = [wheel.file for wheel in wheels if wheel.sha256 == found["expected"]]
        return _mismatch(names[0] if names else found["what"], found["expected"], found["got"])
    if "No space left on device" in said:
        return DiskFull(f"the disk became full while fetching wheels into {folder.parent}", hint="free some room")
    return DownloadFailed(
        "pip could not fetch the wheels",
        why=_reason(said),
        hint="is the network there? pip's own settings (PIP_INDEX_URL, PIP_PROXY, pip.conf) are used; what was fetched"
        " is kept in pip's cache",
    )


def _reason(said: str) -> str:
    """Return why pip gave up: a broken connection before what it led to, errors before anything else."""
    if broken := _BROKEN.findall(said):
        return str(broken[-1])
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    return "; ".join(errors) or "\n".join(said.splitlines()[-3:])
