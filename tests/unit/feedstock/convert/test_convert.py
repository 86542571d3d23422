"""A feedstock is converted with a proof: each difference between both recipes is found."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import TYPE_CHECKING

import pytest
import yaml

from kiln.base.errors import ConversionRefused, UnknownConfig
from kiln.feedstock import config_file
from kiln.feedstock.convert import convert
from kiln.feedstock.convert.composition import HashKeysToUseOrIgnore
from kiln.feedstock.convert.conditions import IfThenElsePart
from kiln.feedstock.convert.convert import recipe_yaml_text, serialize_recipe, yaml_scalar_text
from kiln.feedstock.convert.packages import packages_of_meta_yaml
from kiln.feedstock.convert.sections import FeedstockFacts
from kiln.feedstock.convert.tree import DictPart, ListPart, ScalarPart
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests import builders
from tests.builders import PINNING
from tests.unit.feedstock.convert.feedstocks import CONVERSIONS, conversion, expected

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
    feedstock = builders.expanded(tmp_path, PINNED, "python:\n  - 3.12.*\n", forge)
    assert convert.convert(feedstock).forge == forge.replace("conda-build  # the old one", "rattler-build")


def test_with_a_pinning_both_recipes_are_expanded(tmp_path: Path) -> None:
    result = convert.convert(builders.feedstock(tmp_path, PINNED), PINNING)
    assert result.proof.holds
    assert result.proof.configs > 1
    assert any("run exports" in note for note in result.proof.notes)


BY_CUDA = (
    "package:\n  name: a\n  version: '1'\nrequirements:\n  build:\n    - x {{ cuda }}\noutputs:\n"
    "  - name: b\n    requirements:\n      host:\n        - y {{ cuda }}\n  - name: c\n"
)


@pytest.mark.parametrize("by_pinning", [False, True])
def test_builds_that_the_next_rerender_would_lose_are_a_difference(by_pinning: bool, tmp_path: Path) -> None:
    variants = (
        "cuda:\n  - '11'\n  - '12'\ndocker_image:\n  - i\n  - j\nzip_keys:\n  -\n    - cuda\n    - docker_image\n"
    )
    feedstock = builders.expanded(tmp_path, BY_CUDA, variants)
    if by_pinning:
        (feedstock.recipe / "conda_build_config.yaml").unlink()
    (difference,) = convert.convert(feedstock).blocking_differences
    assert difference.what == "builds after kiln rerender"
    assert difference.old.startswith("1 of 3: linux-64/b 1 ")
    assert difference.new == "nothing"


def test_builds_that_come_from_other_configs_are_no_difference(tmp_path: Path) -> None:
    proof = convert.convert(builders.expanded(tmp_path, BY_CUDA, "cuda:\n  - '11'\n  - '12'\n")).proof
    assert proof.holds
    assert "the same packages come from other configs, 1 instead of 2: kiln rerender" in proof.notes


def test_a_lint_that_only_the_new_recipe_has_is_noted(tmp_path: Path) -> None:
    meta = (
        "package:\n  name: a\n  version: '1'\nabout:\n  home: h\n  license: MIT\n  summary: s\n"
        "outputs:\n  - name: b\n    about:\n      home: i\n"
    )
    result = convert.convert(builders.expanded(tmp_path, meta))
    notes = [note for note in result.proof.notes if "lint" in note]
    assert "a new lint of recipe.yaml is R-002: about/homepage is missing" in notes
    assert not any("R-003" in note for note in notes)  # which meta.yaml has, too


def test_builds_that_the_new_format_would_split_stay_one(tmp_path: Path) -> None:
    meta = (
        "{% set kind = 'gpu' if cuda != 'None' else 'cpu' %}\npackage:\n  name: a\n  version: '1'\noutputs:\n"
        "  - name: b\n    requirements:\n      run:\n        - x\n"
        "  - name: c\n    requirements:\n      run:\n        - y {{ kind }}\n        - z  # [cuda != 'x']\n"
    )
    result = convert.convert(builders.expanded(tmp_path, meta, "cuda:\n  - None\n  - '12'\n"))
    assert result.proof.holds
    assert "ignore_keys:\n          - cuda\n" in result.recipe


@pytest.mark.parametrize(
    ("run", "begins"), [("python", "py${{ python | version_to_buildstring }}h"), ("numpy", "h"), ("zlib", "h")]
)
def test_no_version_is_in_a_build_string_where_it_was_not(tmp_path: Path, run: str, begins: str) -> None:
    meta = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - python\n    - numpy\n"
    meta += f"  run:\n    - {run}\n"
    variants = "python:\n  - 3.11.* *_cpython\n  - 3.12.* *_cpython\nnumpy:\n  - '2'\n"
    result = convert.convert(builders.expanded(tmp_path, meta, variants))
    assert result.proof.holds
    assert f"string: {begins}${{{{ hash }}}}_${{{{ build_number }}}}\n" in result.recipe


def test_keys_that_a_script_reads_stay_used(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: '1'\nrequirements:\n  host:\n    - zlib\n"
    variants = "mode:\n  - x\n  - y\nzlib:\n  - '1'\n"
    feedstock = builders.expanded(tmp_path, meta, variants, files={"recipe/build.sh": "make $mode \n"})
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
    feedstock = builders.expanded(tmp_path / "a", meta, "zlib:\n  - '1'\n", files=scripts)
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


HEAD = "package:\n  name: a\n  version: '1'\n"


def given(**more: object) -> FeedstockFacts:
    keys = {"python": frozenset({"3.12"}), "cuda": frozenset({"None", "12"})}
    return FeedstockFacts(always=frozenset(keys), values=keys, files=frozenset({"build.sh"}), **more)  # type: ignore[arg-type]


def body(meta: str, **more: object) -> str:
    """Return what follows the package's name and version."""
    return recipe_yaml_text(HEAD + meta, given(**more)).partition('version: "1"\n\n')[2]


PLACES = """
build: {number: 2, noarch_python: true} > number: 2|  noarch: python|
build: {string: "a_{{ PKG_HASH }}_{{ PKG_BUILDNUM }}"} > string: a_${{ hash }}_${{ build_number }}|
build: {number: 3, script: "echo {{ PKG_BUILDNUM + 1 }}"} > - echo ${{ 3 + 1 }}|
build: {number: 3, script: "echo {{ PKG_BUILDNUM }} {{ PKG_NAME }}"} > - echo 3 a|
build: {ignore_prefix_files: [a, b]} > prefix_detection:|    ignore:|      - a|      - b|
build: {force_use_keys: [cuda, x]} > variant:|    use_keys:|      - cuda|      - x|
build: {script_env: [A=1, B]} > env:|      A: "1"|    secrets:|      - B|
build: {track_features: [a, b]} > down_prioritize_variant: 2|
build: {run_exports: {weak_constrains: [a <2]}} > run_exports:|    weak_constraints:|      - a <2|
build: {run_exports: [a <2]} > run_exports:|    - a <2|
requirements: [a, b] > host:|    - a|    - b|  run:|    - a|    - b|
source: {git_url: u, git_rev: r, git_depth: 1} > git: u|  rev: r|  depth: 1|
about: {home: h, doc_url: d, license_file: [a, b]} > homepage: h|  documentation: d|  license_file:|    - a|    - b|
test: {imports: [a], commands: [pip check], requires: [pip]} > - python:|      imports:|        - a|
test: {imports: [a]} > - python:|      imports:|        - a|      pip_check: false|
test: {imports: [a], requires: [b]} > - script:|      - python -c "import a"|    requirements:|      run:|        - b|
test: {imports: [a], requires: ["python {{ cuda }}"]} > python_version: ${{ cuda }}.*|
test: {files: [x], commands: [y]} > - script:|      - y|    files:|      recipe:|        - x|
test: {downstreams: [b]} > - downstream: b|
extra: {recipe-maintainers: [me, you]} > extra:|  recipe-maintainers:|    - me|    - you|
"""


@pytest.mark.parametrize("row", PLACES.strip().splitlines())
def test_each_key_has_its_place(row: str) -> None:
    meta, _, recipe = row.partition(" > ")
    assert recipe.strip().replace("|", "\n") in body(f"{meta.strip()} # end\n")


SELECTED = """
build:|  skip: true  # [win]|  skip: true  # [cuda == 'x']     > skip:|    - win|    - cuda == "x"|
build:|  binary_relocation: false  # [linux]                   > binary_relocation: ${{ "false" if linux }}|
build:|  track_features:  # [win]|    - a  # [win]             > down_prioritize_variant: ${{ 1 if win else 0 }}|
source:|  url: u|  md5: a  # [linux]|  md5: b  # [win]         > md5: ${{ "b" if win else "a" if linux }}|
source:|  url: a  # [win]|  url: b  # [not win]                > url: ${{ "a" if win else "b" }}|
"""


@pytest.mark.parametrize("row", SELECTED.strip().splitlines())
def test_selectors_become_conditions(row: str) -> None:
    meta, recipe = (part.strip().replace("|", "\n") for part in row.split(" > "))
    assert recipe in body(f"{meta}\n")


@pytest.mark.parametrize("name", ["build.sh", "bld.bat"])
def test_the_script_of_the_folder_is_named(name: str) -> None:
    result = recipe_yaml_text(HEAD, FeedstockFacts(always=frozenset(), values={}, files=frozenset({name})))
    assert f"script:\n    file: {name}\n" in result


def test_tests_of_the_folder_run_on_their_platforms() -> None:
    result = recipe_yaml_text(
        HEAD, FeedstockFacts(always=frozenset(), values={}, files=frozenset({"run_test.py", "run_test.bat"}))
    )
    assert "- if: win\n        then:\n          - call run_test.bat\n      - python run_test.py\n" in result
    assert "recipe:\n        - run_test.bat\n        - run_test.py\n" in result


def test_keys_for_the_hash_are_added() -> None:
    keys = HashKeysToUseOrIgnore(use={"a": frozenset({"cuda"})}, ignore={"a": frozenset({"python"})})
    result = body("build:\n  number: 1\n", hash_keys=keys)
    assert "variant:\n    use_keys:\n      - cuda\n    ignore_keys:\n      - python\n" in result


def test_a_key_without_equivalent_may_be_left_out() -> None:
    meta = "about:\n  home: h\n  doc_source_url: d\n"
    assert "doc_source" not in body(meta, leave_out=frozenset({"about/doc_source_url"}))
    with pytest.raises(ConversionRefused) as refused:
        body(meta)
    assert "--leave-out about/doc_source_url" in refused.value.hint


@pytest.mark.parametrize(
    ("meta", "line", "why"),
    [
        ("build:\n  pin_depends: strict\n", 5, "build/pin_depends"),
        ("about:\n  license_url: x\n", 5, "about/license_url"),
        ("source:\n  svn_url: x\n", 5, "source/svn_url"),
        ("requirements:\n  conflicts: x\n", 5, "requirements/conflicts"),
        ("test:\n  other: x\n", 5, "test/other"),
        ("app:\n  entry: x\n", 4, "'app'"),
        ("build:\n  skip: maybe\n", 5, "neither true nor"),
        ("build:\n  script_env:\n    - A  # [linux]\n", 6, "stay whole"),
        ("build:\n  script_env:\n    - a b\n", 6, "NAME=value"),
        ("build:\n  run_exports:\n    medium:\n      - a\n", 6, "'medium'"),
        ("requirements:\n  host:\n    - numpy x.x\n", 6, "x.x"),
        ("about:\n  summary:\n    - a\n    - b\n", 5, "one text"),
        ("outputs:\n  - name: b\n    type: wheel\n", 6, "'wheel'"),
        ("outputs:\n  - name: b\n    target: win-64\n", 6, "outputs/target"),
        ("build:\n  script: {{ load_file_data('x') }}\n", 5, "load_file_data"),
    ],
)
def test_what_has_no_equivalent_is_refused_by_line(meta: str, line: int, why: str) -> None:
    with pytest.raises(ConversionRefused) as refused:
        body(meta)
    assert refused.value.at is not None
    assert (refused.value.at.file, refused.value.at.line) == ("recipe/meta.yaml", line)
    assert why in refused.value.why


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ConversionRefused) as refused:
        body("build:\n  pin_depends: a\n  app: b\nabout:\n  license_url: c\nrequirements:\n  run:\n    - a x.x\n")
    lines = [refused.value.at, *(other.at for other in refused.value.others)]
    assert [at.line for at in lines if at] == [5, 6, 8, 11]


@pytest.mark.parametrize("name", ["single", "outputs"])
def test_every_comment_stays(name: str) -> None:
    meta, recipe = ((CONVERSIONS / name / file).read_text() for file in ("meta.yaml", "recipe.yaml"))
    comments = re.findall(r"^\s*(#.*)", meta, re.MULTILINE)
    assert comments
    assert [comment for comment in comments if comment not in recipe] == []


@pytest.mark.parametrize(
    "text",
    ["plain", "1.10", "true", "a: b", "- a", "# a", "a #b", "'a'", '"a"', "a\\b", "*x", "${{ a }}", "", " a", "{a}"],
)  # fmt: skip
def test_a_text_stays_text(text: str) -> None:
    assert yaml.safe_load(f"a: {yaml_scalar_text(text, plain=False)}") == {"a": text}


def test_a_number_that_was_not_quoted_stays_one() -> None:
    assert yaml_scalar_text("10", plain=True) == "10"


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb", "a\n\n", " a\nb\n", "\na\n", "a\n\nb\n"])
def test_lines_stay_lines(text: str) -> None:
    written = serialize_recipe(DictPart(pairs=[("x", ScalarPart(pieces=(text,))), ("y", ScalarPart(pieces=("z",)))]))
    assert yaml.safe_load(written) == {"schema_version": 1, "x": text, "y": "z"}


def test_lists_conditions_and_comments() -> None:
    items = [
        ScalarPart(pieces=("a",), above=["# one"], behind="# two"),
        IfThenElsePart(
            condition='b == "c"',
            then=[ScalarPart(pieces=("d",), above=["# three"])],
            otherwise=[ScalarPart(pieces=("e",))],
        ),
        DictPart(pairs=[("f", ScalarPart(pieces=("g",), above=["# four"])), ("h", DictPart())], below=["# five"]),
    ]
    written = serialize_recipe(DictPart(pairs=[("x", ListPart(items=list(items)))], below=["# six"]))
    assert written.split("schema_version: 1\n\n")[1] == (
        "x:\n  # one\n  - a  # two\n"
        '  - if: b == "c"\n    then:\n      # three\n      - d\n    else:\n      - e\n'
        "  # four\n  - f: g\n    h: {}\n  # five\n\n# six\n"
    )
