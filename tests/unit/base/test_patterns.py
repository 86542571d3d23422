"""Names that become parts of paths: conda's own rules, and no character that hides or reorders text."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING

import pytest

from kiln.base import patterns
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "name",
    [
        "numpy",
        "_libgcc_mutex",
        "font-ttf-dejavu-sans-mono",
        "r-base",
        "7zip",
        "backports.zoneinfo",
        "a",
        "a_",
        "x" * 64,
    ],
)
def test_a_name_of_condas_is_a_package_name(name: str) -> None:
    assert not patterns.invalid_name_reason(name, "package name")


@pytest.mark.parametrize(
    "name",
    ["..", ".", "--help", "-n", "a\n", "a b", "a/b", "__glibc", "a--b", "a..b", "A", "ä", "a\u202eb", "x" * 65, ""],
)
def test_an_invalid_name_is_refused(name: str) -> None:
    assert patterns.invalid_name_reason(name, "package name")


@pytest.mark.parametrize(
    ("text", "what", "good"),
    [
        ("1.2.3", "version", True),
        ("2!1.0rc1.post1+cuda12_9", "version", True),
        ("1.0-1", "version", False),
        ("1\n", "version", False),
        ("../1", "version", False),
        ("py311h694c41f_1", "build string", True),
        ("cpu.generic+x", "build string", True),
        ("h-1", "build string", False),
        ("../../x", "build string", False),
        ("h" * 65, "build string", False),
    ],
)
def test_versions_and_build_strings_have_the_characters_of_cep_26(text: str, what: str, *, good: bool) -> None:
    assert bool(patterns.invalid_name_reason(text, what)) is not good


@pytest.mark.parametrize(
    ("name", "valid"),
    [
        *((name, True) for name in ("noarch", "linux-64", "linux-own", "win-mine_2", "linux-loong64")),
        *((name, False) for name in ("linux", "linux-46", "own-64", "work", "logs", "..", "linux-../x", "own-64")),
    ],
)
def test_the_folders_of_packages_are_those_of_subdirs(name: str, *, valid: bool) -> None:
    assert patterns.is_channel_subdir(name) is valid


def test_the_folders_of_a_channel(tmp_path: Path) -> None:
    for name in ("noarch", "linux-own", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "linux-64").touch()
    assert patterns.existing_subdirs(tmp_path) == ("linux-own", "noarch")
    assert patterns.existing_subdirs(tmp_path / "missing") == ()


@pytest.mark.parametrize(
    "name", ["..", ".hidden", "-rf", "--help", "", "a\nb", "a\x1b[2J", "a\u202eb", "a/b", "wheels", "e\u0301"]
)
def test_a_file_with_an_invalid_name_is_not_a_config(name: str) -> None:
    assert not patterns.is_config_name(name)


def test_hidden_characters_are_shown_as_escapes() -> None:
    assert patterns.escaped_for_terminal("a\x1b[31m\u202eb\r\udc80\n\tä") == "a\\x1b[31m\\u202eb\\r\\udc80\n\tä"


def test_an_expression_compiles_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    compile_now = re.compile

    def counted(text: str, flags: int = 0) -> re.Pattern[str]:
        compiled.append(text)
        return compile_now(text, flags)

    monkeypatch.setattr(re, "compile", counted)
    pattern = lazy_pattern(r"(\d+)-x")
    assert not compiled
    assert pattern.sub(r"\1", "12-x 3-x") == "12 3"
    assert pattern.sub(r"\1", "4-x") == "4"
    assert compiled == [r"(\d+)-x"]


def test_flags_and_attributes_are_those_of_the_expression() -> None:
    pattern, expected = lazy_pattern("(?P<a>A)b", re.IGNORECASE), re.compile("(?P<a>A)b", re.IGNORECASE)
    assert pattern.fullmatch("aB") is not None
    assert (pattern.pattern, pattern.flags, pattern.groupindex) == (
        expected.pattern,
        expected.flags,
        expected.groupindex,
    )


def test_a_copy_is_the_same_expression() -> None:
    assert copy.copy(lazy_pattern("a+")).findall("aab") == ["aa"]


def test_an_invalid_expression_fails_at_its_first_use() -> None:
    pattern = lazy_pattern("(")
    with pytest.raises(re.error):
        pattern.search("a")
