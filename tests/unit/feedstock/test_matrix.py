from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kiln.base.errors import MalformedYaml, RecipeFault, TemplateFault, VariantFault
from kiln.feedstock import config_file, matrix, rerender
from kiln.feedstock.config_file import ci_support_text
from kiln.feedstock.matrix import config_name
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests import builders
from tests.builders import FIXTURES, LINUX_ONLY, NAMES, PINNING, copied, expected

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


RECIPE = """\
package:
  name: app
  version: "1"
requirements:
  host:
    - alpha
    - beta
    - gamma
"""
LONGEST = 259  # characters of a path on Windows, which GitHub's runner spends on two folders of the feedstock


@st.composite
def variants(draw: st.DrawFn) -> dict[str, Any]:
    """Values of three keys that the recipe uses, two of them zipped."""
    size = draw(st.integers(1, 4))
    values = st.lists(st.sampled_from(["1", "2", "x", "1.*", "a b"]), min_size=size, max_size=size)
    gamma = draw(st.lists(st.sampled_from(["g", "h", "None"]), min_size=1, max_size=3))
    zipped = {"alpha": draw(values), "beta": draw(values), "zip_keys": [["alpha", "beta"]]}
    return zipped | {"gamma": gamma}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(variants())
def test_configs_are_the_distinct_combinations_and_survive_their_files(tmp_path: Path, given: dict[str, Any]) -> None:
    feedstock = builders.feedstock(tmp_path, RECIPE, ci_support_text(given))
    configs = matrix.configs(feedstock)
    rows = set(zip(given["alpha"], given["beta"], strict=True))
    combinations = {(a, b, gamma) for a, b in rows for gamma in given["gamma"]}
    result = [tuple(config.variant[key][0] for key in ("alpha", "beta", "gamma")) for config in configs]
    assert sorted(result) == sorted(combinations)
    assert len({config.name for config in configs}) == len(configs)
    rerender.write_ci_support(feedstock, configs)
    for config, again in zip(
        configs, config_file.read_configs(feedstock, [config.name for config in configs]), strict=True
    ):
        assert (again.variant, again.zip_keys, again.pin_run_as_build) == (
            config.variant,
            config.zip_keys,
            config.pin_run_as_build,
        )
        assert all(len({len(again.variant[key]) for key in group}) == 1 for group in again.zip_keys)
    assert not rerender.ci_support_drift(feedstock, configs)


def test_files_that_no_config_has_are_removed_and_others_left(tmp_path: Path) -> None:
    feedstock = builders.feedstock(
        tmp_path, RECIPE, files={".ci_support/old.yaml": "a: b\n", ".ci_support/migrations/x.yaml": "{}\n"}
    )
    configs = matrix.configs(feedstock)
    before = rerender.ci_support_drift(feedstock, configs)
    assert (before.missing, before.stale) == (("linux_64_.yaml",), ("old.yaml",))
    assert "--- .ci_support/old.yaml" in before.lines
    rerender.write_ci_support(feedstock, configs)
    assert sorted(path.name for path in feedstock.config_folder.iterdir()) == ["linux_64_.yaml", "migrations"]
    assert rerender.write_ci_support(feedstock, configs).missing == ()


def test_zipped_keys_of_different_lengths_are_placed(tmp_path: Path) -> None:
    variants = "zip_keys:\n  -\n    - alpha\n    - beta\nalpha:\n  - 1\n  - 2\nbeta:\n  - 1\n"
    with pytest.raises(VariantFault) as caught:
        matrix.configs(builders.feedstock(tmp_path, RECIPE, variants))
    assert str(caught.value.at).startswith("recipe/conda_build_config.yaml:")
    assert "alpha has 2" in caught.value.why


def test_what_a_migration_leaves_uneven_is_placed_where_the_key_was_given(tmp_path: Path) -> None:
    migration = "migrator_ts: 1\n__migrator:\n  kind: version\nalpha:\n  - 2\n  - 3\n"
    zipped = "zip_keys:\n  -\n    - alpha\n    - beta\nbeta:\n  - 1\nalpha:\n  - 1\n"
    files = {".ci_support/migrations/more.yaml": migration}
    with pytest.raises(VariantFault) as caught:
        matrix.configs(builders.feedstock(tmp_path, RECIPE, zipped, files=files))
    assert str(caught.value.at) in {"recipe/conda_build_config.yaml:5:1", "recipe/conda_build_config.yaml:7:1"}


def test_a_migration_that_lacks_a_key_of_its_group_is_reported_where_it_is_written(tmp_path: Path) -> None:
    pinning = tmp_path / "pin" / "conda_build_config.yaml"
    pinning.parent.mkdir()
    pinning.write_text("alpha:\n  - 1\nbeta:\n  - 2\nzip_keys:\n  -\n    - alpha\n    - beta\n")
    migration = "__migrator:\n  operation: key_add\n  primary_key: alpha\nmigrator_ts: 1\nalpha:\n  - 3\n"
    found = builders.feedstock(tmp_path / "f", RECIPE, files={".ci_support/migrations/m.yaml": migration})
    with pytest.raises(VariantFault, match="does not fit the variants") as caught:
        matrix.configs(found, pinning)
    assert str(caught.value.at) == ".ci_support/migrations/m.yaml:5:1"
    assert caught.value.why == "it has no values of beta, which zip_keys join with its alpha"


def test_a_fault_of_some_platforms_names_all_of_them(tmp_path: Path) -> None:
    recipe = 'package:\n  name: a\n  version: "1"\nrequirements:\n  host:\n    - if: unix\n      then: b ${{ level }}\n'
    found = builders.feedstock(tmp_path, recipe, forge="", v1=True)
    with pytest.raises(TemplateFault) as caught:
        matrix.configs(found)
    assert caught.value.why == "level is not defined; only for linux-64, osx-64"
    assert caught.value.hint == 'give level a value in a variant file, or a default: level | default("")'
    assert not caught.value.others


def test_a_list_that_conda_build_takes_for_a_selector_is_reported(tmp_path: Path) -> None:
    with pytest.raises(VariantFault) as caught:
        matrix.configs(builders.feedstock(tmp_path, RECIPE, "beta:\n  - 1\nalpha: [1, 2]\n"))
    assert str(caught.value.at) == "recipe/conda_build_config.yaml:3:8"


def test_what_only_another_tool_builds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault):
        matrix.configs(builders.feedstock(tmp_path, RECIPE, forge="conda_build_tool: rattler-build\n"))


@pytest.mark.parametrize(("key", "refused"), [("bot", False), ("build_platform", True)])
def test_a_setting_that_shapes_no_config_may_be_given_twice(tmp_path: Path, key: str, refused: bool) -> None:
    feedstock = builders.feedstock(tmp_path, RECIPE, forge=f"{LINUX_ONLY}{key}:\n  a: b\n{key}:\n  a: c\n")
    with pytest.raises(MalformedYaml) if refused else nullcontext():
        assert matrix.configs(feedstock)
        assert not rerender.planned_workflow(feedstock, ()).texts


def test_no_settings_are_conda_forges_own(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, RECIPE)
    (tmp_path / "conda-forge.yml").unlink()
    assert [config.platform for config in matrix.configs(feedstock)] == ["linux-64", "osx-64", "win-64"]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"python": ["3.11.* *_cpython"], "cuda": ["12.9"], "zlib": ["1"]}, "linux_64_cuda12.9python3.11.____cpython"),
        ({"target_platform": ["linux-64"]}, "linux_64_"),
        ({"cuda": ['<1>:2/3|4?*,"']}, "linux_64_cuda1234_"),
    ],
)
def test_a_name_is_the_platform_and_each_looping_key_with_its_value(config: dict[str, Any], name: str) -> None:
    keys = config.keys() & {"python", "cuda", "target_platform"}
    assert config_name("linux_64", config, keys, "small") == name


@pytest.mark.parametrize("feedstock", ["small", "a-name-that-takes-more-of-the-path"])
def test_a_name_that_is_too_long_for_windows_ends_in_a_hash_of_itself(feedstock: str) -> None:
    folder = f"C:/Users/runnerx/_work/{feedstock}-feedstock/{feedstock}-feedstock/.ci_support/"
    names = [config_name("linux_64", {"key": [value * 300]}, ["key"], feedstock) for value in "ab"]
    assert names[0][-10:-8] == names[1][-10:-8] == "_h"
    assert names[0][-8:] != names[1][-8:]
    assert len(f"{folder}{names[0]}.yaml") == LONGEST
    room = LONGEST - len(f"{folder}linux_64_key.yaml")
    assert config_name("linux_64", {"key": ["a" * room]}, ["key"], feedstock) == f"linux_64_key{'a' * room}"


@pytest.mark.parametrize("name", NAMES)
def test_the_files_are_conda_smithys(name: str, tmp_path: Path) -> None:
    target = expected(name)
    result = {
        f"{config.name}.yaml": config_file.config_file_text(config)
        for config in matrix.configs(copied(name, tmp_path), PINNING)
    }
    assert target["ci_support"].items() <= result.items()
    assert not target["complete"] or result.keys() == target["ci_support"].keys()


@pytest.mark.parametrize("name", [name for name in NAMES if expected(name)["render"]])
def test_the_outputs_are_conda_builds(name: str, tmp_path: Path) -> None:
    feedstock, target = copied(name, tmp_path), expected(name)
    builders.write_files(feedstock.config_folder, target["ci_support"])
    for config, outputs in target["render"].items():
        result = render.as_plain_data(render.render(feedstock, config_file.read_config(feedstock, config)))
        assert sorted(result, key=identity) == sorted(outputs, key=identity)


def identity(output: dict[str, Any]) -> tuple[str, str, str]:
    return output["name"], output["version"], output["build"]


RECIPES = FIXTURES / "recipes"


@pytest.fixture(params=["tensorflow", "serving"])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Feedstock, dict[str, Any]]:
    """A recipe where it may be written, and what the reference tools make of it without any pinning."""
    root = tmp_path / f"{request.param}-feedstock"
    shutil.copytree(RECIPES / request.param, root)
    return recipe_feedstock.load(root), json.loads((root / "expected.json").read_text())


def test_the_configs_are_conda_smithys(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    result = {f"{config.name}.yaml": config_file.config_file_text(config) for config in matrix.configs(feedstock)}
    assert result == expected["ci_support"]


def test_the_outputs_are_conda_builds_own(recipe: tuple[Feedstock, dict[str, Any]]) -> None:
    feedstock, expected = recipe
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    for config, outputs in expected["render"].items():
        result = render.as_plain_data(render.render(feedstock, config_file.read_config(feedstock, config)))
        assert {item["name"]: item for item in result} == {item["name"]: item for item in outputs}
        assert len(result) == len(outputs)
