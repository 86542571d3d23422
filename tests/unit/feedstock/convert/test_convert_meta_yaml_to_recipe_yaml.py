"""A meta.yaml becomes a recipe.yaml; what has no equivalent is refused by line, all of it at once."""

from __future__ import annotations

import re

import pytest
import yaml

from kiln.base.errors import ConversionRefused
from kiln.feedstock.convert.composition import HashKeysToUseOrIgnore
from kiln.feedstock.convert.conditions import IfThenElsePart
from kiln.feedstock.convert.convert import recipe_yaml_text, serialize_recipe, yaml_scalar_text
from kiln.feedstock.convert.sections import FeedstockFacts
from kiln.feedstock.convert.tree import DictPart, ListPart, ScalarPart
from tests.unit.feedstock.convert.feedstocks import CONVERSIONS

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
