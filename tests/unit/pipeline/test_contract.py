"""A cell in a container sees exactly this: conda-forge's variables and mounts, and kiln itself."""

from __future__ import annotations

from pathlib import Path

from kiln.model.container import Limits, Mount, User
from kiln.model.feedstock import Feedstock
from kiln.pipeline.contract import HOUSE, run_inside, start, variables, within

FEEDSTOCK = Feedstock(root=Path("/f/some-feedstock"))


def test_the_variables_are_conda_forges() -> None:
    assert variables(FEEDSTOCK, "linux_64_", given={"CI": "1", "sha": "abc", "TOKEN": "hidden"}, cores=4, uid=1000) == {
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
    assert variables(FEEDSTOCK, "c", given=said, cores=4, uid=0).items() >= said.items()


def test_the_container_sees_the_recipe_read_only_and_writes_below_the_feedstock() -> None:
    plan = run_inside(
        FEEDSTOCK,
        start(within(FEEDSTOCK.artifacts / "work" / "c" / "job.json", FEEDSTOCK), module="builder"),
        image_name="localhost/i:1",
        environment={"CONFIG": "c"},
        user=User(uid=1, gid=2),
        limits=Limits(cores=2),
        network=False,
        options=("--gpus", "all"),
    )
    assert plan.mounts == (
        Mount(source=Path("/f/some-feedstock/recipe"), target="/home/conda/recipe_root"),
        Mount(source=Path("/f/some-feedstock"), target="/home/conda/feedstock_root", read_only=False),
        Mount(source=HOUSE / "kiln", target="/opt/kiln-package/kiln"),
    )
    assert plan.argv[-2] == "/home/conda/feedstock_root/build_artifacts/work/c/job.json"
    assert plan.environment["CONFIG"] == "c"
    assert plan.environment["HOME"] == "/home/conda"
    assert (plan.image, plan.user, plan.limits, plan.network, plan.options) == (
        "localhost/i:1",
        User(uid=1, gid=2),
        Limits(cores=2),
        False,
        ("--gpus", "all"),
    )
