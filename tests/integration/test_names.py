"""Names from recipes, variant files and file names become no paths elsewhere, and no commands to a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import RecipeFault, VariantFault
from tests import builders, warm

ROOT = Path(__file__).parents[2]
RECIPE = """\
package:
  name: small
  version: 1
build:
  number: 0
outputs:
  - name: {name}
    version: {version}
    build:
      string: {build}
"""
GOOD = {"name": "small-one", "version": "1", "build": "h_0"}
CONFIG = "target_platform:\n- {platform}\n"
COMMANDS = (("rerender",), ("matrix",), ("render",), ("build", "--all", "--container", "none"))


def kiln(root: Path, *words: str) -> tuple[int, str]:
    """Run a command; returns its exit code, and all that it printed."""
    ended = warm.kiln("-C", str(root), *words, merged=True)
    return ended.returncode, ended.stdout


def feedstock(folder: Path, *, platform: str = "linux-64", config: str = "linux_64_", **fields: str) -> Path:
    """Write a feedstock of one config, with these values in the places of good ones."""
    variants = CONFIG.format(platform=platform)
    files = {f".ci_support/{config}.yaml": variants}
    return builders.feedstock(folder, RECIPE.format(**{**GOOD, **fields}), variants, files=files).root


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("platform", ["../../../../../pwned", "linux", '"a\\nb"', "linux-65"])
def test_an_unknown_platform_is_refused_where_it_stands(tmp_path: Path, words: tuple[str, ...], platform: str) -> None:
    root = feedstock(tmp_path / "one" / "feedstock", platform=platform)
    code, said = kiln(root, *words)
    assert code == VariantFault.exit_code, said
    assert ".yaml:2:3: " in said or ".yaml:1:1: " in said
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["feedstock"]


@pytest.mark.parametrize("words", COMMANDS[2:], ids=" ".join)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ".."),
        ("name", "--help"),
        ("name", '"a\\n"'),
        ("name", '"a\\u202eb"'),
        ("version", '"1\\u202e"'),
        ("version", '"1\\x1b[2J"'),
        ("version", "x" * 65),
        ("build", ".._{{ PKG_HASH }}~"),
        ("build", '"a\\n"'),
    ],
)
def test_what_conda_does_not_allow_in_a_name_is_refused(
    tmp_path: Path, words: tuple[str, ...], field: str, value: str
) -> None:
    code, said = kiln(feedstock(tmp_path, **{field: value}), *words)
    assert code == RecipeFault.exit_code, said
    assert "recipe/meta.yaml:" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


@pytest.mark.parametrize("config", ["..", "--help", "linux_64_\u202ea", "linux_64_\x1b[2J"])
def test_a_file_whose_name_can_be_no_configs_is_refused(tmp_path: Path, config: str) -> None:
    root = feedstock(tmp_path, config=config)
    for words in COMMANDS[2:]:
        code, said = kiln(root, *words)
        assert code == VariantFault.exit_code, said
        assert "\x1b" not in said
        assert "\u202e" not in said


def test_nothing_that_a_recipe_says_moves_the_cursor(tmp_path: Path) -> None:
    recipe = 'package:\n  name: small\n  version: 1\nbuild:\n  script: "echo \\e[2J\\u202e"\n'
    root = builders.feedstock(
        tmp_path, recipe, files={".ci_support/linux_64_.yaml": CONFIG.format(platform="linux-64")}
    ).root
    code, said = kiln(root, "render")
    assert code == 0
    assert "echo \\x1b[2J\\u202e" in said
