"""Update the locks of rehearsals, as docs/how-to/update-the-locks.md describes: ``python -m tests.wheel_locks [UV]``.

uv resolves each ``kiln/build/rehearsal/locks/*.in``, and the chosen wheels are recorded with their sizes and hashes.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

from kiln.base import files, http, process
from kiln.base.errors import DownloadFailed, KilnError
from kiln.build.rehearsal.packages import PackageTarget
from kiln.build.rehearsal.wheel_choice import platform_tags
from kiln.build.rehearsal.wheel_download import LOCKS, PYTHONS
from kiln.conda.package_writer import ARCHITECTURES, SUBDIR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The oldest C library that upstream's own wheel runs on (its tag is manylinux_2_27) and a manylinux image has.
_GLIBC = "2.28"
_MACOS = (12, 0)  # likewise: macosx_12_0


def relock(uv: str, *, env: Mapping[str, str]) -> None:
    """Resolve every ``locks/*.in`` with the program ``uv`` and write the ``.json`` of the same name.

    Raises DownloadFailed when a package cannot be resolved, or has no wheel for one of the Pythons.
    """
    for source in sorted(LOCKS.glob("*.in")):
        packages = _resolve_with_uv(uv, source, env=env)
        subdir = source.stem if source.stem in ARCHITECTURES else SUBDIR
        rows = [row for package in packages for row in _lock_rows(package, subdir)]
        lines = ",\n".join(json.dumps(row) for row in rows)
        files.write_text(source.with_suffix(".json"), f'{{"wheels": [\n{lines}\n]}}\n')


def _resolve_with_uv(uv: str, source: Path, *, env: Mapping[str, str]) -> list[dict[str, Any]]:
    import tomllib

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "pylock.toml"
        words = ["pip", "compile", "--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml"]
        result = process.run([uv, *words, "--quiet", "--output-file", target, source], env=env)
        if not result.ok:
            raise DownloadFailed(f"uv could not resolve {source.name}", why=result.tail)
        packages: list[dict[str, Any]] = tomllib.loads(target.read_text(encoding="utf-8"))["packages"]
        return packages


def _lock_rows(package: Mapping[str, Any], subdir: str = SUBDIR) -> Iterable[dict[str, object]]:
    """Yield a row for each wheel that is the best for some Python."""
    pythons: dict[str, list[str]] = {}
    urls = {unquote(Path(urlsplit(wheel["url"]).path).name): wheel for wheel in package.get("wheels", ())}
    for python in PYTHONS:
        if Marker(package.get("marker", "python_version > '3'")).evaluate(
            PackageTarget(python=python, subdir=subdir).marker_environment()
        ):
            pythons.setdefault(_best_wheel_file(package["name"], urls, python, subdir), []).append(python)
    for file, used_by in pythons.items():
        yield {
            "name": package["name"],
            "version": package["version"],
            "file": file,
            "size": _download_size(urls[file]["url"]),
            "sha256": urls[file]["hashes"]["sha256"],
            "pythons": used_by,
        }


def _best_wheel_file(name: str, names: Iterable[str], python: str, subdir: str) -> str:
    ranks = {tag: rank for rank, tag in enumerate(_wheel_tags(python, subdir))}
    candidates = [
        (min(ranks[tag] for tag in tags & ranks.keys()), file)
        for file in names
        if (tags := parse_wheel_filename(file)[3]) & ranks.keys()
    ]
    if not candidates:
        raise DownloadFailed(f"{name} has no wheel for Python {python} on {subdir}")
    return min(candidates)[1]


def _wheel_tags(python: str, subdir: str) -> Iterable[Tag]:
    architecture = ARCHITECTURES[subdir]
    macos = subdir.startswith("osx-")
    platforms = tuple(mac_platforms(_MACOS, architecture) if macos else platform_tags(_GLIBC, architecture))
    major, minor = (int(part) for part in re.findall(r"\d+", python))
    yield from cpython_tags((major, minor), platforms=platforms)
    yield from compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=platforms)


def _download_size(url: str) -> int:
    with http.send_request(url, method="HEAD") as response:
        return int(response.headers["Content-Length"])


if __name__ == "__main__":
    try:
        relock(sys.argv[1] if sys.argv[1:] else "uv", env=os.environ)
    except KilnError as error:
        sys.exit(str(error))
