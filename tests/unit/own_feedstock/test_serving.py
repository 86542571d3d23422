"""The feedstock of TensorFlow Serving: its configs, what they are compiled with, and what its script asks of Bazel."""

from __future__ import annotations

import csv
import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.compat import tables
from kiln.compat.combination import Verdict, capability_number
from kiln.compat.verdict import judge_combination
from kiln.feedstock import matrix, rerender
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render
from kiln.run import recipe_checks
from tests import builders

if TYPE_CHECKING:
    from kiln.recipe.rendered import RenderedConfig

ROOT = Path(__file__).parents[3] / "serving"
CPU = "linux_64_cuda_compiler_versionNoneserving_version2.20.0"
CUDA = "linux_64_cuda_compiler_version12.5serving_version2.20.0"
NEWEST = "linux_64_cuda_compiler_version12.9serving_version2.20.0"
P3 = "linux_64_cuda_compiler_version9.0serving_version1.12.3"


@functools.cache
def rendered() -> dict[str, RenderedConfig]:
    feedstock = recipe_feedstock.load(ROOT)
    return {
        config.name: pins.close_static_pins(render.render(feedstock, config)) for config in matrix.configs(feedstock)
    }


def releases() -> dict[tuple[str, str], dict[str, str]]:
    with (ROOT / "recipe" / "releases.csv").open(newline="") as file:
        return {(row["version"], row["cuda"]): row for row in csv.DictReader(file)}


def release_of(config: str) -> dict[str, str]:
    variant = rendered()[config].config.variant
    return releases()[variant["serving_version"][0], variant["cuda_compiler_version"][0]]


def test_its_configs_are_the_files_in_ci_support() -> None:
    feedstock = recipe_feedstock.load(ROOT)
    assert {CPU, CUDA, NEWEST, P3} == set(rendered())
    assert not rerender.ci_support_drift(feedstock, matrix.configs(feedstock))


@pytest.mark.parametrize(
    ("config", "outputs"),
    [
        (CPU, {"tensorflow-serving": "2.20.0", "tensorflow-serving-api": "2.20.0"}),
        (CUDA, {"tensorflow-serving": "2.20.0"}),
        (NEWEST, {"tensorflow-serving": "2.20.0"}),
        (P3, {"tensorflow-serving": "1.12.3", "tensorflow-serving-api": "1.12.3"}),
    ],
)
def test_its_outputs(config: str, outputs: dict[str, str]) -> None:
    assert {item.name: item.version for item in rendered()[config].outputs if not item.skip} == outputs


def test_what_it_makes_may_be_published() -> None:
    allowed = (ROOT / "outputs.txt").read_text().splitlines()
    assert {item.name for result in rendered().values() for item in result.outputs} <= set(allowed)


def test_a_solver_takes_cuda_where_it_can() -> None:
    server = {name: result.outputs[0] for name, result in rendered().items()}
    assert [server[name].build_number for name in (CPU, CUDA, NEWEST, P3)] == [25, 225, 225, 225]
    assert server[CPU].track_features == ("tensorflow-serving-cpu",)
    assert all("__cuda" in server[name].requirements.run for name in (CUDA, NEWEST, P3))


def test_every_server_is_bound_to_the_level_of_the_processor() -> None:
    """By the run exports of a build tool, as TensorFlow's packages; see test_recipe.py."""
    for result in rendered().values():
        build = result.outputs[0].requirements.build
        assert [spec for spec in build if "microarch" in spec] == ["x86_64-microarch-level 2.*"]
        assert result.config.variant["microarch_level"] == ("2",)


@pytest.mark.parametrize(("config", "cuda"), [(CUDA, "12.5.*"), (NEWEST, "12.9.*")])
def test_the_libraries_of_cuda_are_bound_by_their_own_run_exports(config: str, cuda: str) -> None:
    requirements = rendered()[config].outputs[0].requirements
    host = {spec.split()[0] for spec in requirements.host}
    assert f"cuda-version {cuda}" in requirements.host
    libraries = {"libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse", "libnvjitlink"}
    assert {f"{name}-dev" for name in (*libraries, "cuda-cudart", "cuda-cupti", "cuda-nvrtc")} < host
    assert "nccl" in host
    # By hand: what separates the builds, what has no run exports, and the bound of the kernels.
    assert {spec.split()[0] for spec in requirements.run} == {"__cuda", "cuda-version", "cuda-nvcc-tools", "cudnn"}


def test_the_api_is_one_package_for_every_python() -> None:
    assert {item.noarch for result in rendered().values() for item in result.outputs if item.name.endswith("-api")} == {
        "python"
    }


@pytest.mark.parametrize(
    ("config", "verdict"), [(CPU, Verdict.WORKS), (CUDA, Verdict.WORKS), (NEWEST, Verdict.COSTS), (P3, Verdict.WORKS)]
)
def test_the_doctor_lets_every_config_through(config: str, verdict: Verdict) -> None:
    """Upstream builds with CUDA 12.5 alone, so 12.9 is of the same major version and untested."""
    for combination in recipe_checks.version_combinations_of_config(recipe_feedstock.load(ROOT), config):
        assert combination.serving is not None
        assert judge_combination(combination, suggest=False).verdict is verdict


@pytest.mark.parametrize("key", sorted(releases()), ids="-".join)
def test_a_release_is_compiled_with_the_doctors_bazel(key: tuple[str, str]) -> None:
    row, known = releases()[key], tables.serving_row(key[0])
    assert known is not None
    assert row["bazel"] == known["bazel"]
    assert row["tensorflow"].split(".")[:2] == key[0].split(".")[:2]
    assert len(row["source"]) > 20


def oldest_capability(config: str) -> int:
    """Return the oldest that there is machine code for, in tenths."""
    return min(int(capability_number(item)) for item in release_of(config)["capabilities"].split(":"))


@pytest.mark.parametrize(("config", "newest"), [(CUDA, 90), (NEWEST, 120)])
def test_every_gpu_from_turing_to_blackwell_has_machine_code_or_ptx(config: str, newest: int) -> None:
    capabilities = release_of(config)["capabilities"].split(":")
    code = {int(capability_number(item)) for item in capabilities if item.startswith("sm_")}
    (ptx,) = (int(capability_number(item)) for item in capabilities if item.startswith("compute_"))
    assert {item for item in (75, 80, 86, 89, 90, 100, 120) if item <= newest} <= code
    assert ptx == max(code) == newest, "what is newer than all machine code compiles this PTX"
    accepted = tables.cuda_compiler_row(release_of(config)["cuda"])
    assert accepted is not None
    assert code <= set(map(int, accepted["capabilities"].split()))


@pytest.mark.parametrize("config", [CUDA, NEWEST, P3])
def test_gpus_that_the_server_has_no_code_for_are_excluded(config: str) -> None:
    constraints = rendered()[config].outputs[0].requirements.run_constrained
    (bound,) = (spec for spec in constraints if spec.startswith("__cuda_arch "))
    assert bound == f"__cuda_arch >={oldest_capability(config) / 10}{',<7.5' if config == P3 else ''}"


@pytest.mark.parametrize("config", [CUDA, NEWEST])
def test_cudnn_has_kernels_for_all_gpus_that_are_compiled_for(config: str) -> None:
    """From 9.11 on it has none below 7.5."""
    assert oldest_capability(config) < 75
    (cudnn,) = (spec for spec in rendered()[config].outputs[0].requirements.run if spec.startswith("cudnn "))
    assert cudnn.endswith(",<9.11")
    assert release_of(config)["cudnn"].startswith(f"{cudnn.removeprefix('cudnn >=').partition(',')[0]}.")


def test_the_config_for_cuda_9_has_a_channel_with_its_libraries() -> None:
    variant = rendered()[P3].config.variant
    assert variant["channel_sources"] == ("conda-forge,main",)
    assert {"cudatoolkit 9.0.*", "cudnn >=7.2.1,<8"} <= set(rendered()[P3].outputs[0].requirements.run)


def test_sources_are_those_of_the_table_and_pinned_by_the_hash_of_the_commit() -> None:
    for result in rendered().values():
        (source,) = result.sources
        assert source.git_rev == release_of(result.config.name)["commit"]
        assert len(source.git_rev) == 40


def test_the_p3_config_compiles_for_volta_with_a_gcc_below_7() -> None:
    (combination,) = recipe_checks.version_combinations_of_config(recipe_feedstock.load(ROOT), P3)
    assert (combination.cuda, combination.cudnn, combination.host) == ("9.0", "7", "gcc 5.4")
    assert release_of(P3)["capabilities"] == "7.0"


BAZEL = """#!/usr/bin/env bash
# Stands in for Bazel: says its version, writes down what it is asked for, and leaves what a compile leaves.
[[ $1 == --version ]] && { echo "bazel $BAZEL_IS"; exit; }
echo "$*" >>"$SRC_DIR/asked"
env | grep ^TF_ | sort >"$SRC_DIR/environment"
bin=bazel-bin/tensorflow_serving
mkdir -p $bin/model_servers $bin/tools/pip_package
echo server >$bin/model_servers/tensorflow_model_server
cat >$bin/tools/pip_package/build_pip_package <<'API'
mkdir -p "$1"
touch "$1/tensorflow_serving_api-$PKG_VERSION-py2.py3-none-any.whl" "$1/tensorflow_serving_api_gpu-1.whl"
API
chmod +x $bin/tools/pip_package/build_pip_package
"""


def compile_with(folder: Path, version: str, cuda: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run build.sh as a config's build does, with a stand-in for Bazel."""
    row = releases()[version, cuda]
    source, programs = folder / "source", folder / "programs"
    source.mkdir()
    programs.mkdir()
    (source / "WORKSPACE").write_text(f'    git_commit = "{more.pop("commit", row["tensorflow_commit"])}",\n')
    (programs / "bazel").write_text(BAZEL)
    (programs / "bazel").chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SRC_DIR": str(source),
        "RECIPE_DIR": str(ROOT / "recipe"),
        "PKG_VERSION": version,
        "cuda_compiler_version": cuda,
        "BAZEL_IS": row["bazel"],
        "BAZEL_CPUS": "8",
        "BAZEL_MEMORY_MB": "10000",
    }
    script = ["bash", str(ROOT / "recipe" / "build.sh")]
    return subprocess.run(script, env={**environment, **more}, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.processes
def test_the_compile_of_today_on_cuda_12(tmp_path: Path) -> None:
    done = compile_with(
        tmp_path,
        "2.20.0",
        "12.5",
        BAZEL_REMOTE_CACHE="grpc://cache:9092",
        BAZEL_CACHE_KEY="4f1c",
        BAZEL_BUILD_EVENTS="/e.json",
    )
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "source" / "asked").read_text()
    for flag in (
        "--jobs=5 --local_resources=memory=9000 --local_resources=cpu=8 --incompatible_strict_action_env",
        "--copt=-fPIC --config=cuda_clang",
        "--repo_env=HERMETIC_CUDA_VERSION=12.5.1 --repo_env=HERMETIC_CUDNN_VERSION=9.3.0",
        "--repo_env=TF_CUDA_COMPUTE_CAPABILITIES=sm_60,sm_70,sm_75,sm_80,sm_86,sm_89,sm_90,compute_90",
        "--remote_cache=grpc://cache:9092 --remote_default_exec_properties=cache-silo-key=4f1c",
        "--build_event_json_file=/e.json",
    ):
        assert flag in asked
    assert "pip_package" not in asked
    assert asked.splitlines()[-1].endswith("shutdown")
    assert [file.name for file in (tmp_path / "source" / "dist").iterdir()] == ["tensorflow_model_server"]


@pytest.mark.processes
def test_the_compile_for_blackwell_asks_for_nvcc(tmp_path: Path) -> None:
    done = compile_with(tmp_path, "2.20.0", "12.9")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "source" / "asked").read_text()
    for flag in (
        "--config=cuda --action_env=TF_NVCC_CLANG=1 --@local_config_cuda//:cuda_compiler=nvcc",
        "--repo_env=HERMETIC_CUDA_VERSION=12.9.1 --repo_env=HERMETIC_CUDNN_VERSION=9.8.0",
        "sm_90,sm_100,sm_120,compute_120",
    ):
        assert flag in asked
    assert "cuda_clang" not in asked


@pytest.mark.processes
def test_the_compile_for_the_cpu_asks_for_no_cuda(tmp_path: Path) -> None:
    done = compile_with(tmp_path, "2.20.0", "None")
    assert done.returncode == 0, done.stderr
    assert "cuda" not in (tmp_path / "source" / "asked").read_text().lower()
    assert not (tmp_path / "source" / "environment").read_text()
    names = sorted(file.name for file in (tmp_path / "source" / "dist").iterdir())
    assert names == ["tensorflow_model_server", "tensorflow_serving_api-2.20.0-py2.py3-none-any.whl"]


def test_the_patch_for_cuda_12_9_adds_what_the_release_asks_for() -> None:
    (source,) = rendered()[NEWEST].sources
    assert source.patches == ("cuda_12.9.patch",)
    assert not rendered()[CUDA].sources[0].patches
    added = [
        line[1:] for line in (ROOT / "recipe" / "cuda_12.9.patch").read_text().splitlines() if line.startswith("+")
    ]
    assert f'    cuda_json_dict = CUDA_REDIST_JSON_DICT | {{"{release_of(NEWEST)["toolkit"]}": [' in added


@pytest.mark.processes
@pytest.mark.parametrize(("cuda", "linked"), [("12.9", True), ("9.0", False), ("None", False)])
def test_the_server_finds_ptxas_and_libdevice(tmp_path: Path, cuda: str, *, linked: bool) -> None:
    """In the folder next to the program where XLA looks; without a cycle, by links to single files."""
    builders.write_files(tmp_path, {"source/dist/tensorflow_model_server": "server"})
    prefix = tmp_path / "prefix"
    tools = ("bin/ptxas", "bin/nvlink", "bin/fatbinary", "nvvm/libdevice/libdevice.10.bc")
    builders.write_files(prefix, {tool: tool for tool in tools})
    environment = {
        "PATH": os.environ["PATH"],
        "SRC_DIR": str(tmp_path / "source"),
        "PREFIX": str(prefix),
        "PKG_NAME": "tensorflow-serving",
        "cuda_compiler_version": cuda,
    }
    script = ["bash", str(ROOT / "recipe" / "split.sh")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    server = prefix / "bin" / "tensorflow_model_server"
    assert os.access(server, os.X_OK)
    root = server.with_name(f"{server.name}.runfiles") / "cuda_nvcc"
    if not linked:
        assert not root.parent.exists()
        return
    for tool in ("bin/ptxas", "bin/nvlink", "bin/fatbinary", "nvvm/libdevice/libdevice.10.bc"):
        assert (root / tool).is_symlink()
        assert (root / tool).resolve() == prefix / tool
    assert not any(path.is_symlink() and path.is_dir() for path in prefix.rglob("*"))


@pytest.mark.processes
def test_the_compile_for_p3(tmp_path: Path) -> None:
    done = compile_with(tmp_path, "1.12.3", "9.0", BAZEL_CACHE_KEY="4f1c")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "source" / "asked").read_text()
    assert "--jobs=5 --local_resources=9000,8,1.0 --copt=-fPIC --config=cuda " in asked
    assert "cache-silo-key" not in asked, "this Bazel does not know it"
    told = (tmp_path / "source" / "environment").read_text().split()
    assert told == ["TF_CUDA_COMPUTE_CAPABILITIES=7.0", "TF_CUDA_VERSION=9.0", "TF_CUDNN_VERSION=7", "TF_NEED_CUDA=1"]
    names = sorted(file.name for file in (tmp_path / "source" / "dist").iterdir())
    assert names == ["tensorflow_model_server", "tensorflow_serving_api-1.12.3-py2.py3-none-any.whl"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"commit": "0" * 40}, "releases.csv 72fbba3d20f4616d7312b5e2b7f79daf6e82f2fa (2.20.0)"),
        ({"BAZEL_IS": "6.5.0"}, "is compiled by Bazel 7.4.1, this is 'bazel 6.5.0'"),
        ({"PKG_VERSION": "2.99.0"}, "releases.csv has no release 2.99.0 for CUDA None"),
        ({"cuda_compiler_version": "12.6"}, "releases.csv has no release 2.20.0 for CUDA 12.6"),
    ],
)
def test_a_compile_that_is_not_what_the_table_says_is_refused(tmp_path: Path, more: dict[str, str], why: str) -> None:
    done = compile_with(tmp_path, "2.20.0", "None", **more)
    assert done.returncode == 1
    assert why in done.stderr
    assert not (tmp_path / "source" / "asked").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("level", "flags"),
    [
        ("1", ""),
        ("2", "--config=release "),
        ("3", "--config=release --copt=-march=haswell "),
        ("4", "--config=release --copt=-march=skylake-avx512 "),
    ],
)
def test_the_level_of_the_processor_is_that_of_the_config(tmp_path: Path, level: str, flags: str) -> None:
    done = compile_with(tmp_path, "2.20.0", "12.9", microarch_level=level)
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "source" / "asked").read_text().splitlines()[0]
    assert f" build {flags}--verbose_failures " in asked
    assert ("march" in asked) == (level in "34")


@pytest.mark.processes
def test_a_level_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = compile_with(tmp_path, "2.20.0", "12.9", microarch_level="5")
    assert done.returncode == 1
    assert "microarch_level is '5'; there are 1, 2, 3, 4" in done.stderr
