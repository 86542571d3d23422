"""A config in a container finds conda-forge's variables around it."""

from __future__ import annotations

from pathlib import Path

from kiln.executor.conda_forge_env import build_container, container_path, module_command, variables
from kiln.model.container import ContainerLimits, Mount, User
from kiln.model.feedstock import Feedstock

FEEDSTOCK = Feedstock(root=Path("/f/some-feedstock"))


def test_the_variables_are_conda_forges() -> None:
    assert variables(
        FEEDSTOCK, "linux_64_", caller={"CI": "1", "sha": "abc", "TOKEN": "hidden"}, cores=4, uid=1000
    ) == {
        "CONFIG": "linux_64_",
        "UPLOAD_PACKAGES": "False",
        "IS_PR_BUILD": "True",
        "HOST_USER_ID": "1000",
        "CPU_COUNT": "4",
        "FEEDSTOCK_NAME": "some-feedstock",
        "CI": "1",
        "sha": "abc",
    }
    said = {"CPU_COUNT": "2", "FEEDSTOCK_NAME": "other"}
    assert variables(FEEDSTOCK, "c", caller=said, cores=4, uid=0).items() >= said.items()


def test_the_container_has_conda_forges_variables_and_sees_the_mounts_alone() -> None:
    mount = Mount(source=Path("/f/some-feedstock/recipe"), target="/home/conda/recipe_root")
    plan = build_container(
        module_command(container_path(FEEDSTOCK.artifacts / "work" / "c" / "job.json", FEEDSTOCK), module="builder"),
        image_name="localhost/i:1",
        environment={"CONFIG": "c"},
        user=User(uid=1, gid=2),
        limits=ContainerLimits(cores=2),
        network=False,
        options=("--gpus", "all"),
        mounts=(mount,),
    )
    assert plan.mounts == (mount,)
    assert plan.argv[-2] == "/home/conda/feedstock_root/build_artifacts/work/c/job.json"
    assert plan.environment["CONFIG"] == "c"
    assert plan.environment["HOME"] == "/home/conda"
    assert (plan.image, plan.user, plan.limits, plan.network, plan.options) == (
        "localhost/i:1",
        User(uid=1, gid=2),
        ContainerLimits(cores=2),
        False,
        ("--gpus", "all"),
    )
