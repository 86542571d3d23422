"""The build section of a recipe.yaml, as settings of an output and as the engine gets them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.build import plan_outputs
from kiln.errors import RecipeFault
from kiln.model.output_settings import BuildSettings, LinkingSettings, PrefixSettings, PythonSettings
from tests.unit.render.test_v1 import HEAD, one, rendered

if TYPE_CHECKING:
    from pathlib import Path

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
