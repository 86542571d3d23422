"""The floors of the house: an import points down, never sideways between stages, never up."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kiln"

FLOORS = tuple(
    set(rooms.split())
    for rooms in (
        "errors model bootstrap",
        """yamltext template versions variants recipe matchspec archive repodata command bazel container channel console
        files ledger resources provenance compat admission""",
        "load expand render build check publish rehearse image report",
        "pipeline fleet",
        "cli __main__",
    )
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
TOOLS = 1  # tools may use each other, in no circle; stages may not


def room_of(file: Path) -> str:
    """The first name below kiln/: a file or a folder."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(file: Path) -> set[str]:
    """Every module that a file imports, inside functions and type-checking blocks too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "kiln")
    return found


FILES = sorted(file for file in PACKAGE.rglob("*.py") if file != PACKAGE / "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file: Path) -> None:
    room = room_of(file)
    assert room in FLOOR_OF, f"kiln/{room} stands on no floor; give it one here and in docs/explanation/design.md"
    rooms = {name.split(".")[1] for name in imports_of(file) if name.startswith("kiln.")} - {"__version__", room}
    for other in sorted(rooms):
        sideways = FLOOR_OF[other] == FLOOR_OF[room] and FLOOR_OF[room] not in {0, TOOLS, len(FLOORS) - 1}
        assert FLOOR_OF[other] <= FLOOR_OF[room], f"{room} imports {other}, which stands on a higher floor"
        assert not sideways, f"{room} imports {other}: stages meet only in model types"


def test_tools_use_each_other_in_no_circle() -> None:
    uses: dict[str, set[str]] = {}
    for file in FILES:
        if FLOOR_OF.get(room_of(file)) == TOOLS:
            names = {name.split(".")[1] for name in imports_of(file) if name.startswith("kiln.")}
            uses.setdefault(room_of(file), set()).update((names & FLOORS[TOOLS]) - {room_of(file)})
    while uses:
        free = {room for room, others in uses.items() if not others & uses.keys()}
        assert free, f"these tools import each other in a circle: {sorted(uses)}"
        uses = {room: others for room, others in uses.items() if room not in free}


@pytest.mark.parametrize("file", [file for file in FILES if FLOOR_OF.get(room_of(file)) == 0], ids=str)
def test_the_ground_floor_needs_only_the_standard_library(file: Path) -> None:
    roots = {name.split(".")[0] for name in imports_of(file)}
    assert roots <= {*sys.stdlib_module_names, "kiln"}
