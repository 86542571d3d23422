"""Rendered packages that conda-build refuses are refused, with the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import KilnError, MalformedYaml, RecipeFault
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.feedstock import config_file, matrix
from kiln.feedstock.lint import check
from kiln.recipe import render
from kiln.recipe.v0.validity import ANY, key_faults, recipe_keys
from kiln.run.recipe_checks import faults_and_warnings
from tests import builders

if TYPE_CHECKING:
    from kiln.recipe.rendered import KeyFault


PACKAGE = "package:\n  name: a\n  version: 1\n"
ONE = "  - name: {}\n    requirements:\n      {}:\n        - {}\n"
THREE = "outputs:\n" + "".join(ONE.format(name, "run", other) for name, other in ("bc", "cd", "db"))
TWO = "outputs:\n" + ONE.format("b", "run", "c") + ONE.format("c", "host", "b")


def rendered(folder: Path, meta: str) -> list[dict[str, Any]]:
    feedstock = builders.feedstock(folder, meta)
    return render.as_plain_data(builders.rendered(feedstock))


@pytest.mark.parametrize(
    ("meta", "what", "line"),
    [
        ("", "the recipe is empty", 1),
        ("# package:\n\n  # name: a\n", "the recipe is empty", 1),
        ("{% set name = 'a' %}\n{% set version = '1' %}\n", "the recipe is empty", 1),
        ("package:\n  name: a\n", "a has no version", 1),
        ("package:\n  name: a\n  version: .1\n", "a has the version '.1'", 1),
        ("package:\n  name: a\noutputs:\n  - name: b\n", "b has no version", 3),
        (f"{PACKAGE}build:\n  noarch: none\n", "noarch is 'none'", 4),
        (f"{PACKAGE}requirements:\n  run:\n    - a >=1\n", "'a >=1' in requirements/run", 6),
        (f"{PACKAGE}requirements:\n  host:\n    - b >=1,,<2\n", "'b >=1,,<2' in requirements/host", 6),
        (f"{PACKAGE}requirements:\n  run_constrained:\n    - b >=1.0<2\n", "in requirements/run_constrained", 6),
        (f"{PACKAGE}requirements:\n  run:\n    -\n    - b\n", "requirements/run has an empty item", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n      run:\n        -\n", "has an empty item", 4),
        (PACKAGE + TWO, "the outputs [bc] and [bc] require each other", 4),
        (PACKAGE + THREE, "the outputs [bcd], [bcd] and [bcd] require each other", 4),
        (f"{PACKAGE}outputs:\n  - name: b\n    target: ../up\n", "target is '../up'", 4),
    ],
)
def test_an_invalid_package_is_refused(tmp_path: Path, meta: str, what: str, line: int) -> None:
    with pytest.raises(RecipeFault, match=what) as caught:
        rendered(tmp_path, meta)
    assert caught.value.at is not None
    assert caught.value.at.line == line


def test_a_version_without_a_value_is_rendered_and_not_built(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: {{ environ.get('A_VERSION') }}\n")
    renderings = [builders.rendered(feedstock)]
    assert renderings[0].outputs[0].version == "None"
    with pytest.raises(RecipeFault, match="a has the version 'None'"):
        render.require_supported_keys(renderings, own_engine=True)
    render.require_supported_keys(renderings, own_engine=False)


def test_a_cross_compiled_output_may_require_another_of_the_build_platform(tmp_path: Path) -> None:
    outputs = TWO.replace("run:", "build:").replace("host:", "build:")
    with pytest.raises(RecipeFault, match="require each other"):
        rendered(tmp_path / "native", PACKAGE + outputs)
    feedstock = builders.feedstock(
        tmp_path / "cross",
        PACKAGE + outputs,
        forge="build_platform:\n  linux_aarch64: linux_64\nprovider:\n  linux_64: null\n  linux_aarch64: azure\n",
        files={".ci_support/linux_aarch64_.yaml": "target_platform:\n- linux-aarch64\n"},
    )
    config = config_file.read_config(feedstock, "linux_aarch64_")
    assert {output["name"] for output in render.as_plain_data(render.render(feedstock, config))} == {"b", "c"}


def test_the_legacy_noarch_python_is_no_noarch_of_conda_build(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}build:\n  noarch_python: true\n")
    assert (output["noarch"], output["subdir"]) == (None, "noarch")


def test_an_output_that_names_itself_is_rendered_without_it(tmp_path: Path) -> None:
    needs = {"build": "python", "host": "b", "run": "python\n        - b"}
    sections = "".join(f"      {section}:\n        - {spec}\n" for section, spec in needs.items())
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    requirements:\n{sections}")
    assert (output["requirements"]["host"], output["requirements"]["run"]) == ([], ["python"])
    assert output["build"].startswith("py311"), "by what build requires, for there is no host"


def test_text_in_the_place_of_a_list_stays_text(tmp_path: Path) -> None:
    test = "test:\n  imports: i\n  commands: c\n  requires: r\n"
    (output,) = rendered(tmp_path / "a", f"{PACKAGE}build:\n  run_exports: x\n  noarch: true\n{test}")
    assert (output["run_exports"], output["noarch"]) == ("x", True)
    assert output["test"] == {"imports": "i", "commands": "c", "requires": "r"}
    (output,) = rendered(tmp_path / "b", f"{PACKAGE}build:\n  run_exports:\n    weak: x\n    strong:\n      - y\n")
    assert output["run_exports"] == {"weak": "x", "strong": ["y"]}


def test_the_target_of_an_output_is_its_subdir(tmp_path: Path) -> None:
    (output,) = rendered(tmp_path, f"{PACKAGE}outputs:\n  - name: b\n    target: win-64\n")
    assert output["subdir"] == "win-64"


def test_the_build_machine_decides_the_compilers_that_no_variant_names(tmp_path: Path) -> None:
    feedstock = builders.feedstock(
        tmp_path,
        f"{PACKAGE}requirements:\n  build:\n    - {{{{ compiler('c') }}}}\n",
        forge="build_platform:\n  osx_64: linux_64\n",
        files={
            f".ci_support/{name}_.yaml": f"target_platform:\n- {name.replace('_', '-')}\n"
            for name in ("osx_64", "osx_arm64")
        },
    )
    compilers = [
        render.render(feedstock, config_file.read_config(feedstock, name)).outputs[0].requirements.build
        for name in ("osx_64_", "osx_arm64_")
    ]
    assert compilers == [("gcc_osx-64",), ("clang_osx-arm64",)]


def test_an_interpreter_of_an_outputs_test_is_ignored_with_a_warning(tmp_path: Path) -> None:
    meta = f"{PACKAGE}outputs:\n  - name: b\n    test:\n      script: t.py\n      script_interpreter: python\n"
    feedstock = builders.feedstock(tmp_path, meta, files={"recipe/t.py": ""})
    rendering = render.render(feedstock, *matrix.configs(feedstock))
    (warning,) = rendering.warnings
    assert str(warning).startswith("recipe/meta.yaml:6:5: the test of the output b has a script_interpreter")
    assert rendering.key_faults == ()


@pytest.mark.parametrize(("name", "warned"), [("linx", True), ("of_a_pinning", False), ("linux", False)])
def test_a_misspelled_name_in_a_selector_is_told_where_a_pinning_may_define_it(
    tmp_path: Path, name: str, warned: bool
) -> None:
    meta = f"{PACKAGE}requirements:\n  host:\n    - zlib\n    - setuptools  # [{name}]\n"
    files = {f".ci_support/linux_64_{zlib}.yaml": f"zlib:\n- '{zlib}'\n" for zlib in (1, 2)}
    feedstock = builders.feedstock(tmp_path, meta, files=files)
    configs = [config_file.read_config(feedstock, name) for name in ("linux_64_1", "linux_64_2")]
    for rendering in (render.render(feedstock, config) for config in configs):
        said = [f"{warning.at}: {warning.what}; {warning.hint}" for warning in rendering.warnings]
        assert [line.partition(" or ")[0] for line in said] == warned * [
            "recipe/meta.yaml:7:22: the selector [linx] uses the unknown name 'linx'; did you mean 'linux'"
        ]
    _, hints = faults_and_warnings(feedstock)  # of the linter
    assert [str(hint.at) for hint in hints] == warned * ["recipe/meta.yaml:7:22"]


def test_tests_of_an_output_with_the_recipes_name_are_ignored_with_a_warning(tmp_path: Path) -> None:
    tested = "  - name: {}\n    test:\n      commands:\n        - true\n"
    meta = f"{PACKAGE}outputs:\n{tested.format('a')}{tested.format('b')}"
    feedstock = builders.feedstock(tmp_path, meta)
    rendering = builders.rendered(feedstock)
    (warning,) = rendering.warnings
    assert "recipe/meta.yaml:6:5: the tests of the output a are ignored" in str(warning)
    assert [output.name for output in rendering.outputs if any(test.script.lines for test in output.tests)] == ["b"]
    assert [(str(problem.at), problem.id) for problem in check.check(feedstock) if problem.id == "kiln-test"] == [
        ("recipe/meta.yaml:6:5", "kiln-test")
    ]


def test_an_item_with_a_colon_is_refused_with_its_line_and_all_at_once(tmp_path: Path) -> None:
    commands = 'test:\n  commands:\n    - ok\n    - echo "a: b"\nrequirements:\n  run:\n    - foo: 1.2\n'
    output = "outputs:\n  - name: b\n    build:\n      script:\n        - echo c: d\n"
    feedstock = builders.feedstock(tmp_path, PACKAGE + commands + output)
    with pytest.raises(KilnError) as caught:
        matrix.configs(feedstock)
    for place in ("7:7: test/commands", "10:7: requirements/run", "15:11: build/script"):
        assert f"recipe/meta.yaml:{place} has a mapping instead of text" in str(caught.value)
    problems = {(problem.at.line, problem.at.column) for problem in check.check(feedstock) if problem.id == "kiln-type"}
    assert {(7, 7), (15, 11)} <= problems


ROOT = Path(__file__).parents[4]
ROWS = files.csv_rows(ROOT / "kiln" / "recipe" / "v0" / "keys.csv")
REFUSED = [key for key, why in recipe_keys().items() if why]
# The names in FIELDS of conda_build/metadata.py, conda-build 26.7.
FIELDS = {
    "package": "name version",
    "source": """fn url md5 sha1 sha224 sha256 sha384 sha512 content_sha256 content_sha384 content_sha512
        content_hash_skip path path_via_symlink git_url git_tag git_branch git_rev git_depth hg_url hg_tag svn_url
        svn_rev svn_ignore_externals svn_username svn_password folder no_hoist patches""",
    "build": """number string entry_points osx_is_app disable_pip features track_features preserve_egg_dir no_link
        binary_relocation script noarch noarch_python python_version_independent has_prefix_files
        binary_has_prefix_files ignore_prefix_files detect_binary_files_with_prefix skip_compile_pyc rpaths
        rpaths_patcher script_env always_include_files skip msvc_compiler pin_depends include_recipe preferred_env
        preferred_env_executable_paths run_exports ignore_run_exports ignore_run_exports_from requires_features
        provides_features force_use_keys force_ignore_keys merge_build_host pre-link post-link pre-unlink
        missing_dso_whitelist missing_dso_allowlist runpath_whitelist runpath_allowlist error_overdepending
        error_overlinking overlinking_ignore_patterns python_site_packages_path""",
    "outputs": """name version number entry_points script script_interpreter build requirements test about extra files
        type run_exports target""",
    "requirements": "build host run conflicts run_constrained",
    "app": "entry icon summary type cli_opts own_environment",
    "test": "requires commands files imports source_files downstreams",
    "about": """home dev_url doc_url doc_source_url license_url license summary description license_family identifiers
        tags keywords license_file prelink_message readme""",
    "extra": ANY,
}
# Keys that conda-build reads, though its FIELDS lack them.
FURTHER = {
    "build": "ignore_verify_codes activate_in_script no_move_top_level_workdir_loops",
    "about": "recipe_log_file",
    "outputs": "string features track_features noarch noarch_python python_version_independent",
    "test": "script",
}


def faults(text: str) -> tuple[KeyFault, ...]:
    return key_faults(
        parse_document(text, "recipe/meta.yaml", ScalarInterpretation.WORDS).value, text, "recipe/meta.yaml"
    )


def test_the_table_has_every_key_of_conda_build() -> None:
    known = {(section, name) for part in (FIELDS, FURTHER) for section in part for name in part[section].split()}
    assert recipe_keys().keys() == known


def test_an_honored_key_names_an_existing_test() -> None:
    tests = {row["test"].partition("::")[::2] for row in ROWS if row["support"] == "honored"}
    functions = {file: re.findall(r"(?m)^def (test_\w+)\(", (ROOT / file).read_text()) for file, _ in tests}
    assert [(file, name) for file, name in tests if name not in functions[file]] == []


def test_a_refused_key_has_a_reason() -> None:
    assert [row["key"] for row in ROWS if row["support"] != "honored" and not row["note"]] == []
    assert [row["key"] for row in ROWS if row["support"] != "honored" and row["test"]] == []


def test_the_documentation_lists_what_is_refused() -> None:
    page = (ROOT / "docs" / "reference" / "meta-yaml.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    missing = [
        (section, name)
        for section, name in REFUSED
        if not any(row.startswith(f"| `{section}`:") and f"`{name}`" in row for row in rows)
    ]
    assert missing == []


@pytest.mark.parametrize("key", REFUSED, ids="/".join)
def test_a_refused_key_is_located(key: tuple[str, str]) -> None:
    section, name = key
    dash = "  - " if section in {"source", "outputs"} else "    "
    text = f"package:\n    name: a\n{section}:\n{dash}{name}: value\n" if section != "package" else ""
    (fault,) = faults(text)
    assert (fault.key, fault.known) == (f"{section}/{name}", True)
    assert str(fault.at) == "recipe/meta.yaml:4:5"
    assert "--engine conda-build" in fault.hint


def test_a_refused_key_without_a_value_is_no_fault() -> None:
    assert faults("build:\n  pin_depends:\n  preferred_env: ''\nabout:\n  readme: null\n") == ()


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("package:\n  nme: foo\n", "package/nme", "did you mean 'name'"),
        ("build:\n  ignore_run_export: []\n", "build/ignore_run_export", "'ignore_run_exports'"),
        ("requirement:\n  run: []\n", "requirement", "did you mean 'requirements'"),
        ("outputs:\n  - name: a\n    missing_dso_whitelist: []\n", "outputs/missing_dso_whitelist", "belongs to build"),
        ("outputs:\n  - name: a\n    build:\n      numbr: 1\n", "outputs/build/numbr", "did you mean 'number'"),
        ("outputs:\n  - name: a\n    requirements:\n      rn: [b]\n", "outputs/requirements/rn", "did you mean 'run'"),
        ("test:\n  script: check.sh\n", "test/script", ""),
        ("about:\n  zzz: 1\n", "about/zzz", "keys of about"),
    ],
)
def test_an_unknown_key_is_reported_with_those_like_it(text: str, key: str, hint: str) -> None:
    (fault,) = faults(text)
    assert (fault.key, fault.known) == (key, False)
    assert hint in fault.hint
    assert fault.at.line == 1 + [line.split(":")[0].strip(" -") for line in text.splitlines()].index(
        key.rsplit("/", maxsplit=1)[-1]
    )


def test_own_sections_may_have_any_key() -> None:
    assert faults("extra:\n  anything: {else: 1}\noutputs:\n  - name: a\n    test: {script: a.sh}\n") == ()


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("source:\n  url: https://a.org/a.zip\n  sha1: ''\n", "source/sha1"),
        ("source:\n  path: a\n  content_sha512:\n", "source/content_sha512"),
        ("source:\n  path: a\n  path_via_symlink: false\n", "source/path_via_symlink"),
        ("source:\n  path: a\n  path_via_symlink: true\n  folder: b/../..\n", "source/folder"),
        ("source:\n  path: a\n  path_via_symlink: true\n  folder: //b\n", "source/folder"),
        ("source:\n  path: a\n  path_via_symlink: true\n  folder: b/..\n", "source/path_via_symlink"),
        ("source:\n  path: a\n  path_via_symlink: true\n  folder: b\n  patches: [c]\n", "source/patches"),
        (
            "source:\n  - {path: a, path_via_symlink: true, folder: b}\n  - {path: c, folder: b/d}\n",
            "source/path_via_symlink",
        ),
        ("source:\n  - path: a\n  - {path: b, content_sha256: c}\n", "source/content_sha256"),
        (
            "source:\n  - {path: a, folder: b/c}\n  - {path: b, folder: ./b/, content_sha256: c}\n",
            "source/content_sha256",
        ),
        ("source:\n  git_url: https://a.org/a\n  git_rev: a\n  git_tag: b\n", "source/git_tag"),
        (
            "build:\n  error_overlinking: true\n  overlinking_ignore_patterns: [a]\n",
            "build/overlinking_ignore_patterns",
        ),
        ("build:\n  activate_in_script: false\n", "build/activate_in_script"),
        ("build:\n  merge_build_host: true\nrequirements:\n  build: [a]\n  host: [b]\n", "build/merge_build_host"),
        (
            "outputs:\n  - build:\n      merge_build_host: yes\n    requirements:\n      build: [a]\n      host: [b]\n",
            "outputs/build/merge_build_host",
        ),
        ("outputs:\n  - name: a\n    type: wheel\n", "outputs/type"),
        ("outputs:\n  - name: a\n    script: install.pl\n", "outputs/script"),
    ],
)
def test_a_value_that_cannot_be_honored_is_reported(text: str, key: str) -> None:
    (fault,) = faults(text)
    assert (fault.key, fault.known) == (key, True)
    assert fault.why


def test_values_that_are_honored_are_no_faults() -> None:
    source = "source:\n  - url: [https://a.org/a.zip, https://b.org/a.zip]\n  - url: https://a.org/a.bin\n    fn: b\n"
    source += "  - {url: https://a.org/get, fn: a-1.tar.gz, folder: c}\n  - {url: https://a.org/a.rpm, folder: d}\n"
    source += "  - {url: https://a.org/a.whl, patches: [a.patch], no_hoist: false}\n"
    source += "  - {path: g, folder: g, sha256: ''}\n"
    source += "  - {path: a, path_via_symlink: '', folder: e}\n  - {path: b, folder: e-f, content_sha256: a}\n"
    outputs = "outputs:\n  - name: a\n    script: a.pl\n    script_interpreter: perl\n  - name: b\n    type: conda_v2\n"
    build = "build:\n  overlinking_ignore_patterns: [a]\n  merge_build_host: true\nrequirements:\n  build: [a]\n"
    assert faults(source + outputs + build) == ()


def test_a_rendering_has_the_faults_of_its_own_variant(tmp_path: Path) -> None:
    recipe = "package:\n  name: a\n  version: 1\nbuild:\n  nuber: 1  # [kind == 'x']\n  pin_depends: strict\n"
    feedstock = builders.feedstock(tmp_path, recipe, "kind:\n  - x\n  - y\n")
    renderings = [render.render(feedstock, config) for config in matrix.configs(feedstock)]
    assert [[fault.key for fault in item.key_faults] for item in renderings] == [
        ["build/nuber", "build/pin_depends"],
        ["build/pin_depends"],
    ]
    with pytest.raises(RecipeFault, match="unknown key 'build/nuber'") as caught:
        render.require_supported_keys(renderings, own_engine=True)
    assert str(caught.value.at) == "recipe/meta.yaml:5:3"
    assert [other.what for other in caught.value.others] == [
        "the engine rattler-build does not have 'build/pin_depends'"
    ]
    with pytest.raises(RecipeFault) as caught:
        render.require_supported_keys(renderings, own_engine=False)
    assert caught.value.others == ()
    assert "did you mean 'number'" in render.key_fault_warnings(renderings[0])[0]


def test_a_line_that_its_selector_cuts_is_named_where_it_is_cut(tmp_path: Path) -> None:
    meta = f"{PACKAGE}build:\n  script:\n    - 'echo \"a #1\"'  # [linux]\nabout:\n  home: x\n"
    with pytest.raises(MalformedYaml, match=r"the selector \[linux\] takes the text from the first '#'") as caught:
        rendered(tmp_path, meta)
    assert str(caught.value.at) == "recipe/meta.yaml:6:16"
