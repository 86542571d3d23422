"""The cores and the memory of a container, as its control groups have them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

CORES = len(os.sched_getaffinity(0))
GIGABYTE = 2**30


def tree(root: Path, files: dict[str, str]) -> Path:
    builders.write_files(root, {name: f"{text}\n" for name, text in files.items()})
    return root


@pytest.mark.parametrize(
    ("process", "files", "expected"),
    [
        ("0::/", {"cpu.max": "50000 100000"}, 1),
        ("0::/", {"cpu.max": "100000 100000"}, 1),
        ("0::/", {"cpu.max": "max 100000"}, CORES),
        ("0::/", {}, CORES),
        ("0::/a/b", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "100000", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 1),
        ("4:cpu,cpuacct:/", {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, CORES),
        ("4:cpu,cpuacct:/docker/x", {"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_cores(scripts: Any, tmp_path: Path, process: str, files: dict[str, str], expected: int) -> None:
    groups = tree(tmp_path, {**{f"groups/{name}": text for name, text in files.items()}, "process": process})
    assert scripts.machine_limits.cpus(groups / "groups", groups / "process") == expected


@pytest.mark.parametrize(
    ("process", "files", "expected"),
    [
        ("0::/", {"memory.max": "max"}, 8),
        ("0::/", {"memory.max": str(4 * GIGABYTE)}, 4),
        ("0::/", {"memory.max": "max", "memory.high": str(3 * GIGABYTE)}, 3),
        ("0::/", {"memory.max": str(64 * GIGABYTE)}, 8),
        ("0::/a/b", {"a/memory.max": str(2 * GIGABYTE), "a/b/memory.max": str(4 * GIGABYTE)}, 2),
        ("0::/../other", {"memory.max": str(4 * GIGABYTE)}, 4),
        ("7:memory:/", {"memory/memory.limit_in_bytes": str(4 * GIGABYTE)}, 4),
        ("7:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, 8),
        ("7:memory:/docker/x", {"memory/memory.limit_in_bytes": str(4 * GIGABYTE)}, 4),
    ],
)
def test_memory(scripts: Any, tmp_path: Path, process: str, files: dict[str, str], expected: int) -> None:
    groups = tree(tmp_path, {**{f"groups/{name}": text for name, text in files.items()}, "process": process})
    machine = tree(tmp_path, {"meminfo": f"MemTotal: {8 * 2**20} kB\nMemFree: 1 kB"}) / "meminfo"
    result = scripts.machine_limits.memory(groups / "groups", groups / "process", machine)
    assert result == expected * GIGABYTE


def test_macos_has_neither_control_groups_nor_proc(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts.machine_limits.sys, "platform", "darwin")
    monkeypatch.delattr(scripts.machine_limits.os, "sched_getaffinity")
    assert scripts.machine_limits.cpus(tmp_path, tmp_path) == CORES
    assert scripts.machine_limits.memory(tmp_path, tmp_path, tmp_path) > 10**8


def test_this_machine_has_at_least_a_core_and_some_memory(scripts: Any) -> None:
    assert 1 <= scripts.machine_limits.cpus() <= CORES
    assert scripts.machine_limits.memory() > 10**8
