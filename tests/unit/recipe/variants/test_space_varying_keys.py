"""The axes of a matrix are found and named."""

from __future__ import annotations

from kiln.recipe.variants.space import config_labels, distinguishing_axes
from tests import runs

PYTHONS = ("3.9", "3.10")


def test_the_fewest_keys_that_distinguish_configs_are_the_axes() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS)  # cudnn varies too, along with CUDA
    assert [axis.key for axis in distinguishing_axes(list(variants), variants)] == ["cuda_compiler_version", "python"]


def test_configs_are_named_by_what_varies() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS)
    assert list(config_labels(list(variants), variants).values()) == [
        "no CUDA · Python 3.9",
        "no CUDA · Python 3.10",
        "CUDA 12.9 · Python 3.9",
        "CUDA 12.9 · Python 3.10",
    ]


def test_a_single_config_is_named_by_what_people_ask_for_first() -> None:
    variants = runs.variants(("12.9",), ("3.10",))
    assert list(config_labels(list(variants), variants).values()) == ["CUDA 12.9 · Python 3.10"]


def test_a_config_whose_variant_is_not_known_any_more_keeps_its_own_name() -> None:
    variants = runs.variants(("None",), PYTHONS)
    configs = [*variants, "linux_64_gone"]
    assert config_labels(configs, variants) == {config: config for config in configs}


def test_values_that_look_the_same_when_shortened_are_shown_whole() -> None:
    variants: runs.Variants = {"a": {"python": ("3.13.* *_cp313",)}, "b": {"python": ("3.13.* *_cp313t",)}}
    assert config_labels(["a", "b"], variants) == {"a": "Python 3.13.* *_cp313", "b": "Python 3.13.* *_cp313t"}
