"""The file of a config in .ci_support: written as conda-smithy writes it, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base import files as base_files
from kiln.base import limits
from kiln.base.errors import MalformedYaml, UnknownConfig, VariantFault
from kiln.base.yaml import ScalarInterpretation, TypedText, parse_document
from kiln.feedstock.config_file import ci_support_text, config_file_text, read_config, read_configs
from kiln.recipe.feedstock import BuildConfig
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


CONFIG = BuildConfig(
    name="linux_64_python3.12",
    platform="linux-64",
    variant={
        "c_compiler_version": ("13",),
        "docker_image": ("quay.io/x:1",),
        "python": ("3.11.* *_cpython", "3.12.* *_cpython"),
        "target_platform": ("linux-64",),
    },
    zip_keys=(("c_compiler_version", "docker_image"),),
    pin_run_as_build={"python": {"min_pin": "x.x", "max_pin": "x.x"}},
    image="quay.io/x:1",
)
TEXT = """\
c_compiler_version:
- '13'
docker_image:
- quay.io/x:1
pin_run_as_build:
  python:
    min_pin: x.x
    max_pin: x.x
python:
- 3.11.* *_cpython
- 3.12.* *_cpython
target_platform:
- linux-64
zip_keys:
- - c_compiler_version
  - docker_image
"""


def feedstock(folder: Path, **configs: str) -> Feedstock:
    files = {f".ci_support/{name}.yaml": text for name, text in configs.items()}
    return builders.feedstock(folder, "package:\n  name: a\n  version: 1\n", files=files)


def test_a_config_is_written_as_conda_smithy_writes_it_and_read_back(tmp_path: Path) -> None:
    assert config_file_text(CONFIG) == TEXT
    result = feedstock(tmp_path, **{CONFIG.name: TEXT})
    assert read_config(result, CONFIG.name) == CONFIG
    assert read_config(result, f".ci_support/{CONFIG.name}.yaml") == CONFIG
    assert config_file_text(read_config(result, CONFIG.name)) == TEXT


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("linux_64", "did you mean 'linux_64_blas1cuda12' or 'linux_64_blas1cuda13' or 'linux_64_blas2'?"),
        ("linux_64_blas1", "did you mean 'linux_64_blas1cuda12' or 'linux_64_blas1cuda13'?"),
        ("linux_64_cuda", "did you mean 'linux_64_blas1cuda12' or 'linux_64_blas1cuda13'?"),
        ("cuda12", "did you mean 'linux_64_blas1cuda12'?"),
        ("linux_64_blsa2", "did you mean 'linux_64_blas2' or 'linux_64_blas1cuda12' or 'linux_64_blas1cuda13'?"),
        ("blas", "did you mean 'linux_64_blas1cuda12' or 'linux_64_blas1cuda13' or 'linux_64_blas2'? (and 1 more)"),
        ("win_64_", "kiln matrix lists them"),
    ],
)
def test_configs_of_the_same_platform_are_offered_first(tmp_path: Path, typed: str, hint: str) -> None:
    names = ("linux_64_blas1cuda12", "linux_64_blas1cuda13", "linux_64_blas2", "osx_64_blas2")
    with pytest.raises(UnknownConfig) as caught:
        read_config(feedstock(tmp_path, **dict.fromkeys(names, "a:\n- '1'\n")), typed)
    assert caught.value.hint == hint


def test_a_config_without_settings_has_no_keys_for_them() -> None:
    plain = BuildConfig(name="a", platform="linux-64", variant={"a": ("1",)}, pin_run_as_build={})
    assert config_file_text(plain) == "a:\n- '1'\n"


@pytest.mark.parametrize(
    ("name", "platform"),
    [("osx_arm64_", "osx-arm64"), ("linux_aarch64_python3.12", "linux-aarch64"), ("my_own", "linux-64"),
     ("linux_99_", "linux-64"), ("win_64", "win-64")],
)  # fmt: skip
def test_without_a_target_platform_the_name_decides(tmp_path: Path, name: str, platform: str) -> None:
    assert read_config(feedstock(tmp_path, **{name: "python:\n- 3.12\n"}), name).platform == platform


def test_an_unknown_config_is_answered_with_the_nearest(tmp_path: Path) -> None:
    result = feedstock(tmp_path, linux_64_="a:\n- 1\n", osx_64_="a:\n- 1\n")
    with pytest.raises(UnknownConfig, match="no such config: 'linux_46_'") as caught:
        read_config(result, "linux_46_")
    assert caught.value.why == ".ci_support holds 2 configs"
    assert "linux_64_" in caught.value.hint
    with pytest.raises(UnknownConfig):
        read_config(result, "../recipe/conda_build_config")
    with pytest.raises(UnknownConfig) as caught:
        read_config(feedstock(tmp_path / "empty"), "linux_64_")
    assert caught.value.hint == "kiln rerender writes them"


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        ("- a\n", MalformedYaml, "a mapping of keys to lists"),
        ("a: []\n", VariantFault, "a is not a list of values"),
        ("a:\n- b: c\n", VariantFault, "neither text nor number"),
        ("a:\n- 1\n- 2\nb:\n- 1\nzip_keys:\n- - a\n  - b\n", VariantFault, "different numbers of values"),
        ("target_platform:\n- linux-46\n", VariantFault, "not a subdir"),
        ("target_platform:\n- linux-evil\n", VariantFault, "no such platform: 'linux-evil'"),
        ("target_platform:\n- ../x\n", VariantFault, "not a subdir"),
    ],
)
def test_an_invalid_file_is_refused(tmp_path: Path, content: str, kind: type[Exception], reason: str) -> None:
    with pytest.raises(kind, match=reason) as caught:
        read_configs(feedstock(tmp_path, linux_64_=content), ["linux_64_"])
    assert ".ci_support/linux_64_.yaml" in str(caught.value)


@pytest.mark.parametrize("name", ["-rf", ".hidden", "a\u202eb"])
def test_a_name_that_could_not_be_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(VariantFault, match="cannot be the name of a config"):
        read_config(feedstock(tmp_path, **{name: "a:\n- 1\n"}), name)


def test_numbers_and_truth_values_are_typed_for_a_recipe_yaml_alone(tmp_path: Path) -> None:
    content = "a:\n- 13\n- '13'\nb:\n- true\nc:\n- 1.10\n"
    v0 = feedstock(tmp_path / "v0", linux_64_=content)
    assert read_config(v0, "linux_64_").variant == {"a": ("13", "13"), "b": ("true",), "c": ("1.10",)}
    v1 = feedstock(tmp_path / "v1", linux_64_=content)
    v1.meta.rename(v1.recipe_v1).write_text("package:\n  name: a\n  version: 1\n")
    variant = read_config(v1, "linux_64_").variant
    assert [isinstance(value, TypedText) for value in (*variant["a"], *variant["b"], *variant["c"])] == [
        *(True, False, True, False)
    ]
    assert variant["b"] == ("True",)
    assert config_file_text(read_config(v1, "linux_64_")) == "a:\n- 13\n- '13'\nb:\n- true\nc:\n- '1.10'\n"


def test_a_file_is_read_again_only_if_it_or_the_recipes_format_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feedstock = builders.feedstock(tmp_path, "package: {name: a}\n", files={".ci_support/linux_64_.yaml": "a: ['1']\n"})
    calls = []

    def counted(work: Callable[[], object]) -> object:
        calls.append(work)
        return work()

    monkeypatch.setattr(limits, "run_bounded", counted)
    (before,) = read_configs(feedstock, ["linux_64_"])
    assert (read_config(feedstock, "linux_64_"), len(calls)) == (before, 1)
    base_files.write_text(feedstock.config_folder / "linux_64_.yaml", "a: ['2']\n")
    (after,) = read_configs(feedstock, ["linux_64_"])
    assert (after.variant["a"], len(calls)) == (("2",), 2)
    base_files.write_text(feedstock.root / "conda-forge.yml", "azure: {}\n")
    assert (read_configs(feedstock, ["linux_64_"]), len(calls)) == ((after,), 3)


# As PyYAML's block style writes them: quotes only where the text would be read as something else.
STYLES = [
    ({"b": ("1",), "a": ("x",)}, "a:\n- x\nb:\n- '1'\n"),
    ({"a": ("true", "None", "null", "1.1.*", "3.10.* *_cpython")},
     "a:\n- true\n- None\n- 'null'\n- 1.1.*\n- 3.10.* *_cpython\n"),
    ({"zip_keys": (("a", "b"), ("c", "d"))}, "zip_keys:\n- - a\n  - b\n- - c\n  - d\n"),
    ({"p": {"x": {"min_pin": "x.x", "max_pin": "x"}}}, "p:\n  x:\n    min_pin: x.x\n    max_pin: x\n"),
    ({"a": ("*x", "yes", "", "a: b", "2021-01-01")}, "a:\n- '*x'\n- 'yes'\n- ''\n- 'a: b'\n- '2021-01-01'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "text"), STYLES)
def test_values_are_quoted_as_pyyaml_does(data: dict[str, Any], text: str) -> None:
    assert ci_support_text(data) == text


NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=100)


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=4).map(tuple), min_size=1, max_size=5))
def test_what_is_written_is_read_back(data: dict[str, tuple[str, ...]]) -> None:
    result = parse_document(ci_support_text(data), "f", ScalarInterpretation.TEXT).value
    assert {key: tuple(values) for key, values in result.items()} == data
