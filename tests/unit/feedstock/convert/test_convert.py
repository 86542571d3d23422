"""A feedstock is converted with a proof: each difference between both recipes is found."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import ConversionRefused, UnknownConfig
from kiln.feedstock import config_file, matrix, rerender
from kiln.feedstock.convert import convert
from kiln.feedstock.convert.packages import packages_of_meta_yaml
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests import builders
from tests.builders import PINNING
from tests.unit.feedstock.convert.feedstocks import conversion, expected

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.feedstock.convert.packages import ComparablePackage
    from kiln.recipe.feedstock import BuildConfig, Feedstock

PINNED = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - python\n  run:\n    - python\n"


@pytest.mark.parametrize(("name", "packages"), [("single", 14), ("outputs", 8)])
def test_a_feedstock_is_converted(name: str, packages: int, tmp_path: Path) -> None:
    result = convert.convert(conversion(name, tmp_path / "a"))
    assert result.recipe == expected(name)
    assert result.blocking_differences == []
    assert (result.proof.holds, result.proof.packages) == (True, packages)


_packages_of_meta_yaml: dict[tuple[str, str], list[ComparablePackage]] = {}


def packages_of_unchanged_recipe(name: str, feedstock: Feedstock, config: BuildConfig) -> list[ComparablePackage]:
    """Return the packages of a conversion's meta.yaml, rendered once for all the changes of its recipe.yaml."""
    key = name, config.name
    if key not in _packages_of_meta_yaml:
        _packages_of_meta_yaml[key] = packages_of_meta_yaml(feedstock, config)
    return _packages_of_meta_yaml[key]


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("single", 'version: "1.4.2"', 'version: "1.4.3"', "package/version"),
        ("single", "fix-build.patch", "other.patch", "source"),
        ("single", "target_directory: data", "target_directory: other", "source"),
        ("single", "203 if", "204 if", "build/number"),
        ("single", '- aarch64 and blas_impl == "mkl"', '- aarch64 or blas_impl == "mkl"', "names"),
        ("single", "install . -vv", "install .", "build/script"),
        ("single", '${{ "1" if cuda', '${{ "2" if cuda', "build/script/env"),
        ("single", "- SPEEDY_JOBS", "- SPEEDY_JOB", "build/script/env"),
        ("single", "speedy:main", "speedy:other", "build/python/entry_points"),
        ("single", "libcuda.*", "libcudart.*", "build/dynamic_linking/missing_dso_allowlist"),
        ("single", "ignore_binary_files: true", "ignore: true", "build/prefix_detection/ignore"),
        ("single", "cmake 3.27.*", "cmake >=3.27", "requirements/build"),
        ("single", "- zlib\n    - blas", "- blas", "requirements/host"),
        ("single", "requests 2.31.*", "requests ==2.31", "requirements/run"),
        ("single", 'upper_bound="x"', 'upper_bound="x.x"', "requirements/run"),
        ("single", "fast ==1.2", "fast 1.2.*", "requirements/run_constraints"),
        ("single", "    strong:\n", "    weak:\n", "requirements/run_exports/weak"),
        ("single", "by_name:\n      - zlib", "by_name:\n      - zlibs", "requirements/ignore_run_exports/by_name"),
        ("single", "speed --version", "speed --help", "tests/commands"),
        ("single", 'import speedy"', 'import speed"', "tests/imports"),
        ("single", "- pytest", "- pytests", "tests/requires"),
        ("single", "- tests\n", "- test\n", "tests/files/source"),
        ("single", "and a gap.", "and no gap.", "about/description"),
        ("single", "- someone", "- nobody", "extra/recipe-maintainers"),
        ("outputs", "file: build.sh", "file: other.sh", "compile/script"),
        ("outputs", "- ninja", "- make", "compile/requirements/build"),
        ("outputs", "if flavor == \"slow\"", "if flavor == \"fast\"", "build/variant/down_prioritize_variant"),
        ("outputs", "_h${{ hash }}", "-h${{ hash }}", "build string"),
        ("outputs", "noarch: generic", "noarch: python", "build/noarch"),
        ("outputs", "exact=True) }}\n      run", "upper_bound=\"x\") }}\n      run", "requirements/host"),
        ("outputs", "summary: Its Python package", "summary: Another", "about/summary"),
        ("outputs", "    inherit:\n      from: machine-split-build\n      run_exports: false\n", "", "compile/script"),
    ],
)  # fmt: skip
def test_each_difference_is_found(
    name: str, old: str, new: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = expected(name)
    assert old in text
    monkeypatch.setattr(convert, "recipe_yaml_text", lambda _, __: text.replace(old, new, 1))
    monkeypatch.setattr(convert, "packages_of_meta_yaml", partial(packages_of_unchanged_recipe, name))
    result = convert.convert(conversion(name, tmp_path / "a"))
    assert what in {item.what for item in result.blocking_differences}
    assert not result.proof.holds


def test_a_recipe_that_cannot_be_rendered_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = expected("single").replace("blas_impl }}", "blas }}", 1)
    monkeypatch.setattr(convert, "recipe_yaml_text", lambda _, __: text)
    result = convert.convert(conversion("single", tmp_path / "a"))
    assert [item.what for item in result.blocking_differences] == ["rendering"]
    assert "recipe/recipe.yaml:" in result.proof.differences[0].new


def test_what_is_written_renders_to_the_same(tmp_path: Path) -> None:
    feedstock = conversion("outputs", tmp_path / "a")
    names = feedstock.config_names
    before = {name: render.render(feedstock, config_file.read_config(feedstock, name)) for name in names}
    convert.write_conversion(feedstock, convert.convert(feedstock))
    assert (feedstock.root / "conda-forge.yml").read_text().startswith("# settings\n")
    assert "\nconda_build_tool: rattler-build\n" in (feedstock.root / "conda-forge.yml").read_text()
    after = {
        name: render.render(recipe_feedstock.load(feedstock.root), config_file.read_config(feedstock, name))
        for name in names
    }
    for name in names:
        assert len(after[name].outputs) == len(before[name].outputs) > 0
        (old,), (new,) = before[name].stagings, after[name].stagings
        assert (new.script.file, new.requirements.build) == (old.script.file, old.requirements.build)
        assert new.sources == tuple(dataclasses.replace(source, by_engine=True) for source in old.sources)


def test_conda_forge_yml_keeps_one_tool(tmp_path: Path) -> None:
    forge = "a: b\nconda_build_tool: conda-build  # the old one\nprovider:\n  osx_64: null\n  win_64: null\n"
    feedstock = builders.feedstock(tmp_path, PINNED, "python:\n  - 3.12.*\n", forge)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    assert convert.convert(feedstock).forge == forge.replace("conda-build  # the old one", "rattler-build")


def test_with_a_pinning_both_recipes_are_expanded(tmp_path: Path) -> None:
    result = convert.convert(builders.feedstock(tmp_path, PINNED), PINNING)
    assert result.proof.holds
    assert result.proof.configs > 1
    assert any("run exports" in note for note in result.proof.notes)


def test_builds_that_the_new_format_would_split_stay_one(tmp_path: Path) -> None:
    meta = (
        "{% set kind = 'gpu' if cuda != 'None' else 'cpu' %}\npackage:\n  name: a\n  version: '1'\noutputs:\n"
        "  - name: b\n    requirements:\n      run:\n        - x\n"
        "  - name: c\n    requirements:\n      run:\n        - y {{ kind }}\n        - z  # [cuda != 'x']\n"
    )
    feedstock = builders.feedstock(tmp_path, meta, "cuda:\n  - None\n  - '12'\n")
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    result = convert.convert(feedstock)
    assert result.proof.holds
    assert "ignore_keys:\n          - cuda\n" in result.recipe


def test_keys_that_a_script_reads_stay_used(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - zlib\n"
    variants = "mode:\n  - x\n  - y\nzlib:\n  - '1'\n"
    feedstock = builders.feedstock(tmp_path, meta, variants, files={"recipe/build.sh": "make $mode \n"})
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    result = convert.convert(feedstock)
    assert result.proof.holds
    assert "use_keys:\n      - mode\n" in result.recipe


def test_a_compile_keeps_the_variables_of_the_package_that_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = (
        "{% set number = 3 %}\npackage:\n  name: a-split\n  version: '1.20'\nbuild:\n  number: {{ number }}\n"
        "outputs:\n  - name: b\n    script: b.sh\n    requirements:\n      host:\n        - zlib\n"
    )
    scripts = {"recipe/build.sh": 'echo "$PKG_NAME ${PKG_VERSION} $PKG_BUILDNUM"\n', "recipe/b.sh": "true\n"}
    feedstock = builders.feedstock(tmp_path / "a", meta, "zlib:\n  - '1'\n", files=scripts)
    rerender.write_ci_support(feedstock, matrix.configs(feedstock))
    result = convert.convert(feedstock)
    assert result.proof.holds
    lines = ("PKG_BUILDNUM: ${{ number }}", "PKG_NAME: a-split", 'PKG_VERSION: "1.20"')
    assert "".join(f"          {line}\n" for line in lines) in result.recipe
    lost = result.recipe.replace(f"          {lines[2]}\n", "")
    monkeypatch.setattr(convert, "recipe_yaml_text", lambda _, __: lost)
    assert {item.what for item in convert.convert(feedstock).blocking_differences} == {"compile/script/env"}


def test_a_feedstock_with_a_recipe_yaml_is_refused(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, PINNED, files={"recipe/recipe.yaml": "package: {name: a, version: '1'}\n"})
    with pytest.raises(ConversionRefused):
        convert.convert(feedstock)


def test_a_feedstock_without_configs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownConfig):
        convert.convert(builders.feedstock(tmp_path, PINNED))


@pytest.mark.parametrize("with_meta", [True, False])
def test_the_only_recipe_is_never_to_be_removed(tmp_path: Path, with_meta: bool) -> None:
    feedstock = builders.feedstock(tmp_path, PINNED, files={"recipe/recipe.yaml": "package:\n  name: a\n"})
    if not with_meta:
        feedstock.meta.unlink()
    with pytest.raises(ConversionRefused) as refused:
        convert.convert(feedstock)
    assert ("move recipe.yaml to another folder" in refused.value.hint) is with_meta
    assert "remove" not in refused.value.hint
