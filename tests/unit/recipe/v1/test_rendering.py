"""Parts of a recipe.yaml that a build needs: scripts, tests, settings, sources of each output, and staging outputs."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine import metadata
from kiln.feedstock import config_file
from kiln.recipe import pins, render
from kiln.recipe.rendered import BuildSettings, LinkingSettings, OutputTest, PrefixSettings, PythonSettings, Script
from kiln.run.runner import caller_variable_names
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output, RenderedConfig


HEAD = "package:\n  name: P\n  version: '1.2'\n"
CONFIG = "python:\n- 3.11.* *_cpython\nflag:\n- false\nnumber:\n- 13\ntext:\n- '13'\ntarget_platform:\n- linux-64\n"


CIRCLE = """recipe: {name: r, version: '1'}
outputs:
  - package:
      name: a
    requirements:
      run: ["${{ pin_subpackage('b', exact=True) }}"]
  - package:
      name: b
    requirements:
      run: ["${{ pin_subpackage('a', exact=True) }}"]
"""


def feedstock(folder: Path, recipe: str, config: str = CONFIG, forge: str = "") -> Feedstock:
    configs = {"linux_64_": config}
    return builders.feedstock(folder, recipe, forge=f"{LINUX_ONLY}{forge}", v1=True, configs=configs)


def rendered(folder: Path, recipe: str, config: str = CONFIG) -> RenderedConfig:
    return builders.rendered(feedstock(folder, recipe, config), "linux_64_")


def one(folder: Path, recipe: str, config: str = CONFIG) -> Output:
    (output,) = rendered(folder, recipe, config).outputs
    return output


def test_an_output_has_what_the_recipe_says(tmp_path: Path) -> None:
    recipe = (
        HEAD
        + """
source:
  - url: https://example.org/p.tar.gz
    sha256: abc
    patches: [a.patch]
    target_directory: p
  - git: https://example.org/p.git
    tag: v1
build:
  number: 3
  script: [make, make install]
  variant:
    down_prioritize_variant: 2
  python:
    entry_points: [p = p:main]
  dynamic_linking:
    binary_relocation: false
requirements:
  build: [cmake]
  host: [python, "libfoo =1.2"]
  run: [python]
  run_constraints: [other >1]
  run_exports:
    strong: [p >=1]
    weak_constraints: [q >=2]
tests:
  - python:
      imports: [p]
  - script: [p --version]
    requirements:
      run: [grep]
    files:
      recipe: [test.c]
about:
  homepage: https://example.org
  license_file: [LICENSE, COPYING]
"""
    )
    result = rendered(tmp_path, recipe)
    (output,) = result.outputs
    assert (output.name, output.version, output.build_number, output.subdir) == ("p", "1.2", 3, "linux-64")
    assert output.requirements.host == ("python", "libfoo 1.2.*")
    assert output.run_exports == {"strong": ("p >=1",), "weak_constrains": ("q >=2",)}
    assert output.track_features == ("p-p-0", "p-p-1")
    assert (output.script.lines, output.entry_points) == (("make", "make install"), ("p = p:main",))
    python, script = output.tests
    assert (python.imports, python.pip_check) == (("p",), True)
    assert (script.script.lines, script.requires, script.files) == (("p --version",), ("grep",), ("test.c",))
    assert output.about == {"home": "https://example.org", "license_file": ("LICENSE", "COPYING")}
    assert output.binary_relocation is False
    assert [(source.url, source.git_url, source.git_rev, source.folder) for source in result.sources] == [
        (("https://example.org/p.tar.gz",), None, None, "p"),
        ((), "https://example.org/p.git", "v1", None),
    ]


@pytest.mark.parametrize(
    ("pin", "wanted"),
    [
        ("pin_subpackage('p', upper_bound='x')", "p >=1.2,<2.0a0"),
        ("pin_subpackage('p', lower_bound='x', upper_bound=None)", "p >=1"),
        ("pin_compatible('numpy', lower_bound='x.x', upper_bound='x')", "numpy >=2.3,<3.0a0"),
        ("pin_compatible('numpy', lower_bound='1.21', upper_bound='3')", "numpy >=1.21,<3"),
    ],
)
def test_a_pin_stays_open_until_it_is_closed(pin: str, wanted: str, tmp_path: Path) -> None:
    result = rendered(tmp_path, f'{HEAD}requirements:\n  host: [numpy 2.3.*]\n  run: ["${{{{ {pin} }}}}"]\n')
    assert result.outputs[0].requirements.run == (wanted.split(maxsplit=1)[0],)
    assert pins.close_static_pins(result).outputs[0].requirements.run == (wanted,)


def test_numbers_and_truth_values_of_a_config_keep_their_kind(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  number: ${{ 1 if flag else number + 1 }}\n  string: ${{ text ~ number }}_${{ hash }}\n"
    output = one(tmp_path, recipe)
    assert output.build_number == 14
    assert json.dumps(output.used) == '{"flag": false, "number": 13, "target_platform": "linux-64", "text": "13"}'
    assert output.build_string.startswith("1313_")
    assert render.as_plain_data(rendered(tmp_path, recipe))[0]["used"]["text"] == "13"


def test_a_config_that_is_read_is_written_as_it_was(tmp_path: Path) -> None:
    result = feedstock(tmp_path, HEAD)
    assert config_file.config_file_text(config_file.read_config(result, "linux_64_")) == "".join(
        f"{key}:\n- {value}\n"
        for key, value in (
            ("flag", "false"), ("number", "13"), ("python", "3.11.* *_cpython"),
            ("target_platform", "linux-64"), ("text", "'13'"),
        )
    )  # fmt: skip


def test_a_build_string_says_languages_hash_and_number(tmp_path: Path) -> None:
    output = one(tmp_path, HEAD + "requirements:\n  host: [python]\n")
    assert output.used == {"python": "3.11.* *_cpython", "target_platform": "linux-64"}
    # sha1 of {"python": "3.11.* *_cpython", "target_platform": "linux-64"}
    assert output.build_string == "py311h82375c7_0"


def test_an_output_that_pins_another_exactly_has_its_build_in_the_hash(tmp_path: Path) -> None:
    recipe = """
recipe: {name: r, version: "1"}
outputs:
  - package: {name: tool}
    requirements:
      run: ["${{ pin_subpackage('lib-a', exact=True) }}"]
  - package: {name: lib-a}
    requirements:
      host: [zlib]
"""
    tools = [output for output in rendered(tmp_path, recipe, "zlib:\n- '1'\n- '2'\n").outputs if output.name == "tool"]
    libraries = [out for out in rendered(tmp_path, recipe, "zlib:\n- '1'\n- '2'\n").outputs if out.name == "lib-a"]
    assert len({library.build_string for library in libraries}) == 2
    assert [tool.used["lib-a"] for tool in tools] == [f"1 {library.build_string}" for library in libraries]
    for output in (*tools, *libraries):  # the file in the package gives the hash of the build string
        text = json.dumps(metadata.about_and_hash_edits(output)["hash_input"], sort_keys=True)
        assert hashlib.sha1(text.encode()).hexdigest()[:7] in output.build_string


@pytest.mark.parametrize(
    ("recipe", "what", "line"),
    [
        (HEAD + "requirements:\n  run:\n    - numpy 2\n", "'numpy 2' is not a requirement", 6),
        (HEAD + "requirements:\n  run:\n    - a b c d\n", "'a b c d' is not a requirement", 6),
        (HEAD + "requirements:\n  run:\n    - ${{ pin_subpackage('q', exact=True) }}\n", "pins 'q'", 2),
        (CIRCLE, "outputs pin each other exactly", 4),
    ],
)
def test_what_cannot_be_rendered_names_its_line(recipe: str, what: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault) as caught:
        rendered(tmp_path, recipe)
    assert what in caught.value.what
    assert caught.value.at is not None
    assert (caught.value.at.file, caught.value.at.line) == ("recipe/recipe.yaml", line)


def test_a_cross_compiled_config_sees_the_machine_that_builds(tmp_path: Path) -> None:
    recipe = HEAD + "requirements:\n  build:\n    - if: build_platform != target_platform\n      then: cross\n"
    config = "target_platform:\n- linux-aarch64\n"
    result = feedstock(tmp_path, recipe, config, "build_platform: {linux_aarch64: linux_64}\n")
    (output,) = render.render(result, config_file.read_config(result, "linux_64_")).outputs
    assert output.requirements.build == ("cross",)
    assert output.used == {"build_platform": "linux-64", "target_platform": "linux-aarch64"}


def test_the_variables_that_scripts_get_are_those_of_secrets(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  script:\n    secrets: [TOKEN]\n    content: [make]\n"
    assert caller_variable_names(feedstock(tmp_path, recipe), ["linux_64_"]) == {"TOKEN"}
    assert caller_variable_names(feedstock(tmp_path / "other", HEAD), ["linux_64_"]) == frozenset()


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
  plan: show  CONFIG
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
    assert [staging.variant for staging in bindings] == [{"python": "3.11.* *_cpython"}, {"python": "3.12.* *_cpython"}]
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
    assert result.plan_command == "show CONFIG"


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
    (step,) = builders.steps_of_outputs(config, tmp_path, tmp_path)
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
