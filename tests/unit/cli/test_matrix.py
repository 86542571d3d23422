"""The commands that show and write the matrix, through the door of the command line."""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import (
    MalformedYaml,
    MatrixDrift,
    PinningNeeded,
    TemplateFault,
    UnknownConfig,
    UnsafeTemplate,
    UnsupportedPython,
    UsageError,
)
from kiln.cli import matrix
from kiln.cli.main import make_pasteable, run
from tests import builders
from tests.builders import PINNING, copied
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.base.errors import KilnError


RECIPE = "package:\n  name: app\n  version: 1\nrequirements:\n  host:\n    - alpha\n    - loop\n"
OUTPUTS = "outputs:\n  - name: one\n    requirements:\n      host:\n        - alpha\n  - name: two\n    requirements:\n"
MIXED = RECIPE.replace("    - loop\n", "") + OUTPUTS + "      host:\n        - alpha\n        - loop\n"
VARIANTS = "alpha:\n  - 1\n  - 2\nloop:\n  - x\n  - y\n"


def test_the_matrix_shows_what_varies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, MIXED, VARIANTS)
    assert run(["-C", str(tmp_path), "matrix"]) == 0
    head, _, first, second, _, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["config", "alpha"]
    assert [line.split() for line in (first, second)] == [["linux_64_alpha1", "1"], ["linux_64_alpha2", "2"]]
    assert last == "2 configs; loop vary inside a config"


def test_the_matrix_as_json_holds_every_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, RECIPE, VARIANTS)
    assert run(["-C", str(tmp_path), "matrix", "--json"]) == 0
    configs = json.loads(capsys.readouterr().out)
    assert [config["variant"]["loop"] for config in configs] == [["x"], ["y"], ["x"], ["y"]]
    assert configs[0]["image"] == configs[0]["variant"]["docker_image"][0]


def test_a_matrix_comes_with_the_notes_of_a_rerender(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe").mkdir()
    text = 'package: {name: a, version: "1"}\nbuild:\n  skip:\n    - linux and\n'
    (tmp_path / "recipe" / "recipe.yaml").write_text(text)
    assert run(["-C", str(tmp_path), "matrix"]) == 0
    assert "note: recipe/recipe.yaml:4:7: the condition 'linux and' of skip is malformed" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.needs("git")
@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="this Python unpacks no archive safely")
def test_a_change_is_shown_by_what_it_does_to_the_matrix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, RECIPE, VARIANTS)
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        git(tmp_path, *words)
    (feedstock.recipe / "conda_build_config.yaml").write_text("alpha:\n  - 2\n  - 3\nloop:\n  - x\nimage:\n  - z\n")
    assert run(["-C", str(tmp_path), "matrix", "--diff", "HEAD", "--json"]) == 0
    changes = json.loads(capsys.readouterr().out)
    assert changes["added"] == ["linux_64_alpha2", "linux_64_alpha3"]
    assert len(changes["removed"]) == 4
    assert run(["-C", str(tmp_path), "matrix", "--diff", "HEAD"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 configs; since HEAD: 2 added, 4 removed"
    assert run(["-C", str(tmp_path), "matrix", "--diff", "nowhere"]) == UsageError.exit_code


def test_a_python_that_cannot_unpack_safely_compares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builders.feedstock(tmp_path, RECIPE, VARIANTS)
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    assert run(["-C", str(tmp_path), "matrix", "--diff", "HEAD"]) == UnsupportedPython.exit_code


def test_a_check_shows_the_difference_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, RECIPE, VARIANTS)
    run(["-C", str(tmp_path), "rerender"])
    (feedstock.recipe / "conda_build_config.yaml").write_text(VARIANTS + "c_compiler_version:\n  - 9\n")
    feedstock.meta.write_text(RECIPE + "  build:\n    - {{ compiler('c') }}\n")
    capsys.readouterr()
    assert run(["-C", str(tmp_path), "rerender", "--check"]) == MatrixDrift.exit_code
    shown = capsys.readouterr()
    assert "+- '9'" in shown.out.splitlines()
    assert "4 changed" in shown.err
    assert "'9'" not in (feedstock.config_folder / "linux_64_alpha1loopx.yaml").read_text()


def test_a_pinning_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, RECIPE)
    assert run(["-C", str(tmp_path), "rerender", "-e", str(tmp_path / "pin")]) == UsageError.exit_code
    assert "pin" in capsys.readouterr().err


def test_a_config_is_shown_as_a_maintainer_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = copied("mega", tmp_path)
    run(["-C", str(feedstock.root), "rerender", "-e", str(PINNING)])
    config = next(path.stem for path in sorted(feedstock.config_folder.glob("linux_64*cuda_compiler_version12.9*")))
    capsys.readouterr()
    assert run(["-C", str(feedstock.root), "render", config, "--final"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{config}  (linux-64, ")
    assert "    source      https://x/2.7.0.tgz" in shown
    assert "  mega-gpu 2.7.0 " in shown
    assert "[generic]" in shown
    assert "cuda_compiler_version 12.9" in shown


def test_json_of_several_configs_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, RECIPE, VARIANTS)
    run(["-C", str(tmp_path), "rerender"])
    capsys.readouterr()
    assert run(["-C", str(tmp_path), "render", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert sorted(result) == [f"linux_64_alpha{a}loop{b}" for a in "12" for b in "xy"]
    assert result["linux_64_alpha1loopx"][0]["requirements"]["host"] == ["alpha 1.*", "loop x.*"]


def test_nothing_to_render_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, RECIPE)
    assert run(["-C", str(tmp_path), "render"]) == UnknownConfig.exit_code
    assert make_pasteable("kiln rerender", tmp_path) in capsys.readouterr().err


PYTHON_MIN = "python_min:\n- '3.10'\ntarget_platform:\n- linux-64\n"


def test_without_its_pinning_a_matrix_that_cannot_be_expanded_is_the_one_of_ci_support(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = "package: {name: a, version: '1'}\nrequirements:\n  host:\n    - python ${{ python_min }}.*\n"
    builders.feedstock(tmp_path, recipe, v1=True, configs={"linux_64_": PYTHON_MIN})
    assert run(["-C", str(tmp_path), "matrix", "--pinning-channel", "none", "--json"]) == 0
    output = capsys.readouterr()
    [config] = json.loads(output.out)
    assert (config["name"], config["variant"]["python_min"]) == ("linux_64_", ["3.10"])
    assert "note: these are the configs of .ci_support, as last rerendered ('python ${{ python_min }}.*'" in output.err
    assert run(["-C", str(tmp_path), "matrix", "--no-pinning"]) != 0  # as the user has asked for


@pytest.mark.parametrize(
    ("spec", "key"), [("python ${{ python_min }}.*", "python_min"), ("${{ stdlib('c') }}", "c_stdlib")]
)
def test_without_its_pinning_a_matrix_that_is_nowhere_needs_it(
    spec: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = f"package: {{name: a, version: '1'}}\nrequirements:\n  host:\n    - {spec}\n"
    builders.feedstock(tmp_path, recipe, v1=True)
    assert run(["-C", str(tmp_path), "matrix", "--pinning-channel", "none"]) == PinningNeeded.exit_code
    assert f"recipe/recipe.yaml:4:7: {key} has no value" in capsys.readouterr().err
    assert run(["-C", str(tmp_path), "matrix", "--no-pinning"]) == TemplateFault.exit_code
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"), [("about: [\n", MalformedYaml), ("    - a  # [''.__class__]\n", UnsafeTemplate)]
)
def test_without_its_pinning_a_broken_recipe_is_an_error(
    tmp_path: Path, line: str, error: type[KilnError], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = "package: {name: a, version: '1'}\nrequirements:\n  host:\n    - python {{ python_min }}\n"
    builders.feedstock(tmp_path, recipe + line, configs={"linux_64_": PYTHON_MIN})
    assert run(["-C", str(tmp_path), "matrix", "--pinning-channel", "none"]) == error.exit_code
    assert "linux_64_" not in capsys.readouterr().out


META = """
package:
  name: small
  version: "1.2"
build:
  number: 3
  script: make install
requirements:
  run:
    - python >=3.10
    - numpy
about:
  license: MIT
test:
  commands:
    - small --version
"""


def test_a_config_is_shown_with_its_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    assert run(["-C", str(feedstock.root), "rerender"]) == 0
    capsys.readouterr()
    assert run(["-C", str(feedstock.root), "render"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("linux_64_")
    assert "  small 1.2 3  [linux-64]" in lines
    assert "    run         python >=3.10, numpy" in lines
    assert "    tests       small --version" in lines


def test_items_are_wrapped_but_never_inside_a_requirement() -> None:
    lines = matrix.labeled_lines("run", [f"package-{number} >=1.{number},<2" for number in range(12)])
    assert len(lines) > 1
    assert all(line.startswith("    ") and len(line) <= 110 for line in lines)
    assert all(line.rstrip(",").endswith("<2") for line in lines)


def test_separate_items_keep_their_lines() -> None:
    assert matrix.labeled_lines("tests", ["a\nb", "c"], apart=True) == [
        "    tests       a\n                b",
        "                c",
    ]
    assert matrix.labeled_lines("tests", []) == []


FAULTY = "package:\n  name: a\n  version: 1\nbuild:\n  numbr: 2\n  pin_depends: strict\n"


def test_keys_at_fault_are_warnings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builders.feedstock(tmp_path, f"{FAULTY}foo: 1\n", configs={"linux_64_": "target_platform:\n- linux-64\n"})
    assert run(["-C", str(tmp_path), "render", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["linux_64_"][0]["build_number"] == 0
    assert printed.err.splitlines() == [
        "warning: recipe/meta.yaml:5:3: unknown key 'build/numbr' (did you mean 'number'?)",
        "warning: recipe/meta.yaml:6:3: the engine rattler-build does not have 'build/pin_depends'",
        "warning: recipe/meta.yaml:7:1: unknown section 'foo'",
    ]
