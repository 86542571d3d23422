"""Generate a recipe by py-rattler-build's generator, in a process of its own that a timeout can end.

``python -m kiln.feedstock.init.generator PROJECT [VERSION]`` prints a JSON object: the ``recipe`` and
whether its names are ``mapped`` to conda's, or an ``error``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module


def generate_recipe(project: str, version: str | None) -> dict[str, object]:
    """Return the generated recipe of a project on PyPI, or the generator's error.

    The generator raises a direct subclass of Exception, which the library does not export.
    """
    generate = import_module("rattler_build._rattler_build").generate_pypi_recipe_string_py
    mapped = True
    try:
        try:
            text = generate(project, version, mapped)
        except Exception as error:
            if "name mapping" not in str(error):
                raise
            mapped = False
            text = generate(project, version, mapped)
    except Exception as error:  # noqa: BLE001 - the library has no error class; its caller words the failure
        return {"error": str(error)}
    return {"recipe": text, "mapped": mapped}


if __name__ == "__main__":
    json.dump(generate_recipe(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None), sys.stdout)
