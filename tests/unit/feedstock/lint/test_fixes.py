from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.feedstock.lint import fixes
from kiln.feedstock.lint.model import LintedRecipe
from kiln.feedstock.lint.texts import FORMER_INDEX, INDEX
from tests.unit.feedstock.lint.recipes import META, NOARCH, OUTPUTS, RECIPE, changed, feedstock, messages, name_of

if TYPE_CHECKING:
    from pathlib import Path

REQUIREMENTS = "  host:\n    - zlib >=1.2,<2\n"
SOURCE = """\
source:
  url: https://example.org/{{ name }}-{{ version }}.tar.gz
  sha256: 0000000000000000000000000000000000000000000000000000000000000000
"""

COMPILER = '    - {{ compiler("c") }}\n    - {{ stdlib("c") }}\n'
COMPILER_V1 = COMPILER.replace("{{", "${{")

# A recipe, the text to replace, its replacement, and what the corrected recipe has in its place.
CORRECTED = [
    (META, "{{ name }}-", "{{name}}-", "{{ name }}-"),
    (RECIPE, "${{ name }}-", "${{name  }}-", "${{ name }}-"),
    (META, "true  # [win]", "true #[ win]", "true  # [win]"),
    (META, "true  # [win]", "true      #[win] why", "true      # [win] why"),
    (META, "true  # [win]", "true  # needs cl.exe, see #12 [win] why", "true  # [win] needs cl.exe, see #12 why"),
    (META, "true  # [win]", "true   # any # [win]", "true   # [win] any"),
    (META, "# [win]", "# [win and py27]", "# [win and py==27]"),
    (META, "# [win]", "# [py37 or py310]", "# [py==37 or py==310]"),
    (META, '{% set name = "small" %}', '{%set name="small"%}', '{% set name = "small" %}'),
    (META, "zlib >=1.2,<2", "zlib >= 1.2 , < 2", "zlib >=1.2,<2"),
    (META, "zlib >=1.2,<2", "'zlib>=1.2'  # why", "'zlib >=1.2'  # why"),
    (RECIPE, "zlib >=1.2,<2", "zlib>=1.2,<2", "zlib >=1.2,<2"),
    (OUTPUTS, "      run:\n", "      run:\n        - zlib>=1\n", "      run:\n        - zlib >=1\n"),
    (META, '"{{ version }}"', "{{ version }}  # why", '"{{ version }}"  # why'),
    (META, "zlib >=1.2,<2", "zlib 1.2=h_0", "zlib 1.2 h_0"),
    (META, "zlib >=1.2,<2", "zlib>=1.2 h*", "zlib >=1.2 h*"),
    (META, "zlib >=1.2,<2", "zlib=*=h_0", "zlib * h_0"),
    (META, "zlib >=1.2,<2", "zlib==1.2=h_0  # why", "zlib 1.2 h_0  # why"),
    (META, "zlib >=1.2,<2", "zlib[version='>=1.2, <2',build=h_*]", "zlib >=1.2,<2 h_*"),
    (RECIPE, "zlib >=1.2,<2", 'zlib[version=">=1.2,<2"]', "zlib >=1.2,<2"),
    (META, "  number: 0\n", "", "  number: 0\n"),
    (RECIPE, "  number: 0\n", "  number:  # why\n", "  number: 0  # why\n"),
    (RECIPE, "build:\n  number: 0\n", "build:\n", "build:\n  number: 0\n"),
    (META, "license: MIT", "license: mit  # why", "license: MIT  # why"),
    (
        RECIPE,
        "license: MIT",
        "license: apache 2.0 OR (MIT and 'mit-0')".replace("'", ""),
        "license: Apache-2.0 OR (MIT and MIT-0)",
    ),
    (META, "https://example.org/", f"{FORMER_INDEX}packages/", f"{INDEX}packages/"),
    (META, COMPILER, '    - {{ compiler("c") }}  # [linux]\n', COMPILER.replace("\n", "  # [linux]\n")),
    (RECIPE, COMPILER_V1, '    - ${{ compiler("c") }}\n', COMPILER_V1),
    (OUTPUTS, '        - {{ stdlib("c") }}\n', "", '        - {{ stdlib("c") }}\n'),
    (RECIPE, 'version: "1.10"', "version: 1.10", 'version: "1.10"'),
    (META, "\n    - somebody", " somebody", "\n    - somebody"),
    (META, "  recipe-m", "  feedstock-name: a-feedstock\n  recipe-m", "  feedstock-name: a\n  recipe-m"),
    (META, "    - somebody\n", "    - somebody", "    - somebody\n"),
    (META, "    - somebody\n", "    - somebody\n\n\n", "    - somebody\n"),
]
# Messages without a certain correction.
KEPT = [
    (META, "zlib >=1.2,<2", "zlib=1.2=0"),
    (META, "true  # [win]", "true  [win]"),
    (META, "true  # [win]", "true  # see [1] [win]"),
    (META, "true  # [win]", "true  # (old) [win]"),
    (META, "{{ name }}-", "{{- name }}-"),
    (META, "recipe-maintainers:\n    - somebody", "recipe-maintainers: a, b"),
    (META, "license: MIT", "license: unknown"),
    (META, "license: MIT", "license: mit OR Foo"),
    (RECIPE, "zlib >=1.2,<2", "zlib[version='>=1',channel=x]"),
    (RECIPE, COMPILER_V1, "    - if: unix\n      then: ${{ compiler('c') }}\n"),
]


def corrected(folder: Path, recipe: str) -> str:
    return fixes.correct_recipe(feedstock(folder, recipe), recipe).text


@pytest.mark.parametrize(("recipe", "old", "new", "expected"), CORRECTED)
def test_a_fixable_message_is_corrected_and_nothing_else(
    tmp_path: Path, recipe: str, old: str, new: str, expected: str
) -> None:
    broken = changed(recipe, old, new)
    correction = fixes.correct_recipe(feedstock(tmp_path, broken), broken)
    assert correction.text == changed(recipe, old, expected)
    assert correction.fixed
    assert not messages(tmp_path, correction.text)


@pytest.mark.parametrize(("recipe", "old", "new"), KEPT)
def test_what_has_no_one_answer_stays(tmp_path: Path, recipe: str, old: str, new: str) -> None:
    broken = changed(recipe, old, new)
    correction = fixes.correct_recipe(feedstock(tmp_path, broken), broken)
    assert correction.text == broken
    assert messages(tmp_path, broken)


def test_sections_move_with_their_comments_and_blank_lines_stay(tmp_path: Path) -> None:
    commented = changed(META, "about:\n", "# What it is.\nabout:\n")
    moved = changed(commented, "# What it is.\nabout:", "@").replace("@", "# What it is.\nabout:")
    assert moved == commented
    about = commented[commented.index("# What it is.") : commented.index("\nextra:")]
    broken = changed(commented.replace(about + "\n", ""), "test:\n", about + "\ntest:\n")
    assert broken != commented
    assert corrected(tmp_path, broken) == commented


def test_requirements_are_ordered(tmp_path: Path) -> None:
    run = "  run:\n    - zlib  # [linux]\n"
    broken = changed(META, REQUIREMENTS + run, run + REQUIREMENTS)
    assert corrected(tmp_path, broken) == META


def test_a_section_is_not_moved_above_the_definition_that_it_uses(tmp_path: Path) -> None:
    late = changed(META, SOURCE + "\n", "")
    late = changed(
        late, "test:\n", '{% set digest = "0" %}\n\n' + SOURCE.replace("0" * 64, "{{ digest }}") + "\ntest:\n"
    )
    text = corrected(tmp_path, late)
    recipe = LintedRecipe.from_text(text, name_of(text))
    assert recipe.root == LintedRecipe.from_text(late, name_of(late)).root


def test_line_breaks_of_windows_stay(tmp_path: Path) -> None:
    windows = META.replace("\n", "\r\n")
    broken = changed(windows, "zlib >=1.2,<2", "zlib>=1.2,<2").rstrip("\r\n")
    assert corrected(tmp_path, broken) == windows


def test_a_correction_that_would_change_values_is_withdrawn(tmp_path: Path) -> None:
    # The duplicate key cannot move: the first of two counts for the linter, the last one for conda-build.
    broken = changed(NOARCH, "requirements:", "about:\n  home: https://example.com\n\nrequirements:")
    assert corrected(tmp_path, broken) == broken
