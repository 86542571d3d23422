"""A feedstock on disk, checked when it is loaded, with the format of its recipe, and one config of it."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import FeedstockNotFound, RecipeFault, UsageError
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.system.files import file_content_stamp

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedstock:
    """The folders and files of one feedstock; ``root`` is absolute."""

    root: Path

    @property
    def recipe(self) -> Path:
        """The recipe folder."""
        return self.root / "recipe"

    @property
    def meta(self) -> Path:
        """The recipe file in conda-build's format (v0)."""
        return self.recipe / "meta.yaml"

    @property
    def recipe_v1(self) -> Path:
        """The recipe file in rattler-build's format (v1)."""
        return self.recipe / "recipe.yaml"

    @property
    def config_folder(self) -> Path:
        """The folder with one generated variant file per config."""
        return self.root / ".ci_support"

    @property
    def config_names(self) -> tuple[str, ...]:
        """The names of the configs in that folder, sorted."""
        return tuple(sorted(file.stem for file in self.config_folder.glob("*.yaml")))

    @property
    def conda_forge_yml(self) -> Path:
        """The file with conda-forge's settings."""
        return self.root / "conda-forge.yml"

    @property
    def artifacts(self) -> Path:
        """The folder of everything that is built."""
        return self.root / "build_artifacts"

    def name_of(self, path: Path) -> str:
        """Return the name of a file in messages: its path in the feedstock, or the whole path of one elsewhere."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildConfig:
    """A build config, such as one of CUDA x Python: ``name`` is the stem of its file in .ci_support.

    ``variant`` maps each key to its values, in the file's order; more than one value means that the config loops over
    them itself (all Pythons in one config, say). ``zip_keys`` are the groups of keys that advance together.
    ``build_platform`` is the subdir of the machine that builds it; empty until conda-forge.yml was asked.
    """

    name: str
    platform: str
    variant: Mapping[str, tuple[str, ...]]
    zip_keys: tuple[tuple[str, ...], ...] = ()
    pin_run_as_build: Mapping[str, Mapping[str, str] | str]
    image: str | None = None
    build_platform: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its file besides the variant, by their names there; none that are empty."""
        settings = {"zip_keys": self.zip_keys, "pin_run_as_build": self.pin_run_as_build}
        return {name: value for name, value in settings.items() if value}

    @property
    def is_cross(self) -> bool:
        """True when the config is cross-compiled."""
        return self.build_platform not in {"", self.platform}


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
    from kiln.base import limits
    from kiln.base.yaml import read_text

    text = read_text(path, FORGE)
    if _KEY not in text and "\\" not in text:  # an escape may spell the key; without it, the fork of a parse is saved
        return None
    return limits.run_bounded(lambda: _parse_setting_place(text))


def _parse_setting_place(text: str) -> Place | None:
    from kiln.base.yaml import ScalarInterpretation, parse_document

    document = parse_document(text, FORGE, ScalarInterpretation.TEXT, may_repeat=lambda _: True)
    is_v1 = isinstance(document.value, dict) and document.value.get(_KEY) == "rattler-build"
    return document.place_of_key(_KEY) if is_v1 else None


# Of POSIX shells within double quotes, and of Windows, where backslashes separate folders.
_UNUSABLE = "\\x00-\\x1f\\x7f\"'$`\ud800-\udfff" + ("" if os.sep == "\\" else "\\\\")


_RECIPE_FOLDER = lazy_pattern(r"^recipe_dir:[ \t]*['\"]?([\w./-]+)", re.MULTILINE)


def load(root: Path) -> Feedstock:
    """Return the feedstock at ``root``.

    Raises:
        FeedstockNotFound: the folder has neither ``recipe/meta.yaml`` nor ``recipe/recipe.yaml``.
        UsageError: the folder's path has a character that the shells of a build would change.
        SystemFault: there is a pipe, a socket or a device where a file may be read.
    """
    feedstock = Feedstock(root=root.absolute())
    if _has_recipe(feedstock):
        require_usable_path(feedstock.root)
        recipe = (Path(place) for place, _, _ in files.walk(feedstock.recipe))
        files.refuse_special_files(feedstock.root, feedstock.config_folder, *recipe)
        return feedstock
    reason = "no such folder" if not root.is_dir() else "it has neither recipe/meta.yaml nor recipe/recipe.yaml"
    parent = next((parent for parent in feedstock.root.parents if _has_recipe(Feedstock(root=parent))), None)
    hint = f"-C {parent}" if parent else "name the feedstock's folder with -C, or make one: kiln init NAME"
    with contextlib.suppress(OSError, ValueError):
        if match := _RECIPE_FOLDER.search(feedstock.conda_forge_yml.read_text(encoding="utf-8")):
            reason = f"{reason}, and conda-forge.yml's recipe_dir has no effect in kiln"
            hint = f"rename {match[1]} to recipe, and remove recipe_dir"
    raise FeedstockNotFound("not a feedstock", at=Place(file=str(root)), why=reason, hint=hint)


def require_usable_path(root: Path, more: str = "") -> None:
    """Refuse a feedstock's path that a shell, or a file that is written in UTF-8, cannot take.

    ``more`` are further characters that cannot be in it.

    Raises:
        UsageError: with the character.
    """
    found = re.search(f"[{_UNUSABLE}{more}]", str(root))
    if found:
        shown = str(root).encode("utf-8", "backslashreplace").decode()
        what = "a byte that is not UTF-8" if "\ud800" <= found[0] <= "\udfff" else f"the character {found[0]!r}"
        raise UsageError(
            f"no feedstock can be in {shown!r}",
            why=f"its path has {what}, which the programs of a build do not take as it is",
            hint="move it to a path of letters, digits, dots, dashes and underscores",
        )


def _has_recipe(feedstock: Feedstock) -> bool:
    return feedstock.meta.is_file() or feedstock.recipe_v1.is_file()
