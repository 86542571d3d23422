"""The kernels in a library, read from its fat binaries."""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def entry(kind: int, capability: int, size: int = 24) -> bytes:
    """One kernel: a header of 64 bytes as nvcc 12 writes it, then its bytes."""
    head = struct.pack("<HHIQ", kind, 0x101, 64, size)
    return head + bytes(28 - len(head)) + struct.pack("<I", capability) + bytes(32) + b"k" * size


def fat(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


PTX, CODE = 1, 2
TWO = fat(entry(CODE, 120), entry(PTX, 90), entry(CODE, 90))
ONE = fat(entry(CODE, 70))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"no kernels at all", {}),
        (TWO, {("sm_90", "sm_120", "compute_90"): 1}),
        (b"x" * 13 + ONE + b"\0" * 5 + TWO + ONE, {("sm_70",): 2, ("sm_90", "sm_120", "compute_90"): 1}),
        # What only begins like a header: cut off, of another version, or followed by something else.
        (ONE[:10], {}),
        (ONE[:4] + b"\2" + ONE[5:], {}),
        (ONE[:16] + b"\7" + ONE[17:], {}),
        (ONE[:20] + TWO, {("sm_90", "sm_120", "compute_90"): 1}),
    ],
)
def test_fat_binaries_are_found_and_counted(
    scripts: Any, tmp_path: Path, data: bytes, expected: dict[tuple[str, ...], int]
) -> None:
    (tmp_path / "library").write_bytes(data)
    assert dict(scripts.kernels.in_library(tmp_path / "library")) == expected


def test_missing_capabilities_are_reported(scripts: Any) -> None:
    held = scripts.kernels.Counter({("sm_70", "compute_90"): 3, ("sm_90",): 1})
    assert scripts.kernels.missing(held, ("sm_70", "sm_80", "sm_90", "compute_90", "compute_120")) == [
        "sm_80",
        "compute_120",
    ]
    assert scripts.kernels.lines(held) == ["3 x sm_70 compute_90", "1 x sm_90"]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "tensorflow-2.21.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tensorflow/libtensorflow_cc.so.2", TWO)
    return path


def plan(scripts: Any, *capabilities: str, library: str = "tensorflow/libtensorflow_cc.so.2") -> Any:
    names = ("target", "folder", "bazel_version", "nvcc_target", "nvcc_file", "library_targets", "library_folder")
    empty = {**dict.fromkeys(names, ""), "library_flags": ()}
    return scripts.compile_plan.Plan(flags=(), capabilities=capabilities, kernels_in=library, **empty)


def test_a_wheel_with_all_kernels_is_accepted(scripts: Any, wheel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts.compile_plan.require_kernels(plan(scripts, "sm_90", "sm_120", "compute_90"), wheel)
    assert capsys.readouterr().out == "kernels: 1 x sm_90 sm_120 compute_90\n"
    assert [file.name for file in wheel.parent.iterdir()] == [wheel.name]


def test_a_wheel_for_the_cpu_is_not_looked_into(scripts: Any, tmp_path: Path) -> None:
    scripts.compile_plan.require_kernels(plan(scripts), tmp_path / "none.whl")


@pytest.mark.parametrize(
    ("capability", "library", "said"),
    [
        ("sm_80", "tensorflow/libtensorflow_cc.so.2", "libtensorflow_cc.so.2 in .*whl has no kernel for sm_80"),
        ("sm_90", "tensorflow/none.so", "has no tensorflow/none.so"),
    ],
)
def test_a_wheel_without_a_kernel_that_was_asked_for_is_refused(
    scripts: Any, wheel: Path, capability: str, library: str, said: str
) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan, match=said):
        scripts.compile_plan.require_kernels(plan(scripts, capability, library=library), wheel)
