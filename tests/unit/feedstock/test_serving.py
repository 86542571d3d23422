"""The feedstock of TensorFlow Serving: its configs, what they are compiled with, and what its script asks of Bazel."""

from __future__ import annotations

import csv
import functools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln import compat, expand, feedstock_loader, render
from kiln.compat import tables
from kiln.compat.combination import plain
from kiln.run import compatibility

if TYPE_CHECKING:
    from kiln.model.rendered import Rendered

ROOT = Path(__file__).parents[3] / "serving"
CPU = "linux_64_cuda_compiler_versionNoneserving_version2.20.0"
CUDA = "linux_64_cuda_compiler_version12.5serving_version2.20.0"
P3 = "linux_64_cuda_compiler_version9.0serving_version1.12.3"


@functools.cache
def rendered() -> dict[str, Rendered]:
    feedstock = feedstock_loader.find(ROOT)
    return {config.name: render.finalise(render.render(feedstock, config)) for config in expand.configs(feedstock)}


def releases() -> dict[str, dict[str, str]]:
    with (ROOT / "recipe" / "releases.csv").open(newline="") as file:
        return {row["version"]: row for row in csv.DictReader(file)}


def test_its_configs_are_the_files_in_ci_support() -> None:
    feedstock = feedstock_loader.find(ROOT)
    assert {CPU, CUDA, P3} == set(rendered())
    assert not expand.drift(feedstock, expand.configs(feedstock))


@pytest.mark.parametrize(
    ("config", "outputs"),
    [
        (CPU, {"tensorflow-serving": "2.20.0", "tensorflow-serving-api": "2.20.0"}),
        (CUDA, {"tensorflow-serving": "2.20.0"}),
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
    assert [server[name].build_number for name in (CPU, CUDA, P3)] == [0, 200, 200]
    assert server[CPU].track_features == ("tensorflow-serving-cpu",)
    assert all("__cuda" in server[name].requirements.run for name in (CUDA, P3))


def test_the_api_is_one_package_for_every_python() -> None:
    assert {item.noarch for result in rendered().values() for item in result.outputs if item.name.endswith("-api")} == {
        "python"
    }


@pytest.mark.parametrize("config", [CPU, CUDA, P3])
def test_the_doctor_lets_every_config_through(config: str) -> None:
    for combination in compatibility.combinations(feedstock_loader.find(ROOT), config):
        assert combination.serving is not None
        assert compat.judge(combination, suggest=False).verdict is compat.Verdict.WORKS


@pytest.mark.parametrize("version", sorted(releases()))
def test_a_release_is_compiled_as_the_doctors_table_says(version: str) -> None:
    row, known = releases()[version], tables.serving(version)
    assert known is not None
    assert row["bazel"] == known["bazel"]
    listed = {plain(item) for item in row["capabilities"].split(":")}
    assert listed <= {plain(item) for item in known["capabilities"].split(",")}
    assert row["tensorflow"].split(".")[:2] == version.split(".")[:2]
    assert len(row["source"]) > 20


def test_sources_are_those_of_the_table_and_pinned_by_the_hash_of_the_commit() -> None:
    for result in rendered().values():
        (source,) = result.sources
        assert source.git_rev == releases()[result.outputs[0].version]["commit"]
        assert len(source.git_rev) == 40


def test_the_p3_config_compiles_for_volta_with_a_gcc_below_7() -> None:
    (combination,) = compatibility.combinations(feedstock_loader.find(ROOT), P3)
    assert (combination.cuda, combination.cudnn, combination.host) == ("9.0", "7", "gcc 5.4")
    assert releases()["1.12.3"]["capabilities"] == "7.0"


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
    row = releases()[version]
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
        "cudnn": "9.3",
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
        "--config=cuda_clang --copt=-fPIC",
        "--repo_env=TF_CUDA_COMPUTE_CAPABILITIES=sm_60,sm_70,sm_80,sm_89,compute_90",
        "--remote_cache=grpc://cache:9092 --remote_default_exec_properties=cache-silo-key=4f1c",
        "--build_event_json_file=/e.json",
    ):
        assert flag in asked
    assert "pip_package" not in asked
    assert asked.splitlines()[-1].endswith("shutdown")
    assert [file.name for file in (tmp_path / "source" / "dist").iterdir()] == ["tensorflow_model_server"]


@pytest.mark.processes
def test_the_compile_for_p3(tmp_path: Path) -> None:
    done = compile_with(tmp_path, "1.12.3", "9.0", cudnn="7", BAZEL_CACHE_KEY="4f1c")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "source" / "asked").read_text()
    assert "--jobs=5 --local_resources=9000,8,1.0 --config=cuda --copt=-fPIC" in asked
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
        ({"PKG_VERSION": "2.99.0"}, "releases.csv has no release 2.99.0"),
    ],
)
def test_a_compile_that_is_not_what_the_table_says_is_refused(tmp_path: Path, more: dict[str, str], why: str) -> None:
    done = compile_with(tmp_path, "2.20.0", "None", **more)
    assert done.returncode == 1
    assert why in done.stderr
    assert not (tmp_path / "source" / "asked").exists()
