"""Every key of meta.yaml is honored, by a test that exists, or refused with its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kiln.base import files
from kiln.base.errors import RecipeFault
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.feedstock import matrix
from kiln.recipe import render
from kiln.recipe.v0.validity import ANY, key_faults, recipe_keys
from tests import builders
from tests.compared_recipes import RECIPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.recipe.rendered import KeyFault

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


def test_the_documentation_lists_the_keys_that_were_not_compared_with_conda_builds_packages() -> None:
    page = (ROOT / "docs" / "reference" / "packages.md").read_text().partition("### What was not compared")[2]
    compared = {key for text, _ in RECIPES.values() for key in keys_of(text)}
    sources = (ROOT / "tests" / "integration" / "test_source_kinds.py").read_text()
    compared |= {key for key in recipe_keys() if key[0] == "source" and re.search(rf"\b{key[1]}\b", sources)}
    honored = [key for key, why in recipe_keys().items() if not why and key[0] != "extra"]
    missing = [
        (section, name)
        for section, name in honored
        if (section, name) not in compared and not re.search(rf"(?m)^\| `{section}` \|.*`{re.escape(name)}`", page)
    ]
    assert missing == []


def keys_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the sections and keys of a recipe, those of its outputs included."""
    recipe = yaml.safe_load(re.sub(r"\{\{.*?\}\}", "x", re.sub(r"\{%.*?%\}", "", text)))
    parts = [recipe, *recipe.get("outputs", ())]
    yield from (("outputs", key) for output in parts[1:] for key in output)
    for part in parts:
        for section, value in part.items():
            entries = value if isinstance(value, list) and section == "source" else [value]
            yield from ((section, key) for entry in entries if isinstance(entry, dict) for key in entry)


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
        (
            "build:\n  merge_build_host: true\nrequirements:\n  build: [a]\n  host: [b]\n",
            "build/merge_build_host",
        ),
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
