"""What the documentation says of the house is so: its links lead somewhere, its floor plan is the one that is held."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.test_floors import FILES, FLOOR_OF, room_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_inside_the_project_leads_to_a_file(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    missing = [each for each in targets if "://" not in each and not (page.parent / each).exists()]
    assert missing == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if "docs" in page.relative_to(ROOT).parts]
    assert [page for page in pages if page != "README.md" and f"({page})" not in index] == []


def test_the_floor_plan_shows_every_room_on_its_floor() -> None:
    rows = re.findall(r"^\| (\d) \| `(\w+)` \|", (ROOT / "docs/explanation/design.md").read_text(), re.MULTILINE)
    assert {room: int(floor) for floor, room in rows} == {room: FLOOR_OF.get(room) for room in map(room_of, FILES)}
