"""Systems differ in one package alone; it is imported by the others, which run without Unix's modules."""

from __future__ import annotations

import ast
import ctypes
from typing import TYPE_CHECKING

import pytest

from kiln.operating_system import windows_api
from tests.source_files import FILES, name_of, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

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
    "rehearse/interpreter_facts_script.py",
    "system_package_advice.py",
}  # the last two only read its name


def is_portable(file: Path) -> bool:
    return name_of(file) not in ALLOWED and not name_of(file).startswith("operating_system/")


def names_of(file: Path) -> set[str]:
    """The modules that a file imports, and its uses of ``module.name``."""
    names: set[str] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
    return names


def test_no_other_module_needs_unix() -> None:
    needs = {name_of(file): names_of(file) & (UNIX_MODULES | UNIX_NAMES) for file in FILES if is_portable(file)}
    assert {file: names for file, names in needs.items() if names} == {}


def without_encoding(nodes: Iterable[ast.AST]) -> list[int]:
    """The lines that open text in the encoding of the system, which is not UTF-8 on Windows; archives have none."""
    lines = []
    for node in nodes:
        if not isinstance(node, ast.Call) or {"encoding", "fileobj", None} & {keyword.arg for keyword in node.keywords}:
            continue
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
        modes = [*node.args[0 if is_method else 1 :][:1], *(key.value for key in node.keywords if key.arg == "mode")]
        mode = next((mode.value for mode in modes if isinstance(mode, ast.Constant)), None)
        is_text = mode in {"r", "w", "a", "x", "r+", "w+"} or any(key.arg == "newline" for key in node.keywords)
        reads = is_method and name in {"read_text", "write_text"} and owner not in {"files", "yamltext", "installed"}
        if reads or (name == "open" and is_text):
            lines.append(node.lineno)
    return lines


def test_text_files_have_an_encoding() -> None:
    assert [(name_of(file), lines) for file in FILES if (lines := without_encoding(nodes_of(file)))] == []


@pytest.mark.parametrize(
    "line", ["p.open(newline='')", "open(p, 'w')", "p.open('r')", "p.read_text()", "q.write_text(a)"]
)
def test_a_text_file_without_encoding_is_noticed(line: str) -> None:
    assert without_encoding(ast.walk(ast.parse(line))) == [1]


def test_windows_structures_have_their_documented_sizes() -> None:
    sizes = [
        ctypes.sizeof(kind)
        for kind in (
            windows_api.JobBasicLimits,
            windows_api.JobExtendedLimits,
            windows_api.ProcessMemoryCounters,
            windows_api.MemoryStatus,
        )
    ]
    assert sizes == [64, 144, 80, 64]  # of 64-bit Windows
