"""The keys of meta.yaml: which of them rattler-build honors, and the faults of a recipe's keys.

The names are those of conda-build 26.7 (``FIELDS`` in conda_build/metadata.py), and the further ones that it reads:
the keys of older outputs, ``test/script``, and three of ``build``.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import did_you_mean
from kiln.lazy_pattern import lazy_pattern
from kiln.model.rendered import KeyFault
from kiln.model.source_position import Place
from kiln.recipe.engine_unsupported_values import KeyPath, unsupported_values
from kiln.serialization import mappings_in_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


ANY = "*"  # stands for all keys of a section
_NESTED = ("build", "requirements", "test", "about")  # sections that an output may have, too
_ONLY_OUTPUTS = {("test", "script")}
# The presence of these keys counts, whatever their values.
_BY_PRESENCE = {("source", "path_via_symlink"), ("source", "no_hoist")}
_KEY = lazy_pattern(r"(\s*(?:-\s+)*)['\"]?([A-Za-z_][\w-]*)['\"]?\s*:(?:\s|$)")


@lru_cache(maxsize=1)
def recipe_keys() -> Mapping[tuple[str, str], str]:
    """Return the keys by section and name, each with the reason why it is refused; empty for one that is honored."""
    rows = files.csv_rows(Path(__file__).parent / "keys.csv")
    return {(row["section"], row["key"]): row["note"] if row["support"] != "honored" else "" for row in rows}


def key_faults(values: Mapping[str, Any], text: str, file: str) -> tuple[KeyFault, ...]:
    """Return the faults of a recipe's keys; ``text`` is the recipe as written, in which they are located."""
    faults = [_key_fault(path, kind, why, text, file) for path, kind, why in _faulty_key_paths(values)]
    return tuple({(fault.key, fault.what): fault for fault in faults}.values())


def _faulty_key_paths(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield the path of each key at fault, with its kind (``unknown``, ``refused`` or ``value``) and the reason."""
    sections = {section for section, _ in recipe_keys()}
    for section, content in values.items():
        if section not in sections:
            yield (str(section),), "unknown", did_you_mean(str(section), sections)
            continue
        for entry in mappings_in_list(content):
            yield from _faulty_keys_of_section(section, entry, (section,))
            if section == "outputs":
                for nested in _NESTED:
                    for part in mappings_in_list(entry.get(nested)):
                        yield from _faulty_keys_of_section(nested, part, ("outputs", nested))
    yield from ((path, "value", why) for path, why in unsupported_values(values))


def _faulty_keys_of_section(
    section: str, entry: Mapping[str, Any], path: KeyPath
) -> Iterator[tuple[KeyPath, str, str]]:
    table = recipe_keys()
    if (section, ANY) in table:
        return
    for key, value in entry.items():
        why = table.get((section, str(key)))
        if why is None or ((section, str(key)) in _ONLY_OUTPUTS and path[0] != "outputs"):
            yield (*path, str(key)), "unknown", _similar_key_hint(section, str(key))
        elif why and (value or (section, str(key)) in _BY_PRESENCE):
            yield (*path, str(key)), "refused", why


def _similar_key_hint(section: str, key: str) -> str:
    """Return the names like a misspelt key: those of its section first, then the sections that have the key."""
    names = [name for within, name in recipe_keys() if within == section]
    elsewhere = [within for within, name in recipe_keys() if name == key]
    if elsewhere and section not in elsewhere:
        return f"{key} belongs to {' or '.join(elsewhere)}"
    return did_you_mean(key, names) or f"none of the {len(names)} keys of {section} is like it"


def _key_fault(path: KeyPath, kind: str, why: str, text: str, file: str) -> KeyFault:
    key, at = "/".join(path), _place_of_key(path, text, file)
    if kind == "unknown":
        what = f"unknown section {key!r}" if len(path) == 1 else f"unknown key {key!r}"
        return KeyFault(key=key, known=False, what=what, at=at, why="conda-build ignores it without a word", hint=why)
    what = f"the engine rattler-build does not have {key!r}"
    if kind == "value":
        what = f"the engine rattler-build does not have this value of {key!r}"
    return KeyFault(key=key, known=True, what=what, at=at, why=why, hint="leave it out, or --engine conda-build")


def _place_of_key(path: KeyPath, text: str, file: str) -> Place:
    """Return the place of a key in the recipe as written, else that of its section."""
    section = Place(file=file)
    for number, column, keys in _key_paths_with_positions(text.splitlines()):
        if keys == path:
            return Place(file=file, line=number, column=column)
        if keys == path[:1] and not section.line:
            section = Place(file=file, line=number, column=column)
    return section


def _key_paths_with_positions(lines: Iterable[str]) -> Iterator[tuple[int, int, KeyPath]]:
    """Yield each key of a recipe's text: its line, its column, and the keys that it is below of, by indentation."""
    above: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        if match := _KEY.match(line):
            indent = len(match[1])
            while above and above[-1][0] >= indent:
                above.pop()
            above.append((indent, match[2]))
            yield number, indent + 1, tuple(name for _, name in above)
