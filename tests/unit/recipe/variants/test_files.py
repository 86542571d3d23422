"""Variant files: selection for a platform, empty keys, and all faults of a file at once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MalformedYaml, VariantFault
from kiln.recipe.variants.files import (
    Platform,
    VariantFile,
    VariantSource,
    as_list,
    check_variant_source,
    load_variant_file,
    without_empty_values,
    zip_groups,
)

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

LINUX, WINDOWS = Platform(system="linux", arch="64"), Platform(system="win", arch="64")
NAME = "conda_build_config.yaml"


def file(folder: Path, text: str) -> VariantFile:
    path = folder / NAME
    path.write_text(text)
    return VariantFile(path, NAME)


def values(folder: Path, text: str, platform: Platform = LINUX) -> dict[str, Any]:
    return file(folder, text).source_for_platform(platform, frozenset()).values


def faults(**source: Any) -> list[str]:
    with pytest.raises(VariantFault) as caught:
        check_variant_source(VariantSource(name=NAME, values=source))
    return [str(fault.what) for fault in (caught.value, *caught.value.others)]


def test_each_platform_sees_the_lines_that_its_selectors_keep(tmp_path: Path) -> None:
    text = "c_compiler:\n  - gcc   # [linux]\n  - vs2022   # [win]\nblas:   # [linux]\n  - mkl   # [linux]\n"
    assert values(tmp_path, text) == {"c_compiler": ["gcc"], "blas": ["mkl"]}
    assert values(tmp_path, text, WINDOWS) == {"c_compiler": ["vs2022"]}
    assert file(tmp_path, text).keys == {"c_compiler", "blas"}


def test_numbers_and_truth_values_stay_as_they_are_written(tmp_path: Path) -> None:
    assert values(tmp_path, "python:\n  - 3.10\nflag:\n  - yes\n") == {"python": ["3.10"], "flag": ["yes"]}


def test_an_empty_file_and_empty_keys_have_no_values(tmp_path: Path) -> None:
    assert values(tmp_path, "# only a comment\n") == {}
    assert values(tmp_path, "a:\nb: []\nc:\n  - 1\nzip_keys: []\n") == {"c": ["1"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": {"b": {"c": None}}}, {}),
        ({"a": {"b": "", "c": "1"}}, {"a": {"c": "1"}}),
        ({"zip_keys": [[]]}, {}),
        ({"zip_keys": [[], ["a", "b"]]}, {"zip_keys": [[], ["a", "b"]]}),
        ({"a": 0}, {"a": 0}),
        ({"a": False, "final": False}, {"a": False}),
    ],
)
def test_keys_without_values_are_left_out_at_any_depth(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert without_empty_values(given) == expected


def test_the_header_has_the_values_of_all_platforms(tmp_path: Path) -> None:
    """A migration's settings hold on every platform, so its selectors do not matter."""
    assert file(
        tmp_path, "__migrator:\n  kind: version   # [win]\n  kind: version   # [linux]\n"
    ).values_ignoring_selectors() == {"__migrator": {"kind": "version"}}
    assert file(tmp_path, "- a\n").values_ignoring_selectors() == {}


def test_a_list_that_reads_as_a_selector_is_refused_at_its_bracket(tmp_path: Path) -> None:
    with pytest.raises(VariantFault, match=r"the list \[3.11, 3.12\] reads as a selector") as caught:
        file(tmp_path, "a:\n  - 1\npython: [3.11, 3.12]\n")
    assert str(caught.value.at) == f"{NAME}:3:9"


def test_a_file_that_is_not_a_mapping_is_malformed(tmp_path: Path) -> None:
    with pytest.raises(MalformedYaml, match="a mapping of keys to values"):
        file(tmp_path, "- a\n- b\n").source_for_platform(LINUX, frozenset())


def test_a_file_is_read_again_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_text("a:\n  - 1\n")
    first = load_variant_file(path, NAME)
    assert load_variant_file(path, NAME) is first
    path.write_text("b:\n  - 1\n")
    os.utime(path, ns=(1, 1))
    assert load_variant_file(path, NAME).keys == {"b"}


def test_a_missing_file_is_reported_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(VariantFault, match=r"cannot read x\.yaml") as caught:
        load_variant_file(tmp_path / "x.yaml", "x.yaml")
    assert caught.value.why == "No such file or directory"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ([], []),
        (["a", "b"], [("a", "b")]),
        ([["a", "b"], ["c"]], [("a", "b"), ("c",)]),
        ((("a", "b"),), [("a", "b")]),
    ],
)
def test_zip_keys_are_one_group_or_several(given: Any, expected: list[tuple[str, ...]]) -> None:
    assert zip_groups(given) == expected


@pytest.mark.parametrize("given", ["a", {"a": "b"}, [["a"], "b"], [["a", ["b"]]], [1]])
def test_other_zip_keys_are_malformed(given: Any) -> None:
    assert faults(zip_keys=given) == ["malformed zip_keys"]


@pytest.mark.parametrize(
    ("given", "expected"), [(None, []), ("a", ["a"]), (("a", "b"), ["a", "b"]), ({"a"}, ["a"]), ({"a": 1}, [{"a": 1}])]
)
def test_a_value_as_a_list(given: Any, expected: list[Any]) -> None:
    assert as_list(given) == expected


def test_all_faults_of_a_source_are_reported_at_once() -> None:
    assert faults(
        **{"a-b": ["1"], "c": [{"d": "1"}], "e": ["x\u202ey"], "pin_run_as_build": {"python": ["x.x"]}},
        target_platform=["linux-46"],
    ) == [
        "'e' has a control character or one that reorders text",
        "target_platform is 'linux-46', which is not a subdir of conda's",
        "c has a value that is neither text nor number",
        "pin_run_as_build is not a mapping of packages to their pins",
        "the key 'a-b' has a dash",
    ]


@pytest.mark.parametrize("name", ["linux-64", "linux-imx351uc", "linux-cos5-64"])
def test_a_target_platform_may_be_a_custom_one(name: str) -> None:
    check_variant_source(VariantSource(name=NAME, values={"target_platform": [name]}))


@pytest.mark.parametrize(
    "name", ["linux-46", "linux-x86_64", "linux", "../linux-cos5-64", "a-cos5", "linux-" + "a" * 64]
)
def test_a_target_platform_like_a_misspelling_is_refused(name: str) -> None:
    assert faults(target_platform=[name]) == [f"target_platform is {name!r}, which is not a subdir of conda's"]


def test_faults_of_zipped_keys_name_the_odd_one(tmp_path: Path) -> None:
    text = "a:\n  - 1\n  - 2\nb:\n  - 1\n  - 2\nc:\n  - 1\nd:\n  - 1\n"
    text += "zip_keys:\n  -\n    - a\n    - b\n    - c\n  -\n    - a\n    - missing\n"
    with pytest.raises(VariantFault) as caught:
        file(tmp_path, text).source_for_platform(LINUX, frozenset())
    result = [(str(fault.what), str(fault.at), fault.why) for fault in (caught.value, *caught.value.others)]
    assert result == [
        (f"the zipped key 'missing' has no values in {NAME}", f"{NAME}:11:1", ""),
        ("the key 'a' is in more than one group of zip_keys", f"{NAME}:11:1", ""),
        ("zipped keys have different numbers of values", f"{NAME}:7:1", "a has 2, b has 2, c has 1"),
    ]


def test_a_group_that_two_sources_define_alike_counts_once() -> None:
    check_variant_source(
        VariantSource(name=NAME, values={"a": ["1"], "b": ["2"], "zip_keys": [["a", "b"], ["b", "a"]]})
    )


def test_the_place_of_a_combined_value_is_that_of_the_last_source_with_it(tmp_path: Path) -> None:
    first = file(tmp_path, "a:\n  - 1\nb:\n  - 1\n").source_for_platform(LINUX, frozenset())
    last = file(tmp_path, "b:\n  - 2\n").source_for_platform(LINUX, frozenset())
    combined = VariantSource(name="combined", values={"a": ["1"], "b": ["2"]}, origins=(first, last))
    assert [str(combined.place_of_key(key)) for key in ("a", "b", "c")] == [f"{NAME}:1:1", f"{NAME}:1:1", "None"]
    assert combined.place_of_key("b") == last.place_of_key("b")
