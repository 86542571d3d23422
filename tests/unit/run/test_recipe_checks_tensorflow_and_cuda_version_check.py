"""The recipe works out by itself what it compiles for; the doctor reads the same beforehand, and agrees."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.compat import tables
from kiln.run import recipe_checks

if TYPE_CHECKING:
    from collections.abc import Iterator

RECIPE = Path(__file__).parents[3] / "recipe"


@pytest.fixture
def compile_plan() -> Iterator[Any]:
    """The recipe's own script as a module."""
    keep, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(RECIPE))
    yield importlib.import_module("compile_plan")
    sys.path.remove(str(RECIPE))
    sys.dont_write_bytecode = keep
    for name in ("compile_plan", "machine_limits"):
        sys.modules.pop(name, None)


def cudas(compile_plan: Any) -> list[str]:
    names = (
        name.split(" ")[1] for name in compile_plan.read(RECIPE / recipe_checks.SETTINGS) if name.startswith("cuda ")
    )
    return [name for name in names if name != "None"]


def test_the_doctor_reads_the_capabilities_that_the_recipe_compiles_for(compile_plan: Any) -> None:
    settings = compile_plan.read(RECIPE / recipe_checks.SETTINGS)
    for cuda in cudas(compile_plan):
        assert recipe_checks.compiled_cuda_capabilities(RECIPE, cuda) == compile_plan.capabilities_for(
            settings, f"cuda {cuda}", ""
        )


def test_the_recipe_and_the_table_know_the_same_architectures(compile_plan: Any) -> None:
    settings = compile_plan.read(RECIPE / recipe_checks.SETTINGS)
    for cuda in cudas(compile_plan):
        row = tables.cuda_compiler_row(cuda)
        assert row is not None
        assert settings[f"cuda {cuda}"]["architectures"] == row["capabilities"]


def test_the_recipes_bazel_is_the_one_of_the_table(compile_plan: Any) -> None:
    meta = (RECIPE / "meta.yaml").read_text()
    version = meta.partition('set version = "')[2].partition('"')[0]
    row = tables.tensorflow_row(version)
    assert row is not None
    assert compile_plan.read(RECIPE / recipe_checks.SETTINGS)["bazel"]["version"] == row["bazel"]


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
    assert recipe_checks.compiled_cuda_capabilities(tmp_path, "1.0") == (
        "sm_80",
        "sm_90",
        "compute_90",
    )
