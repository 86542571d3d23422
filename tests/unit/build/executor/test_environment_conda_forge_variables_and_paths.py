"""A config in a container finds conda-forge's variables around it."""

from __future__ import annotations

from pathlib import Path

from kiln.build.executor.environment import conda_forge_variables
from kiln.recipe.feedstock import Feedstock

FEEDSTOCK = Feedstock(root=Path("/f/some-feedstock"))


def test_the_variables_are_conda_forges() -> None:
    assert conda_forge_variables(
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
    assert conda_forge_variables(FEEDSTOCK, "c", caller=said, cores=4, uid=0).items() >= said.items()
