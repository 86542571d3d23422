from __future__ import annotations

import tracemalloc
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import VariantFault
from kiln.recipe.variants.space import Space, config_labels, distinguishing_axes, space_narrowed_to_sources
from tests import runs

VALUES = st.lists(st.sampled_from(["1", "10", "2", "a", "b"]), min_size=1, max_size=3)


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """A specification: single keys, one zipped group, settings."""
    spec: dict[str, Any] = {f"k{index}": draw(VALUES) for index in range(draw(st.integers(1, 3)))}
    length = draw(st.integers(1, 4))
    rows = st.lists(st.sampled_from(["x", "y", "z"]), min_size=length, max_size=length)
    spec |= {"za": draw(rows), "zb": draw(rows), "zip_keys": [["za", "zb"]], "ignore_version": ["k0"]}
    return spec


def spelt_out(spec: dict[str, Any]) -> list[dict[str, str]]:
    """Every variant, the plain way."""
    single = [[{key: value} for value in spec[key]] for key in spec if key.startswith("k")]
    tied = [{"za": a, "zb": b} for a, b in zip(spec["za"], spec["zb"], strict=True)]
    return [{k: v for part in parts for k, v in part.items()} for parts in product(*single, tied)]


def plain(space: Space) -> list[dict[str, str]]:
    keys = [key for dimension in space.dimensions for key in dimension.keys]
    return [{key: variant[key] for key in keys} for variant in space.variants()]


def distinct(variants: list[dict[str, str]]) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted(variant.items())) for variant in variants}


@given(specs())
def test_the_space_is_the_product_with_zipped_keys_together(spec: dict[str, Any]) -> None:
    assert distinct(plain(Space.from_spec(spec))) == distinct(spelt_out(spec))


@given(specs(), st.sampled_from(["k0", "za", "zb"]), st.lists(st.sampled_from(["1", "a", "x", "y"]), max_size=2))
def test_narrowing_keeps_what_matches_or_everything(spec: dict[str, Any], key: str, values: list[str]) -> None:
    every = spelt_out(spec)
    wanted = [variant for variant in every if variant[key] in values] or every
    assert distinct(plain(Space.from_spec(spec).where(key, values))) == distinct(wanted)


@given(specs(), st.sampled_from(["1", "10", "a", "xy"]))
def test_a_text_matches_each_of_its_parts(spec: dict[str, Any], text: str) -> None:
    every = spelt_out(spec)
    wanted = [variant for variant in every if variant["k0"] in text] or every
    assert distinct(plain(Space.from_spec(spec).where("k0", text))) == distinct(wanted)


@given(specs())
def test_settings_do_not_vary(spec: dict[str, Any]) -> None:
    space = Space.from_spec(spec)
    assert "ignore_version" not in space.varying_keys
    assert all(variant["ignore_version"] == ["k0"] for variant in space.variants())


@given(specs())
def test_a_reduced_space_varies_in_what_is_kept_alone(spec: dict[str, Any]) -> None:
    reduced = Space.from_spec(spec).reduced_to_keys(frozenset({"za"}))
    assert reduced.varying_keys <= {"za", "zb"}
    assert {variant["za"] for variant in reduced.variants()} == set(spec["za"])


def test_a_matrix_with_too_many_variants_is_reported() -> None:
    spec = {f"k{index}": [str(value) for value in range(10)] for index in range(30)}
    with pytest.raises(VariantFault) as caught:
        next(Space.from_spec(spec).variants())
    assert "k0 (10 values)" in caught.value.why


def test_the_last_source_selects_first() -> None:
    spec = {"a": ["1", "2", "3"]}
    assert [v["a"] for v in space_narrowed_to_sources(spec, [{"a": ["1"]}, {"a": ["2", "3"]}]).variants()] == ["2", "3"]


def test_a_mapping_stands_for_its_keys_in_a_group_as_it_does_alone() -> None:
    values = {"m": {"x": ["1"]}, "za": {"y": ["2"]}, "zb": ["z"], "zip_keys": [["za", "zb"]]}
    assert [variant["za"] for variant in Space.from_spec(values).variants()] == ["y"]
    assert [variant["m"] for variant in Space.from_spec(values).variants()] == ["x"]


@pytest.mark.parametrize("text", ["".join(map(str, range(500))), "5b", "12"], ids=["long", "two", "equal"])
def test_every_part_of_a_text_counts_and_none_is_kept_in_memory(text: str) -> None:
    given = ["b", "12", "5", "other"]
    space = Space.from_spec({"key": given})
    tracemalloc.start()
    try:
        (dimension,) = space.where("key", text).dimensions
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [value for (value,) in dimension.rows] == [value for value in given if value in text]
    assert most < 1_000_000


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


def test_a_single_config_is_not_named_by_what_its_own_name_has_not() -> None:
    variants = {"linux_64_": {"python": ("3.13.* *_cp313",), "cuda_compiler_version": ("None",)}}
    assert config_labels(["linux_64_"], variants) == {"linux_64_": "linux_64_"}, "of a noarch package, say"


def test_a_config_whose_variant_is_not_known_any_more_keeps_its_own_name() -> None:
    variants = runs.variants(("None",), PYTHONS)
    configs = [*variants, "linux_64_gone"]
    assert config_labels(configs, variants) == {config: config for config in configs}


def test_values_that_look_the_same_when_shortened_are_shown_whole() -> None:
    variants: runs.Variants = {"a": {"python": ("3.13.* *_cp313",)}, "b": {"python": ("3.13.* *_cp313t",)}}
    assert config_labels(["a", "b"], variants) == {"a": "Python 3.13.* *_cp313", "b": "Python 3.13.* *_cp313t"}
