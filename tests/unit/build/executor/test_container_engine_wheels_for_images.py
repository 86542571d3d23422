"""An image without the engine reports its Python, for which kiln's own is fetched by its locked hashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiln.build.executor.container import (
    PRINT_OFFER,
    engine_folder,
    lock_entries_for_python,
    pip_install_command,
    python_of_image,
)


@pytest.mark.processes
def test_a_supported_python_prints_its_version() -> None:
    said = subprocess.run((sys.executable, "-c", PRINT_OFFER), capture_output=True, text=True, check=True).stdout
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python_of_image(f"pulled\n{said}more\n") == version


def test_output_without_a_version_has_no_python() -> None:
    assert python_of_image("exec: python3: not found") is None


LOCK = """\
# made by a tool
a==1 \\
    --hash=sha256:1 \\
    --hash=sha256:2
b==2 ; python_full_version < '3.14' \\
    --hash=sha256:3
    # via a
"""


@pytest.mark.parametrize(("python", "has"), [("3.13", True), ("3.14", False)])
def test_requirements_of_other_pythons_are_omitted(python: str, *, has: bool) -> None:
    answer = lock_entries_for_python(LOCK, python, "linux-64")
    assert "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2" in answer
    assert ("b==2 \\\n    --hash=sha256:3" in answer) is has
    assert ";" not in answer


def test_wheels_alone_are_fetched_by_their_hashes_for_that_python() -> None:
    words = pip_install_command("3.12", Path("/engines/part"), Path("/run.txt"), "linux-64")
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps", "--python-version=3.12"} <= set(words)
    assert "--platform=manylinux_2_28_x86_64" in words
    assert words[-4:] == ("--target", "/engines/part", "--requirement", "/run.txt")


def test_an_emulated_image_gets_the_wheels_of_its_platform() -> None:
    words = pip_install_command("3.12", Path("/engines/part"), Path("/run.txt"), "linux-aarch64")
    platforms = [word for word in words if word.startswith("--platform=")]
    assert platforms == [f"--platform={tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    engines = Path("/engines")
    assert engine_folder("3.12", engines, "linux-aarch64") != engine_folder("3.12", engines, "linux-64")
    condition = "a==1 ; platform_machine == 'aarch64' \\\n    --hash=sha256:1\n"
    assert "a==1" in lock_entries_for_python(condition, "3.12", "linux-aarch64")
    assert "a==1" not in lock_entries_for_python(condition, "3.12", "linux-64")
