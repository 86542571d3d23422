"""A rendered cell as data for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from kiln.model.rendered import Output, Rendered


def as_json(rendered: Rendered) -> list[dict[str, Any]]:
    """Every output as plain data; ``subdir`` is conda-build's, the platform also where ``noarch`` is given."""
    return [_plain(output) for output in rendered.outputs]


def _plain(output: Output) -> dict[str, Any]:
    needs = output.requirements
    # What the recipe leaves empty is None to conda-build, and stays so.
    exports: Any = {kind: list(specs) or None for kind, specs in output.run_exports.items()}
    if output.run_exports_bare and exports:
        exports = exports["weak"]
    return {
        "name": output.name,
        "version": output.version,
        "build_number": output.build_number,
        "build": output.build_string,
        "subdir": output.platform,
        "noarch": output.noarch,
        "requirements": {
            "build": list(needs.build),
            "host": list(needs.host),
            "run": list(needs.run),
            "run_constrained": list(needs.run_constrained),
        },
        "track_features": list(output.track_features),
        "run_exports": exports,
        "test": {
            "imports": list(output.tests.imports),
            "commands": list(output.tests.commands),
            "requires": list(output.tests.requires),
        },
        "used": dict(output.used),
        "skip": output.skip,
    }
