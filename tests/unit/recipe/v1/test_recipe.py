"""A recipe.yaml at a variant, and the keys that count as used: rattler-build's rules, each in small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import KilnError, MalformedYaml, RecipeFault, TemplateFault
from kiln.recipe.v1.recipe import skip_warnings
from tests.unit.recipe.v1.support import HEAD, found, one, recipe

if TYPE_CHECKING:
    from pathlib import Path

SPEC = {"python": ["3.10.* *_cpython"], "numpy": ["2"], "mpi": ["openmpi"], "c_compiler": ["gcc"], "zlib": ["1"]}


def used(folder: Path, text: str) -> set[str]:
    return set(one(folder, text, SPEC).used) - {"target_platform"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", set()),
        ("requirements:\n  host:\n    - python\n    - NumPy\n", {"python", "numpy"}),
        ("requirements:\n  build: python\n", {"python"}),
        ("requirements:\n  run:\n    - python\n", set()),
        ("requirements:\n  host:\n    - python >=3.9\n    - numpy 2.*\n    - zlib * build_*\n", set()),
        ("requirements:\n  host:\n    - ${{ mpi }}\n", {"mpi"}),
        ("requirements:\n  run:\n    - ${{ compiler('c') }}\n", {"c_compiler"}),
        ("requirements:\n  host:\n    - if: win\n      then: python\n      else: numpy\n", {"numpy"}),
        ("requirements:\n  host:\n    - if: linux and mpi == 'openmpi'\n      then: zlib\n", {"mpi", "zlib"}),
        ("requirements:\n  host:\n    - if: linux\n      then:\n        - if: unix\n          then: zlib\n", {"zlib"}),
        ("build:\n  script: echo ${{ mpi }}\n", {"mpi"}),
        ("build:\n  script:\n    - if: win\n      then: echo ${{ mpi }}\n", {"mpi"}),
        (
            "build:\n  script: |\n    {% if mpi %}a{% endif %}{% macro f(x) %}${{ zlib }}{% endmacro %} ${{ f(1) }}\n",
            {"mpi"},
        ),
        ("build:\n  script:\n    env:\n      A: ${{ mpi }}\n    file: b.sh\n", {"mpi"}),
        ("build:\n  string: ${{ mpi }}_h${{ hash }}\n", {"mpi"}),
        ("build:\n  skip: mpi == 'mpich'\n", {"mpi"}),
        ("build:\n  skip:\n    - win\n    - match(python, '<3.9')\n", {"python"}),
        ("build:\n  noarch: python\nrequirements:\n  host:\n    - python\n    - numpy\n", {"numpy"}),
        ("build:\n  variant:\n    use_keys: [zlib, nowhere]\n", {"zlib"}),
        ("build:\n  variant:\n    ignore_keys: python\nrequirements:\n  host: [python, numpy]\n", {"numpy"}),
        ("build:\n  variant:\n    down_prioritize_variant: ${{ 1 if mpi == 'openmpi' else 0 }}\n", {"mpi"}),
        ("tests:\n  - requirements:\n      run:\n        - ${{ compiler('c') }}\n    script: [x]\n", {"c_compiler"}),
        ("context:\n  mpi: fixed\nrequirements:\n  host:\n    - ${{ mpi }}\n", set()),
        ("context:\n  mpi: ${{ mpi | default('x') }}\nrequirements:\n  host:\n    - ${{ mpi }}\n", {"mpi"}),
        ("context:\n  a: ${{ mpi }}\n", {"mpi"}),
        ("context:\n  zlib: '1'\nrequirements:\n  host:\n    - zlib\n", set()),
        ('extra:\n  of: ["${{ mpi }}"]\n', {"mpi"}),
        ("about:\n  license_file: ${{ PREFIX }}/LICENSE-${{ mpi }}\n", {"mpi"}),
    ],
)
def test_a_key_counts_as_used(text: str, wanted: set[str], tmp_path: Path) -> None:
    assert used(tmp_path, HEAD + text) == wanted
    channels = {"channel_sources": ["conda-forge"], "channel_targets": ["conda-forge main"]}  # always used
    assert set(one(tmp_path, HEAD + text, SPEC | channels).used) == wanted | channels.keys() | {"target_platform"}


@pytest.mark.parametrize(("word", "skipped"), [("true", False), ("false", True)])
def test_the_words_true_and_false_are_truth_values_while_the_matrix_is_made(
    word: str, skipped: bool, tmp_path: Path
) -> None:
    assert (found(tmp_path, HEAD + "build:\n  skip: not wanted\n", {"wanted": [word]}) == []) is skipped


def test_a_library_without_a_key_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(TemplateFault) as caught:
        one(tmp_path, HEAD + "requirements:\n  build:\n    - ${{ stdlib('c') }}\n")
    assert str(caught.value.at) == "recipe/recipe.yaml:6:7"


def test_a_context_keeps_types_and_sees_what_comes_before(tmp_path: Path) -> None:
    text = """
context:
  number: -1
  text: "12"
  version: 1.10
  yes: true
  next: ${{ number + 1 }}
  quoted: "${{ number + 1 }}"
  joined: ${{ number }}${{ number }}
  part: ${{ (version | split('.'))[0] }}
  empty: ${{ 'x' if false }}
  many: [1, "${{ text }}"]
"""
    context = one(tmp_path, HEAD + text).scope.context
    assert context == {
        "number": -1, "text": "12", "version": "1.10", "yes": True, "next": 0, "quoted": "0", "joined": "-1-1",
        "part": "1", "empty": "", "many": [1, "12"],
    }  # fmt: skip


def test_a_condition_that_cannot_be_evaluated_names_its_line_and_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(TemplateFault) as caught:
        one(tmp_path, HEAD + "requirements:\n  host:\n    - if: pyton == '3'\n      then: a\n", SPEC)
    assert (str(caught.value.at), caught.value.why) == ("recipe/recipe.yaml:6:11", "pyton is not defined")
    assert "python" in caught.value.hint


@pytest.mark.parametrize("skip", ["true", "linux", "[win, linux]", "not win", "[false, \"${{ 'linux' }}\"]"])
def test_a_skipped_package_is_left_out(skip: str, tmp_path: Path) -> None:
    assert found(tmp_path, f"{HEAD}build:\n  skip: {skip}\n", {}) == []


def test_a_list_that_is_written_out_and_empty_takes_the_place_of_an_inherited_one(tmp_path: Path) -> None:
    text = "recipe:\n  name: r\n  version: '1'\nabout:\n  license: MIT\n  license_file: [LICENSE]\noutputs:\n"
    text += "".join(
        f"  - package:\n      name: {name}\n    about:\n      license_file:{given}\n"
        for name, given in (("a", " []"), ("b", ""), ("c", "\n        - if: win\n          then: W"), ("d", " null"))
    )
    licenses = {package.name: package.sections["about"]["license_file"] for _, package in found(tmp_path, text, {})}
    assert licenses == {"a": [], "b": ["LICENSE"], "c": [], "d": ["LICENSE"]}


MALFORMED = ("linux and", "linux) or osx", "(linux", "true linux", "and linux", "(unix or osx) and 1 < 15)")


@pytest.mark.parametrize("skip", MALFORMED)
def test_a_malformed_condition_of_skip_is_false_as_to_the_engine_with_a_warning(skip: str, tmp_path: Path) -> None:
    text = f"{HEAD}build:\n  skip:\n    - win\n    - {skip}\n"
    assert len(found(tmp_path, text, {})) == 1
    ((at, warning),) = skip_warnings(recipe(tmp_path, text), ()).items()
    assert (at.line, at.column) == (7, 7)
    assert "is malformed, so nothing is skipped by it" in warning.what


@pytest.mark.parametrize(
    ("skip", "near"),
    [
        ("lnux", "linux"),
        ("not windows and mpi == 'x'", "win"),
        ("linus | default(false)", ""),
        ("cuda_version == '12'", ""),
        ("linux and arm64", ""),
        ("osc", ""),
        ("unx", ""),
    ],
)
def test_a_condition_of_skip_with_a_misspelled_platform_is_a_warning(skip: str, near: str, tmp_path: Path) -> None:
    text = f"context:\n  osc: true\n{HEAD}build:\n  skip: {skip}\n"
    found_warnings = skip_warnings(recipe(tmp_path, text), {"unx"})
    assert [f"'{near}'" in warning.hint for warning in found_warnings.values()] == [True] * bool(near)


@pytest.mark.parametrize("skip", ["win", "nowhere == 'x'", "[]", "false"])
def test_a_package_is_kept_where_no_condition_holds_or_can_be_evaluated(skip: str, tmp_path: Path) -> None:
    assert len(found(tmp_path, f"{HEAD}build:\n  skip: {skip}\n", {})) == 1


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("bild:\n  number: 1\n", 4, "a recipe has no key 'bild'"),
        ("build:\n  nummer: 1\n", 5, "build has no key 'nummer'"),
        ("build:\n  number: one\n", 5, "'one' is not a whole number"),
        ("build:\n  noarch: ruby\n", 5, "noarch is 'ruby'"),
        ("build:\n  steps:\n    - run: x\n", 5, "build.steps are experimental"),
        ("build:\n  script:\n    lines: [x]\n", 6, "script has no key 'lines'"),
        ("build:\n  merge_build_and_host_envs: maybe\n", 5, "'maybe' is neither true nor false"),
        ("requirements:\n  test: [x]\n", 5, "requirements has no key 'test'"),
        ("requirements:\n  run_exports:\n    week: [x]\n", 6, "run_exports has no key 'week'"),
        ("requirements: [x]\n", 4, "requirements is a mapping"),
        ("requirements:\n  host:\n    - a: b\n", 6, "a text is expected here"),
        ("requirements:\n  host:\n    - if: linux\n", 6, "a condition has no 'then'"),
        ("requirements:\n  host:\n    - if: linux\n      than: a\n", 7, "a condition has no key 'than'"),
        ("source:\n  url: x\n  sha1: y\n", 6, "source has no key 'sha1'"),
        ("tests:\n  - pythn:\n      imports: [x]\n", 5, "test has no key 'pythn'"),
        ("about:\n  home: x\n", 5, "about has no key 'home'"),
        ("schema_version: 2\n", 4, "schema_version is '2'"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name_and_line(text: str, line: int, what: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        one(tmp_path, HEAD + text)
    assert what in caught.value.what
    assert caught.value.at is not None
    assert (caught.value.at.file, caught.value.at.line) == ("recipe/recipe.yaml", line)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("outputs:\n  - package: {name: b}\n", "with outputs, package: is recipe:"),
        ("recipe:\n  name: a\n", "without outputs, recipe: is package:"),
        ("build:\n  script_env: [A]\n", "here it is script: {env: {NAME: value}, secrets: [NAME]}"),
        ("build:\n  missing_dso_whitelist: [a]\n", "dynamic_linking: {missing_dso_allowlist: [...]}"),
        ("about:\n  dev_url: https://h.example\n", "repository: URL"),
        ("requirements:\n  run_constrained: [a]\n", "run_constraints: [...]"),
        ("source:\n  git_url: https://h.example/x.git\n", "git: URL"),
    ],
)
def test_a_key_of_meta_yaml_is_told_by_its_name_here(text: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        one(tmp_path, HEAD + text)
    assert hint in caught.value.hint


def test_a_selector_of_boas_format_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        one(tmp_path, f"{HEAD}requirements:\n  host:\n    - sel(unix): b\n")
    assert caught.value.why == "it is a selector of boa's former recipe format"
    assert caught.value.hint == "write '- if: unix', and 'then: ...' below it"


@pytest.mark.parametrize("text", ["", "- a\n", "context: {}\n", "outputs: {a: b}\n", "outputs:\n  - name: x\n"])
def test_what_is_no_recipe_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(KilnError) as caught:
        recipe(tmp_path, text)
    assert caught.value.at is not None
    assert caught.value.at.file == "recipe/recipe.yaml"


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedYaml):
        recipe(tmp_path, HEAD + "build:\n  number: 0\n  number: 1\n")


OUTPUTS = """
context:
  version: "1"
recipe:
  name: all
  version: ${{ version }}
build:
  number: 3
  script: echo ${{ zlib }}
about:
  license: MIT
outputs:
  - staging:
      name: compile
    build:
      script: make ${{ mpi }}
    requirements:
      build:
        - ${{ compiler('c') }}
      host:
        - numpy
  - package:
      name: lib
    inherit: compile
    about:
      summary: the library
  - package:
      name: tool
      version: "2"
    build:
      number: 4
      skip: ${{ 'win' }}
    requirements:
      host:
        - python
      run:
        - ${{ pin_subpackage('lib', exact=True) }}
"""


def test_outputs_inherit_the_top_level(tmp_path: Path) -> None:
    packages = {package.name: package for _, package in found(tmp_path, OUTPUTS, SPEC)}
    lib, tool = packages["lib"], packages["tool"]
    assert (lib.version, lib.sections["build"]["number"], tool.version, tool.sections["build"]["number"]) == (
        "1", 3, "2", 4,
    )  # fmt: skip
    assert lib.sections["about"] == {"license": "MIT", "summary": "the library"}
    assert "script" not in lib.sections["build"]
    assert tool.sections["build"]["script"] == {"content": ["echo ${{ zlib }}"], "bare": True, "names": {"zlib": "1"}}


def test_an_output_uses_what_its_staging_output_requires_and_hashes_what_it_reads(tmp_path: Path) -> None:
    lib = next(package for _, package in found(tmp_path, OUTPUTS, SPEC) if package.name == "lib")
    assert lib.used == {"zlib", "numpy", "c_compiler", "target_platform"}
    assert lib.hashed == lib.used | {"mpi"}


def test_an_output_is_skipped_by_itself(tmp_path: Path) -> None:
    packages = found(tmp_path, OUTPUTS, SPEC, "win-64")
    assert [package.name for _, package in packages] == ["lib"]


def test_a_staging_output_that_is_not_there_is_refused_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        found(tmp_path, OUTPUTS.replace("inherit: compile", "inherit: compiel"), SPEC)
    assert (caught.value.what, caught.value.at and caught.value.at.line) == (
        "no staging output is named 'compiel'", 24,
    )  # fmt: skip


OUTPUT = "outputs:\n  - package:\n      name: a\n      version: 1\n"


@pytest.mark.parametrize(
    ("text", "what", "line", "column"),
    [
        (HEAD + "extra: [a]\n", "extra is a mapping of keys", 4, 9),
        ("package: hi\n", "package is a mapping of keys", 1, 10),
        ("about: {}\npackage:\n", "package is a mapping of keys", 2, 9),
        (OUTPUT + "    inherit: {run_exports: false}\n", "inherit has no 'from'", 5, 15),
        (OUTPUT + "requirements:\n  run: [b]\n", "a recipe with outputs has no requirements of its own", 5, 1),
        (HEAD + "tests:\n  script: [b]\n", "tests are a list", 5, 3),
        (OUTPUT + "    tests:\n      if: linux\n      then: [b]\n", "tests are a list", 6, 7),
        (OUTPUT + "  - staging: hi\n", "staging is a mapping of keys", 5, 14),
        (OUTPUT + "  - staging: {}\n", "the staging output has no name", 5, 5),
        (OUTPUT + "  - staging: {name: [b]}\n", "a text is expected here", 5, 22),
        (OUTPUT + "  - staging: {name: b, version: 1}\n", "staging has no key 'version'", 5, 24),
        (OUTPUT + "  - staging: {name: b}\n    build: {number: 1}\n", "build of a staging output has no key", 6, 13),
        (OUTPUT + "  - staging: {name: b}\n    requirements: [c]\n", "requirements of a staging output is a", 6, 20),
        ("outputs: []\n", "outputs has no output", 1, 1),
    ],
)
def test_what_rattler_build_refuses_is_refused_with_its_place(
    text: str, what: str, line: int, column: int, tmp_path: Path
) -> None:
    with pytest.raises(RecipeFault) as caught:
        found(tmp_path, text, SPEC)
    assert caught.value.what.startswith(what)
    assert str(caught.value.at) == f"recipe/recipe.yaml:{line}:{column}"
