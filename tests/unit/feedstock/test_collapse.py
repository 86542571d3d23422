"""The collapse of packages to jobs: the keys that distinguish jobs, and the values that each job loops over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import VariantFault
from kiln.feedstock import matrix
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig

HEAD = "package:\n  name: app\n  version: 1\n"


def host(*names: str) -> str:
    return "requirements:\n  host:" + "".join(f"\n    - {name}" for name in names) + "\n"


def outputs(**hosts: tuple[str, ...]) -> str:
    entries = (
        f"  - name: {name}\n    requirements:\n      host:\n" + "".join(f"        - {item}\n" for item in needs)
        for name, needs in hosts.items()
    )
    return "outputs:\n" + "".join(entries)


def values(**keys: list[str]) -> str:
    return "".join(f"{key}:\n" + "".join(f"  - {value}\n" for value in items) for key, items in keys.items())


def configs(folder: Path, recipe: str, variants: str, forge: str = LINUX_ONLY) -> list[BuildConfig]:
    return list(matrix.configs(builders.feedstock(folder, HEAD + recipe, variants, forge)))


def jobs(found: list[BuildConfig], *keys: str) -> list[tuple[tuple[str, ...] | None, ...]]:
    return [tuple(config.variant.get(key) for key in keys) for config in found]


def test_a_key_that_all_packages_use_distinguishes_jobs_and_others_are_lists(tmp_path: Path) -> None:
    recipe = outputs(one=("alpha", "beta"), two=("alpha",))
    found = configs(tmp_path, recipe, values(alpha=["1", "2"], beta=["x", "y"], unused=["3", "4"]))
    assert jobs(found, "alpha", "beta", "unused") == [(("1",), ("x", "y"), None), (("2",), ("x", "y"), None)]
    assert [config.name for config in found] == ["linux_64_alpha1", "linux_64_alpha2"]


def test_a_key_of_the_recipes_own_build_step_distinguishes_jobs_too(tmp_path: Path) -> None:
    found = configs(tmp_path, host("alpha") + outputs(one=("beta",)), values(alpha=["1", "2"], beta=["x", "y"]))
    assert jobs(found, "alpha", "beta") == [(("1",), ("x",)), (("1",), ("y",)), (("2",), ("x",)), (("2",), ("y",))]


def test_zipped_keys_stay_together_in_each_job(tmp_path: Path) -> None:
    variants = values(alpha=["1", "1", "2"], beta=["x", "y", "z"]) + "zip_keys:\n  - [beta, alpha]  # both\n"
    found = configs(tmp_path, outputs(one=("alpha", "beta"), two=("alpha",)), variants)
    assert jobs(found, "alpha", "beta") == [(("1", "1"), ("x", "y")), (("2",), ("z",))]
    assert {config.zip_keys for config in found} == {(("beta", "alpha"),)}


def test_a_zipped_key_that_no_package_uses_is_left_out(tmp_path: Path) -> None:
    variants = values(alpha=["1", "2"], unused=["x", "y"]) + "zip_keys:\n  - [alpha, unused]  # both\n"
    found = configs(tmp_path, host("alpha"), variants)
    assert jobs(found, "alpha", "unused") == [(("1",), None), (("2",), None)]
    assert {config.zip_keys for config in found} == {()}


def test_a_combination_whose_packages_are_all_skipped_is_no_job(tmp_path: Path) -> None:
    recipe = "build:\n  skip: true  # [alpha == 2 and beta == 'y']\n" + host("alpha", "beta")
    found = configs(tmp_path, recipe, values(alpha=["1", "2"], beta=["x", "y"]))
    assert jobs(found, "alpha", "beta") == [(("1",), ("x",)), (("1",), ("y",)), (("2",), ("x",))]


def test_pins_are_kept_for_the_packages_that_a_job_uses(tmp_path: Path) -> None:
    pins = "pin_run_as_build:\n  alpha-lib:\n    min_pin: x\n    max_pin: x.x\n  other:\n    max_pin: x\n"
    (found,) = configs(tmp_path, host("alpha-lib"), values(alpha_lib=["1"], other=["2"]) + pins)
    assert found.pin_run_as_build == {"alpha-lib": {"min_pin": "x", "max_pin": "x.x"}}
    assert list(found.pin_run_as_build["alpha-lib"]) == ["min_pin", "max_pin"]


@pytest.mark.parametrize(("line", "kept"), [("    - python {{ python_min }}\n", True), ("    - python 3.10\n", False)])
def test_python_min_counts_where_the_recipes_text_has_it(tmp_path: Path, line: str, kept: bool) -> None:
    recipe = f"build:\n  noarch: python\nrequirements:\n  host:\n{line}"
    (found,) = configs(tmp_path, recipe, values(python_min=["3.10"]))
    assert found.variant.get("python_min") == (("3.10",) if kept else None)


def test_the_choice_of_mpi_brings_the_versions_of_its_kinds(tmp_path: Path) -> None:
    variants = values(mpi=["mpich", "openmpi"], mpich=["4"], openmpi=["5"], hdf5=["1"])
    found = configs(tmp_path, host("{{ mpi }}"), variants)
    assert jobs(found, "mpi", "mpich", "openmpi", "hdf5") == [
        (("mpich",), ("4",), ("5",), None),
        (("openmpi",), ("4",), ("5",), None),
    ]


MACOS = "build_platform: {}\nprovider:\n  linux_64: None\n  win_64: None\n  osx_64: default\n"
COMPILED = 'requirements:\n  build:\n    - {{ compiler("c") }}\n    - {{ stdlib("c") }}\n'
STDLIB = "c_compiler:\n  - clang\nc_stdlib:\n  - macosx_deployment_target\n"


def macos(folder: Path, variants: str) -> list[BuildConfig]:
    found = configs(folder, COMPILED, STDLIB + variants, MACOS)
    return [config for config in found if config.platform == "osx-64"]


@pytest.mark.parametrize(
    ("stdlib", "target", "sdk", "expected"),
    [
        ("10.13", None, None, "10.13 10.13 10.13"),
        ("10.13", "10.9", None, "10.13 10.13 10.13"),
        ("10.9", "11.0", "10.15", "11.0 11.0 11.0"),
        ("10.9", "10.13", "11.3", "10.13 10.13 11.3"),
        ("10.10", "10.9", "10.9", "10.10 10.10 10.10"),
    ],
)
def test_macos_versions_are_raised_to_the_newest(
    tmp_path: Path, stdlib: str, target: str | None, sdk: str | None, expected: str
) -> None:
    keys = {"c_stdlib_version": stdlib, "MACOSX_DEPLOYMENT_TARGET": target, "MACOSX_SDK_VERSION": sdk}
    (found,) = macos(tmp_path, values(**{key: [value] for key, value in keys.items() if value}))
    assert " ".join(found.variant[key][0] for key in keys) == expected


def test_a_range_of_macos_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VariantFault, match="must be single versions, not ranges"):
        macos(tmp_path, values(c_stdlib_version=['">=10.13,<11"'], MACOSX_DEPLOYMENT_TARGET=["10.9"]))
