"""Recipes that cannot be built are refused before anything is spent."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import RecipeFault, UnsafeTemplate, UsageError
from kiln.compat import tables
from kiln.recipe import pins
from kiln.run import recipe_checks
from kiln.run.recipe_checks import check_keys_and_find_stagings
from tests import builders
from tests.unit.recipe.v1.test_rendering import HEAD, feedstock

if TYPE_CHECKING:
    from collections.abc import Iterator

STAGED = """\
recipe: {name: whole, version: '1'}
outputs:
  - staging:
      name: compiled
    requirements:
      host: [zlib, lib]
  - package:
      name: lib
  - package:
      name: app
    inherit: compiled
"""

CONFIGS = ("linux_64_",)

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


def test_a_staging_output_that_requires_a_package_of_its_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="requires lib, a package of this recipe") as caught:
        recipe_checks.require_supported_recipe(feedstock(tmp_path, STAGED), CONFIGS)
    assert caught.value.at
    assert caught.value.at.line == 4
    recipe_checks.require_supported_recipe(feedstock(tmp_path / "other", STAGED.replace("zlib, lib", "zlib")), CONFIGS)


def test_a_staging_output_without_a_name_is_an_error_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault):
        recipe_checks.require_supported_recipe(feedstock(tmp_path, STAGED.replace("name: compiled", "{}")), CONFIGS)


def test_other_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mambabuild cannot build a recipe"):
        recipe_checks.require_engine_of_recipe(feedstock(tmp_path, HEAD), "mambabuild")


def test_a_recipe_with_a_key_that_no_build_honors_is_refused(tmp_path: Path) -> None:
    script = "build:\n  script: {interpreter: cmd, content: [dir]}\n"
    with pytest.raises(RecipeFault, match="'cmd' are not supported"):
        recipe_checks.require_supported_recipe(feedstock(tmp_path, f"{HEAD}{script}"), CONFIGS)


def test_every_fault_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        check_keys_and_find_stagings(feedstock(tmp_path, RECIPE))
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
    check_keys_and_find_stagings(feedstock(tmp_path, f"{text}      - downstream: other\n"))


OWN_RECIPE = Path(__file__).parents[3] / "recipe"


@pytest.fixture
def compile_plan() -> Iterator[Any]:
    """The recipe's own script as a module."""
    keep, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(OWN_RECIPE))
    yield importlib.import_module("compile_plan")
    sys.path.remove(str(OWN_RECIPE))
    sys.dont_write_bytecode = keep
    for name in ("compile_plan", "machine_limits"):
        sys.modules.pop(name, None)


def cudas(compile_plan: Any) -> list[str]:
    names = (
        name.split(" ")[1]
        for name in compile_plan.read(OWN_RECIPE / recipe_checks.SETTINGS)
        if name.startswith("cuda ")
    )
    return [name for name in names if name != "None"]


def test_the_doctor_reads_the_capabilities_that_the_recipe_compiles_for(compile_plan: Any) -> None:
    settings = compile_plan.read(OWN_RECIPE / recipe_checks.SETTINGS)
    for cuda in cudas(compile_plan):
        assert recipe_checks.compiled_cuda_capabilities(OWN_RECIPE, cuda) == compile_plan.capabilities_for(
            settings, f"cuda {cuda}", ""
        )


def test_the_recipe_and_the_table_know_the_same_architectures(compile_plan: Any) -> None:
    settings = compile_plan.read(OWN_RECIPE / recipe_checks.SETTINGS)
    for cuda in cudas(compile_plan):
        row = tables.cuda_compiler_row(cuda)
        assert row is not None
        assert settings[f"cuda {cuda}"]["architectures"] == row["capabilities"]


def test_the_recipes_bazel_is_the_one_of_the_table(compile_plan: Any) -> None:
    meta = (OWN_RECIPE / "meta.yaml").read_text()
    version = meta.partition('set version = "')[2].partition('"')[0]
    row = tables.tensorflow_row(version)
    assert row is not None
    assert compile_plan.read(OWN_RECIPE / recipe_checks.SETTINGS)["bazel"]["version"] == row["bazel"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no settings",
        "[cuda 12.5]\nversion = 12.5.1",
        "[architectures]\n70 = Volta",
        "[cuda 12.5]\narchitectures = x y\n[architectures]\n70=V",
    ],
)
def test_a_recipe_that_does_not_say_is_left_alone(tmp_path: Path, text: str) -> None:
    assert recipe_checks.compiled_cuda_capabilities(tmp_path, "12.5") == ()
    (tmp_path / recipe_checks.SETTINGS).write_text(text)
    assert recipe_checks.compiled_cuda_capabilities(tmp_path, "12.5") == ()


def test_a_list_is_the_policy_as_far_as_cuda_and_compiler_accept_it(tmp_path: Path) -> None:
    (tmp_path / recipe_checks.SETTINGS).write_text(
        "[cuda 1.0]\ncompiler = c\narchitectures = 70 80 90\n"
        "[compiler c]\narchitectures = 60 80 90\n"
        "[architectures]\n60 =\n80 =\n90 =\n"
    )
    assert recipe_checks.compiled_cuda_capabilities(tmp_path, "1.0") == ("sm_80", "sm_90", "compute_90")


PINS = {
    False: "package: {name: top, version: '1'}\noutputs:\n  - name: lib\n  - name: app\n    requirements:\n",
    True: "recipe: {name: top, version: '1'}\noutputs:\n  - package: {name: lib}\n  - package: {name: app}\n"
    "    requirements:\n",
}


@pytest.mark.parametrize(
    ("requirements", "what", "hint"),
    [
        ({"run": "pin_subpackage('lib')"}, "", ""),
        ({"run": "pin_compatible('other')"}, "", ""),
        ({"host": "", "run": "pin_compatible('lib')"}, "", ""),
        ({"run": "pin_subpackage('other')"}, "app pins 'other' with pin_subpackage, but", "use pin_compatible"),
        ({"run_constrained": "pin_subpackage('libb')"}, "app pins 'libb' with pin_subpackage, but", "mean 'lib'"),
        ({"run": "pin_compatible('lib')"}, "app pins 'lib', an output of this recipe, with", "use pin_subpackage"),
    ],
)
@pytest.mark.parametrize("v1", [False, True])
def test_a_pin_of_an_output_is_one_of_the_config(
    requirements: dict[str, str], what: str, hint: str, v1: bool, tmp_path: Path
) -> None:
    text = PINS[v1]
    for section, pin in requirements.items():
        key = "run_constraints" if v1 and section == "run_constrained" else section
        text += f"      {key}:\n        - {'$' * v1 + f'{{{{ {pin} }}}}' if pin else 'lib'}\n"
    found = builders.feedstock(tmp_path, text, v1=v1)
    renderings = [builders.rendered(found)]
    if not what:
        pins.require_pins_of_outputs(found, renderings)
        return
    with pytest.raises(RecipeFault, match=what) as caught:
        pins.require_pins_of_outputs(found, renderings)
    assert caught.value.at is not None
    assert caught.value.at.line == len(text.splitlines())
    assert hint in caught.value.hint


@pytest.mark.parametrize("exceeds", [False, True])
def test_configs_share_a_process_and_its_limits_or_have_their_own(
    exceeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = "package:\n  name: a\n  version: '1'\nbuild:\n  noarch: {{ kind }}\n"
    case = builders.expanded(tmp_path, meta, "kind:\n  - generic\n  - none\n")

    def run_bounded(work: Any) -> Any:
        if exceeds and isinstance(work, partial) and work.func is recipe_checks._try_each:
            raise UnsafeTemplate("it takes more than 8 s of processor time")
        return work()

    monkeypatch.setattr("kiln.base.limits.run_bounded", run_bounded)
    ((error,), _) = recipe_checks.faults_and_warnings(case)
    assert error.what == "a: noarch is 'none'"
