"""Which of the two formats a feedstock's recipe has."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from kiln import limits
from kiln.errors import RecipeFault
from kiln.operating_system.file_operations import file_content_stamp
from kiln.yamltext import ScalarInterpretation, parse_document, read_text

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.source_position import Place

FORGE = "conda-forge.yml"
_KEY = "conda_build_tool"


def is_v1(feedstock: Feedstock) -> bool:
    """Return whether a feedstock's recipe is recipe.yaml: conda-forge.yml says so, or meta.yaml does not exist.

    Raises:
        KilnError: conda-forge.yml is malformed and may have the setting, or asks for a recipe.yaml that is not there.
    """
    at = _rattler_build_setting_place(feedstock.root / FORGE)
    if at is not None and not feedstock.recipe_v1.is_file():
        what = f"{_KEY}: rattler-build builds from recipe/recipe.yaml, which is not there"
        raise RecipeFault(what, at=at, hint="use conda-build for a meta.yaml")
    return at is not None or (feedstock.recipe_v1.is_file() and not feedstock.meta.is_file())


def _rattler_build_setting_place(path: Path) -> Place | None:
    """Return where the settings ask for rattler-build, None where they do not."""
    try:
        stamp = file_content_stamp(path)
    except OSError:
        return None
    return _cached_setting_place(path, stamp)


@lru_cache(maxsize=16)
def _cached_setting_place(path: Path, _stamp: tuple[int, ...]) -> Place | None:
    text = read_text(path, FORGE)
    if _KEY not in text and "\\" not in text:  # an escape may spell the key; without it, the fork of a parse is saved
        return None
    return limits.run_bounded(lambda: _parse_setting_place(text))


def _parse_setting_place(text: str) -> Place | None:
    document = parse_document(text, FORGE, ScalarInterpretation.TEXT, may_repeat=lambda _: True)
    is_v1 = isinstance(document.value, dict) and document.value.get(_KEY) == "rattler-build"
    return document.place_of_key(_KEY) if is_v1 else None
