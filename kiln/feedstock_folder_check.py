"""Load a feedstock from disk."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kiln import files
from kiln.errors import FeedstockNotFound, UsageError
from kiln.model.feedstock import Feedstock
from kiln.model.source_position import Place

# Of POSIX shells within double quotes, and of Windows, where backslashes separate folders.
_UNUSABLE = "\\x00-\\x1f\\x7f\"'$`\ud800-\udfff" + ("" if os.sep == "\\" else "\\\\")


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
