"""Systems differ in one package alone; it is imported by the others, which run without Unix's modules."""

from __future__ import annotations

import ast
import ctypes
from pathlib import Path

import pytest

from kiln.operating_system import windows_api

KILN = Path(__file__).parents[3] / "kiln"
UNIX_MODULES = frozenset({"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"})
UNIX_NAMES = frozenset(
    {
        *("os.fork", "os.getuid", "os.getgid", "os.geteuid", "os.chown", "os.mkfifo", "os.killpg", "os.statvfs"),
        *("os.sysconf", "os.pread", "os.pwrite", "os.memfd_create", "os.posix_fallocate", "os.O_NOFOLLOW"),
        *("os.O_CLOEXEC", "os.O_NONBLOCK", "os.O_DIRECTORY", "signal.SIGKILL", "signal.SIGHUP", "sys.platform"),
    }
)
ALLOWED = {
    "limits/forked.py",
    "limits/__init__.py",
    "rehearse/probe.py",
    "system_packages.py",
}  # the last two only read its name
FILES = sorted(
    file
    for file in KILN.rglob("*.py")
    if (path := file.relative_to(KILN).as_posix()) not in ALLOWED and not path.startswith("operating_system/")
)


def names_of(file: Path) -> set[str]:
    """The modules that a file imports, and its uses of ``module.name``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(KILN)))
def test_no_other_module_needs_unix(file: Path) -> None:
    assert not names_of(file) & (UNIX_MODULES | UNIX_NAMES)


def test_windows_structures_have_their_documented_sizes() -> None:
    sizes = [
        ctypes.sizeof(kind)
        for kind in (
            windows_api.BasicLimits,
            windows_api.ExtendedLimits,
            windows_api.MemoryCounters,
            windows_api.MemoryStatus,
        )
    ]
    assert sizes == [64, 144, 80, 64]  # of 64-bit Windows
