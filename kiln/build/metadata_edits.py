"""The changes to the metadata of a package that conda-build would have written: plain values of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.model.rendered import Output

# The keys of ``about`` that are lists in about.json, whatever the recipe has, by FIELDS in conda_build/metadata.py.
LISTS = ("identifiers", "keywords", "tags")
_NOT_METADATA = ("prelink_message", "readme")  # names of files


def metadata_edits(output: Output) -> dict[str, Any]:
    """Return what a package's metadata needs besides the engine's.

    ``about`` and ``extra`` are added to about.json, ``hash_input`` are the values whose hash the build string has,
    ``no_link`` are globs of files that are never linked, and
    ``without_recipe`` is true when the package must not contain its recipe.
    """
    setting = {} if output.settings.by_engine else output.about
    about = {key: value for key, value in setting.items() if value and key not in _NOT_METADATA}
    edits = {
        "about": {key: _listed(value) if key in LISTS else _plain(value) for key, value in about.items()},
        "extra": dict(output.extra),
        "no_link": list(output.settings.no_link),
        "without_recipe": not output.settings.include_recipe,
    }
    return {"hash_input": dict(output.used), **{key: value for key, value in edits.items() if value}}


def _listed(value: str | tuple[str, ...]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _plain(value: str | tuple[str, ...]) -> str | list[str]:
    return value if isinstance(value, str) else list(value)
