"""Variant files: selection for a platform, empty keys, and all faults of a file at once."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MalformedYaml, VariantFault
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.variants.files import (
    Platform,
    VariantFile,
    VariantSource,
    check_variant_source,
    combine_sources,
    cuda_version_of_config,
    load_variant_file,
    virtual_packages_with_cuda,
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


CONFIG = BuildConfig(
    name="linux_64_", platform="linux-64", variant={"cuda_compiler_version": ("12.9",)}, pin_run_as_build={}
)
BARE = {"__glibc": ("2.36", "0")}
H200 = {**BARE, "__cuda": ("13.0", "0"), "__cuda_arch": ("9.0", "0")}


def with_keys(**keys: str) -> BuildConfig:
    return dataclasses.replace(CONFIG, variant={**CONFIG.variant, **{name: (value,) for name, value in keys.items()}})


def test_a_cuda_config_is_tested_as_with_a_gpu() -> None:
    assert virtual_packages_with_cuda(BARE, CONFIG) == {**BARE, "__cuda": ("12.9", "0"), "__cuda_arch": ("999.0", "0")}
    config = with_keys(cuda_arch_version="9.0")
    assert virtual_packages_with_cuda(BARE, config)["__cuda_arch"] == ("9.0", "0")
    assert virtual_packages_with_cuda(H200, CONFIG) == H200, "a real GPU stays as it is"
    driver = {**BARE, "__cuda": ("13.0", "0")}
    assert virtual_packages_with_cuda(driver, CONFIG) == {**driver, "__cuda_arch": ("999.0", "0")}


def test_a_cpu_config_is_tested_on_the_machine_as_it_is() -> None:
    config = with_keys(cuda_compiler_version="None")
    assert cuda_version_of_config(config) is None
    assert virtual_packages_with_cuda(BARE, config) == BARE


LINUX_PLATFORM = Platform(system="linux", arch="64", environ={"CI": "1", "unix": "hidden"})


@pytest.mark.parametrize(
    ("system", "arch", "compiler"),
    [("linux", "aarch64", "gcc"), ("osx", "arm64", "clang"), ("win", "64", "vs2017"), ("zos", "z", None)],
)
def test_the_defaults_are_those_of_the_system(system: str, arch: str, compiler: str | None) -> None:
    defaults = Platform(system=system, arch=arch).default_variant()
    assert defaults["target_platform"] == f"{system}-{arch}"
    assert defaults.get("c_compiler") == compiler
    assert ("vc" in defaults) == (system == "win")


def test_names_come_from_the_host_the_variant_and_the_environment() -> None:
    names = LINUX_PLATFORM.fixed_names({"python": "3.13.* *_cp313", "numpy": "2.0"}, "osx-arm64")
    assert (names["linux"], names["osx"], names["arm64"]) == (False, True, True)
    assert (names["py"], names["np"], names["py3k"]) == (313, 20, True)
    assert (names["build_platform"], names["CI"]) == ("linux-64", "1")
    assert names["unix"] == "hidden", "a variable of the environment hides a platform's name"
    assert names["os"].environ == names["environ"] == {"CI": "1", "unix": "hidden"}


def test_languages_without_a_variant_have_conda_builds_versions() -> None:
    names = LINUX_PLATFORM.fixed_names({"python": None}, "linux-64")
    assert (names["py"], names["np"], names["pl"], names["lua"]) == (311, 123, "5.26.2", "5")


def test_the_build_platform_is_that_of_a_cross_compilation() -> None:
    platform = Platform(system="linux", arch="aarch64", build="linux-64")
    assert platform.subdir == "linux-aarch64"
    assert platform.fixed_names({}, platform.subdir)["build_platform"] == "linux-64"


def test_each_host_has_names_of_its_own() -> None:
    """The names are cached: noarch after linux-64 must not have those of linux-64."""
    assert LINUX_PLATFORM.fixed_names({}, "linux-64")["linux64"] is True
    assert LINUX_PLATFORM.fixed_names({}, "noarch")["linux64"] is False
    assert LINUX_PLATFORM.fixed_names({}, "linux-64")["linux64"] is True


def test_defaults_are_not_shared_between_callers() -> None:
    LINUX_PLATFORM.default_variant()["pin_run_as_build"]["python"]["max_pin"] = "x"
    LINUX_PLATFORM.default_variant()["extend_keys"].append("x")
    assert LINUX_PLATFORM.default_variant()["pin_run_as_build"]["python"]["max_pin"] == "x.x"
    assert "x" not in LINUX_PLATFORM.default_variant()["extend_keys"]


def sources(*values: dict[str, Any]) -> list[VariantSource]:
    return [VariantSource(name=f"source {index}", values=value) for index, value in enumerate(values)]


def test_later_values_replace_earlier_ones() -> None:
    assert combine_sources(sources({"a": ["1"], "b": ["2"]}, {"a": ["3", "4"]})) == {"a": ["3", "4"], "b": ["2"]}


def test_settings_are_united() -> None:
    pins = ({"a": {"max_pin": "x"}}, {"b": {"max_pin": "x.x"}})
    setting = sources(
        *({"pin_run_as_build": pin, "ignore_version": [name]} for pin, name in zip(pins, "ab", strict=True))
    )
    assert combine_sources(setting) == {"pin_run_as_build": {**pins[0], **pins[1]}, "ignore_version": ["a", "b"]}


def test_own_settings_are_declared_with_extend_keys() -> None:
    result = combine_sources(sources({"mine": ["a"]}, {"extend_keys": ["mine"], "mine": ["b"]}))
    assert result["mine"] == ["a", "b"]


GROUP: dict[str, Any] = {"zip_keys": [["a", "b"]], "a": ["1", "2"], "b": ["x", "y"]}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"a": ["3"], "b": ["z"]}, (["3"], ["z"])),  # as a whole
        ({"a": ["8", "9"]}, (["8", "9"], ["x", "y"])),  # as many values
        ({"a": ["2"]}, (["1", "2"], ["x", "y"])),  # some of its values again
    ],
)
def test_a_group_is_replaced_where_it_stays_even(
    given: dict[str, list[str]], expected: tuple[list[str], list[str]]
) -> None:
    result = combine_sources(sources(GROUP, given))
    assert (result["a"], result["b"]) == expected


def test_one_key_of_a_group_cannot_bring_new_values_alone() -> None:
    with pytest.raises(VariantFault) as caught:
        combine_sources(sources(GROUP, {"a": ["7"]}))
    assert "b" in caught.value.hint


def test_a_part_of_an_unknown_group_is_dropped() -> None:
    assert "a" not in combine_sources(sources({"a": ["1"]}, {"zip_keys": [["a", "b"]], "c": ["1"]}))
