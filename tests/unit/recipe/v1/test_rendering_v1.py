"""A config of a recipe.yaml is rendered into the same types as one of a meta.yaml."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine import metadata
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.run.runner import caller_variable_names
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig

HEAD = "package:\n  name: P\n  version: '1.2'\n"
CONFIG = "python:\n- 3.11.* *_cpython\nflag:\n- false\nnumber:\n- 13\ntext:\n- '13'\ntarget_platform:\n- linux-64\n"


CIRCLE = """recipe: {name: r, version: '1'}
outputs:
  - package:
      name: a
    requirements:
      run: ["${{ pin_subpackage('b', exact=True) }}"]
  - package:
      name: b
    requirements:
      run: ["${{ pin_subpackage('a', exact=True) }}"]
"""


def feedstock(folder: Path, recipe: str, config: str = CONFIG, forge: str = "") -> Feedstock:
    files = {"recipe/recipe.yaml": recipe, ".ci_support/linux_64_.yaml": config}
    builders.feedstock(folder, "", "", f"{LINUX_ONLY}{forge}conda_build_tool: rattler-build\n", files)
    for name in ("meta.yaml", "conda_build_config.yaml"):
        (folder / "recipe" / name).unlink()
    return recipe_feedstock.load(folder)


def rendered(folder: Path, recipe: str, config: str = CONFIG) -> RenderedConfig:
    result = feedstock(folder, recipe, config)
    return render.render(result, config_file.read_config(result, "linux_64_"))


def one(folder: Path, recipe: str, config: str = CONFIG) -> Output:
    (output,) = rendered(folder, recipe, config).outputs
    return output


def test_an_output_has_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = (
        HEAD
        + """
source:
  - url: https://example.org/p.tar.gz
    sha256: abc
    patches: [a.patch]
    target_directory: p
  - git: https://example.org/p.git
    tag: v1
build:
  number: 3
  script: [make, make install]
  variant:
    down_prioritize_variant: 2
  python:
    entry_points: [p = p:main]
  dynamic_linking:
    binary_relocation: false
requirements:
  build: [cmake]
  host: [python, "libfoo =1.2"]
  run: [python]
  run_constraints: [other >1]
  run_exports:
    strong: [p >=1]
    weak_constraints: [q >=2]
tests:
  - python:
      imports: [p]
  - script: [p --version]
    requirements:
      run: [grep]
    files:
      recipe: [test.c]
about:
  homepage: https://example.org
  license_file: [LICENSE, COPYING]
"""
    )
    result = rendered(tmp_path, recipe)
    (output,) = result.outputs
    assert (output.name, output.version, output.build_number, output.subdir) == ("p", "1.2", 3, "linux-64")
    assert output.requirements.host == ("python", "libfoo 1.2.*")
    assert output.run_exports == {"strong": ("p >=1",), "weak_constrains": ("q >=2",)}
    assert output.track_features == ("p-p-0", "p-p-1")
    assert (output.script.lines, output.entry_points) == (("make", "make install"), ("p = p:main",))
    python, script = output.tests
    assert (python.imports, python.pip_check) == (("p",), True)
    assert (script.script.lines, script.requires, script.files) == (("p --version",), ("grep",), ("test.c",))
    assert output.about == {"home": "https://example.org", "license_file": ("LICENSE", "COPYING")}
    assert output.binary_relocation is False
    assert [(source.url, source.git_url, source.git_rev, source.folder) for source in result.sources] == [
        (("https://example.org/p.tar.gz",), None, None, "p"),
        ((), "https://example.org/p.git", "v1", None),
    ]


@pytest.mark.parametrize(
    ("pin", "wanted"),
    [
        ("pin_subpackage('p', upper_bound='x')", "p >=1.2,<2.0a0"),
        ("pin_subpackage('p', lower_bound='x', upper_bound=None)", "p >=1"),
        ("pin_compatible('numpy', lower_bound='x.x', upper_bound='x')", "numpy >=2.3,<3.0a0"),
        ("pin_compatible('numpy', lower_bound='1.21', upper_bound='3')", "numpy >=1.21,<3"),
    ],
)
def test_a_pin_stays_open_until_it_is_closed(pin: str, wanted: str, tmp_path: Path) -> None:
    result = rendered(tmp_path, f'{HEAD}requirements:\n  host: [numpy 2.3.*]\n  run: ["${{{{ {pin} }}}}"]\n')
    assert result.outputs[0].requirements.run == (wanted.split(maxsplit=1)[0],)
    assert pins.close_static_pins(result).outputs[0].requirements.run == (wanted,)


def test_numbers_and_truth_values_of_a_config_keep_their_kind(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  number: ${{ 1 if flag else number + 1 }}\n  string: ${{ text ~ number }}_${{ hash }}\n"
    output = one(tmp_path, recipe)
    assert output.build_number == 14
    assert json.dumps(output.used) == '{"flag": false, "number": 13, "target_platform": "linux-64", "text": "13"}'
    assert output.build_string.startswith("1313_")
    assert render.as_plain_data(rendered(tmp_path, recipe))[0]["used"]["text"] == "13"


def test_a_config_that_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    result = feedstock(tmp_path, HEAD)
    assert config_file.config_file_text(config_file.read_config(result, "linux_64_")) == "".join(
        f"{key}:\n- {value}\n"
        for key, value in (
            ("flag", "false"), ("number", "13"), ("python", "3.11.* *_cpython"),
            ("target_platform", "linux-64"), ("text", "'13'"),
        )
    )  # fmt: skip


def test_a_build_string_says_languages_hash_and_number(tmp_path: Path) -> None:
    output = one(tmp_path, HEAD + "requirements:\n  host: [python]\n")
    assert output.used == {"python": "3.11.* *_cpython", "target_platform": "linux-64"}
    # sha1 of {"python": "3.11.* *_cpython", "target_platform": "linux-64"}
    assert output.build_string == "py311h82375c7_0"


def test_an_output_that_pins_another_exactly_has_its_build_in_the_hash(tmp_path: Path) -> None:
    recipe = """
recipe: {name: r, version: "1"}
outputs:
  - package: {name: tool}
    requirements:
      run: ["${{ pin_subpackage('lib-a', exact=True) }}"]
  - package: {name: lib-a}
    requirements:
      host: [zlib]
"""
    tools = [output for output in rendered(tmp_path, recipe, "zlib:\n- '1'\n- '2'\n").outputs if output.name == "tool"]
    libraries = [out for out in rendered(tmp_path, recipe, "zlib:\n- '1'\n- '2'\n").outputs if out.name == "lib-a"]
    assert len({library.build_string for library in libraries}) == 2
    assert [tool.used["lib-a"] for tool in tools] == [f"1 {library.build_string}" for library in libraries]
    for output in (*tools, *libraries):  # the file in the package gives the hash of the build string
        text = json.dumps(metadata.about_and_hash_edits(output)["hash_input"], sort_keys=True)
        assert hashlib.sha1(text.encode()).hexdigest()[:7] in output.build_string


@pytest.mark.parametrize(
    ("recipe", "what", "line"),
    [
        (HEAD + "requirements:\n  run:\n    - numpy 2\n", "'numpy 2' is not a requirement", 6),
        (HEAD + "requirements:\n  run:\n    - a b c d\n", "'a b c d' is not a requirement", 6),
        (HEAD + "requirements:\n  run:\n    - ${{ pin_subpackage('q', exact=True) }}\n", "pins 'q'", 2),
        (
            CIRCLE,
            "outputs pin each other exactly",
            4,
        ),
    ],
)
def test_what_cannot_be_rendered_names_its_line(recipe: str, what: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        rendered(tmp_path, recipe)
    assert what in caught.value.what
    assert caught.value.at is not None
    assert (caught.value.at.file, caught.value.at.line) == ("recipe/recipe.yaml", line)


def test_a_cross_compiled_config_sees_the_machine_that_builds(tmp_path: Path) -> None:
    recipe = HEAD + "requirements:\n  build:\n    - if: build_platform != target_platform\n      then: cross\n"
    config = "target_platform:\n- linux-aarch64\n"
    result = feedstock(tmp_path, recipe, config, "build_platform: {linux_aarch64: linux_64}\n")
    (output,) = render.render(result, config_file.read_config(result, "linux_64_")).outputs
    assert output.requirements.build == ("cross",)
    assert output.used == {"build_platform": "linux-64", "target_platform": "linux-aarch64"}


def test_the_variables_that_scripts_get_are_those_of_secrets(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  script:\n    secrets: [TOKEN]\n    content: [make]\n"
    assert caller_variable_names(feedstock(tmp_path, recipe), ["linux_64_"]) == {"TOKEN"}
    assert caller_variable_names(feedstock(tmp_path / "other", HEAD), ["linux_64_"]) == frozenset()
