"""``kiln rerender`` writes a feedstock's files, or checks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MatrixDrift
from kiln.cli.main import run
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: '1'\n"


def test_written_files_pass_the_check_until_the_recipe_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = builders.feedstock(tmp_path, META + "requirements:\n  host:\n    - zlib\n", variants="zlib:\n  - '1'\n")
    words = ["-C", str(feedstock.root), "rerender"]
    assert run(words) == 0
    assert run([*words, "--check"]) == 0
    assert "1 config in" in capsys.readouterr().out
    (feedstock.recipe / "conda_build_config.yaml").write_text("zlib:\n  - '1'\n  - '2'\n")
    before = sorted(feedstock.config_folder.iterdir())
    assert run([*words, "--check"]) == MatrixDrift.exit_code
    assert "is not up to date with the recipe" in capsys.readouterr().err
    assert sorted(feedstock.config_folder.iterdir()) == before


HEAD_V1 = "package:\n  name: a\n  version: '1'\n"
TEST_V1 = "tests:\n  - python:\n      imports: [a]\n      python_version: '=.*'\n"


STAGED_V1 = """\
recipe:
  name: a
  version: '1'
outputs:
  - staging: {name: a b}
  - package: {name: c}
    inherit: a b
"""


@pytest.mark.parametrize(
    ("recipe", "variants", "what"),
    [
        ("package:\n  name: A b\n  version: '1'\n", "", "invalid package name 'a b'"),
        (HEAD_V1 + TEST_V1, "", "recipe.yaml:7:23: '=.*' is not a version of Python"),
        (HEAD_V1 + "build:\n  string: x${{ letter }}\n", "", "letter is not defined"),
        (HEAD_V1 + "build:\n  string: a b\n", "", "invalid build string 'a b'"),
        (HEAD_V1 + "build:\n  dynamic_linking: {overlinking_behavior: warn}\n", "", "overlinking_behavior is 'warn'"),
        (HEAD_V1 + "source:\n  path: .\n  target_directory: ../a\n", "", "the folder of a source is '../a'"),
        (STAGED_V1, "", "the name 'a b' of the staging output is invalid"),
        (HEAD_V1 + "requirements:\n  run: ['${{ letter }}']\n", "letter: {a: 1}\n", "are not a list"),
        (HEAD_V1 + "requirements:\n  run: ['${{ letter }}']\n", "- letter\n", "a mapping of keys to values"),
    ],
)
def test_what_cannot_be_rendered_is_refused_before_anything_is_written(
    recipe: str, variants: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"recipe/recipe.yaml": recipe, "recipe/variants.yaml": variants}
    feedstock = builders.feedstock(tmp_path, "", "", f"{LINUX_ONLY}conda_build_tool: rattler-build\n", files)
    feedstock.meta.unlink()
    assert run(["-C", str(tmp_path), "rerender", "--no-pinning"]) != 0
    assert what in capsys.readouterr().err
    assert not feedstock.config_folder.exists()


def test_an_expression_of_github_in_the_matrix_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = META + "build:\n  script: echo {{ letter }}\n"
    feedstock = builders.feedstock(
        tmp_path, meta, "letter:\n  - 'a${{ github.token }}'\n  - b\n", files={"build-locally.py": "import kiln\n"}
    )
    assert run(["-C", str(feedstock.root), "rerender"]) != 0
    assert "is an expression of GitHub Actions" in capsys.readouterr().err
    assert not feedstock.config_folder.exists()
