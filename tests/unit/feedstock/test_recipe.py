"""This feedstock's own recipe: its configs, and for each the packages with their names and preferences."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln import expand, feedstock_loader, render
from kiln.compat import recipe_capabilities
from kiln.compat.combination import dotted, plain

if TYPE_CHECKING:
    from kiln.model.rendered import Output

ROOT = Path(__file__).parents[3]
CUDA = ("None", "12.5", "12.9")
PYTHONS = {"3.10": "3.10.____cpython", "3.11": "3.11.____cpython", "3.12": "3.12.____cpython", "3.13": "3.13.____cp313"}
LIBRARIES = ("libtensorflow_framework", "libtensorflow_cc")
CONFIGS = [(cuda, python) for cuda in CUDA for python in PYTHONS]


def name(cuda: str, python: str) -> str:
    return f"linux_64_cuda_compiler_version{cuda}python{PYTHONS[python]}"


@functools.cache
def rendered() -> dict[str, dict[str, Output]]:
    feedstock = feedstock_loader.find(ROOT)
    configs = {config.name: render.finalise(render.render(feedstock, config)) for config in expand.configs(feedstock)}
    return {config: {item.name: item for item in result.outputs if not item.skip} for config, result in configs.items()}


def test_the_matrix_has_a_config_for_each_cuda_and_python() -> None:
    assert sorted(rendered()) == sorted(name(cuda, python) for cuda, python in CONFIGS)


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_each_config_has_its_outputs_named_as_the_field_does(cuda: str, python: str) -> None:
    flavour, only, number = ("cpu_", "cpu", 0) if cuda == "None" else (f"cuda{cuda.replace('.', '')}", "gpu", 200)
    result = rendered()[name(cuda, python)]
    assert set(result) == {*LIBRARIES, "tensorflow-base", "tensorflow", f"tensorflow-{only}"}
    for item in result.values():
        tag = "" if item.name in LIBRARIES else f"py{python.replace('.', '')}"
        assert re.fullmatch(f"{flavour}{tag}h[0-9a-f]{{7}}_{number}", item.build_string), item.build_string
        assert (item.version, item.build_number) == ("2.21.0", number)


@pytest.mark.parametrize("cuda", CUDA)
def test_the_libraries_are_the_same_for_every_python(cuda: str) -> None:
    for library in LIBRARIES:
        assert len({rendered()[name(cuda, python)][library].build_string for python in PYTHONS}) == 1


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_a_solver_takes_cuda_where_it_can_and_the_cpu_elsewhere(cuda: str, python: str) -> None:
    for item in rendered()[name(cuda, python)].values():
        on_both = item.name not in {"tensorflow-cpu", "tensorflow-gpu"}
        assert item.track_features == (("tensorflow-cpu",) if cuda == "None" and on_both else ())
        assert ("__cuda" in item.requirements.run) == (cuda != "None" and on_both)


@pytest.mark.parametrize("cuda", CUDA)
def test_the_oldest_gpu_is_the_first_that_is_compiled_for(cuda: str) -> None:
    """Every package contains the framework or requires it, so the constraint of this one is that of all."""
    constraints = rendered()[name(cuda, "3.12")]["libtensorflow_framework"].requirements.run_constrained
    arch = [spec for spec in constraints if spec.startswith("__cuda_arch")]
    listed = recipe_capabilities.built_for(ROOT / "recipe", cuda)
    lowest = min((plain(capability) for capability in listed), default=0)
    assert arch == ([f"__cuda_arch >={dotted(str(lowest))}"] if cuda != "None" else [])


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_outputs_that_must_fit_together_name_each_other_exactly(cuda: str, python: str) -> None:
    result = rendered()[name(cuda, python)]

    def exact(needed: str, by: str) -> bool:
        return f"{needed} 2.21.0 {result[needed].build_string}" in result[by].requirements.run

    assert exact("libtensorflow_framework", by="libtensorflow_cc")
    assert exact("libtensorflow_framework", by="tensorflow-base")
    assert exact("libtensorflow_cc", by="tensorflow-base")
    assert exact("tensorflow-base", by="tensorflow")
    only, expected = ("tensorflow-cpu", "cpu*") if cuda == "None" else ("tensorflow-gpu", "cuda*")
    assert f"tensorflow 2.21.0 {expected}" in result[only].requirements.run
    assert [result[item].run_exports for item in LIBRARIES] == [{"weak": (f"{item} ==2.21.0",)} for item in LIBRARIES]


def test_no_two_cuda_builds_accept_the_same_cuda_version() -> None:
    ranges = {
        cuda: [spec for spec in output.requirements.run if spec.startswith("cuda-version ")]
        for cuda in CUDA[1:]
        for output in rendered()[name(cuda, "3.11")].values()
        if "__cuda" in output.requirements.run
    }
    assert ranges == {"12.5": ["cuda-version >=12.5,<12.9"], "12.9": ["cuda-version >=12.9,<13"]}


@pytest.mark.parametrize("config", [name("None", "3.11"), name("12.9", "3.13")])
def test_every_file_that_the_recipe_names_is_there(config: str) -> None:
    for item in rendered()[config].values():
        named = [
            *(name for test in item.tests for name in test.files),
            *([item.script.file] if item.script.file else []),
        ]
        assert [file for file in named if not (ROOT / "recipe" / file).is_file()] == []
