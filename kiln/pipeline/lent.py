"""kiln's own engine, lent to an image that has none: the locked wheels, for the Python of the image.

conda-forge's images have a Python and no rattler-build. pip brings the wheels on this machine, with the user's settings
and by their hashes, for another Python than the one that it runs on; nothing of them is run here, and nothing is
installed into the image.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from packaging.markers import Marker

from kiln import command, files
from kiln.errors import DownloadFailed, excerpt
from kiln.image.base import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")  # those of the wheels, PEP 600
WORDS = "no rattler-build in this image; kiln can lend its own to Python"
TELL = f'import sys; v = sys.version_info; v < (3, 10) and exit(1); print("{WORDS} %d.%d" % v[:2])'
TOLD = re.compile(rf"^{re.escape(WORDS)} (3\.\d+)$", re.MULTILINE)


def python_told(said: str) -> str | None:
    """Return the Python of an image that has no engine, ``3.12``, as it was told by what starts a build there."""
    match = TOLD.search(said)
    return match and match[1]


def requirements(lock: str, python: str) -> str:
    """Return what of a lock holds for a Python: pip would judge conditions by the Python that it runs on itself."""
    known = {"python_version": python, "python_full_version": f"{python}.0"}
    wanted = []
    for entry in re.split(r"\n(?=[^\s#])", lock):
        name, _, rest = entry.partition(" \\\n")
        spec, _, condition = name.partition(" ; ")
        if not condition or Marker(condition).evaluate(known):
            wanted.append(f"{spec} \\\n{rest}" if rest else spec)
    return "\n".join(wanted)


def argv(python: str, target: Path, lock: Path) -> tuple[str, ...]:
    """Return pip's words: kiln's own pip, told for which Python to choose."""
    return (
        *(sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--implementation=cp"),
        f"--python-version={python}",
        *(f"--platform={platform}" for platform in PLATFORMS),
        *("--target", str(target), "--requirement", str(lock)),
    )


def place(python: str, engines: Path) -> Path:
    """Return where the engine for a Python lies, or is to lie: another lock of the wheels makes another place."""
    return engines / f"cp{python.replace('.', '')}-{files.sha256(REQUIREMENTS)[:16]}"


def bring(python: str, engines: Path, *, env: Mapping[str, str], on_line: Callable[[str], None]) -> None:
    """Fetch the engine for a Python, once for all cells and runs; ``env`` is pip's. For one process at a time.

    Raises:
        DownloadFailed: with pip's last words.
        DiskFull: when there is no room.
    """
    folder = place(python, engines)
    if folder.is_dir():
        return
    engines.mkdir(parents=True, exist_ok=True)
    files.remove_leftovers(engines)
    lock = engines / f"{folder.name}.txt"
    files.write_text(lock, requirements(REQUIREMENTS.read_text(), python))
    with files.no_room_as_disk_full(engines), files.replacing(folder) as part:
        fetched = command.run(argv(python, part, lock), env=env, on_line=on_line)
        if not fetched.ok:
            raise DownloadFailed(
                f"kiln's own engine for Python {python}, which the image lacks, cannot be fetched",
                why=f"pip said\n{excerpt(fetched.tail)}",
                hint="see that pip's index can be reached, name an image that has the engine with DOCKER_IMAGE "
                "('kiln image base' makes one), or --container none",
            )
