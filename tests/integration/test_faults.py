"""Faults of a feedstock end in one message, and names in it become no paths elsewhere and no commands to a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base import errors
from kiln.base.errors import RecipeFault, VariantFault
from tests import builders, warm
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.base.errors import KilnError

META = "package:\n  name: app\n  version: 1\n"
SUMMARY = f"{META}about:\n  summary: "
VARIABLE = "{% set version = 1 %}\n" + META.replace(": 1", ": {{ versoin }}")
ZIPPED = "zip_keys:\n  -\n    - left\n    - right\nleft:\n  - 1\n  - 2\nright:\n  - 1\n  - 2\n  - 3\n"
# What is wrong: the recipe, its variants, the error, where it stands, and a word of the advice.
FAULTS: dict[str, tuple[str, str, type[KilnError], str, str]] = {
    "malformed YAML": (META + "about: [unclosed\n", "", errors.MalformedYaml, "meta.yaml:", ""),
    "selector": (META + "build:\n  skip: true  # [lunix]\n", "", errors.SelectorFault, "meta.yaml:5:", "linux"),
    "variable": (VARIABLE, "", errors.TemplateFault, "meta.yaml:4:", "did you mean 'version'"),
    "Python": (SUMMARY + "{{ ''.__class__.__mro__ }}\n", "", errors.UnsafeTemplate, "meta.yaml:5:", ""),
    "files": (SUMMARY + "{{ load_file_data('/etc/passwd') }}\n", "", errors.UnsafeTemplate, "meta.yaml:5:", ""),
    "zip_keys": (META, ZIPPED, VariantFault, "conda_build_config.yaml:8:", "the same number of values"),
    "a list like a selector": (META, "left: [1, 2]\n", VariantFault, "conda_build_config.yaml:1:", "a line of its own"),
}
NAMED = f"{META}build:\n  number: 0\noutputs:\n  - name: NAME\n    version: VERSION\n    build:\n      string: BUILD\n"
GOOD = {"NAME": "small-one", "VERSION": "1", "BUILD": "h_0"}
COMMANDS = (("rerender",), ("matrix",), ("render",), ("build", "--all", "--container", "none"))


def kiln(root: Path, *words: str) -> tuple[int, str]:
    """Run a command; returns its exit code, and all that it printed."""
    ended = warm.kiln("-C", str(root), *words, merged=True)
    return ended.returncode, ended.stdout


def feedstock(folder: Path, *, platform: str = "linux-64", config: str = "linux_64_", **fields: str) -> Path:
    """Write a feedstock of one config, with these values in the places of good ones."""
    meta, variants = NAMED, f"target_platform:\n- {platform}\n"
    for name, value in {**GOOD, **fields}.items():
        meta = meta.replace(name, value)
    return builders.feedstock(folder, meta, variants, configs={config: variants}).root


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_told_with_its_place_and_an_advice(tmp_path: Path, name: str) -> None:
    meta, variants, error, place, advice = FAULTS[name]
    for path, text in {"meta.yaml": meta, "conda_build_config.yaml": variants, "../conda-forge.yml": "{}\n"}.items():
        (tmp_path / "recipe").mkdir(exist_ok=True)
        (tmp_path / "recipe" / path).write_text(text)
    code, said = kiln(tmp_path, "rerender")
    assert code == error.exit_code, said
    assert place in said
    assert advice in said
    assert "Traceback" not in said
    assert not (tmp_path / ".ci_support").exists()


def test_an_unknown_config_names_those_near_and_a_missing_recipe_its_place(tmp_path: Path) -> None:
    code, said = kiln(feedstock(tmp_path / "a"), "build", "--rehearse", "linux_46_")
    assert (code, "linux_64_" in said) == (errors.UnknownConfig.exit_code, True)
    code, said = kiln(tmp_path, "matrix")
    assert (code, "recipe/meta.yaml" in said) == (errors.FeedstockNotFound.exit_code, True)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("platform", ["../../../../../pwned", '"a\\nb"', "linux-65"])
def test_an_unknown_platform_is_refused_where_it_stands(tmp_path: Path, words: tuple[str, ...], platform: str) -> None:
    code, said = kiln(feedstock(tmp_path / "one" / "feedstock", platform=platform), *words)
    assert code == VariantFault.exit_code, said
    assert ".yaml:2:3: " in said or ".yaml:1:1: " in said
    assert [path.name for path in (tmp_path / "one").iterdir()] == ["feedstock"]


@pytest.mark.parametrize("words", COMMANDS[2:], ids=" ".join)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("NAME", ".."),
        ("NAME", "--help"),
        ("NAME", '"a\\n"'),
        ("VERSION", '"1\\u202e"'),
        ("VERSION", '"1\\x1b[2J"'),
        ("BUILD", ".._{{ PKG_HASH }}~"),
    ],
)
def test_what_conda_does_not_allow_in_a_name_is_refused(
    tmp_path: Path, words: tuple[str, ...], field: str, value: str
) -> None:
    code, said = kiln(feedstock(tmp_path, **{field: value}), *words)
    assert code == RecipeFault.exit_code, said
    assert "recipe/meta.yaml:" in said
    assert not {"\x1b", "\u202e"} & set(said)


@pytest.mark.parametrize("config", ["..", "--help", "linux_64_\u202ea", "linux_64_\x1b[2J"])
def test_a_file_whose_name_can_be_no_configs_is_refused(tmp_path: Path, config: str) -> None:
    root = feedstock(tmp_path, config=config)
    for words in COMMANDS[2:]:
        code, said = kiln(root, *words)
        assert code == VariantFault.exit_code, said
        assert not {"\x1b", "\u202e"} & set(said)


def test_nothing_that_a_recipe_says_moves_the_cursor(tmp_path: Path) -> None:
    root = feedstock(tmp_path)
    (root / "recipe" / "meta.yaml").write_text(f'{META}build:\n  script: "echo \\e[2J\\u202e"\n')
    code, said = kiln(root, "render")
    assert code == 0
    assert "echo \\x1b[2J\\u202e" in said


def test_a_fleet_command_that_came_with_the_feedstock_is_not_followed(tmp_path: Path) -> None:
    """It names files of credentials, which may name programs."""
    root = builders.feedstock(tmp_path, "package: {name: small, version: 1}\n").root
    folder = root / "build_artifacts" / "fleet" / "r1"
    folder.mkdir(parents=True)
    (folder / "command.json").write_text('{"provider": "local", "words": ["walk"]}')
    refused = "may have come with the feedstock, and is not followed"
    assert refused in kiln(root, "fleet", "resume", "r1")[1]  # there is no git to say where it comes from
    git(root, "init", "-q")
    assert "command.json is damaged" in kiln(root, "fleet", "resume", "r1")[1]
    git(root, "add", "--force", "build_artifacts")
    for words in (("resume", "r1"), ("down", "r1")):
        assert refused in kiln(root, "fleet", *words)[1]
