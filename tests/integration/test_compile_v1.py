"""A compile by Bazel in a feedstock with a recipe.yaml: Pythons and configs of one CUDA version share a cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.integration.bazel_feedstocks import LIBRARIES, PYTHONS_OWN, Feedstock, bazel_feedstock, compile_of
from tests.integration.recipe_v1_feedstocks import as_v1

if TYPE_CHECKING:
    from pathlib import Path

CUDA_12 = "linux_64_cuda_compiler_version12.4"
STAGING = "compile tensorflow-split-build"

pytestmark = [pytest.mark.trial, pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")]


@pytest.fixture(scope="module")
def feedstock(tmp_path_factory: pytest.TempPathFactory) -> Feedstock:
    """The small TensorFlow's feedstock in the new format: a config for each CUDA, with two Pythons."""
    feedstock = bazel_feedstock(tmp_path_factory.mktemp("compile") / "small-tensorflow")
    as_v1(feedstock.root)
    return feedstock


def config_with_one_python(root: Path) -> str:
    """Write a config of the same CUDA for one Python, as feedstocks have whose packages all use Python."""
    name = f"{CUDA_12}python3.13"
    text = (root / ".ci_support" / f"{CUDA_12}.yaml").read_text()
    assert "- 3.11.* *_cpython\n" in text
    (root / ".ci_support" / f"{name}.yaml").write_text(text.replace("- 3.11.* *_cpython\n", ""))
    return name


def test_a_second_python_compiles_its_own_and_a_second_config_nothing(feedstock: Feedstock) -> None:
    ended = feedstock.build(CUDA_12)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    first, second = (compile_of(report, CUDA_12, f"{STAGING}-python{version}") for version in ("3.11", "3.13"))
    assert first["hits"] == 0
    assert first["misses"] > 5 * PYTHONS_OWN
    assert (second["hits"], second["misses"]) == (first["misses"] - PYTHONS_OWN, PYTHONS_OWN)
    names = [path.name.split("-2.0.1-")[0] for path in (feedstock.artifacts / "linux-64").glob("*.conda")]
    pythons = ("tensorflow", "tensorflow-base")
    assert sorted(names) == sorted((*LIBRARIES, *pythons, *pythons))
    other = config_with_one_python(feedstock.root)
    ended = feedstock.build(other)
    assert ended.returncode == 0, ended.stderr
    third = compile_of(json.loads(ended.stdout), other, STAGING)
    assert (third["hits"], third["misses"]) == (first["misses"], 0)
