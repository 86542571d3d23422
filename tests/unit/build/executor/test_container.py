"""The container of a config has conda-forge's variables, and sees its mounts alone."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.build.executor.container import (
    PRINT_OFFER,
    ContainerExecutor,
    engine_folder,
    lock_entries_for_python,
    pip_install_command,
    python_of_image,
)
from kiln.build.job.job import BuildOptions, JobContext
from kiln.container.engine import Engine, EngineKind
from kiln.container.plan import ContainerLimits
from kiln.recipe.feedstock import Feedstock
from kiln.state.store.layout import ArtifactLayout
from tests import builders


def test_a_config_finds_conda_forges_variables_in_its_container(tmp_path: Path) -> None:
    feedstock = Feedstock(root=tmp_path)
    (tmp_path / "recipe").mkdir()
    job = builders.config_job(
        tmp_path,
        options=BuildOptions(run_arguments=("--gpus", "all")),
        image="localhost/i:1",
        variables={"CONFIG": "c"},
        environment={"TOKEN": "hidden"},
    )
    task = JobContext(
        job=job,
        feedstock=feedstock,
        layout=ArtifactLayout.for_feedstock(feedstock),
        rendered=builders.rendered_config(),
        environment={},
    )
    executor = ContainerExecutor(task=task)
    engine = Engine(kind=EngineKind.DOCKER, executable="docker", version="27", environment={})
    plan = executor.plan_container(engine, executor.job_command(task.folder / "job.json"), executor.mounted_folders())
    assert plan.argv[-2] == "/home/conda/feedstock_root/build_artifacts/work/c/job.json"
    assert (plan.environment["CONFIG"], plan.environment["HOME"]) == ("c", "/home/conda")
    assert "TOKEN" not in plan.environment
    assert (plan.image, plan.network, plan.options[-2:]) == ("localhost/i:1", False, ("--gpus", "all"))
    everywhere = builders.config_job(tmp_path, options=BuildOptions(network="always"))
    assert dataclasses.replace(task, job=everywhere).has_network
    assert isinstance(plan.limits, ContainerLimits)
    assert plan.limits.cores == 2
    targets = {mount.target: mount.read_only for mount in plan.mounts}
    assert targets["/home/conda/recipe_root"], "the recipe is read only"
    assert [name for name, read_only in targets.items() if not read_only] == [
        "/home/conda/feedstock_root/build_artifacts/work/c",
        "/home/conda/compile-cache",
    ]


@pytest.mark.processes
def test_a_supported_python_prints_its_version() -> None:
    said = subprocess.run((sys.executable, "-c", PRINT_OFFER), capture_output=True, text=True, check=True).stdout
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert python_of_image(f"pulled\n{said}more\n") == version


def test_output_without_a_version_has_no_python() -> None:
    assert python_of_image("exec: python3: not found") is None


LOCK = """\
# made by a tool
a==1 \\
    --hash=sha256:1 \\
    --hash=sha256:2
b==2 ; python_full_version < '3.14' \\
    --hash=sha256:3
    # via a
"""


@pytest.mark.parametrize(("python", "has"), [("3.13", True), ("3.14", False)])
def test_requirements_of_other_pythons_are_omitted(python: str, *, has: bool) -> None:
    answer = lock_entries_for_python(LOCK, python, "linux-64")
    assert "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2" in answer
    assert ("b==2 \\\n    --hash=sha256:3" in answer) is has
    assert ";" not in answer


def test_wheels_alone_are_fetched_by_their_hashes_for_that_python() -> None:
    words = pip_install_command("3.12", Path("/engines/part"), Path("/run.txt"), "linux-64")
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps", "--python-version=3.12"} <= set(words)
    assert "--platform=manylinux_2_28_x86_64" in words
    assert words[-4:] == ("--target", "/engines/part", "--requirement", "/run.txt")


def test_an_emulated_image_gets_the_wheels_of_its_platform() -> None:
    words = pip_install_command("3.12", Path("/engines/part"), Path("/run.txt"), "linux-aarch64")
    platforms = [word for word in words if word.startswith("--platform=")]
    assert platforms == [f"--platform={tag}_aarch64" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    engines = Path("/engines")
    assert engine_folder("3.12", engines, "linux-aarch64") != engine_folder("3.12", engines, "linux-64")
    condition = "a==1 ; platform_machine == 'aarch64' \\\n    --hash=sha256:1\n"
    assert "a==1" in lock_entries_for_python(condition, "3.12", "linux-aarch64")
    assert "a==1" not in lock_entries_for_python(condition, "3.12", "linux-64")
