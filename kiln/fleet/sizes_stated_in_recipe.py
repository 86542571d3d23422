"""The sizes of configs that a recipe states in ``extra: worker:``, rendered for each config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import limits, render, yamltext
from kiln.fleet import declared_config_sizes
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock

KEY = re.compile(rf"^[ \t]+{declared_config_sizes.SECTION}[ \t]*:", re.MULTILINE)


def of_configs(
    feedstock: Feedstock, configs: Sequence[BuildConfig], seconds: Callable[[str], float]
) -> dict[str, Mapping[str, float]]:
    """Return the sizes of configs; a recipe without the key is not rendered.

    Raises:
        MalformedYaml: when they are invalid.
    """
    paths = (path for path in (feedstock.meta, feedstock.recipe_v1) if path.exists())
    texts = {_name(path): yamltext.read_text(path, _name(path)) for path in paths}
    if not any(KEY.search(text) for text in texts.values()):
        return {}
    rendered = limits.run_bounded(lambda: {config.name: _extra(feedstock, config) for config in configs})
    return {
        config: declared_config_sizes.of_recipe(extra, Place(file=file, line=_line(texts.get(file, ""))), seconds)
        for config, (file, extra) in rendered.items()
    }


def _name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _line(text: str) -> int:
    match = KEY.search(text)
    return 0 if match is None else text.count("\n", 0, match.start()) + 1


def _extra(feedstock: Feedstock, config: BuildConfig) -> tuple[str, Mapping[str, object]]:
    """Return the file of the recipe that is rendered, and its section ``extra``."""
    rendered = render.render(feedstock, config)
    return rendered.file, rendered.outputs[0].extra if rendered.outputs else {}
