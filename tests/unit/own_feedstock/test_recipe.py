"""This feedstock's own recipe: its configs, and for each the packages with their names and preferences."""

from __future__ import annotations

import fnmatch
import functools
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kiln.cli import lint
from kiln.compat.combination import capability_number, dotted_capability
from kiln.conda import pypi
from kiln.conda.specs import package_name
from kiln.feedstock import config_file, matrix
from kiln.feedstock.convert import convert
from kiln.feedstock.lint import check
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.run import recipe_checks

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.recipe.rendered import Output

ROOT = Path(__file__).parents[3]
CUDA = ("None", "12.5", "12.9")
PYTHONS = {"3.10": "3.10.____cpython", "3.11": "3.11.____cpython", "3.12": "3.12.____cpython", "3.13": "3.13.____cp313"}
LIBRARIES = ("libtensorflow_framework", "libtensorflow", "libtensorflow_cc")
CONFIGS = [(cuda, python) for cuda in CUDA for python in PYTHONS]
LEVELS = {"None": ("1", "2", "3"), "12.5": ("2",), "12.9": ("1", "2", "3")}


def name(cuda: str, python: str, level: str = "2") -> str:
    return f"linux_64_cuda_compiler_version{cuda}microarch_level{level}python{PYTHONS[python]}"


@functools.cache
def rendered() -> dict[str, dict[str, Output]]:
    feedstock = recipe_feedstock.load(ROOT)
    configs = {
        config.name: pins.close_static_pins(render.render(feedstock, config)) for config in matrix.configs(feedstock)
    }
    return {config: {item.name: item for item in result.outputs if not item.skip} for config, result in configs.items()}


def test_the_matrix_has_a_config_for_each_cuda_and_level_and_python_and_the_cpu_on_arm() -> None:
    intel = [name(cuda, python, level) for cuda, python in CONFIGS for level in LEVELS[cuda]]
    arm = [f"{platform}_python{tag}" for platform in ("linux_aarch64", "osx_arm64") for tag in PYTHONS.values()]
    assert sorted(rendered()) == sorted([*intel, *arm])


@pytest.mark.parametrize("python", PYTHONS)
def test_aarch64_has_the_cpu_build_without_anything_of_x86(python: str) -> None:
    result = rendered()[f"linux_aarch64_python{PYTHONS[python]}"]
    assert set(result) == {*LIBRARIES, "tensorflow-base", "tensorflow", "tensorflow-cpu"}
    for item in result.values():
        assert (item.subdir, item.build_number) == ("linux-aarch64", 0)
        assert not [spec for spec in item.requirements.build if "x86" in spec or spec.endswith("_linux-64")]
    # Its own Python cannot run where it is compiled.
    for output in ("tensorflow-base", "tensorflow"):
        assert "cross-python_linux-aarch64" in result[output].requirements.build


@pytest.mark.parametrize("python", PYTHONS)
def test_macos_has_the_cpu_build_under_its_own_names(python: str) -> None:
    result = rendered()[f"osx_arm64_python{PYTHONS[python]}"]
    assert set(result) == {*LIBRARIES, "tensorflow-base", "tensorflow", "tensorflow-cpu"}
    for item in result.values():
        assert (item.subdir, item.build_number) == ("osx-arm64", 0)
        assert not [spec for spec in item.requirements.build if "x86" in spec or spec == "patchelf"]
    library = result["libtensorflow_cc"]
    assert "macosx_deployment_target_osx-arm64 12.0.*" in library.requirements.build
    (script,) = (str(test.script) for test in library.tests)
    assert "test -f $PREFIX/lib/libtensorflow_cc.2.21.0.dylib" in script
    assert ".so" not in script


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_each_config_has_its_outputs_named_as_the_field_does(cuda: str, python: str) -> None:
    flavour, only, number = ("cpu_", "cpu", 25) if cuda == "None" else (f"cuda{cuda.replace('.', '')}", "gpu", 225)
    result = rendered()[name(cuda, python)]
    assert set(result) == {*LIBRARIES, "tensorflow-base", "tensorflow", f"tensorflow-{only}"}
    for item in result.values():
        tag = f"py{python.replace('.', '')}" if item.name in {"tensorflow-base", "tensorflow"} else ""
        assert re.fullmatch(f"{flavour}{tag}h[0-9a-f]{{7}}_{number}", item.build_string), item.build_string
        assert (item.version, item.build_number) == ("2.21.0", number)


@pytest.mark.parametrize("cuda", CUDA)
def test_what_is_not_made_for_a_python_is_the_same_for_all(cuda: str) -> None:
    for output in (*LIBRARIES, f"tensorflow-{'cpu' if cuda == 'None' else 'gpu'}"):
        assert len({rendered()[name(cuda, python)][output].build_string for python in PYTHONS}) == 1


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_a_solver_takes_cuda_where_it_can_and_the_cpu_elsewhere(cuda: str, python: str) -> None:
    for item in rendered()[name(cuda, python)].values():
        on_both = item.name not in {"tensorflow-cpu", "tensorflow-gpu"}
        weighed_down = cuda == "None" and item.name in {"tensorflow-base", "tensorflow"}  # as conda-forge's are
        assert item.track_features == (("tensorflow-cpu",) if weighed_down else ())
        assert ("__cuda" in item.requirements.run) == (cuda != "None" and on_both)


@pytest.mark.parametrize("cuda", CUDA)
def test_the_oldest_gpu_is_the_first_that_is_compiled_for(cuda: str) -> None:
    """Every package contains the framework or requires it, so the constraint of this one is that of all."""
    constraints = rendered()[name(cuda, "3.12")]["libtensorflow_framework"].requirements.run_constrained
    arch = [spec for spec in constraints if spec.startswith("__cuda_arch")]
    listed = recipe_checks.compiled_cuda_capabilities(ROOT / "recipe", cuda)
    lowest = min((capability_number(capability) for capability in listed), default=0)
    assert arch == ([f"__cuda_arch >={dotted_capability(str(lowest))}"] if cuda != "None" else [])


@pytest.mark.parametrize(("cuda", "python"), CONFIGS)
def test_outputs_that_must_fit_together_name_each_other_exactly(cuda: str, python: str) -> None:
    result = rendered()[name(cuda, python)]

    def exact(needed: str, by: str) -> bool:
        return f"{needed} 2.21.0 {result[needed].build_string}" in result[by].requirements.run

    assert exact("libtensorflow_framework", by="libtensorflow")
    assert exact("libtensorflow_framework", by="libtensorflow_cc")
    assert exact("libtensorflow_framework", by="tensorflow-base")
    assert exact("libtensorflow_cc", by="tensorflow-base")
    assert exact("tensorflow-base", by="tensorflow")
    chosen = result["tensorflow-cpu" if cuda == "None" else "tensorflow-gpu"].requirements.run
    other = result["tensorflow"].build_string.replace(python.replace(".", ""), "999")
    for build, fits in ((result["tensorflow"].build_string, True), (other, True), (f"{other}5", False)):
        assert _fits(chosen, "tensorflow", build) == fits
    assert [result[item].run_exports for item in LIBRARIES] == [{"weak": (f"{item} ==2.21.0",)} for item in LIBRARIES]


def _fits(specs: tuple[str, ...], package: str, build: str) -> bool:
    (pattern,) = (spec.split()[2] for spec in specs if spec.startswith(f"{package} 2.21.0 "))
    return fnmatch.fnmatchcase(build, pattern)


@pytest.mark.parametrize(
    ("capabilities", "flavour", "cudnn", "arch"),
    [
        ("", "cuda129h", "<9.11", "6.0"),
        ("sm_70,compute_90", "cuda129sm70h", "<9.11", "7.0"),
        ("sm_75,sm_80,compute_120", "cuda129sm75h", "<10", "7.5"),
    ],
)
def test_builds_for_gpus_before_turing_exclude_the_cudnn_that_has_no_kernels_for_them(
    with_list: Callable[[str], dict[str, Output]], capabilities: str, flavour: str, cudnn: str, arch: str
) -> None:
    framework = with_list(capabilities)["libtensorflow_framework"]
    assert framework.build_string.startswith(flavour)
    assert f"cudnn >=9.8,{cudnn}" in framework.requirements.run
    assert f"__cuda_arch >={arch}" in framework.requirements.run_constrained


@pytest.fixture
def with_list(tmp_path: Path) -> Callable[[str], dict[str, Output]]:
    """A function that renders a config for CUDA 12.9 with a list of GPUs of its own."""
    shutil.copytree(ROOT / "recipe", tmp_path / "recipe")
    shutil.copytree(ROOT / ".ci_support", tmp_path / ".ci_support")
    shutil.copy(ROOT / "conda-forge.yml", tmp_path)
    feedstock = recipe_feedstock.load(tmp_path)
    file = feedstock.config_folder / f"{name('12.9', '3.12')}.yaml"
    config = file.read_text(encoding="utf-8")

    def outputs(capabilities: str) -> dict[str, Output]:
        file.write_text(
            config.replace("cuda_compute_capabilities:\n- ''", f"cuda_compute_capabilities:\n- '{capabilities}'"),
            encoding="utf-8",
        )
        result = pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, file.stem)))
        return {item.name: item for item in result.outputs if not item.skip}

    return outputs


def test_two_lists_with_one_oldest_gpu_are_two_builds_of_every_output(
    with_list: Callable[[str], dict[str, Output]],
) -> None:
    one, other = (with_list(text) for text in ("sm_75,compute_75", "sm_75, sm_80,sm_90,sm_120,compute_120"))
    assert set(one) == set(other) == {*LIBRARIES, "tensorflow-base", "tensorflow", "tensorflow-gpu"}
    for output, item in one.items():
        assert item.build_string.startswith("cuda129sm75")
        assert item.build_string != other[output].build_string
        assert item.used["cuda_compute_capabilities"] == "sm_75,compute_75"


@pytest.mark.parametrize("cuda", CUDA)
def test_each_level_of_the_processor_is_a_build_that_is_preferred_to_lower_ones(cuda: str) -> None:
    levels = {level: rendered()[name(cuda, "3.12", level)] for level in LEVELS[cuda]}
    for level, result in levels.items():
        number = 25 * (int(level) - 1) + (0 if cuda == "None" else 200)
        for output, item in result.items():
            assert item.build_number == number
            compiled = output in {*LIBRARIES, "tensorflow-base"}
            assert (f"x86_64-microarch-level {level}.*" in item.requirements.build) == compiled
    for output in levels["2"]:
        assert len({result[output].build_string for result in levels.values()}) == len(levels)


def test_the_cuda_libraries_are_bounded_by_what_their_packages_export() -> None:
    """Those of host have run_exports on conda-forge; these three have none, or not the bounds that are needed."""
    named = {package_name(spec) for item in rendered()[name("12.9", "3.12")].values() for spec in item.requirements.run}
    by_hand = {item for item in named if re.match(r"cuda-|cudnn|nccl|lib(cu|nv)", item)}
    assert by_hand == {"cuda-version", "cuda-nvcc-tools", "cudnn"}
    exporters = {
        package_name(spec) for spec in rendered()[name("12.9", "3.12")]["libtensorflow_framework"].requirements.host
    }
    assert exporters - {"cuda-version"} <= {row.exported_by for row in pypi.name_mappings().values()}


def test_no_two_cuda_builds_accept_the_same_cuda_version() -> None:
    ranges = {
        cuda: [spec for spec in output.requirements.run if spec.startswith("cuda-version ")]
        for cuda in CUDA[1:]
        for output in rendered()[name(cuda, "3.11")].values()
        if "__cuda" in output.requirements.run or output.name == "tensorflow-gpu"
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


@pytest.mark.parametrize("folder", [ROOT, ROOT / "serving"], ids=["root", "serving"])
def test_lint_has_nothing_to_say(folder: Path) -> None:
    feedstock = recipe_feedstock.load(folder)
    assert not check.check(feedstock)
    assert not list(lint.refusals_and_warnings(feedstock, []))


def test_converted_it_is_one_compile_from_which_the_outputs_inherit() -> None:
    """Whoever takes it to a feedstock with a recipe.yaml has conda-forge's terms there, and the same packages."""
    converted = convert.convert(recipe_feedstock.load(ROOT))
    assert not converted.blocking_differences
    assert (converted.proof.holds, converted.proof.configs) == (True, 36)
    outputs = yaml.safe_load(converted.recipe)["outputs"]
    (staging,) = (item["staging"]["name"] for item in outputs if "staging" in item)
    packages = [item for item in outputs if "package" in item]
    assert {item["package"]["name"] for item in packages} == {
        line for line in (ROOT / "outputs.txt").read_text().splitlines() if not line.startswith("#")
    }
    assert {item["inherit"]["from"] for item in packages} == {staging}
