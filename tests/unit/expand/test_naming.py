from __future__ import annotations

import pytest

from kiln.expand.naming import config_name

LONGEST = 259  # characters of a path on Windows, which GitHub's runner spends on two folders of the feedstock


def test_a_name_is_the_platform_and_each_looping_key_with_its_value() -> None:
    config = {"python": ["3.11.* *_cpython"], "cuda": ["12.9"], "target_platform": ["linux-64"], "zlib": ["1"]}
    name = config_name("linux_64", config, ["python", "cuda", "target_platform"], "small")
    assert name == "linux_64_cuda12.9python3.11.____cpython"


def test_the_only_config_of_a_platform_has_an_empty_part() -> None:
    assert config_name("linux_64", {}, [], "small") == "linux_64_"


def test_characters_that_paths_may_not_have_are_dropped() -> None:
    assert config_name("win_64", {"a": ['<1>:2/3|4?*"']}, ["a"], "small") == "win_64_a1234_"


@pytest.mark.parametrize("feedstock", ["small", "a-name-that-takes-more-of-the-path"])
def test_a_name_that_is_too_long_for_windows_ends_in_a_hash_of_itself(feedstock: str) -> None:
    folder = f"C:/Users/runnerx/_work/{feedstock}-feedstock/{feedstock}-feedstock/.ci_support/"
    names = [config_name("linux_64", {"key": [value * 300]}, ["key"], feedstock) for value in "ab"]
    assert names[0][-10:-8] == names[1][-10:-8] == "_h"
    assert names[0][-8:] != names[1][-8:]
    assert len(f"{folder}{names[0]}.yaml") == LONGEST
    room = LONGEST - len(f"{folder}linux_64_key.yaml")
    assert config_name("linux_64", {"key": ["a" * room]}, ["key"], feedstock) == f"linux_64_key{'a' * room}"
