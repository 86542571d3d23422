"""The layers of the architecture: an import points down, never sideways between stages, never up."""

from __future__ import annotations

import ast
import functools
import sys
from typing import TYPE_CHECKING

import pytest

from tests.source_files import FILES, PACKAGE, name_of, nodes_of

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = tuple(
    set(parts.split())
    for parts in (
        "errors interprocess_messages lazy_exports lazy_pattern masking model bootstrap serialization operating_system",
        """yamltext template versions variants recipe recipe_v1 matchspec_notation conda_package repodata process_runner
        bazel container local_channel console files zstd system_package_advice ledger limits provenance
        compat package_safety name_rules channel_url_credentials rattler_process process_table
        conda_forge_yml signals folder_lock http_client source_download archive_kinds recipe_script_launch_commands
        emulation version_spec plain_yaml_loading solve_and_install virtual_packages""",
        "feedstock_folder_check lint expand render build package_test publish rehearse image report",
        "store job executor builder scheduling run install release fleet bump convert init",
        "cli __main__",
    )
)
LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
STAGES = 2  # the one layer whose parts never import each other
ACYCLIC = (1, 3)  # layers whose parts may import each other, without a cycle


def part_of(file: Path) -> str:
    """Return the first name below kiln/: a module or a package."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def imports_of(file: Path) -> set[str]:
    """Return every module that a file imports, inside functions and type-checking blocks too."""
    modules: set[str] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "kiln")
    return modules


def parts_imported_by(file: Path) -> set[str]:
    """Return the other parts of kiln that a module imports."""
    return {name.split(".")[1] for name in imports_of(file) if name.startswith("kiln.")} - {part_of(file)}


def test_every_part_belongs_to_a_layer() -> None:
    missing = {part_of(file) for file in FILES} - LAYER_OF.keys()
    assert not missing, "give each a layer here and in docs/explanation/design.md"


def test_imports_point_down() -> None:
    """To a lower layer or within one; but stages meet only in model types."""
    wrong = [
        f"{name_of(file)} imports {other}"
        for file in FILES
        for part in [part_of(file)]
        for other in sorted(parts_imported_by(file) - {"__version__"})
        if LAYER_OF[other] > LAYER_OF[part] or LAYER_OF[other] == LAYER_OF[part] == STAGES
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", ACYCLIC)
def test_imports_within_a_layer_make_no_cycle(layer: int) -> None:
    uses: dict[str, set[str]] = {}
    for file in FILES:
        if LAYER_OF.get(part_of(file)) == layer:
            uses.setdefault(part_of(file), set()).update(parts_imported_by(file) & LAYERS[layer])
    while uses:
        free = {part for part, others in uses.items() if not others & uses.keys()}
        assert free, f"these import each other in a cycle: {sorted(uses)}"
        uses = {part: others for part, others in uses.items() if part not in free}


def test_the_lowest_layer_needs_only_the_standard_library() -> None:
    roots = {name.split(".")[0] for file in FILES if LAYER_OF.get(part_of(file)) == 0 for name in imports_of(file)}
    assert roots <= {*sys.stdlib_module_names, "kiln"}


# What reads recipes of one format; the others get what is rendered, and do not know which format it was.
FORMATS = {"recipe", "recipe_v1"}
READERS = {
    "bump",
    "convert",
    "expand",
    "lint",
    "render",
    "run/recipe_support.py",
    "run/unsupported_recipe_yaml_keys.py",
}


def test_what_comes_after_rendering_does_not_know_the_format_of_the_recipe() -> None:
    users = {
        file.relative_to(PACKAGE)
        for file in FILES
        if part_of(file) not in FORMATS and parts_imported_by(file) & FORMATS
    }
    assert {str(file) if file.parts[0] == "run" else file.parts[0] for file in users} == READERS
