"""Write the locks anew: uv resolves ``locks/*.in``, and each wheel chosen is written down with its size and hash.

For who maintains kiln; a rehearsal itself never runs this. See docs/how-to/update-the-locks.md.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from kiln import command, files
from kiln.errors import DownloadFailed
from kiln.rehearse.lock import LOCKS, PYTHONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The oldest C library that upstream's own wheel runs on (its tag is manylinux_2_27) and a manylinux image has.
_GLIBC = 28
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(_GLIBC, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
)


def relock(uv: Path, *, env: Mapping[str, str]) -> None:
    """Resolve every ``locks/*.in`` with the program ``uv`` and write the ``.json`` beside it.

    Raises DownloadFailed when something cannot be resolved, or has no wheel for one of the Pythons.
    """
    for source in sorted(LOCKS.glob("*.in")):
        packages = _resolve(uv, source, env=env)
        rows = [row for package in packages for row in _rows(package)]
        lines = ",\n".join(json.dumps(row) for row in rows)
        files.write_text(source.with_suffix(".json"), f'{{"wheels": [\n{lines}\n]}}\n')


def _resolve(uv: Path, source: Path, *, env: Mapping[str, str]) -> list[dict[str, Any]]:
    import tomllib

    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "pylock.toml"
        words = ["pip", "compile", "--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml"]
        result = command.run([uv, *words, "--quiet", "--output-file", target, source], env=env)
        if not result.ok:
            raise DownloadFailed(f"uv could not resolve {source.name}", why=result.tail)
        packages: list[dict[str, Any]] = tomllib.loads(target.read_text(encoding="utf-8"))["packages"]
        return packages


def _rows(package: Mapping[str, Any]) -> Iterable[dict[str, object]]:
    """Yield a row for each wheel that is the best one for some Python."""
    pythons: dict[str, list[str]] = {}
    urls = {_file_name(wheel["url"]): wheel for wheel in package.get("wheels", ())}
    for python in PYTHONS:
        if Marker(package.get("marker", "python_version > '3'")).evaluate(_environment(python)):
            pythons.setdefault(_best(package["name"], urls, python), []).append(python)
    for file, used_by in pythons.items():
        yield {
            "name": package["name"],
            "version": package["version"],
            "file": file,
            "size": _size(urls[file]["url"]),
            "sha256": urls[file]["hashes"]["sha256"],
            "pythons": used_by,
        }


def _file_name(url: str) -> str:
    return unquote(Path(urlsplit(url).path).name)


def _environment(python: str) -> dict[str, str]:
    return {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": "x86_64",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }


def _best(name: str, names: Iterable[str], python: str) -> str:
    ranks = {tag: rank for rank, tag in enumerate(_tags(python))}
    found = [
        (min(ranks[tag] for tag in tags & ranks.keys()), file)
        for file in names
        if (tags := parse_wheel_filename(file)[3]) & ranks.keys()
    ]
    if not found:
        raise DownloadFailed(f"{name} has no wheel for Python {python} on Linux x86-64")
    return min(found)[1]


def _tags(python: str) -> Iterable[Tag]:
    major, minor = (int(part) for part in re.findall(r"\d+", python))
    yield from cpython_tags((major, minor), platforms=_PLATFORMS)
    yield from compatible_tags((major, minor), interpreter=f"cp{major}{minor}", platforms=_PLATFORMS)


def _size(url: str) -> int:
    request = Request(url, method="HEAD")  # noqa: S310 - the address comes from uv's own answer
    with urlopen(request, timeout=60) as response:  # noqa: S310
        return int(response.headers["Content-Length"])
