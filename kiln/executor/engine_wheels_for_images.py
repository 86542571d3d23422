"""Fetch kiln's own engine for an image that has none: the locked wheels, for the Python of the image.

conda-forge's images have a Python and no rattler-build. pip fetches the wheels to this machine, with the user's
settings and by their hashes, for another Python than the one that runs pip; none of their code is run here, and nothing
is installed into the image.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.bootstrap.clone_check_and_requirement_lists import requirements_file
from kiln.errors import DownloadFailed, program_output_with_margin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

REQUIREMENTS = requirements_file("run.txt")
TAGS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")  # those of the wheels, PEP 600
MACHINES = {"64": "x86_64"}  # the machine's name, where it is not that in a subdir
WORDS = "no rattler-build in this image; kiln can mount its own for Python"
PRINT_OFFER = f'import sys; v = sys.version_info; v < (3, 10) and exit(1); print("{WORDS} %d.%d" % v[:2])'
OFFER = re.compile(rf"^{re.escape(WORDS)} (3\.\d+)$", re.MULTILINE)


def python_of_image(output: str) -> str | None:
    """Return the Python of an image without the engine, ``3.12``, from the output of the build's start."""
    match = OFFER.search(output)
    return match and match[1]


def wheel_machine_name(subdir: str) -> str:
    """Return the name of a platform's machine, as in the tags of wheels: ``aarch64``."""
    architecture = subdir.partition("-")[2]
    return MACHINES.get(architecture, architecture)


def lock_entries_for_python(lock: str, python: str, subdir: str) -> str:
    """Return the entries of a lock for a Python: pip would evaluate conditions for the Python that runs pip."""
    from packaging.markers import Marker  # most images have the engine

    from kiln.rehearse.wheel_conversion import PackageTarget

    values = PackageTarget(python=python).marker_environment()  # the image's, not this machine's
    environment = {**values, "platform_machine": wheel_machine_name(subdir)}
    entries = []
    for entry in re.split(r"\n(?=[^\s#])", lock):
        name, _, rest = entry.partition(" \\\n")
        spec, _, condition = name.partition(" ; ")
        if not condition or Marker(condition).evaluate(environment):
            entries.append(f"{spec} \\\n{rest}" if rest else spec)
    return "\n".join(entries)


def pip_install_command(python: str, target: Path, lock: Path, subdir: str) -> tuple[str, ...]:
    """Return the command line of kiln's own pip, for wheels of another Python, perhaps of another platform."""
    return (
        *(sys.executable, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--require-hashes", "--only-binary=:all:", "--no-compile", "--implementation=cp"),
        f"--python-version={python}",
        *(f"--platform={tag}_{wheel_machine_name(subdir)}" for tag in TAGS),
        *("--target", str(target), "--requirement", str(lock)),
    )


def engine_folder(python: str, engines: Path, subdir: str) -> Path:
    """Return the folder of the engine for a Python of a platform; each lock of the wheels has its own."""
    machine = "" if subdir == "linux-64" else f"-{wheel_machine_name(subdir)}"
    return engines / f"cp{python.replace('.', '')}{machine}-{files.sha256(REQUIREMENTS)[:16]}"


def fetch_engine_wheels(
    python: str, engines: Path, subdir: str, *, env: Mapping[str, str], on_line: Callable[[str], None]
) -> None:
    """Fetch the engine for a Python of a platform, once for all configs and runs; ``env`` is pip's.

    Callers hold a lock.

    Raises:
        DownloadFailed: with the end of pip's output.
        DiskFull: when the disk is full.
    """
    folder = engine_folder(python, engines, subdir)
    if folder.is_dir():
        return
    engines.mkdir(parents=True, exist_ok=True)
    files.remove_part_files(engines)
    lock = engines / f"{folder.name}.txt"
    files.write_text(lock, lock_entries_for_python(REQUIREMENTS.read_text(encoding="utf-8"), python, subdir))
    with files.full_disk_as_kiln_error(engines), files.atomic_replacement(folder) as part:
        result = process_runner.run(pip_install_command(python, part, lock, subdir), env=env, on_line=on_line)
        if not result.ok:
            raise DownloadFailed(
                f"kiln's own engine for Python {python}, which the image lacks, cannot be fetched",
                why=f"pip said\n{program_output_with_margin(result.tail)}",
                hint="check that pip's index can be reached, name an image that has the engine with DOCKER_IMAGE "
                "('kiln image base' makes one), or --container none",
            )
