"""Regular expressions are compiled at their first use, and behave as compiled ones do."""

from __future__ import annotations

import copy
import re

import pytest

from kiln.base.patterns import lazy_pattern


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
