"""Feedstocks without the pinning that they need: keys without a value are reported before anything is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import MatrixDrift, PinningNeeded
from kiln.cli.main import run
from kiln.feedstock import pinning
from kiln.recipe.v0.recipe import BUILT_IN
from tests import builders
from tests.builders import FIXTURES, NAMES, PINNING, copied, expected

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

ROOT = FIXTURES.parents[1]
HEAD = "package:\n  name: app\n  version: 1\n"
HOST = f"{HEAD}requirements:\n  host:\n    - alpha\n"


def rerendered(feedstock: Feedstock, *words: str) -> int:
    return run(["-C", str(feedstock.root), "rerender", "--pinning-channel", "none", *words])


def files(feedstock: Feedstock) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(feedstock.root.rglob("*")) if path.is_file()}


def held(feedstock: Feedstock, text: str) -> Feedstock:
    """Have .ci_support hold something."""
    feedstock.config_folder.mkdir(exist_ok=True)
    (feedstock.config_folder / "linux_64_.yaml").write_text(text)
    return feedstock


@pytest.mark.parametrize("name", [name for name in NAMES if expected(name)["ci_support"]])
def test_a_checkout_that_was_made_with_a_pinning_is_left_as_it_is_without_one(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = copied(name, tmp_path)
    for file, text in expected(name)["ci_support"].items():
        held(feedstock, text).config_folder.joinpath("linux_64_.yaml").rename(feedstock.config_folder / file)
    before = files(feedstock)
    for words in ((), ("--check",)):
        assert rerendered(feedstock, *words) == PinningNeeded.exit_code
        assert files(feedstock) == before
        told = capsys.readouterr().err
        assert "-e PINNING/conda_build_config.yaml" in told
        assert "; .ci_support holds" in told
    assert rerendered(feedstock, "-e", str(PINNING)) == 0


@pytest.mark.parametrize("root", [ROOT, ROOT / "serving"], ids=["tensorflow", "serving"])
def test_the_feedstocks_here_need_no_pinning(root: Path) -> None:
    from kiln.recipe import feedstock as recipe_feedstock

    assert pinning.keys_without_value(recipe_feedstock.load(root)) == ()


@pytest.mark.parametrize(
    ("recipe", "need"),
    [
        (f"{HEAD}requirements:\n  run:\n    - x >={{{{ python_min }}}}\n", ("python_min", "recipe/meta.yaml:6:14")),
        (f"{HEAD}requirements:\n  build:\n    - {{{{ stdlib('c') }}}}\n", ("c_stdlib", "recipe/meta.yaml:6:10")),
    ],
)
def test_what_a_recipe_writes_out_must_have_a_value(recipe: str, need: tuple[str, str], tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, recipe, "")
    assert [(item.key, str(item.at)) for item in pinning.keys_without_value(feedstock)] == [need]
    assert rerendered(feedstock) == PinningNeeded.exit_code
    assert not feedstock.config_folder.exists()
    (feedstock.recipe / "conda_build_config.yaml").write_text(f"{need[0]}:\n  - '3.10'\n")
    assert rerendered(feedstock) == 0


@pytest.mark.parametrize(
    "recipe",
    [
        f"{HOST}    - b {{{{ beta | default('2') }}}}\n",
        f"{HOST}    - b  # [mpi != 'nompi']\n",
        f"{HOST}    - {{{{ 'b' if blas_impl == 'mkl' else 'c' }}}}\n",
        f"{{% set beta = '2' %}}\n{HOST}    - b {{{{ beta }}}}\n",
        f"{HOST}    - b {{{{ environ.get('BETA', '2') }}}}\n",
        f"{HOST}    - {{{{ compiler('c') }}}}\n    - {{{{ compiler('rust') }}}}\n",
        f"{HOST}    - {{{{ pin_subpackage('app') }}}} {{{{ PREFIX }}}}\n",
        f"{HOST}    - python\n    - numpy\n",
        f"{{% macro of(x) %}}b {{{{ x }}}}{{% endmacro %}}\n{HOST}    - {{{{ of('2') }}}}\n",
    ],
)
def test_a_key_with_another_value_or_without_need_of_one_is_not_reported(recipe: str, tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, recipe, "alpha:\n  - 1\n")
    assert pinning.keys_without_value(feedstock) == ()
    assert rerendered(feedstock) == 0
    assert pinning.keys_without_value(feedstock) == (), "nor once it is written"
    assert rerendered(feedstock, "--check") == 0


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("a: 1", True),
        ("{% set version = '1' %}\na: {{ version }} {{ version.replace('.', '_') | upper }}", True),
        ("a: {{ compiler('c') }} {{ pin_compatible('x', max_pin='x.x') }} {{ PKG_NAME if alpha else alpha }}", True),
        ("a: {{ stdlib('c') }} {{ stdlib(\"rust\") }}", True),
        ("a: {{ beta }}", False),
        ("a: {{ alpha ~beta }}", False),
        ("a: {{ alpha == beta }} {{ pin_compatible(beta, max_pin=alpha) }}", False),
        ("a: {{ 'x}}' ~ beta }}", False),
        ("a: {{ {'a': 1}[beta] }}", False),
        ("a: {{ 'it\\'s' ~ beta }}", False),
        ("a: {{ alpha\n  ~ beta }}", False),
        ("a: {% print beta %}", False),
        ("a: {{ b\u00e9ta }}", False),
        ("a: {{ stdlib('cxx') }}", False),
        ("a: {{ stdlib( 'c') }} {{ stdlib (alpha) }}", False),
        ("{% for x in y %}a: {{ x }}\n{% endfor %}", False),
    ],
)
def test_only_a_template_of_known_names_is_not_parsed(text: str, known: bool) -> None:
    defined = frozenset({"alpha", "c_stdlib", "rust_stdlib"})
    assert pinning.has_only_known_names(text, frozenset(BUILT_IN), defined) is known


def test_a_used_key_that_only_ci_support_has_is_reported_with_its_values(tmp_path: Path) -> None:
    feedstock = held(
        builders.feedstock(tmp_path, HOST, ""), "alpha:\n- '1'\n- '2'\nzlib:\n- '1'\ntarget_platform:\n- linux-64\n"
    )
    (need,) = pinning.keys_without_value(feedstock)
    assert (need.key, need.held, str(need.at)) == ("alpha", ("1", "2"), "recipe/meta.yaml:6:7")


def test_a_key_that_only_a_script_uses_is_reported(tmp_path: Path) -> None:
    feedstock = held(builders.feedstock(tmp_path, HEAD, ""), "beta:\n- '1'\n")
    assert pinning.keys_without_value(feedstock) == ()
    (feedstock.recipe / "build.sh").write_text("echo ${beta}\n")
    assert [need.key for need in pinning.keys_without_value(feedstock)] == ["beta"]


def test_an_axis_that_conda_build_would_fill_with_its_default_is_reported(tmp_path: Path) -> None:
    feedstock = held(
        builders.feedstock(tmp_path, f"{HOST}    - python\n", "alpha:\n  - 1\n"), "python:\n- 3.10.* *_cpython\n"
    )
    assert [need.key for need in pinning.keys_without_value(feedstock)] == ["python"]


def test_without_a_pinning_is_what_is_asked_for_when_said_so(tmp_path: Path) -> None:
    feedstock = held(builders.feedstock(tmp_path, HOST, ""), "alpha:\n- '1'\n")
    assert rerendered(feedstock) == PinningNeeded.exit_code
    (feedstock.config_folder / "linux_64_.yaml").unlink()
    assert rerendered(feedstock, "--no-pinning") == 0
    assert "alpha" not in (feedstock.config_folder / "linux_64_.yaml").read_text()
    assert rerendered(feedstock) == 0


def test_without_a_pinning_no_value_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = held(builders.feedstock(tmp_path, HOST, ""), "alpha:\n- '1'\n")
    before = files(feedstock)
    assert rerendered(feedstock, "--no-pinning") == PinningNeeded.exit_code
    assert "--no-pinning would remove their values from .ci_support" in capsys.readouterr().err
    assert files(feedstock) == before
    assert rerendered(feedstock, "--no-pinning", "--check") == MatrixDrift.exit_code


def test_a_key_without_a_value_is_noted_when_no_pinning_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = builders.feedstock(tmp_path, f"{HEAD}requirements:\n  build:\n    - {{{{ stdlib('c') }}}}\n", "")
    assert rerendered(feedstock) == PinningNeeded.exit_code
    assert "--no-pinning" not in capsys.readouterr().err  # it would leave the key without a value
    assert rerendered(feedstock, "--no-pinning") == 0
    assert "note: no value without a pinning (-e): c_stdlib (recipe/meta.yaml:6:10)" in capsys.readouterr().err


def test_outputs_that_conda_forge_validates_need_their_channel(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, HOST, "alpha:\n  - 1\n")
    with (feedstock.root / "conda-forge.yml").open("a") as file:
        file.write("conda_forge_output_validation: true\n")
    assert [need.key for need in pinning.keys_without_value(feedstock)] == ["channel_sources", "channel_targets"]


@pytest.mark.parametrize("words", [(), ("--check",), ("--no-pinning",)])
def test_a_migration_of_a_pinnings_keys_is_reported_as_such(
    tmp_path: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    feedstock = builders.feedstock(tmp_path, HOST, "alpha:\n  - 1\n")
    migration = feedstock.config_folder / "migrations" / "beta2.yaml"
    migration.parent.mkdir(parents=True)
    migration.write_text(
        "__migrator:\n  operation: key_add\n  primary_key: beta\n  kind: version\nmigrator_ts: 1\nbeta:\n  - 2\n"
    )
    assert rerendered(feedstock, *words) == PinningNeeded.exit_code
    told = capsys.readouterr().err
    assert "error: .ci_support/migrations/beta2.yaml:6:1: the migration does not fit" in told
    assert "a pinning, which is missing" in told
    assert "--no-pinning" not in told


def test_the_matrix_says_what_has_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock = held(builders.feedstock(tmp_path, HOST, ""), "alpha:\n- '1'\n")
    assert run(["-C", str(feedstock.root), "matrix", "--pinning-channel", "none"]) == 0
    assert "note: no value without a pinning (-e): alpha (recipe/meta.yaml:6:7)" in capsys.readouterr().err
    assert run(["-C", str(feedstock.root), "matrix", "--no-pinning"]) == 0
    assert not capsys.readouterr().err
