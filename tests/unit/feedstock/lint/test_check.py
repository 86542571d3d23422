from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.feedstock.lint import check, model
from kiln.feedstock.lint.metadata import LicenseExpression, is_license_family, spdx_identifiers
from kiln.feedstock.lint.requirements import has_separated_fields, match_spec_strictness, spec_fields
from tests.unit.feedstock.lint.recipes import (
    ABI3,
    CLEAN,
    META,
    NOARCH,
    NOARCH_RECIPE,
    OUTPUTS,
    RECIPE,
    RECIPE_OUTPUTS,
    changed,
    feedstock,
    messages,
)

WHEEL = "https://example.org/small-1.10-none-any.whl"
OLD_INDEX = "https://{}".format(".".join(("pypi", "io")))  # noqa: FLY002 - no file of the project names a registry
COMPILED = "https://example.org/small-1.10-cp312-cp312-linux_x86_64.whl"
URL = "https://example.org/{{ name }}-{{ version }}.tar.gz"

STDLIB, STDLIB_V1 = '    - {{ stdlib("c") }}\n', '    - ${{ stdlib("c") }}\n'
TOOLS = '    - {{ compiler("c") }}\n' + STDLIB
FORGE, VARIANTS = "conda-forge.yml", "recipe/conda_build_config.yaml"
# A recipe, the text to replace, its replacement, the rules broken, and the place of the first message.
CHANGES: list[tuple[str, str, str, set[str], str]] = [
    (META, "about:\n", "foo: 1\n\nabout:\n", {"R-000"}, "recipe/meta.yaml:29:1"),
    (RECIPE, "about:\n", "foo: 1\n\nabout:\n", {"R-000"}, "recipe/recipe.yaml:30:1"),
    (META, "package:\n", "about:\n  home: x\npackage:\n", {"R-001", "R-002", "kiln-duplicate"}, "recipe/meta.yaml:4:1"),
    (META, "  home: https://example.org\n", "", {"R-002"}, "recipe/meta.yaml:30:3"),
    (META, "  license: MIT\n", "", {"R-002"}, "recipe/meta.yaml:30:3"),
    (META, "  summary: A small program", "  summary:", {"R-002"}, "recipe/meta.yaml:33:3"),
    (RECIPE, "homepage", "home", {"R-002", "kiln-key"}, "recipe/recipe.yaml:31:3"),
    (META, "  summary:", "  license: MIT\n  summary:", {"kiln-duplicate"}, "recipe/meta.yaml:33:3"),
    (RECIPE, "  summary:", "  license: MIT\n  summary:", {"kiln-duplicate"}, "recipe/recipe.yaml:34:3"),
    (RECIPE, "build:", "build:\n  skip: osx) or linux", {"kiln-template"}, "recipe/recipe.yaml:14:9"),
    (RECIPE, "  summary:", "  description: ${{ version\n  summary:", {"kiln-template"}, "recipe/recipe.yaml:34:16"),
    (META, "extra:\n  recipe-maintainers:\n    - somebody\n", "", {"R-003", "R-011"}, "recipe/meta.yaml"),
    (META, "    - somebody\n", "", {"R-003", "R-004"}, "recipe/meta.yaml:36:3"),
    (META, "\n    - somebody", " somebody", {"R-004"}, "recipe/meta.yaml:36:3"),
    (META, "test:\n  commands:\n    - small --version\n\n", "", {"R-005"}, "recipe/meta.yaml"),
    (RECIPE, "tests:\n  - script:\n      - small --version\n\n", "", {"R-005"}, "recipe/recipe.yaml"),
    (OUTPUTS, "name: small-split", "name: libsmall", {"kiln-test"}, "recipe/meta.yaml:14:5"),
    (OUTPUTS, "    test:\n      commands:\n        - small --version\n", "", {"R-006"}, "recipe/meta.yaml:17:5"),
    (
        RECIPE_OUTPUTS,
        "    tests:\n      - script:\n          - small --version\n",
        "",
        {"R-006"},
        "recipe/recipe.yaml:23:5",
    ),
    (META, "license: MIT", "license: unknown", {"R-007", "R-044"}, "recipe/meta.yaml:31:3"),
    (META, "  number: 0\n", "", {"R-008"}, "recipe/meta.yaml:13:3"),
    (META, "  run:\n    - zlib  # [linux]\n", "", set(), ""),
    (
        META,
        "  host:\n    - zlib >=1.2,<2\n  run:\n    - zlib",
        "  run:\n    - zlib  # [x]\n  host:\n    - zlib",
        {"R-009"},
        "recipe/meta.yaml:20:3",
    ),
    (META, "license: MIT", "license: MIT License", {"R-010", "R-044"}, "recipe/meta.yaml:31:3"),
    (META, "license: MIT", "license: LicenseRef-Small", set(), ""),
    (META, "    - somebody\n", "    - somebody\n\n\n", {"R-011"}, "recipe/meta.yaml:38"),
    (META, "    - somebody\n", "    - somebody", {"R-012"}, "recipe/meta.yaml:37"),
    (META, "  license_file: LICENSE\n", "", {"R-013"}, "recipe/meta.yaml:31:3"),
    (changed(META, "license: MIT", "license: Zlib"), "  license_file: LICENSE\n", "", set(), ""),
    (
        changed(RECIPE, "license: MIT", "license: Zlib"),
        "  license_file: LICENSE\n",
        "",
        {"R-013"},
        "recipe/recipe.yaml:32:3",
    ),
    (META, '"small"', '"Small!"', {"R-014"}, "recipe/meta.yaml:5"),
    (RECIPE, "name: small", "name: Small!", {"R-014"}, "recipe/recipe.yaml:6:3"),
    (RECIPE, "name: ${{ name }}", "name: ${{ other }}", set(), ""),
    (META, '  version: "{{ version }}"\n', "", {"R-015"}, "recipe/meta.yaml:5"),
    (META, '"1.10"', '"1..10"', {"R-016"}, "recipe/meta.yaml:6"),
    (RECIPE, '"1.10"', '"1..10"', {"R-016"}, "recipe/recipe.yaml:7:3"),
    (META, STDLIB, STDLIB + "    - numpy x.x\n", {"R-017"}, "recipe/meta.yaml:20:7"),
    (META, "  number: 0", "  nmber: 0", {"R-008", "R-018"}, "recipe/meta.yaml:13:3"),
    (META, "  sha256", "  sha666", {"R-018", "R-019"}, "recipe/meta.yaml:9"),
    (META, "  number: 0", "  number: 0\n  noarch: pythn", {"R-020", "R0-004"}, "recipe/meta.yaml:14:3"),
    (META, "zlib >=1.2,<2", "zlib >= 1.2", {"R-021", "R-048"}, "recipe/meta.yaml:21:7"),
    (RECIPE, "zlib >=1.2,<2", "zlib >= 1.2", {"R-021"}, "recipe/recipe.yaml:21:7"),
    (META, "zlib >=1.2,<2", "zlib>=1.2", {"R-022", "R-048"}, "recipe/meta.yaml:21:7"),
    (META, "    - zlib >=1.2,<2", "    - python", {"R-023"}, "recipe/meta.yaml:21:7"),
    (META, "  run:\n    - zlib", "  run:\n    - python >=3.9\n    - zlib", {"R-024"}, "recipe/meta.yaml:23:7"),
    (META, "{{ name }}-", "{{name}}-", {"R-025"}, "recipe/meta.yaml:9:28"),
    (RECIPE, "${{ name }}-", "${{name }}-", {"R-025"}, "recipe/recipe.yaml:10:28"),
    (NOARCH, "python >={{ python_min }}", "python", {"R-026"}, "recipe/meta.yaml:15:7"),
    (OUTPUTS, 'pin_subpackage("libsmall"', 'pin_subpackage("zlib"', {"R-027"}, "recipe/meta.yaml:20"),
    (OUTPUTS, 'pin_compatible("zlib")', 'pin_compatible("libsmall")', {"R-027"}, "recipe/meta.yaml:21"),
    (RECIPE_OUTPUTS, 'pin_subpackage("libsmall")', 'pin_subpackage("zlib")', {"R-027"}, "recipe/recipe.yaml:19:11"),
    (META, URL, COMPILED, {"R-028"}, "recipe/meta.yaml:9"),
    (META, URL, WHEEL, {"R-029"}, "recipe/meta.yaml:9"),
    (NOARCH, "build:\n", f"source:\n  url: {WHEEL}\n  sha256: 0\n\nbuild:\n", {"R-030"}, "recipe/meta.yaml:6"),
    (RECIPE, STDLIB_V1, STDLIB_V1 + "    - ${{ compiler('rust') }}\n", {"R-031"}, "recipe/recipe.yaml:20:7"),
    (RECIPE, STDLIB_V1, STDLIB_V1 + "    - ${{ compiler('go') }}\n", {"R-032"}, "recipe/recipe.yaml:20:7"),
    (META, STDLIB, "", {"R-033"}, "recipe/meta.yaml:18"),
    (OUTPUTS, '        - {{ stdlib("c") }}\n', "", {"R-033"}, "recipe/meta.yaml:12"),
    (RECIPE_OUTPUTS, '        - ${{ stdlib("c") }}\n', "", {"R-033"}, "recipe/recipe.yaml:13:11"),
    (META, STDLIB, STDLIB + "    - sysroot_linux-64 2.17\n", {"R-034"}, "recipe/meta.yaml:20:7"),
    (META, "    - zlib  # [linux]", "    - __osx >=11", {"R-035"}, "recipe/meta.yaml:23:7"),
    (META, "  recipe-maint", "  feedstock-name: small-feedstock\n  recipe-maint", {"R-039"}, "recipe/meta.yaml:36:19"),
    (META, '"{{ version }}"', "{{ version }}", {"R-040"}, "recipe/meta.yaml:6"),
    (RECIPE, 'version: "1.10"', "version: 1.10", {"R-040"}, "recipe/recipe.yaml:3:3"),
    (META, TOOLS, "    - pip\n", set(), ""),
    (
        changed(META, "  # [linux]", "").replace("  skip: true  # [win]\n", ""),
        TOOLS,
        "    - pip\n",
        {"R-041"},
        "recipe/meta.yaml:17:7",
    ),
    (META, "license: MIT", "license: MIT OR Foo-1", {"R-044"}, "recipe/meta.yaml:31:3"),
    (META, "license: MIT", "license: GPL-2.0-only WITH Foo", {"R-045"}, "recipe/meta.yaml:31:3"),
    (OUTPUTS, "    test:\n", "      run:\n        - zlib=1=0\n    test:\n", {"R-048"}, "recipe/meta.yaml:15:11"),
    (META, "  number: 0", "  number: 0\n  script: python setup.py install", {"R-049"}, "recipe/meta.yaml:14:11"),
    (META, URL, f"{OLD_INDEX}/small.tar.gz", {"R-050"}, "recipe/meta.yaml:9:8"),
    (META, "true  # [win]", "true # [win]", {"R0-001"}, "recipe/meta.yaml:14"),
    (META, "# [win]", "# [py38]", {"R0-002"}, "recipe/meta.yaml:14"),
    (META, "# [win]", "# [py36]", {"R0-003"}, "recipe/meta.yaml:14"),
    (NOARCH, "    - setuptools", "    - setuptools  # [linux]", {"R0-004"}, "recipe/meta.yaml:13"),
    (META, '{% set name = "small" %}', '{%set name = "small" %}', {"R0-005"}, "recipe/meta.yaml:1"),
    (META, STDLIB, STDLIB + "    - toolchain\n", {"R0-006"}, "recipe/meta.yaml:20:7"),
    (RECIPE, "zlib >=1.2,<2", "zlib >=1.2,<2  # [linux]", {"R1-001"}, "recipe/recipe.yaml:21"),
    (NOARCH_RECIPE, "    - setuptools", "    - if: win\n      then: setuptools", {"R1-002"}, "recipe/recipe.yaml:13:7"),
    (NOARCH_RECIPE, "  noarch: python", "  noarch: python\n  skip: win", {"R1-002"}, "recipe/recipe.yaml:8:3"),
    (META, "  license_file", "  license_family: foo\n  license_file", {"schema"}, "recipe/meta.yaml:32:3"),
    (META, "  recipe-maintainers:\n    - somebody\n", "", {"R-003", "schema"}, "recipe/meta.yaml:35:1"),
    (RECIPE, "context:", "schema_version: 2\n\ncontext:", {"schema"}, "recipe/recipe.yaml:1:1"),
]
FILES: list[tuple[str, dict[str, str], set[str]]] = [
    (RECIPE, {"recipe/meta.yaml": META}, {"R-051"}),
    (RECIPE, {"recipe/bld.bat": ""}, {"R1-003"}),
    (RECIPE, {"recipe/variants.yaml": "a: [1]", VARIANTS: "a: [1]"}, {"RC-002"}),
    (META, {FORGE: "os_version: {linux_64: cos7}"}, {"FC-002"}),
    (META, {FORGE: "docker: {command: sh}"}, {"kiln-settings"}),
    (META, {FORGE: "os_version: {linux_64: cos7}\nlinter: {skip: [hint_os_version]}"}, set()),
    (META, {"recipe/run_test.sh": "true\n"}, set()),
]
OF_CONDA_FORGE: list[tuple[str, str, str, dict[str, str], set[str]]] = [
    (META, "", "", {".ci_support/linux_64_.yaml": "a: 1", ".ci_support/x": ""}, set()),
    (META, "", "", {VARIANTS: "\n"}, {"CF-004"}),
    (META, "", "", {".github/workflows/mine.yml": ""}, {"CF-005"}),
    (META, "", "", {".github/workflows/conda-build.yml": ""}, set()),
    (META, "zlib >=1.2,<2", "zlib 1.2", {}, {"CF-006"}),
    (META, "zlib >=1.2,<2", "matplotlib >=3", {}, {"CF-002"}),
    (RECIPE, "then: zlib", "then: importlib_metadata", {}, {"CF-002"}),
    (META, "", "", {FORGE: "azure: {settings_linux: {variables: {MINIFORGE_HOME: x}}}"}, {"CF-007"}),
    (
        META,
        "",
        "",
        {".git/config": '[remote "origin"]\n\turl = https://github.com/conda-forge/other-feedstock.git\n'},
        {"CF-013"},
    ),
    (
        META,
        "",
        "",
        {".git/config": '[remote "origin"]\n\turl = git@github.com:conda-forge/small-feedstock.git\n'},
        set(),
    ),
    (META, "", "", {FORGE: "package: a\npackage: b"}, {"FC-001"}),
    (RECIPE, "  number: 0", "  number: 0\n  number: 1", {}, {"R-036", "R-037"}),
    (META, "# [win]", "# [is_abi3 == 'true']", {}, {"R-038"}),
    (NOARCH, "    - setuptools\n", "", {}, {"R-046"}),
    (NOARCH, "    - python {{ python_min }}", "    - python", {}, {"R-047"}),
    (NOARCH_RECIPE, "    - python >=${{ python_min }}", "    - python >=3.9", {}, {"R-047"}),
    (NOARCH_RECIPE, '        - "*"\n', "", {}, {"R1-004"}),
    (ABI3, '        - "*"\n', "", {}, {"R1-005"}),
    (RECIPE, "      - small --version", "      - export SP_DIR=x", {}, {"R1-006"}),
    (
        ABI3,
        "  run:\n    - python\n",
        "  run:\n    - python\n  ignore_run_exports:\n    from_package:\n      - cross-python_linux-64\n",
        {},
        {"R1-007"},
    ),
    (
        ABI3,
        "        - abi3audit\n    script:\n      - abi3audit $SP_DIR/fast.abi3.so",
        "        - other\n    script:\n      - other",
        {},
        {"R-053"},
    ),
    (META, "", "", {VARIANTS: "MACOSX_DEPLOYMENT_TARGET: ['11.0']"}, {"RC-000"}),
    (META, "", "", {VARIANTS: "c_stdlib_version:\n  - 10.9\n"}, {"RC-001"}),
    (META, "", "", {VARIANTS: "c_stdlib_version:\n  - 2.17  # [linux]\n"}, set()),
    (RECIPE, "", "", {"recipe/variants.yaml": "c_stdlib_version:\n  - if: linux\n    then: '2.17'\n"}, set()),
    (META, "", "", {VARIANTS: "MACOSX_SDK_VERSION:\n  - '10.13'\n"}, {"CBC-001"}),
    (
        META,
        "",
        "",
        {FORGE: "workflow_settings: {pagefile_size: [{os: linux, platform: osx_64, value: 1}]}"},
        {"CF-009"},
    ),
    (META, "", "", {FORGE: "workflow_settings: {pagefile_size: [{os: win, value: 1}, {value: 2}]}"}, {"CF-010"}),
    (META, "", "", {FORGE: "workflow_settings: {tools_install_dir: x}"}, {"CF-011"}),
    (META, "", "", {FORGE: "workflow_settings: {resize_partitions: [{os: win, value: true}]}"}, {"CF-012"}),
]


def ids(results: list[model.LintMessage]) -> set[str]:
    return {message.id for message in results}


@pytest.mark.parametrize("recipe", CLEAN)
@pytest.mark.parametrize("of_conda_forge", [False, True])
def test_clean_recipes_have_no_messages(tmp_path: Path, recipe: str, of_conda_forge: bool) -> None:
    assert messages(tmp_path, recipe, of_conda_forge=of_conda_forge and "zlib >=" not in recipe) == []


@pytest.mark.parametrize(("recipe", "old", "new", "expected", "place"), CHANGES)
def test_a_change_breaks_these_rules_at_this_place(
    tmp_path: Path, recipe: str, old: str, new: str, expected: set[str], place: str
) -> None:
    results = messages(tmp_path, changed(recipe, old, new))
    assert ids(results) == expected
    assert not place or str(results[0].at) == place


@pytest.mark.parametrize(("recipe", "files", "expected"), FILES)
def test_files_beside_the_recipe_break_these_rules(
    tmp_path: Path, recipe: str, files: dict[str, str], expected: set[str]
) -> None:
    assert ids(messages(tmp_path, recipe, files)) == expected


@pytest.mark.parametrize(("recipe", "old", "new", "files", "expected"), OF_CONDA_FORGE)
def test_rules_of_conda_forge_apply_there_only(
    tmp_path: Path, recipe: str, old: str, new: str, files: dict[str, str], expected: set[str]
) -> None:
    if old:
        recipe = changed(recipe, old, new)
    recipe = recipe.replace("zlib >=1.2,<2", "zlib")
    results = ids(messages(tmp_path, recipe, files, of_conda_forge=True))
    outside = ids(messages(tmp_path, recipe, files))
    assert results - outside == expected


def test_a_feedstock_without_configs_builds_nothing(tmp_path: Path) -> None:
    messages(tmp_path, META)
    (tmp_path / ".ci_support" / "linux_64_.yaml").unlink()
    assert "CF-003" in {message.id for message in check.check(lint_feedstock(tmp_path), of_conda_forge=True)}


def lint_feedstock(folder: Path) -> Any:
    from kiln.recipe import feedstock

    return feedstock.load(folder)


def test_every_rule_is_broken_by_a_test() -> None:
    broken = set().union(
        *(case[3] for case in CHANGES), *(case[2] for case in FILES), *(case[4] for case in OF_CONDA_FORGE)
    )
    assert {rule.id for rule in check.RULES} - broken == {"CF-003", "kiln-type"}


def test_skipped_rules_are_silent(tmp_path: Path) -> None:
    recipe = changed(META, '    - {{ stdlib("c") }}\n', "")
    files = {"conda-forge.yml": "linter: {skip: [lint_stdlib]}"}
    assert messages(tmp_path, recipe, files) == []


def test_noarch_selectors_of_platforms_are_allowed_on_several_platforms(tmp_path: Path) -> None:
    recipe = changed(NOARCH, "    - setuptools", "    - setuptools  # [linux]")
    files = {"conda-forge.yml": "noarch_platforms: [linux_64, win_64]"}
    assert messages(tmp_path, recipe, files) == []


def test_lints_come_before_hints_and_each_in_the_order_of_the_file(tmp_path: Path) -> None:
    recipe = changed(changed(META, "{{ name }}-", "{{name}}-"), "license: MIT", "license: unknown")
    results = messages(tmp_path, changed(recipe, "  number: 0\n", ""))
    assert [message.id for message in results] == ["R-008", "R-007", "R-025", "R-044"]
    assert all(message.cure for message in results)


def test_a_loop_is_unrolled_and_its_messages_have_the_loops_lines(tmp_path: Path) -> None:
    loop = "    {% for name in ['a', 'b'] %}\n    - {{ name }}>=1\n    {% endfor %}\n"
    recipe = changed(META, "    - zlib >=1.2,<2\n", loop)
    results = [message for message in messages(tmp_path, recipe) if message.id == "R-022"]
    assert [message.text for message in results] == [
        "requirements/host: 'a>=1' has no space after the name",
        "requirements/host: 'b>=1' has no space after the name",
    ]
    assert all(21 <= message.at.line <= 23 for message in results)


@pytest.mark.parametrize(
    ("settings", "unread"), [("{}\n", "recipe/recipe.yaml"), ("conda_build_tool: rattler-build\n", "recipe/meta.yaml")]
)
def test_of_two_recipes_the_one_that_is_not_read_is_reported(tmp_path: Path, settings: str, unread: str) -> None:
    [message] = messages(tmp_path, RECIPE, {"recipe/meta.yaml": META, FORGE: settings})
    assert (message.id, message.at.file, message.text.split()[0]) == ("R-051", unread, unread)


@pytest.mark.parametrize(
    ("spec", "cure"),
    [
        ("zlib>=1.2,<2", "write zlib >=1.2,<2"),
        ("zlib >= 1.2", "write zlib >=1.2"),
        ("zlib>=1.2 h*", "write zlib >=1.2 h*"),
        ("zlib >= 1.2 h*", "write zlib >=1.2 h*"),
        ("zlib=*=*h", "write zlib * *h"),
        ("zlib=1.2=0", "write 'name version build': python >=3.9, libfoo 1.2.* cpu_*"),
    ],
)
def test_the_cure_of_a_spec_means_what_the_spec_does(tmp_path: Path, spec: str, cure: str) -> None:
    found = messages(tmp_path, changed(META, "zlib >=1.2,<2", spec))
    assert [message.cure for message in found if message.id in {"R-021", "R-022"}] == [cure]


TYPES = [
    (RECIPE, "about:\n", "about: text\nx:\n", "about is the text 'text', expected a mapping"),
    (
        RECIPE,
        "tests:\n  - script:\n      - small --version",
        "tests:\n  script: x",
        "tests is a mapping, expected a list",
    ),
    (RECIPE, "source:\n", "source:\n  - text\nx:\n", "an entry of source is the text 'text', expected a mapping"),
    (OUTPUTS, "outputs:\n", "outputs:\n  - text\n", "an entry of outputs is the text 'text', expected a mapping"),
    (META, "    - zlib >=1.2,<2\n", "    - 1\n", "an entry of requirements/host is the value 1, expected text"),
    (META, "\n    - zlib >=1.2,<2\n", " zlib\n", "host is the text 'zlib', expected a list"),
    (
        OUTPUTS,
        "      run:\n",
        "      run:\n        - a: b\n",
        "an entry of requirements/run is a mapping, expected text",
    ),
]


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        (META, "  summary:", "  license: MIT  # [win]\n  summary:"),
        (META, "extra:\n", "  {% if noarch %}\n  license: MIT\n  {% endif %}\nextra:\n"),
        (RECIPE, "  number: 0\n", "  number: 0\n  script: echo ${{ x\n"),
    ],
)
def test_keys_that_exclude_each_other_and_scripts_are_left_alone(
    tmp_path: Path, recipe: str, old: str, new: str
) -> None:
    ids = {message.id for message in messages(tmp_path, changed(recipe, old, new))}
    assert not ids & {"kiln-duplicate", "kiln-template"}


@pytest.mark.parametrize(("recipe", "old", "new", "text"), TYPES)
def test_values_of_a_wrong_type_are_lints_of_kilns_own(
    tmp_path: Path, recipe: str, old: str, new: str, text: str
) -> None:
    results = [message for message in messages(tmp_path, changed(recipe, old, new)) if message.id == "kiln-type"]
    assert text in {message.text for message in results}
    assert all(message.at.line for message in results)


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("CONDA_BLD_PATH", "workflow_settings.build_workspace_dir"),
        ("CONDA_FORGE_DOCKER_RUN_ARGS", "docker.run_args"),
        ("MINIFORGE_HOME", "workflow_settings.tools_install_dir"),
        ("SET_PAGEFILE", "workflow_settings.pagefile_size"),
    ],
)
def test_a_replaced_variable_names_the_setting(tmp_path: Path, variable: str, setting: str) -> None:
    settings = f"azure: {{settings_linux: {{variables: {{{variable}: x}}}}}}"
    results = messages(tmp_path, META, {"conda-forge.yml": settings}, of_conda_forge=True)
    assert [message.cure for message in results if message.id == "CF-007"] == [f"use {setting}"]


PAGE = Path(__file__).parents[4] / "docs" / "reference" / "lint.md"


def test_the_page_has_a_row_for_each_rule() -> None:
    rows = {
        tuple(cell.strip() for cell in line.strip("|\n").split("|"))
        for line in PAGE.read_text().splitlines()
        if line.count("|") == 6
    }
    shown = {(row[0], row[1], row[3], row[4].strip("`")) for row in rows} - {
        ("id", "severity", "`--fix`", "linter: skip:"),
        ("---",) * 4,
    }
    rules = {(rule.id, rule.severity.value, "yes" if rule.fixable else "", rule.skip) for rule in check.RULES}
    own = {(name, "hint", "", "") for name in (check.REPORT, check.FAILURE, check.OWN_REPORT)}
    own |= {(check.REFUSED, "lint", "", ""), (check.WARNED, "hint", "", "")}
    assert shown == rules | own


def test_rules_that_the_settings_list_are_passed_over(tmp_path: Path) -> None:
    without = changed(META, "extra:\n  recipe-maintainers:\n    - somebody\n", "").rstrip() + "\n"
    assert [message.id for message in messages(tmp_path, without)] == ["R-003"]
    assert not messages(tmp_path, without, {FORGE: "kiln: {lint_skip: [R-003]}"})


def test_nothing_else_is_said_of_another_schema_version(tmp_path: Path) -> None:
    other = changed(RECIPE, "context:", "schema_version: 2\n\ncontext:").replace("  number: 0\n", "")
    assert [message.id for message in messages(tmp_path, other)] == ["schema"]


def test_every_fixable_rule_has_a_correction() -> None:
    from kiln.feedstock.lint.fixes import LINE_FIXES

    fixable = {rule.id for rule in check.RULES if rule.fixable}
    assert fixable == {*LINE_FIXES, "R-001", "R-009", "R-011", "R-012"}


PROGRAM = Path(sys.executable).with_name("shellcheck")
SCRIPT = "#!/bin/bash\nfor f in $(ls *.so); do rm $f; done\nif [ $x = 1 ]; then cd foo; fi\n"


def program(folder: Path, text: str) -> Path:
    path = folder / "shellcheck"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.processes
@pytest.mark.skipif(not PROGRAM.exists(), reason="shellcheck is not in this environment")
def test_warnings_have_places_and_ids_of_shellcheck(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, META, {"recipe/build.sh": SCRIPT})
    results = check.shellcheck_messages(subject, PROGRAM, enabled=False)
    assert {message.id for message in results} == {"kiln-shellcheck"}
    assert "recipe/build.sh:3:21" in {str(message.at) for message in results}
    everything = check.shellcheck_messages(subject, PROGRAM, enabled=True)
    assert {message.id for message in everything} == {"R-042"}
    assert len(everything) > len(results)


def test_a_feedstock_without_scripts_runs_nothing(tmp_path: Path) -> None:
    assert check.shellcheck_messages(feedstock(tmp_path, META), Path("/nowhere"), enabled=True) == []


def test_a_linked_script_is_not_read(tmp_path: Path) -> None:
    subject = feedstock(tmp_path / "a", META)
    (subject.recipe / "build.sh").symlink_to("/etc/passwd")
    assert check.shellcheck_messages(subject, Path("/nowhere"), enabled=True) == []


@pytest.mark.processes
@pytest.mark.parametrize("answer", ["exit 2", "echo nothing", "echo 1"])
def test_a_failure_is_a_message(tmp_path: Path, answer: str) -> None:
    subject = feedstock(tmp_path / "a", META, {"recipe/build.sh": SCRIPT})
    [message] = check.shellcheck_messages(subject, program(tmp_path, answer), enabled=True)
    assert message.id == "R-043"


# An expression, and the licenses and exceptions in it that SPDX does not have.
EXPRESSIONS = [
    ("MIT", (), ()),
    ("MIT OR Apache-2.0", (), ()),
    ("MIT or Apache-2.0", (), ()),
    ("(MIT AND BSD-3-Clause) OR GPL-2.0-only WITH Classpath-exception-2.0", (), ()),
    ("LicenseRef-Small.1", (), ()),
    ("LicenseRef_Small", ("LicenseRef_Small",), ()),
    ("GPL-3.0", ("GPL-3.0",), ()),
    ("mit", ("mit",), ()),
    ("My License", ("My License",), ()),
    ("MIT AND", ("MIT AND",), ()),
    ("MIT OR (Apache-2.0", ("MIT OR (Apache-2.0",), ()),
    ("MIT WITH Foo", (), ("Foo",)),
    ("", (), ()),
    ("(" * 60 + "MIT" + ")" * 60, ("(" * 60 + "MIT" + ")" * 60,), ()),
]


@pytest.mark.parametrize(("text", "licenses", "exceptions"), EXPRESSIONS)
def test_unknown_identifiers_of_an_expression(
    text: str, licenses: tuple[str, ...], exceptions: tuple[str, ...]
) -> None:
    expression = LicenseExpression.parse(text)
    assert (expression.unknown_licenses, expression.unknown_exceptions) == (licenses, exceptions)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("BSD", "bsd", "Public Domain", "Lesser General Public License", "GPL 3", "gpl2"), True),
        (("BSD-3-Clause", "mpl", "GPL-4", "Apache 2.0"), False),
    ],
)
def test_families_of_conda_build(names: tuple[str, ...], *, known: bool) -> None:
    assert {is_license_family(name) for name in names} == {known}


def test_identifiers_are_read_once_from_the_table() -> None:
    assert {"MIT", "0BSD"} <= spdx_identifiers("license")
    assert spdx_identifiers("exception").isdisjoint(spdx_identifiers("license"))


# The strictness that conda (August 2026) gives each spec; None where it refuses one.
COUNTS = [
    ("numpy", 1),
    ("numpy 1.2", 2),
    ("numpy >=1.2,<2", 2),
    ("numpy >=1.2 , <2", 2),
    ("numpy 1.2 py*", 3),
    ("numpy=1.2", 2),
    ("numpy=1.2=py_0", 3),
    ("numpy ==1.2=py_0", 3),
    ("conda-forge::numpy", 3),
    ('numpy[version=">=1"]', 2),
    ("numpy[build=x]", 3),
    ("numpy*", 3),
    ("numpy ~=1.2", 2),
    ("numpy ~=1.2.*", None),
    ("numpy >=1,<", None),
    ("numpy 1..2", None),
    ("foo==", None),
    ("_", 1),
    ("__glibc >=2.17", 2),
    ("numpy-", 1),
    ("numpy@", 3),
    ("numpy 1.0.*|2.*", 2),
    ("numpy ^1.*$", 2),
    ("numpy 1.*.2", 2),
    ("numpy <2.0.*", 2),
    ("numpy-1.0-0.conda", None),
]


@pytest.mark.parametrize(("spec", "count"), COUNTS)
def test_fields_are_counted_as_conda_does(spec: str, count: int | None) -> None:
    assert match_spec_strictness(spec) == count


@pytest.mark.parametrize(
    ("specs", "accepted"),
    [
        (
            ("numpy", "numpy >=1.2", "numpy 1.2 py*", "numpy {{ x }}=1", "compatible_pin zlib x.x", "numpy 1  # old"),
            True,
        ),
        (("", "numpy=1", "numpy >= 1.2", "numpy 1 2 3", "numpy>=1", "numpy 1..2"), False),
    ],
)
def test_specs_have_separated_fields(specs: tuple[str, ...], *, accepted: bool) -> None:
    assert {has_separated_fields(spec) for spec in specs} == {accepted}


def test_a_spec_has_a_name_in_lower_case() -> None:
    fields = spec_fields("NumPy >=1")
    assert fields is not None
    assert (fields.name, fields.versioned, fields.more) == ("numpy", True, False)


VALID = [
    "azure: {force: true, settings_linux: {pool: {vmImage: x}, timeoutInMinutes: 3, other: 1}}", "azure: null",
    "bot: {anything: [1]}", "build_platform: {osx_arm64: osx_64}", "clone_depth: 3", "clone_depth: 3.0",
    "conda_build: {pkg_format: 2, other: x}", "conda_build: {pkg_format: '2'}",
    "github_actions: {triggers: [1, a], free_disk_space: null}", "linter: {skip: [lint_stdlib]}",
    "noarch_platforms: linux_64", "noarch_platforms: [linux_64, win_64]",
    "provider: {linux_64: [azure, github_actions], win: true, other: 3}", "test: native", "templates: {a: b}",
    "workflow_settings: {free_disk_space: max}",
    "workflow_settings: {free_disk_space: [{os: linux, value: max}, {platform: [osx_64], value: skip}]}", "",
]  # fmt: skip
# A file, and the place and text of its only lint.
INVALID = [
    ("githb: {}", "conf:1:1", "unknown setting 'githb'"),
    ("azure: {forc: true}", "conf:1:9", "unknown setting 'azure.forc'"),
    ("azure: {force: yes}", "conf:1:9", "azure.force is 'yes', expected true or false"),
    ("clone_depth: none", "conf:1:1", "clone_depth is 'none', expected an integer"),
    ("clone_depth: true", "conf:1:1", "clone_depth is True, expected an integer"),
    ("conda_build: {pkg_format: true}", "conf:1:15", "conda_build.pkg_format is True, expected one of 1, 2, tar"),
    ("linter: {skip: [all]}", "conf:1:10", "linter.skip is a list, expected a list of hint_os_version"),
    ("provider: {linux_64: gitlab}", "conf:1:12", "provider.linux_64 is 'gitlab', expected one of"),
    ("shellcheck: {enabled: null}", "conf:1:14", "shellcheck.enabled is None, expected true or false"),
    ("templates: {a: 1}", "conf:1:1", "templates is a mapping, expected"),
    ("test: {}", "conf:1:1", "test is a mapping, expected one of"),
    (
        "workflow_settings: {pagefile_size: [{os: bsd, value: 1}]}",
        "conf:1:21",
        "workflow_settings.pagefile_size is a list",
    ),
    ("workflow_settings: {pagefile_size: [1]}", "conf:1:21", "workflow_settings.pagefile_size is a list"),
]
DEPRECATED = [
    ("compiler_stack: comp7", {"compiler_stack is deprecated"}),
    ("compiler_stack: null", set()),
    ("azure: {store_build_artifacts: false}", {"azure.store_build_artifacts is deprecated"}),
    ("matrix: {}", {"matrix is deprecated"}),
]


@pytest.mark.parametrize("text", VALID)
def test_valid_settings(tmp_path: Path, text: str) -> None:
    assert [message for message in messages(tmp_path, META, {"conda-forge.yml": text}) if message.id == "schema"] == []


@pytest.mark.parametrize(("text", "place", "expected"), INVALID)
def test_invalid_settings_are_reported_at_their_key(tmp_path: Path, text: str, place: str, expected: str) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": text})
    assert message.id == "schema"
    assert message.severity == "lint"
    assert str(message.at) == place.replace("conf", "conda-forge.yml")
    assert message.text.startswith(expected)


def test_a_near_miss_is_suggested(tmp_path: Path) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": "provider: {linux_64: github_action}"})
    assert message.cure == "did you mean 'github_actions'?"


@pytest.mark.parametrize(("text", "expected"), DEPRECATED)
def test_deprecated_settings_are_hints(tmp_path: Path, text: str, expected: set[str]) -> None:
    hints = [message for message in messages(tmp_path, META, {"conda-forge.yml": text}) if message.severity == "hint"]
    assert {message.text for message in hints} == expected


@pytest.mark.parametrize(
    ("text", "expected", "cure"),
    [
        ("provider: {linux_46: azure}", "unknown setting 'provider.linux_46'", "did you mean 'linux_64'"),
        (
            "docker: {command: sh}",
            "docker.command has no effect in kiln: kiln starts its own builder in the container, without a shell",
            "remove the setting, unless conda-forge's CI needs it",
        ),
    ],
)
def test_settings_without_effect_are_hints_of_kiln(tmp_path: Path, text: str, expected: str, cure: str) -> None:
    [message] = messages(tmp_path, META, {"conda-forge.yml": text})
    assert (message.id, message.severity, message.text) == ("kiln-settings", "hint", expected)
    assert message.cure.startswith(cure)


def test_a_replaced_variable_names_the_setting_in_its_place(tmp_path: Path) -> None:
    settings = "azure: {settings_win: {variables: {MINIFORGE_HOME: x}}}"
    found = messages(tmp_path, META, {"conda-forge.yml": settings}, of_conda_forge=True)
    assert [message.cure for message in found if message.id == "CF-007"] == ["use workflow_settings.tools_install_dir"]
