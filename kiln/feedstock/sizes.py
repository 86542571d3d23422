"""The size of each config, from the rendered recipe and from fleet-sizes.yml of the feedstock, which prevails.

The recipe has the sizes of a config in ``extra: worker:``, with its selectors and templates. The file is a list of
entries, each with the variant values that it is for and the sizes that it sets:

    - match: {cuda_compiler_version: "12.*"}
      cores: 32
      memory: 64
      time_limit: 8h
      hours: 3

Later entries prevail over earlier ones. A value of ``match`` may have ``*``; an entry without it is for all configs.
"""

from __future__ import annotations

import dataclasses
import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from kiln.base import limits, yaml
from kiln.base.errors import MalformedYaml, UsageError
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.text import duration_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig, Feedstock

FILE = "fleet-sizes.yml"
SECTION = "worker"  # in the section extra of a recipe
KEY = lazy_pattern(rf"(?m)^[ \t]+{SECTION}[ \t]*:")
NUMBERS = ("cores", "memory", "disk", "gpus")
SIZES = (*NUMBERS, "time_limit", "hours")
KEYS = ("match", *SIZES)
EXAMPLE = '- {match: {cuda_compiler_version: "12.*"}, cores: 32, memory: 64, time_limit: 8h}'
LARGEST = 1e6  # of any number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizeEntry:
    """An entry of the file: the sizes of the configs whose variants match."""

    match: Mapping[str, str]
    values: Mapping[str, float]

    def matches_variant(self, variant: Mapping[str, Sequence[str]]) -> bool:
        """Return whether each key of ``match`` has a value in the variant that matches."""
        return all(
            any(fnmatchcase(value, pattern) for value in variant.get(key, ())) for key, pattern in self.match.items()
        )


def read_size_file(folder: Path) -> tuple[SizeEntry, ...]:
    """Read the file of a feedstock, if it has one."""
    path = folder / FILE
    if not path.exists():
        return ()
    document = yaml.parse_document(yaml.read_text(path, FILE), FILE, yaml.ScalarInterpretation.PLACED)
    value = document.value
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise MalformedYaml(
            "the file of sizes is a list of entries with sizes", at=document.place_of_key(), hint=EXAMPLE
        )
    return tuple(_parse_entry(entry) for entry in value)


def _parse_entry(data: Mapping[Any, Any]) -> SizeEntry:
    match = data.get("match", {})
    if not isinstance(match, dict) or not all(isinstance(value, str) for value in match.values()):
        raise MalformedYaml("match maps variant keys to values", at=_place_of_yaml_node(next(iter(data))), hint=EXAMPLE)
    return SizeEntry(
        match={str(key): str(value) for key, value in match.items()},
        values=_parse_sizes(data, KEYS, _place_of_yaml_node),
    )


def _parse_sizes(data: Mapping[Any, Any], keys: Sequence[str], place: Callable[[Any], Place]) -> dict[str, float]:
    """Return the sizes in a mapping; ``place`` returns the place of a key or a value."""
    values: dict[str, float] = {}
    for key, value in data.items():
        if key not in keys:
            hint = f"one of {', '.join(keys)}"
            raise MalformedYaml(f"unknown key {str(key)!r} of a size", at=place(key), hint=hint)
        if key in NUMBERS or key == "hours":
            values[str(key)] = _parse_number(str(key), value, place(value))
        elif key == "time_limit":
            values[str(key)] = _parse_time_limit(value, place(value))
    return values


def recipe_sizes(feedstock: Feedstock, configs: Sequence[BuildConfig]) -> dict[str, Mapping[str, float]]:
    """Return the sizes that a recipe states for configs; one without the key is not rendered."""
    paths = (path for path in (feedstock.meta, feedstock.recipe_v1) if path.exists())
    texts = {_recipe_file_name(path): yaml.read_text(path, _recipe_file_name(path)) for path in paths}
    if not any(KEY.search(text) for text in texts.values()):
        return {}
    rendered = limits.run_bounded(lambda: {config.name: _render_recipe_extra(feedstock, config) for config in configs})
    return {
        config: _sizes_in_recipe_extra(extra, Place(file=file, line=_size_section_line(texts.get(file, ""))))
        for config, (file, extra) in rendered.items()
    }


def _sizes_in_recipe_extra(extra: Mapping[str, Any], at: Place) -> dict[str, float]:
    """Return the sizes in the rendered section ``extra`` of a recipe; ``at`` is the place of its key ``worker``."""
    data = extra.get(SECTION) or {}
    if not isinstance(data, dict):
        raise MalformedYaml(f"{SECTION} in extra maps sizes to numbers", at=at, hint="worker: {cores: 32, memory: 64}")
    given = {key: value for key, value in data.items() if value is not None}  # not those whose selector is false
    return _parse_sizes(given, SIZES, lambda _: at)


def _recipe_file_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _size_section_line(text: str) -> int:
    match = KEY.search(text)
    return 0 if match is None else text.count("\n", 0, match.start()) + 1


def _render_recipe_extra(feedstock: Feedstock, config: BuildConfig) -> tuple[str, Mapping[str, Any]]:
    """Return the file of the recipe that is rendered, and its section ``extra``."""
    from kiln.recipe import render  # takes long to load, and few recipes have sizes

    rendered = render.render(feedstock, config)
    return rendered.file, rendered.outputs[0].extra if rendered.outputs else {}


def _place_of_yaml_node(text: Any) -> Place:
    return Place(file=FILE, line=getattr(text, "line", 0), column=getattr(text, "column", 0))


def _parse_number(key: str, text: Any, at: Place) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = math.nan
    whole = key in {"memory", "disk", "hours"} or number == round(number if math.isfinite(number) else 0.5)
    if not 0 <= number <= LARGEST or not whole:
        raise MalformedYaml(f"invalid {key} {str(text)!r}", at=at, hint="a number such as 32")
    return number


def _parse_time_limit(text: Any, at: Place) -> float:
    try:
        time = duration_seconds(str(text))
    except UsageError as error:
        raise MalformedYaml(error.what, at=at, hint=error.hint) from error
    if time <= 0:
        raise MalformedYaml(f"invalid time limit {str(text)!r}", at=at, hint="more than nothing, such as 8h")
    return time


def config_size(
    entries: Sequence[SizeEntry], variant: Mapping[str, Sequence[str]], recipe: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the size of a config; that of its recipe holds for what the entries do not set."""
    values = dict(recipe or {})
    for entry in entries:
        if entry.matches_variant(variant):
            values |= entry.values
    return values


def config_sizes(feedstock: Feedstock, configs: Sequence[BuildConfig]) -> dict[str, dict[str, float]]:
    """Return what is stated of the size of each config; the recipe is rendered only if it may say so."""
    entries, recipe = read_size_file(feedstock.root), recipe_sizes(feedstock, configs)
    return {config.name: config_size(entries, config.variant, recipe.get(config.name)) for config in configs}
