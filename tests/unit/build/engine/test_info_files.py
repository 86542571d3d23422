"""A package carries its recipe and its tests as conda-build packs them."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kiln.base.errors import BuildFailed, RecipeFault
from kiln.base.yaml import TypedText
from kiln.build.engine import info_files
from kiln.build.engine.info_files import collect_info_files, variant_without_credentials
from kiln.build.engine.metadata import rewrite_package_metadata
from kiln.conda import package_reader
from tests import builders
from tests.packages import conda_package

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.build.steps import BuildStep
    from kiln.recipe.rendered import Output


META = """\
{% set version = "1.5" %}
package:
  name: keys
  version: {{ version }}
source:
  path: src  # a comment
build:
  number: 2
  run_exports:
    - {{ pin_subpackage("keys", max_pin="x") }}
requirements:
  host:
    - zlib
test:
  requires:
    - tool
  imports:
    - keys
  files:
    - '*.dat'
  source_files:
    - tests
  commands:
    - test -f deep/x.dat
extra:
  recipe-maintainers:
    - zed
"""


FILES = {"recipe/deep/x.dat": "dat", "recipe/run_test.sh": "echo ran", "recipe/build.sh": "make\n"}


ENGINES = """\
finalized_dependencies:
  build: null
  host:
    specs: []
    resolved:
      - name: zlib
        version: '1.3'
        build: h1_0
      - name: libc
        version: '2'
        build: '0'
system_tools:
  rattler-build: 0.73.0
"""


def planned(
    folder: Path, meta: str, files: Mapping[str, str] | None = None, variants: str = ""
) -> tuple[BuildStep, ...]:
    """Return the steps of a recipe's packages."""
    feedstock = builders.feedstock(folder / "feedstock", meta, variants, files=files)
    return builders.steps_of_outputs(builders.closed(feedstock), feedstock.recipe, folder / "w")


def stamped(folder: Path, step: BuildStep, **info: object) -> dict[str, bytes]:
    """Return the metadata of a package with what the step adds to it, by file names."""
    index = {"name": step.output.name, "depends": ["zlib >=1", "b", "a"], "constrains": [], "subdir": "linux-64"}
    engines: dict[str, Any] = {
        "index.json": {**index, "subdir": step.output.subdir},
        "about.json": {"channels": ["https://example.org/main/", "file:///here/channel/"]},
        "paths.json": {"paths": [], "paths_version": 1},
        "recipe/recipe.yaml": "engine: own\n",
        "recipe/rendered_recipe.yaml": ENGINES,
        "tests/tests.yaml": "[]\n",
        **info,
    }
    old = conda_package(folder / "old.conda", engines, payload={"share/x": b"x"})
    rewrite_package_metadata(
        old, folder / "new.conda", index=step.index, edits=json.loads(json.dumps(step.edits)), pins=step.pins, epoch=7
    )
    return package_reader.read_info_files(folder / "new.conda")


def test_a_package_carries_its_recipe_and_its_tests(tmp_path: Path) -> None:
    variants = "flavour:\n  - sweet\nchannel_sources:\n  - https://user:secret@example.org/c,file:///home/me\n"
    (step,) = planned(tmp_path, META, FILES, variants)
    sources = tmp_path / "w" / "test-sources" / "keys-h1_2"
    assert step.edits["files"][-1]["tree"].startswith(str(sources.parent))
    step.edits["files"][-1]["tree"] = str(sources)
    (sources / "tests").mkdir(parents=True)
    (sources / "tests" / "one.txt").write_text("one")
    info = stamped(tmp_path, step, **{"run_exports.json": {"weak": ["keys >=1.5,<2.0a0"]}})
    names = {name for name in info if name.startswith(("recipe", "test"))}
    assert names == {
        *("recipe/meta.yaml", "recipe/meta.yaml.template", "recipe/conda_build_config.yaml", "recipe/build.sh"),
        *("recipe/deep/x.dat", "recipe/run_test.sh", "test/run_test.sh", "test/run_test.py", "test/deep/x.dat"),
        *("test/tests/one.txt", "test/test_time_dependencies.json"),
    }
    assert b"# a comment" in info["recipe/meta.yaml.template"]
    recipe = yaml.safe_load(info["recipe/meta.yaml"])
    assert recipe["package"] == {"name": "keys", "version": "1.5"}
    assert recipe["source"] == {"path": "src"}
    assert recipe["build"] == {"number": 2, "string": step.output.build_string, "run_exports": ["keys >=1.5,<2.0a0"]}
    assert recipe["requirements"] == {"host": ["libc 2 0", "zlib 1.3 h1_0"], "run": ["a", "b", "zlib >=1"]}
    assert recipe["extra"] == {"recipe-maintainers": ["zed"], "final": True, "copy_test_source_files": True}
    variant = yaml.safe_load(info["recipe/conda_build_config.yaml"])
    assert (variant["flavour"], variant["target_platform"]) == ("sweet", "linux-64")
    assert variant["channel_sources"] == "https://example.org/c"
    assert info["test/run_test.sh"].decode() == "echo ran\nset -ex\ntest -f deep/x.dat\nexit 0\n"
    assert info["test/run_test.py"] == b"\nimport keys\n"
    assert json.loads(info["test/test_time_dependencies.json"]) == ["tool"]
    about = json.loads(info["about.json"])
    assert about["channels"] == ["https://example.org/main"]
    assert (about["keywords"], about["rattler_build_version"]) == ([], "0.73.0")
    index = json.loads(info["index.json"])
    assert index["depends"] == ["a", "b", "zlib >=1"]
    assert "constrains" not in index


def test_the_recipe_of_an_output_is_that_of_its_parent(tmp_path: Path) -> None:
    meta = """\
package:
  name: top
  version: 1
outputs:
  - name: first
    script: first.sh
    build:
      noarch: generic
      run_exports:
        strong:
          - {{ pin_subpackage("first", exact=True) }}
    test:
      commands:
        - echo tested
"""
    (step,) = planned(tmp_path, meta, {"recipe/first.sh": "true\n"})
    info = stamped(tmp_path, step, **{"run_exports.json": {"strong": ["first 1 0"]}})
    assert info["recipe/first.sh"] == info["recipe/parent/first.sh"] == b"true\n"
    assert info["recipe/parent/meta.yaml"].decode() == meta
    assert "recipe/meta.yaml.template" not in info
    recipe = yaml.safe_load(info["recipe/meta.yaml"])
    assert recipe["build"]["run_exports"] == {"strong": ["first 1 0"]}
    assert "outputs" not in recipe
    assert json.loads(info["link.json"]) == {"noarch": {"type": "generic"}, "package_metadata_version": 1}
    assert b"echo tested\nIF %ERRORLEVEL% NEQ 0 exit /B 1" in info["test/run_test.bat"]
    index = json.loads(info["index.json"])
    assert (index["arch"], index["platform"]) == (None, None)


def test_a_package_without_its_recipe_has_its_tests(tmp_path: Path) -> None:
    (step,) = planned(tmp_path, META.replace("  number: 2\n", "  include_recipe: false\n"), FILES)
    info = stamped(tmp_path, step)
    assert not any(name.startswith("recipe/") for name in info)
    assert "test/run_test.sh" in info


@pytest.mark.parametrize(
    ("keys", "marked"),
    [
        ("has_prefix_files:\n    - share/t*", {"share/text": "text", "lib/a": "binary", "lib/b": "binary"}),
        ("binary_has_prefix_files:\n    - lib/a", {"share/text": "text", "share/other": "text", "lib/a": "binary"}),
        (
            "binary_has_prefix_files:\n    - lib/a\n  detect_binary_files_with_prefix: true",
            {"share/text": "text", "share/other": "text", "lib/a": "binary", "lib/b": "binary"},
        ),
    ],
)
def test_a_list_of_files_with_the_prefix_excludes_others(keys: str, marked: dict[str, str], tmp_path: Path) -> None:
    (step,) = planned(tmp_path, f"package:\n  name: keys\n  version: 1\nbuild:\n  {keys}\n  no_link:\n    - lib/*\n")
    modes = {"share/text": "text", "share/other": "text", "lib/a": "binary", "lib/b": "binary"}
    paths = [{"_path": path, "file_mode": mode, "prefix_placeholder": "/old"} for path, mode in modes.items()]
    info = stamped(tmp_path, step, **{"paths.json": {"paths": paths, "paths_version": 1}})
    entries = json.loads(info["paths.json"])["paths"]
    assert {entry["_path"]: entry["file_mode"] for entry in entries if "prefix_placeholder" in entry} == marked
    assert info["files"].decode().split() == sorted(modes)
    assert info["has_prefix"].decode().splitlines() == [f"/old {marked[path]} {path}" for path in sorted(marked)]
    assert info["no_link"].decode().split() == ["lib/a", "lib/b"]


def test_a_listed_file_without_the_prefix_is_a_failure(tmp_path: Path) -> None:
    (step,) = planned(tmp_path, "package:\n  name: keys\n  version: 1\nbuild:\n  has_prefix_files: share/none\n")
    with pytest.raises(BuildFailed, match="build/has_prefix_files names share/none"):
        stamped(tmp_path, step)


def test_a_link_out_of_the_recipe_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe"
    builders.write_files(tmp_path, {"recipe/.git/config": "", "recipe/run.sh": "", "secret": "secret"})
    (recipe / "run.sh").chmod(0o700)
    (recipe / "out").symlink_to(tmp_path / "secret")
    (recipe / "in").symlink_to("run.sh")
    files = collect_info_files([{"to": "recipe", "tree": str(recipe), "patterns": ["*"]}])
    assert {name: file.mode for name, file in files.items()} == {"recipe/run.sh": 0o755, "recipe/in": 0o755}
    assert "out is left out" in capsys.readouterr().out
    assert not collect_info_files(
        [{"to": "test", "tree": str(recipe), "patterns": ["../secret", "/etc/hostname"], "below": True}]
    )


def test_invalid_files_of_the_metadata_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildFailed, match="outside the package's metadata"):
        collect_info_files([{"to": "recipe/../../x", "parts": ["text"]}])
    with pytest.raises(BuildFailed, match="absent, for info/test/a, cannot be read"):
        collect_info_files([{"to": "test/a", "parts": [{"file": str(tmp_path / "absent"), "within": str(tmp_path)}]}])
    monkeypatch.setattr("kiln.build.engine.info_files.LARGEST", 3)
    with pytest.raises(BuildFailed, match="more than 3 bytes"):
        collect_info_files([{"to": "test/a", "parts": ["four"]}])


@pytest.mark.parametrize("name", ["run_test.sh", "folder/run_test.sh"])
def test_a_file_that_is_a_link_out_of_the_recipe_is_refused(tmp_path: Path, name: str) -> None:
    recipe, secrets = tmp_path / "recipe", tmp_path / "secrets"
    recipe.mkdir()
    secrets.mkdir()
    (secrets / "run_test.sh").write_text("secret")
    (recipe / "run_test.sh").symlink_to(secrets / "run_test.sh")
    (recipe / "folder").symlink_to(secrets)
    entry = {"to": "test/run_test.sh", "parts": [{"file": str(recipe / name), "within": str(recipe)}]}
    with pytest.raises(BuildFailed, match=r"run_test\.sh, for info/test/run_test\.sh, is outside the recipe"):
        collect_info_files([entry])


def test_a_large_file_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe"
    recipe.mkdir()
    with (recipe / "large").open("wb") as file:
        file.truncate(1 << 34)
    for entry in (
        {"to": "recipe", "tree": str(recipe), "patterns": ["*"]},
        {"to": "recipe/large", "parts": [{"file": str(recipe / "large"), "within": str(recipe)}]},
    ):
        with pytest.raises(BuildFailed, match="info/recipe/large and the files before it have more than"):
            collect_info_files([entry])


def test_values_of_a_variant_keep_their_types() -> None:
    variant = {
        "a": "1",
        "b": TypedText(3),
        "c": ("x", TypedText(True)),
        "pin": {"x": "y"},
        "channel_sources": "file:///c",
    }
    assert variant_without_credentials(variant) == {"a": "1", "b": 3, "c": ["x", True], "pin": {"x": "y"}}


def test_a_package_of_a_recipe_yaml_carries_the_feedstocks_recipe(tmp_path: Path) -> None:
    recipe = "package:\n  name: keys\n  version: '1'\nbuild:\n  script: echo ${{ flavour }}\n"
    files = {"recipe/fix.patch": "patch", "recipe/variants.yaml": "flavour:\n  - 3\n"}
    feedstock = builders.feedstock(tmp_path / "feedstock", recipe, files=files, v1=True)
    (step,) = builders.steps_of_outputs(builders.closed(feedstock), feedstock.recipe, tmp_path / "w")
    info = stamped(tmp_path, step)
    assert info["recipe/recipe.yaml"].decode() == recipe
    assert info["recipe/fix.patch"] == b"patch"
    assert yaml.safe_load(info["recipe/variant_config.yaml"])["flavour"] == 3
    assert {"recipe/rendered_recipe.yaml", "tests/tests.yaml"} <= info.keys()
    assert not any(name.startswith("test/") for name in info)


def output(**about: str | tuple[str, ...]) -> Output:
    return builders.output(about=about)


Ended = subprocess.CompletedProcess[str]


def collected(folder: Path, **about: str | tuple[str, ...]) -> tuple[Ended, dict[str, bytes]]:
    """Run the lines in a work directory; return how they ended, and the files of ``info``."""
    lines = info_files.copy_about_files_lines(output(**about), folder / "recipe", folder / "place")
    argv = ("bash", "-e", "-c", "\n".join(lines))
    ended = subprocess.run(argv, cwd=folder / "work", capture_output=True, text=True, check=False)
    found = info_files.collect_info_files([{"to": ".", "tree": str(folder / "place"), "patterns": ["*"]}])
    return ended, {name: file.data for name, file in found.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("work/docs/README.md", "work/both", "recipe/both", "recipe/only/one", "recipe/only/two", "outside")
    builders.write_files(tmp_path, {name: name for name in names})
    return tmp_path


@pytest.mark.processes
def test_the_files_of_about_are_collected(folder: Path) -> None:
    messages = ("both", "only/one", "./only/two", str(folder / "recipe" / "only"))
    ended, files = collected(folder, readme="docs/README.md", prelink_message=messages, recipe_log_file="both")
    assert ended.returncode == 0, ended.stderr
    assert files == {
        "docs/README.md": b"work/docs/README.md",
        "prelink_messages/both": b"work/both",
        "prelink_messages/only/one": b"recipe/only/one",
        "prelink_messages/PRELINK_MESSAGE0.txt": b"recipe/only/two",
        "prelink_messages/PRELINK_MESSAGE1/one": b"recipe/only/one",
        "prelink_messages/PRELINK_MESSAGE1/two": b"recipe/only/two",
        "recipe_log.json": b"recipe/both",
    }


@pytest.mark.processes
@pytest.mark.parametrize("place", ["work", "recipe"])
def test_a_log_of_the_usual_name_is_found(folder: Path, place: str) -> None:
    assert collected(folder)[1] == {}
    (folder / place / "recipe_log.json").write_text("{}")
    assert collected(folder)[1] == {"recipe_log.json": b"{}"}


@pytest.mark.processes
@pytest.mark.parametrize("key", ["readme", "prelink_message"])
def test_a_missing_file_ends_the_build(folder: Path, key: str) -> None:
    ended, _ = collected(folder, **{key: "absent"})
    assert ended.returncode == 1
    assert f"about/{key}" in ended.stderr
    assert "absent" in ended.stderr


@pytest.mark.parametrize(
    "name", [".", "../outside", "/etc/passwd", "index.json", "recipe/meta.yaml", "test/run_test.sh"]
)
def test_a_readme_replaces_no_metadata(folder: Path, name: str) -> None:
    with pytest.raises(RecipeFault, match="about/readme"):
        info_files.copy_about_files_lines(output(readme=name), folder / "recipe", folder / "place")
