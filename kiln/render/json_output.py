"""A rendered config as data for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.recipe.requirement_texts import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.model.rendered import Output, RenderedConfig


def as_plain_data(rendered: RenderedConfig) -> list[dict[str, Any]]:
    """Return every output as plain data; ``subdir`` is the channel folder of its package."""
    return [_output_as_plain_data(output) for output in rendered.outputs]


def _output_as_plain_data(output: Output) -> dict[str, Any]:
    # An empty key of the recipe is None to conda-build, and so here.
    exports: Any = {
        kind: _list_or_single_text(output, f"run_exports/{kind}", specs) or None
        for kind, specs in output.run_exports.items()
    }
    if output.run_exports_bare and exports:
        exports = _list_or_single_text(output, "run_exports", output.run_exports["weak"])
    return {
        "name": output.name,
        "version": output.version,
        "build_number": output.build_number,
        "build": output.build_string,
        "subdir": output.subdir,
        "noarch": True if "noarch" in output.single else None if "noarch_python" in output.single else output.noarch,
        "requirements": {section: list(getattr(output.requirements, section)) for section in SECTIONS},
        "track_features": list(output.track_features),
        "run_exports": exports,
        "test": {
            "imports": _list_or_single_text(
                output, "test/imports", [name for test in output.tests for name in test.imports]
            ),
            "commands": _list_or_single_text(
                output, "test/commands", [line for test in output.tests for line in test.script.lines]
            ),
            "requires": _list_or_single_text(
                output, "test/requires", [spec for test in output.tests for spec in test.requires]
            ),
        },
        "used": dict(output.used),
        "skip": output.skip,
    }


def _list_or_single_text(output: Output, field: str, texts: Sequence[str]) -> list[str] | str:
    """Return a list, or the text in its place, which conda-build leaves as it is."""
    return texts[0] if field in output.single and texts else list(texts)
