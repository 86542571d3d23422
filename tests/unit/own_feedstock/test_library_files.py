"""The libraries that Bazel makes without the wheel: collected, and checked for what the wheel's lack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.own_feedstock.conftest import RECIPE

if TYPE_CHECKING:
    from pathlib import Path

SYMBOLS = {"tensorflow": "TF_NewGraph", "tensorflow_cc": "_ZN10tensorflow13ClientSessionC1ERKNS_5ScopeE"}


@pytest.fixture
def bazels(tmp_path: Path) -> Path:
    """Bazel's folder after the call for the libraries."""
    folder = tmp_path / "bazel-bin" / "tensorflow"
    (folder / "include" / "tsl").mkdir(parents=True)
    (folder / "include" / "tsl" / "x.h").write_text("// x")
    for name in ("tensorflow_framework", "tensorflow", "tensorflow_cc"):
        (folder / f"lib{name}.so.2.21.0").write_bytes(b"\x7fELF\0" + SYMBOLS.get(name, "").encode() + b"\0")
        (folder / f"lib{name}.so.2").symlink_to(f"lib{name}.so.2.21.0")
    return folder


def collect(scripts: Any, source: Path, target: Path) -> int:
    words = (str(RECIPE / "compile.ini"), str(source), str(target))
    code: int = scripts.library_files.main(list(words))
    return code


def test_libraries_and_headers_are_copied_as_files(scripts: Any, bazels: Path, tmp_path: Path) -> None:
    target = tmp_path / "dist" / "libraries"
    assert collect(scripts, bazels, target) == 0
    files = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    names = ("tensorflow_framework", "tensorflow", "tensorflow_cc")
    assert files == {*(f"lib/lib{name}.so.2" for name in names), "include/tsl/x.h"}
    assert not any(path.is_symlink() for path in target.rglob("*"))


def test_those_of_macos_have_its_names_and_an_underscore_before_a_symbol(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts.library_files.sys, "platform", "darwin")
    for name in ("tensorflow_framework", "tensorflow", "tensorflow_cc"):
        (tmp_path / f"lib{name}.2.dylib").write_bytes(b"\0_" + SYMBOLS.get(name, "").encode() + b"\0")
    assert collect(scripts, tmp_path, tmp_path / "to") == 0
    assert (tmp_path / "to/lib/libtensorflow_cc.2.dylib").is_file()
    (tmp_path / "libtensorflow.2.dylib").write_bytes(b"\0TF_NewGraph\0")
    assert collect(scripts, tmp_path, tmp_path / "again") == 1
    assert "libtensorflow.2.dylib has no TF_NewGraph" in capsys.readouterr().err


def test_a_missing_library_is_named(
    scripts: Any, bazels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bazels / "libtensorflow.so.2").unlink()
    assert collect(scripts, bazels, tmp_path / "to") == 1
    assert "the compile left no " in capsys.readouterr().err


def test_a_library_without_client_session_is_refused(
    scripts: Any, bazels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bazels / "libtensorflow_cc.so.2.21.0").write_bytes(b"\x7fELF\0TF_NewGraph\0")
    assert collect(scripts, bazels, tmp_path / "to") == 1
    assert "libtensorflow_cc.so.2 has no _ZN10tensorflow13ClientSession" in capsys.readouterr().err
