"""``kiln rerender`` writes a feedstock's files, or checks them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MatrixDrift
from kiln.cli import rerender
from kiln.cli.main import run
from kiln.recipe.feedstock import Feedstock
from kiln.state.ledger.ledger import FINISHED_CONFIG, Ledger
from kiln.state.results import ConfigRun, ConfigState
from tests import builders
from tests.builders import LINUX_ONLY
from tests.unit.feedstock.test_rerender import CHAIN, CONFIGS, a_config, settings
from tests.unit.run.view.run import a_run

if TYPE_CHECKING:
    from pathlib import Path


META = "package:\n  name: a\n  version: '1'\n"


def test_written_files_pass_the_check_until_the_recipe_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = builders.feedstock(tmp_path, META + "requirements:\n  host:\n    - zlib\n", variants="zlib:\n  - '1'\n")
    words = ["-C", str(feedstock.root), "rerender"]
    assert run(words) == 0
    assert "1 added" in capsys.readouterr().out
    assert run([*words, "--check"]) == 0
    assert "1 config in" in capsys.readouterr().out
    assert run(words) == 0
    assert "nothing to change" in capsys.readouterr().out
    (feedstock.recipe / "conda_build_config.yaml").write_text("zlib:\n  - '1'\n  - '2'\n")
    before = sorted(feedstock.config_folder.iterdir())
    assert run([*words, "--check"]) == MatrixDrift.exit_code
    assert "is not up to date with the recipe" in capsys.readouterr().err
    assert sorted(feedstock.config_folder.iterdir()) == before


def test_why_there_is_no_workflow_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    words = ["-C", str(feedstock.root), "rerender"]
    assert run(words) == run(words) == 0
    assert capsys.readouterr().out.count("no .github/workflows/build.yml") == 1


HEAD_V1 = "package:\n  name: a\n  version: '1'\n"
TEST_V1 = "tests:\n  - python:\n      imports: [a]\n      python_version: '=.*'\n"


STAGED_V1 = """\
recipe:
  name: a
  version: '1'
outputs:
  - staging: {name: a b}
  - package: {name: c}
    inherit: a b
"""


@pytest.mark.parametrize(
    ("recipe", "variants", "what"),
    [
        ("package:\n  name: A b\n  version: '1'\n", "", "invalid package name 'a b'"),
        (HEAD_V1 + TEST_V1, "", "recipe.yaml:7:23: '=.*' is not a version of Python"),
        (HEAD_V1 + "build:\n  string: x${{ letter }}\n", "", "letter is not defined"),
        (HEAD_V1 + "build:\n  string: a b\n", "", "invalid build string 'a b'"),
        (HEAD_V1 + "build:\n  dynamic_linking: {overlinking_behavior: warn}\n", "", "overlinking_behavior is 'warn'"),
        (HEAD_V1 + "source:\n  path: .\n  target_directory: ../a\n", "", "the folder of a source is '../a'"),
        (STAGED_V1, "", "the name 'a b' of the staging output is invalid"),
        (HEAD_V1 + "requirements:\n  run: ['${{ letter }}']\n", "letter: {a: 1}\n", "are not a list"),
        (HEAD_V1 + "requirements:\n  run: ['${{ letter }}']\n", "- letter\n", "a mapping of keys to values"),
    ],
)
def test_what_cannot_be_rendered_is_refused_before_anything_is_written(
    recipe: str, variants: str, what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"recipe/recipe.yaml": recipe, "recipe/variants.yaml": variants}
    feedstock = builders.feedstock(tmp_path, "", "", f"{LINUX_ONLY}conda_build_tool: rattler-build\n", files)
    feedstock.meta.unlink()
    assert run(["-C", str(tmp_path), "rerender", "--no-pinning"]) != 0
    assert what in capsys.readouterr().err
    assert not feedstock.config_folder.exists()


def test_an_expression_of_github_in_the_matrix_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = META + "build:\n  script: echo {{ letter }}\n"
    feedstock = builders.feedstock(
        tmp_path, meta, "letter:\n  - 'a${{ github.token }}'\n  - b\n", files={"build-locally.py": "import kiln\n"}
    )
    assert run(["-C", str(feedstock.root), "rerender"]) != 0
    assert "is an expression of GitHub Actions" in capsys.readouterr().err
    assert not feedstock.config_folder.exists()


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock without settings."""
    return Feedstock(root=tmp_path)


def took(feedstock: Feedstock, seconds: dict[str, float]) -> None:
    """Record builds of configs in the ledger, each of which began in an earlier job."""
    feedstock.artifacts.mkdir()
    done = ConfigRun(config="", state=ConfigState.DONE, group="cuda12.9", started=0.0, finished=1.0)
    runs = (replace(done, config=config, earlier_seconds=duration - 1.0) for config, duration in seconds.items())
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(a_run(*runs, started=0.0, finished=7200.0)))


def test_a_config_that_took_longer_here_than_its_jobs_may_is_named(feedstock: Feedstock) -> None:
    assert rerender.limit_excess_notes(feedstock, CONFIGS) == []
    took(feedstock, {CONFIGS[1].name: 7200.0 + 4e4})
    (note,) = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert note.startswith(f"{CONFIGS[1].name} took 14 h when it was last built here")
    settings(feedstock, CHAIN)
    assert rerender.limit_excess_notes(feedstock, CONFIGS) == []


def test_a_config_of_another_service_that_takes_longer_than_its_jobs_may_is_named(feedstock: Feedstock) -> None:
    settings(feedstock, "provider: {linux_64: azure, linux_aarch64: travis, linux_ppc64le: github_actions}\n")
    configs = [*CONFIGS, a_config("None", "3.10", "linux-aarch64"), a_config("None", "3.10", "linux-ppc64le")]
    took(feedstock, {configs[0].name: 359 * 60, configs[1].name: 361 * 60, configs[2].name: 3600, configs[3].name: 1e6})
    azure, travis = rerender.limit_excess_notes(feedstock, configs)
    assert azure.startswith(f"{configs[1].name} took 361 min when it was last built here, and azure allows 360 minutes")
    assert azure.endswith("build it over several, with --budget and --handover")
    assert travis.startswith(f"{configs[2].name} took 60 min")
    assert rerender.limit_excess_notes(feedstock, configs[:1]) == []


def test_a_shorter_config_without_hours_is_named_beside_a_longer_one_with_them(feedstock: Feedstock) -> None:
    settings(feedstock, "kiln: {build_hours: {cuda: 14}}\n")
    took(feedstock, {CONFIGS[0].name: 8 * 3600.0, CONFIGS[1].name: 13 * 3600.0})
    (note,) = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert note.startswith(f"{CONFIGS[0].name} took 8 h")


@pytest.mark.parametrize(
    ("gigabytes", "text", "expected"),
    [
        (14, "", ""),
        (15, "", "set workflow_settings: free_disk_space: max, or use another runner"),
        (15, "workflow_settings: {free_disk_space: max}\n", "use another runner"),
        (15, "github_actions: {self_hosted: true}\n", ""),
        (15, "provider: {linux_64: azure}\n", "build it on a machine with more"),
        (15, "provider: {linux_64: circle}\n", ""),
    ],
)
def test_a_config_that_took_more_disk_than_its_runner_has_is_named(
    feedstock: Feedstock, gigabytes: int, text: str, expected: str
) -> None:
    settings(feedstock, text)
    feedstock.artifacts.mkdir()
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        for config, size in ((CONFIGS[0], gigabytes), (CONFIGS[1], gigabytes - 1)):
            detail = {"disk": size * 10**9}
            ledger.store_step(config.name, config=config.name, title=FINISHED_CONFIG, seconds=1.0, detail=detail)
    notes = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert len(notes) == (1 if expected else 0)
    for note in notes:
        assert note.startswith(f"{CONFIGS[0].name} took {gigabytes} GB of disk when it was last built here, and ")
        assert expected in note
