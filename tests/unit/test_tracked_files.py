"""No file of the project ties it to one package registry: which one is used is the business of the user's settings."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# In pieces, so that this file holds none of them.
HOSTS = [
    ".".join(pieces)
    for pieces in (
        *(("pypi", "org"), ("pypi", "io"), ("pypi", "python", "org"), ("pythonhosted", "org")),
        *(("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com")),
        *(("deb", "debian", "org"), ("security", "debian", "org"), ("ftp", "debian", "org")),
    )
]


def lines_with_host(text: str) -> list[tuple[int, str]]:
    """Return the lines that name a host, with their numbers from 1."""
    lower = text.lower()
    if not any(host in lower for host in HOSTS):  # the case of nearly all files, of which no line is searched
        return []
    lines = enumerate(text.splitlines(), 1)
    return [(number, line) for number, line in lines if any(host in line.lower() for host in HOSTS)]


@pytest.mark.processes
@pytest.mark.needs("git")
def test_no_tracked_file_names_the_host_of_a_package_registry() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tracked = [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]
    assert Path(__file__) in tracked or len(tracked) > 20
    result = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in tracked
        for number, line in lines_with_host(file.read_text(encoding="utf-8", errors="replace"))
    ]
    assert not result, "\n".join(result)


@pytest.mark.processes
@pytest.mark.needs("git")
def test_no_output_of_a_slurm_job_is_tracked() -> None:
    words = ["git", "ls-files", "--", ":(glob)**/slurm-*.out"]
    listing = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert not [name for name in listing.split() if (ROOT / name).is_file()]


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_is_found_inside_a_url(host: str) -> None:
    line = f"url: https://files.{host.title()}/packages/x.whl"
    assert lines_with_host(f"one\n{line}\nthree\n") == [(2, line)]
