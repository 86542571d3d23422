"""The generator's answer has the recipe, also where conda's table of names cannot be read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from kiln.feedstock.init import generator

if TYPE_CHECKING:
    import pytest


def generating(monkeypatch: pytest.MonkeyPatch, errors: dict[bool, str]) -> None:
    """Put a generator that fails in the place of the library's, which reaches the network."""

    def generate(project: str, version: str | None, mapped: bool) -> str:
        if mapped in errors:
            raise RuntimeError(errors[mapped])
        return f"{project} {version}"

    library = SimpleNamespace(generate_pypi_recipe_string_py=generate)
    monkeypatch.setattr(generator, "import_module", lambda _: library)


def test_names_are_mapped_where_the_table_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    generating(monkeypatch, {})
    assert generator.generate_recipe("a", "1") == {"recipe": "a 1", "mapped": True}


def test_without_the_table_the_names_are_those_of_pypi(monkeypatch: pytest.MonkeyPatch) -> None:
    generating(monkeypatch, {True: "failed to download pypi name mapping"})
    assert generator.generate_recipe("a", None) == {"recipe": "a None", "mapped": False}


def test_an_error_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    generating(monkeypatch, {True: "404"})
    assert generator.generate_recipe("a", None) == {"error": "404"}
    generating(monkeypatch, {True: "no name mapping", False: "404"})
    assert generator.generate_recipe("a", None) == {"error": "404"}
