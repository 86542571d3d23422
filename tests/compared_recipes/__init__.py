"""The recipes whose packages are compared between the engines; together they use nearly every honored key."""

from __future__ import annotations

from tests.compared_recipes.basics import OUTPUTS, OUTPUTS_FILES, SINGLE, SINGLE_FILES
from tests.compared_recipes.exports import EXPORTS_TEXT
from tests.compared_recipes.linking import COMPILE, LINKED, LINKED_OUTPUTS
from tests.compared_recipes.output_keys import ALL_OUTPUT_KEYS, ALL_OUTPUT_KEYS_FILES
from tests.compared_recipes.python import PYTHON, PYTHON_INSTALL, PYTHON_OUTPUTS, PYTHON_OUTPUTS_FILES
from tests.compared_recipes.sources import SOURCES, SOURCES_FILES

RECIPES = {
    "single": (SINGLE, SINGLE_FILES),
    "outputs": (OUTPUTS, OUTPUTS_FILES),
    "python": (PYTHON, {"recipe/install.sh": PYTHON_INSTALL}),
    "python-outputs": (PYTHON_OUTPUTS, PYTHON_OUTPUTS_FILES),
    "sources": (SOURCES, SOURCES_FILES),
    "linked": (LINKED, {"recipe/compile.sh": COMPILE}),
    "linked-outputs": (LINKED_OUTPUTS, {"recipe/compile.sh": COMPILE}),
    "exports": (EXPORTS_TEXT, {"recipe/share.sh": ALL_OUTPUT_KEYS_FILES["recipe/share.sh"]}),
    "output-keys": (ALL_OUTPUT_KEYS, ALL_OUTPUT_KEYS_FILES),
}
