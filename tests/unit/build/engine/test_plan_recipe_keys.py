"""Each key of meta.yaml as it reaches the engine: its recipe, its script, or the changes of the package's metadata."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine.plan import plan_compile
from kiln.recipe.rendered import Checkout
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.build.steps import BuildStep, CompileStep

PACKAGE = "package:\n  name: app\n  version: 1.0\n"
MISSING = object()


def steps(folder: Path, meta: str, files: Mapping[str, str] | None = None, variants: str = "") -> tuple[BuildStep, ...]:
    """Return the steps that build a recipe's packages."""
    feedstock = builders.feedstock(folder / "feedstock", PACKAGE + meta, variants, files=files)
    rendered = builders.closed(feedstock)
    assert rendered.key_faults == ()
    return builders.steps_of_outputs(rendered, feedstock.recipe, folder)


def at(recipe: Any, path: str) -> Any:
    """Return a value of the engine's recipe."""
    for key in path.split("/"):
        recipe = recipe[int(key)] if isinstance(recipe, list) else recipe.get(key, MISSING)
        if recipe is MISSING:
            return MISSING
    return recipe


def without_sections(step: BuildStep) -> BuildStep:
    """Return a step without the sections of the recipe that its package carries."""
    return dataclasses.replace(
        step, edits={**step.edits, "sections": {}}, output=dataclasses.replace(step.output, sections={})
    )


@pytest.mark.parametrize(
    ("keys", "path", "expected"),
    [
        ("number: 3", "build/number", 3),
        ("string: own_0", "build/string", "own_0"),
        ("entry_points: 'a = b:c'", "build/python/entry_points", ["a = b:c"]),
        ("osx_is_app: true", "build/python/use_python_app_entrypoint", True),
        ("noarch: generic", "build/noarch", "generic"),
        ("noarch_python: true", "build/noarch", "python"),
        ("python_version_independent: true", "build/python/version_independent", True),
        ("python_version_independent: true", "requirements/ignore_run_exports/by_name", ["python"]),
        ("skip_compile_pyc: 'a/*.py'", "build/python/skip_pyc_compilation", ["a/*.py"]),
        ("binary_relocation: false", "build/dynamic_linking/binary_relocation", False),
        ("rpaths: lib/a", "build/dynamic_linking/rpaths", ["lib/a"]),
        ("missing_dso_whitelist: a", "build/dynamic_linking/missing_dso_allowlist", ["a"]),
        ("missing_dso_allowlist: a", "build/dynamic_linking/missing_dso_allowlist", ["a"]),
        ("missing_dso_whitelist: b\n  missing_dso_allowlist: a", "build/dynamic_linking/missing_dso_allowlist", ["a"]),
        ("missing_dso_allowlist: '*/a'", "build/dynamic_linking/missing_dso_allowlist", ["*/a", "a"]),
        ("missing_dso_allowlist: $RPATH/a", "build/dynamic_linking/missing_dso_allowlist", ["$RPATH/a", "a"]),
        ("missing_dso_allowlist: /lib/a", "build/dynamic_linking/missing_dso_allowlist", ["/lib/a"]),
        ("error_overlinking: true", "build/dynamic_linking/overlinking_behavior", "error"),
        ("error_overlinking: false", "build/dynamic_linking/overlinking_behavior", "ignore"),
        ("error_overdepending: yes", "build/dynamic_linking/overdepending_behavior", "error"),
        ("has_prefix_files: a", "build/prefix_detection/force_file_type/text", ["a"]),
        ("binary_has_prefix_files: a", "build/prefix_detection/force_file_type/binary", ["a"]),
        ("ignore_prefix_files: true", "build/prefix_detection/ignore", True),
        ("ignore_prefix_files:\n    - a", "build/prefix_detection/ignore", ["a"]),
        ("detect_binary_files_with_prefix: false", "build/prefix_detection/ignore_binary_files", True),
        ("always_include_files: a", "build/always_include_files", ["a"]),
        ("merge_build_host: true", "build/merge_build_and_host_envs", True),
        ("ignore_run_exports: a", "requirements/ignore_run_exports/by_name", ["a"]),
        ("ignore_run_exports_from: a", "requirements/ignore_run_exports/from_package", ["a"]),
        ("run_exports: 'a >=1'", "requirements/run_exports/weak", ["a >=1"]),
        ("script_env: A=b", "build/script/content/0", "export A=b"),
        ("script_env: TOKEN", "build/script/secrets", ["TOKEN"]),
    ],
)
def test_a_build_key_reaches_the_engines_recipe(tmp_path: Path, keys: str, path: str, expected: object) -> None:
    (step,) = steps(tmp_path, f"build:\n  {keys}\n")
    assert at(step.recipe, path) == expected
    (without,) = steps(tmp_path / "without", "build:\n  skip: false\n")
    assert at(without.recipe, path) != expected


@pytest.mark.parametrize(
    "keys",
    [
        "disable_pip: true",
        "msvc_compiler: 14",
        "ignore_verify_codes: C1",
        "no_move_top_level_workdir_loops: true",
        "activate_in_script: true",
    ],
)
def test_what_has_no_effect_on_this_platform_changes_nothing(tmp_path: Path, keys: str) -> None:
    (step,) = steps(tmp_path, f"build:\n  {keys}\n")
    (without,) = steps(tmp_path, "build:\n  skip: false\n")
    assert without_sections(step) == without_sections(without)


@pytest.mark.parametrize("key", ["runpath_allowlist", "runpath_whitelist"])
def test_a_search_path_is_allowed_in_binaries_that_are_not_changed(tmp_path: Path, key: str) -> None:
    (changed,) = steps(tmp_path, f"build:\n  {key}: /opt\n")
    assert "rpath_allowlist" not in changed.recipe["build"]["dynamic_linking"]
    (untouched,) = steps(tmp_path / "untouched", f"build:\n  {key}: /opt\n  binary_relocation: false\n")
    assert untouched.recipe["build"]["dynamic_linking"]["rpath_allowlist"] == ["/opt"]


@pytest.mark.parametrize("name", ["python", "app"])
def test_the_folder_of_pythons_modules_reaches_the_index(tmp_path: Path, name: str) -> None:
    (step,) = steps(tmp_path, f"outputs:\n  - name: {name}\n    build:\n      python_site_packages_path: lib/x\n")
    assert step.index["python_site_packages_path"] == "lib/x"
    assert step.recipe["build"]["python"].get("site_packages_path") == ("lib/x" if name == "python" else None)


def test_an_output_for_all_pythons_is_not_pinned_to_the_one_in_host(tmp_path: Path) -> None:
    text = """\
outputs:
  - name: abi
    python_version_independent: true
    requirements:
      host:
        - python
      run:
        - python
"""
    (step,) = steps(tmp_path, text)
    assert step.recipe["build"]["python"]["version_independent"] is True
    assert step.pins == ()


def test_requirements_reach_the_engines_recipe(tmp_path: Path) -> None:
    sections = ("build", "host", "run", "run_constrained")
    text = "requirements:\n" + "".join(f"  {section}:\n    - for-{section}\n" for section in sections)
    (step,) = steps(tmp_path, text.replace("for-run_constrained", "for-constrained"))
    requirements = step.recipe["requirements"]
    assert [requirements[key] for key in ("build", "host", "run", "run_constraints")] == [
        *(["for-build"], ["for-host"], ["for-run"], ["for-constrained"])
    ]


def test_used_keys_are_forced_and_ignored(tmp_path: Path) -> None:
    variants = "used:\n  - 1\nforced:\n  - 2\n"
    text = "build:\n  force_use_keys: forced\n  force_ignore_keys: used\n  script: echo {{ used }}\n"
    (step,) = steps(tmp_path, text, variants=variants)
    assert set(step.output.used) == {"forced", "target_platform"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("url: https://a.org/a.zip\n    md5: abc", {"url": ["https://a.org/a.zip"], "md5": "abc"}),
        ("url: https://a.org/a.zip\n    sha256: abc\n    fn: a.zip", {"url": ["https://a.org/a.zip"], "sha256": "abc"}),
        ("url: https://a.org/a.zip\n    fn: b", {"url": ["https://a.org/a.zip"], "file_name": "b"}),
        ("git_url: https://a.org/a\n    git_tag: v1", {"git": "https://a.org/a", "rev": "v1"}),
        ("git_url: https://a.org/a\n    git_rev: v1", {"git": "https://a.org/a", "rev": "v1"}),
        ("git_url: https://a.org/a\n    git_branch: b", {"git": "https://a.org/a", "rev": "b"}),
        ("git_url: https://a.org/a\n    git_depth: 1", {"git": "https://a.org/a", "depth": 1}),
        ("git_url: https://a.org/a\n    git_depth: -1", {"git": "https://a.org/a"}),
        ("git_url: ./a", {"git": "RECIPE/a"}),
        ("path: src", {"path": "RECIPE/src", "use_gitignore": False}),
        ("path: a.zip", {"path": "RECIPE/a.zip", "use_gitignore": False, "file_name": "a.zip"}),
        (
            "path: src\n    folder: in\n    patches: a.patch",
            {"path": "RECIPE/src", "use_gitignore": False, "target_directory": "in", "patches": ["RECIPE/a.patch"]},
        ),
    ],
)
def test_a_source_reaches_the_engines_recipe(tmp_path: Path, source: str, expected: dict[str, Any]) -> None:
    (step,) = steps(tmp_path, f"source:\n  - {source}\n", {"recipe/a.zip": "", "recipe/src/a": ""})
    folder = str(tmp_path / "feedstock" / "recipe")
    assert step.recipe["source"] == [json.loads(json.dumps(expected).replace("RECIPE", folder))]


@pytest.mark.parametrize("shared", [False, True])
def test_a_fetched_source_reaches_its_step(shared: bool, tmp_path: Path) -> None:
    sources = """\
source:
  - {path: src, folder: l, path_via_symlink: true}
  - {path: src}
  - {hg_url: ../up, folder: h, patches: [p]}
"""
    outputs = "outputs:\n  - name: app\n  - name: lib\n" if shared else ""
    files = {"recipe/src/a": "", "recipe/build.sh": ""}
    step: BuildStep | CompileStep
    if shared:
        step = compile_of(tmp_path, sources + outputs, files)
    else:
        (step,) = steps(tmp_path, sources, files)
    folder = tmp_path / "feedstock" / "recipe"
    local, fetched = step.recipe["source"]
    assert local["path"] == str(folder / "src")
    assert fetched == {"target_directory": "h", "patches": [str(folder / "p")]}
    ((position, source),) = [(item.position, item.source) for item in step.fetched]
    assert (position, source.checkout) == (1, Checkout(program="hg", url=str(folder.parent / "up")))
    assert any(f"ln -sT -- {folder / 'src'} l" in line for line in step.recipe["build"]["script"]["content"])


def compile_of(folder: Path, meta: str, files: Mapping[str, str]) -> CompileStep:
    """Return the build step that a recipe's outputs share."""
    feedstock = builders.feedstock(folder / "feedstock", PACKAGE + meta, files=files)
    rendered = builders.closed(feedstock)
    (staging,) = rendered.stagings
    return plan_compile(
        rendered, staging, recipe_folder=feedstock.recipe, folder=folder, channels=(), settings=folder / "compile.env"
    )


def test_a_password_of_subversion_is_in_no_package(tmp_path: Path) -> None:
    source = "source:\n  - {svn_url: https://a.org, svn_username: me, svn_password: swordfish}\n"
    (step,) = steps(tmp_path, source)
    assert step.edits["sections"]["source"] == [{"svn_url": "https://a.org", "svn_username": "me"}]
    assert "swordfish" not in json.dumps([step.recipe, step.edits])


def test_the_metadata_of_a_package_is_completed(tmp_path: Path) -> None:
    about = "about:\n  home: https://a.org\n  doc_source_url: x\n  keywords: k\n  license_file: L\n  license: MIT\n"
    (step,) = steps(tmp_path, f"{about}extra:\n  a: {{b: 1}}\nbuild:\n  no_link: 'bin/*'\n  include_recipe: false\n")
    edits = dict(without_sections(step).edits)
    assert [entry["to"] for entry in edits.pop("files")] == ["."]
    assert edits == {
        "sections": {},
        "hash_input": {},
        "about": {
            "home": "https://a.org",
            "doc_source_url": "x",
            "keywords": ["k"],
            "license_file": "L",
            "license": "MIT",
        },
        "extra": {"a": {"b": "1"}},
        "no_link": ["bin/*"],
        "without_recipe": True,
    }
    assert step.recipe["about"] == {"license_file": ["L"]}


def test_features_and_licenses_reach_the_index(tmp_path: Path) -> None:
    (step,) = steps(
        tmp_path,
        "build:\n  features: f\n  track_features: a b\n  requires_features:\n    r: 1\nabout:\n  license: MIT\n",
    )
    own = {"requires_features": {"r": "1"}}
    assert step.index == {"features": "f", "track_features": "a b", "license": "MIT", **own}
    assert step.output.build_string == "f_0"
    (step,) = steps(tmp_path / "other", "build:\n  provides_features:\n    p: q\n")
    assert step.index == {"provides_features": {"p": "q"}}


OUTPUTS = """\
source:
  path: .
build:
  script: make
outputs:
  - name: first
    version: 2
    number: 4
    string: own
    script: install.tcl
    script_interpreter: tclsh -x
    track_features: t
    features: f
    entry_points: a = b:c
    run_exports: first
    requirements:
      host: zlib
    files:
      include:
        - lib/*
      exclude:
        - lib/*.a
    about:
      license: MIT
    test:
      commands: "true"
  - name: second
    noarch: python
    files: share/second
    build:
      post-link: linked
  - name: third
    noarch_python: true
"""


def test_the_keys_of_outputs_reach_the_engines_recipe(tmp_path: Path) -> None:
    by_name = {step.output.name: step for step in steps(tmp_path, OUTPUTS, {"recipe/linked.sh": ""})}
    first, second, third = by_name["first"], by_name["second"], by_name["third"]
    folder = tmp_path / "feedstock" / "recipe"
    assert first.recipe["package"] == {"name": "first", "version": "2"}
    assert (first.recipe["build"]["number"], first.recipe["build"]["string"]) == (4, "own")
    assert f"tclsh -x {folder}/install.tcl" in first.recipe["build"]["script"]["content"]
    assert first.recipe["build"]["files"] == {"include": ["lib/*"], "exclude": ["lib/*.a"]}
    assert first.recipe["build"]["python"]["entry_points"] == ["a = b:c"]
    assert first.recipe["requirements"]["host"] == ["zlib"]
    assert first.recipe["requirements"]["run_exports"] == {"weak": ["first"]}
    assert first.output.tests[0].script.lines == ("true",)
    assert first.index == {"license": "MIT", "features": "f", "track_features": "t"}
    assert (second.recipe["build"]["files"], third.recipe["build"]["noarch"]) == (["share/second"], "python")
    line = f'install -D -m 775 {folder}/linked.sh "$PREFIX/bin/".second-post-link.sh'
    assert line in second.recipe["build"]["script"]["content"]


def test_a_compile_merges_its_environments(tmp_path: Path) -> None:
    outputs = OUTPUTS.replace("script: make", "script: make\n  merge_build_host: true")
    step = compile_of(tmp_path, outputs, {"recipe/linked.sh": ""})
    assert step.recipe["build"]["merge_build_and_host_envs"] is True


@pytest.mark.parametrize(
    ("keys", "merged"),
    [
        ("requirements:\n  build: [make]\n", True),
        ("requirements:\n  build: [make]\n  host:\n    - zlib\n", False),
        ("requirements:\n  build:\n    - {{ compiler('c') }}\n", False),
        ("requirements:\n  build: [make]\nbuild:\n  merge_build_host: false\n", False),
        ("requirements:\n  run: [make]\n", False),
    ],
)
def test_a_recipe_without_host_and_compiler_merges_its_environments(tmp_path: Path, keys: str, merged: bool) -> None:
    (step,) = steps(tmp_path, keys.replace("[make]", "make"))
    assert step.recipe["build"].get("merge_build_and_host_envs", False) is merged


def test_link_scripts_are_installed(tmp_path: Path) -> None:
    files = {"recipe/pre-link.sh": "", "recipe/post-link.sh": "", "recipe/pre-unlink.sh": ""}
    (step,) = steps(tmp_path, "", files)
    content = "\n".join(step.recipe["build"]["script"]["content"])
    assert [f'"$PREFIX/bin/".app-{kind}.sh' in content for kind in ("pre-link", "post-link", "pre-unlink")] == [
        True
    ] * 3


@pytest.mark.parametrize("kind", ["pre-link", "post-link", "pre-unlink"])
def test_a_link_script_that_is_not_there_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RecipeFault, match=f"build/{kind} names missing.sh"):
        steps(tmp_path, f"build:\n  {kind}: missing\n")


def test_tests_of_a_recipe(tmp_path: Path) -> None:
    keys = {"requires": "r", "commands": "'true'", "imports": "i", "files": "f", "source_files": "s"}
    text = "test:\n" + "".join(f"  {key}: {value}\n" for key, value in keys.items())
    (step,) = steps(tmp_path, text, {"recipe/run_test.py": "", "recipe/run_test.sh": ""})
    (tests,) = step.output.tests
    assert (tests.requires, tests.script.lines, tests.imports) == (("r",), ("true",), ("i",))
    assert (tests.files, tests.source_files) == (("f",), ("s",))
    assert tests.scripts == {"run_test.py": "run_test.py", "run_test.sh": "run_test.sh"}


def test_a_test_script_of_an_output(tmp_path: Path) -> None:
    text = "outputs:\n  - name: a\n    test:\n      script: check.py\n"
    (step,) = steps(tmp_path, text, {"recipe/check.py": "", "recipe/run_test.sh": ""})
    assert step.output.tests[0].scripts == {"run_test.py": "check.py"}
    with pytest.raises(RecipeFault, match=r"test/script is 'check\.py'"):
        steps(tmp_path / "without", text)
