"""Features that no build honors are refused, each with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.errors import RecipeFault
from kiln.recipe_v1.recipe import RecipeV1
from kiln.recipe_v1.unsupported_features import require_buildable

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = """\
schema_version: 1
recipe:
  name: whole
  version: "1"
outputs:
  - staging:
      name: s
    build:
      script:
        interpreter: pyton
        content: [pass]
  - package:
      name: p
    build:
      script:
        interpreter: python
        content: [pass]
    tests:
      - if: linux
        then:
          - script:
              interpreter: brush
              content: [ls]
      - script:
          interpreter: powershell
          content: [Get-Item .]
          secrets: [TOKEN]
"""


def read(folder: Path, text: str) -> RecipeV1:
    (folder / "recipe.yaml").write_text(text)
    return RecipeV1.read(folder / "recipe.yaml")


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        require_buildable(read(tmp_path, RECIPE))
    faults = [caught.value, *caught.value.others]
    assert [(fault.at.line, fault.at.column) for fault in faults if fault.at] == [
        (10, 22),
        (22, 28),
        (25, 24),
        (27, 11),
    ]
    assert "python" in caught.value.hint
    words = ("pyton", "brush", "powershell", "secrets of a test")
    assert [word in fault.what for word, fault in zip(words, faults, strict=True)] == [True] * 4


def test_all_other_kinds_of_tests_and_scripts_are_built(tmp_path: Path) -> None:
    text = (
        RECIPE.replace("          secrets: [TOKEN]\n", "")
        .replace("pyton", "${{ interpreter }}")
        .replace("brush", "nu")
        .replace("powershell", "bash")
    )
    require_buildable(read(tmp_path, f"{text}      - downstream: other\n"))
