"""Parts of a recipe.yaml that a build needs: scripts, tests, settings, sources of each output, and staging outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine.plan import plan_outputs
from kiln.recipe import pins
from kiln.recipe.rendered import BuildSettings, LinkingSettings, OutputTest, PrefixSettings, PythonSettings, Script
from tests.unit.recipe.v1.test_rendering_v1 import HEAD, one, rendered

if TYPE_CHECKING:
    from pathlib import Path

SHARED = """\
context:
  label: for ${{ python }}
recipe: {name: whole, version: '1'}
source:
  url: https://example.org/whole.tar.gz
outputs:
  - staging:
      name: library
    build:
      script: compile
    requirements:
      host: [zlib, exporter]
      ignore_run_exports:
        from_package: [zlib]
  - staging:
      name: bindings
    build:
      script: ["make '${{ label }}'"]
    requirements:
      host: [python]
  - package:
      name: lib
    inherit:
      from: library
      run_exports: false
  - package:
      name: app
    inherit: bindings
    source:
      path: own
    requirements:
      host: [python]
  - package:
      name: alone
    build:
      script: make alone
extra:
  network: [compile library]
"""
TWO_PYTHONS = "python:\n- 3.11.* *_cpython\n- 3.12.* *_cpython\nzlib:\n- '1'\ntarget_platform:\n- linux-64\n"
RECIPE = f"""{HEAD}build:
  dynamic_linking:
    rpaths: [lib/]
    missing_dso_allowlist: [c.so]
    rpath_allowlist: [d]
    overlinking_behavior: error
    overdepending_behavior: ignore
  prefix_detection:
    force_file_type: {{text: [t], binary: [b]}}
    ignore: [bin/a]
    ignore_binary_files: [lib/x]
  python:
    entry_points: [a = a:b]
    skip_pyc_compilation: ['*']
    use_python_app_entrypoint: true
    version_independent: true
    site_packages_path: lib/own
  files: {{include: [lib], exclude: [lib/a]}}
  always_include_files: [b]
  always_copy_files: [c]
  merge_build_and_host_envs: true
  post_process:
    - files: ['*.txt']
      regex: a
      replacement: b
requirements:
  build: [make]
  ignore_run_exports: {{by_name: [c], from_package: [d]}}
about: {{homepage: https://example.org/, summary: s}}
"""


def test_staging_outputs_are_shared_by_all_variants_for_which_they_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "compile.sh").touch()
    result = rendered(tmp_path, SHARED, TWO_PYTHONS)
    library, *bindings = result.stagings
    assert (library.name, library.title, library.script) == ("library", "compile library", Script(file="compile.sh"))
    assert (library.variant, library.copied, library.package) == ({}, True, None)
    assert library.requirements.specs_to_solve("host") == ("zlib 1.*", "exporter")
    assert library.settings.ignore_run_exports_from == ("zlib",)
    assert [staging.name for staging in bindings] == ["bindings-python3.11", "bindings-python3.12"]
    assert [staging.variant for staging in bindings] == [
        {"python": "3.11.* *_cpython"},
        {"python": "3.12.* *_cpython"},
    ]
    assert [staging.script.names for staging in bindings] == [
        {"label": "for 3.11.* *_cpython"},
        {"label": "for 3.12.* *_cpython"},
    ]
    shared = {(output.name, output.variant["python"][:4]): output.staging for output in result.outputs}
    assert shared["app", "3.11"] == "bindings-python3.11"
    assert shared["app", "3.12"] == "bindings-python3.12"
    assert {name: staging for (name, _), staging in shared.items() if name != "app"} == {
        "lib": "library",
        "alone": None,
    }
    assert {output.name: output.staged_exports for output in result.outputs} == {
        "lib": False,
        "app": True,
        "alone": True,
    }
    assert (result.network, result.file) == (("compile library",), "recipe/recipe.yaml")


def test_each_output_has_sources_of_its_own(tmp_path: Path) -> None:
    result = rendered(tmp_path, SHARED, TWO_PYTHONS)
    places = {output.name: [source.path or source.url[0] for source in output.sources] for output in result.outputs}
    assert places == {"lib": [], "app": ["own"], "alone": ["https://example.org/whole.tar.gz"]}
    assert len(result.sources) == 2
    (own,) = next(output for output in result.outputs if output.name == "app").sources
    assert own.settings == {"use_gitignore": True}


@pytest.mark.parametrize("name", ["../up", "a b", "UP", "x" * 65])
def test_the_name_of_a_staging_output_is_a_packages(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="staging output is invalid"):
        rendered(tmp_path, SHARED.replace("library", name))


@pytest.mark.parametrize(("given", "kind"), [("name: ../up", "package name"), ("name: p\n  version: 1/2", "version")])
def test_names_that_become_paths_are_conda_s(given: str, kind: str, tmp_path: Path) -> None:
    recipe = f"package:\n  {given}\n" + ("" if "version" in given else "  version: '1'\n")
    with pytest.raises(RecipeFault, match=f"invalid {kind}") as caught:
        rendered(tmp_path, recipe)
    assert caught.value.at
    assert caught.value.at.line == 2


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("", Script(file="build.sh")),
        ("  script: install\n", Script(file="install.sh")),
        ("  script: install.sh\n", Script(file="install.sh")),
        ("  script: make install\n", Script(lines=("make install",))),
        ("  script: [install, make]\n", Script(lines=("install", "make"))),
        ("  script: {content: install.sh}\n", Script(lines=("install.sh",))),
        (
            "  script: {file: install.sh, interpreter: bash, cwd: sub, env: {A: '${{ number }}'}}\n",
            Script(file="install.sh", interpreter="bash", folder="sub", environment={"A": "13"}),
        ),
        ("  script: make ${{ flag }}\n", Script(lines=("make ${{ flag }}",), names={"flag": False})),
        ("  script: make ${{ PREFIX }}\n", Script(lines=("make ${{ PREFIX }}",))),
    ],
)
def test_the_script_of_a_package(script: str, expected: Script, tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    for name in ("build.sh", "install.sh"):
        (tmp_path / "recipe" / name).touch()
    assert one(tmp_path, f"{HEAD}build:\n  number: 1\n{script}").script == expected


def test_each_test_is_one_of_its_own(tmp_path: Path) -> None:
    recipe = f"""{HEAD}tests:
  - python: {{imports: [a], python_version: ["3.11", "3.12"]}}
  - perl: {{uses: [B]}}
  - r: {{libraries: [c]}}
  - ruby: {{requires: [d]}}
  - script: ["p ${{{{ number }}}}"]
    requirements: {{run: ["${{{{ pin_subpackage('p', exact=True) }}}}"], build: [make]}}
  - package_contents: {{bin: [p], strict: true}}
  - downstream: user >=${{{{ number }}}}
"""
    result = pins.close_static_pins(rendered(tmp_path, recipe)).outputs[0]
    assert result.tests == (
        OutputTest(imports=("a",), pip_check=True, pythons=("3.11", "3.12"), by_engine=True),
        OutputTest(modules={"perl": ("B",)}, by_engine=True),
        OutputTest(modules={"r": ("c",)}, by_engine=True),
        OutputTest(modules={"ruby": ("d",)}, by_engine=True),
        OutputTest(
            script=Script(lines=("p 13",), names={"number": 13}),
            requires=(f"p 1.2 {result.build_string}",),
            requires_build=("make",),
            by_engine=True,
        ),
        OutputTest(contents={"bin": ["p"], "strict": True}, by_engine=True),
        OutputTest(downstreams=("user >=13",), by_engine=True),
    )


@pytest.mark.parametrize("spec", ["user ==", "'>=2'", "user >>2"])
def test_a_downstream_package_that_is_not_a_match_spec_is_refused_with_its_line(spec: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="is not a match spec") as refused:
        rendered(tmp_path, f"{HEAD}tests:\n  - downstream: {spec}\n")
    assert refused.value.at is not None
    assert refused.value.at.column == 17


def test_a_run_requirement_is_not_pinned_to_the_version_in_host(tmp_path: Path) -> None:
    result = rendered(tmp_path, f"{HEAD}requirements:\n  host: [python 3.11.*]\n  run: [python]\n")
    assert pins.close_static_pins(result).outputs[0].requirements.run == ("python",)


def test_every_key_of_the_build_section_is_a_setting(tmp_path: Path) -> None:
    assert one(tmp_path, RECIPE).settings == BuildSettings(
        linking=LinkingSettings(
            rpaths=("lib/",),
            missing_dso_allowlist=("c.so",),
            rpath_allowlist=("d",),
            error_overlinking=True,
            error_overdepending=False,
        ),
        prefix=PrefixSettings(text=("t",), binary=("b",), ignore=("bin/a",), ignore_binary=("lib/x",)),
        python=PythonSettings(
            skip_pyc=("*",), version_independent=True, site_packages_path="lib/own", app_entry_points=True
        ),
        always_include_files=("b",),
        always_copy_files=("c",),
        merge_build_host=True,
        ignore_run_exports=("c",),
        ignore_run_exports_from=("d",),
        excluded_files=("lib/a",),
        post_process=({"files": ["*.txt"], "regex": "a", "replacement": "b"},),
        by_engine=True,
    )


def test_the_engine_gets_the_keys_of_the_build_section_again(tmp_path: Path) -> None:
    config = rendered(tmp_path, RECIPE)
    (step,) = plan_outputs(config, recipe_folder=tmp_path, folder=tmp_path, channels=(), compiled={}, extra={})
    build, requirements = step.recipe["build"], step.recipe["requirements"]
    assert build["dynamic_linking"] == {
        "binary_relocation": True,
        "rpaths": ["lib/"],
        "missing_dso_allowlist": ["c.so"],
        "rpath_allowlist": ["d"],
        "overlinking_behavior": "error",
        "overdepending_behavior": "ignore",
    }
    assert build["prefix_detection"] == {
        "force_file_type": {"text": ["t"], "binary": ["b"]},
        "ignore": ["bin/a"],
        "ignore_binary_files": ["lib/x"],
    }
    assert build["python"] == {
        "entry_points": ["a = a:b"],
        "skip_pyc_compilation": ["*"],
        "use_python_app_entrypoint": True,
        "version_independent": True,
        "site_packages_path": "lib/own",
    }
    assert build["files"] == {"include": ["lib"], "exclude": ["lib/a"]}
    assert (build["always_include_files"], build["always_copy_files"]) == (["b"], ["c"])
    assert build["post_process"] == [{"files": ["*.txt"], "regex": "a", "replacement": "b"}]
    assert build["merge_build_and_host_envs"] is True
    assert (requirements["build"], requirements["host"]) == (["make"], [])
    assert step.recipe["about"] == {"homepage": "https://example.org/", "summary": "s"}
    assert "about" not in step.edits


def test_an_unknown_behavior_is_refused(tmp_path: Path) -> None:
    recipe = f"{HEAD}build:\n  dynamic_linking: {{overlinking_behavior: warn}}\n"
    with pytest.raises(RecipeFault, match="dynamic_linking/overlinking_behavior is 'warn'"):
        one(tmp_path, recipe)
