from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import FeedstockNotFound, KilnError, LintFailed, UnsafeTemplate
from kiln.build.job.job import RunOptions
from kiln.cli.lint import check_feedstock
from kiln.cli.main import make_pasteable, run
from kiln.feedstock import config_file, matrix
from kiln.feedstock.rerender import write_ci_support
from kiln.recipe import render
from kiln.run.plan import check_recipe
from tests import builders
from tests.unit.feedstock.lint.recipes import META, OUTPUTS, RECIPE, changed, feedstock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.feedstock.lint.model import LintMessage
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.template.names import Doubts

BROKEN = changed(changed(META, "zlib >=1.2,<2", "zlib>=1.2,<2"), "{{ name }}-", "{{name}}-")


@pytest.fixture(autouse=True)
def no_shellcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_lints_end_with_their_own_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, BROKEN)
    assert run(["-C", str(tmp_path), "lint"]) == LintFailed.exit_code
    out, err = capsys.readouterr()
    assert "recipe/meta.yaml:21:7: lint R-022: requirements/host: 'zlib>=1.2,<2' has no space after the name\n" in out
    assert "  try: write zlib >=1.2,<2\n" in out
    assert out.endswith("1 lint, 2 hints\n")
    assert make_pasteable("kiln lint --fix", tmp_path) in err


def test_hints_alone_succeed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, changed(META, "{{ name }}-", "{{name}}-"))
    assert run(["-C", str(tmp_path), "lint"]) == 0
    assert capsys.readouterr().out.endswith("0 lints, 1 hint\n")


def test_json_has_lints_and_hints_with_their_places(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    feedstock(tmp_path, BROKEN)
    run(["-C", str(tmp_path), "lint", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert [entry["id"] for entry in answer["lints"]] == ["R-022"]
    assert [entry["id"] for entry in answer["hints"]] == ["R-025", "R-048"]
    assert answer["fixed"] == []
    assert answer["hints"][0] == {
        "id": "R-025",
        "message": "write {{ name }}, with single spaces",
        "file": "recipe/meta.yaml",
        "line": 9,
        "column": 28,
        "cure": "put one space inside each brace",
        "fixable": True,
    }


def test_fix_writes_the_recipe_and_keeps_its_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    subject = feedstock(tmp_path, BROKEN)
    subject.meta.chmod(0o640)
    assert run(["-C", str(tmp_path), "lint", "--fix", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["lints"], answer["hints"]) == ([], [])
    assert [entry["id"] for entry in answer["fixed"]] == ["R-022", "R-025", "R-048"]
    assert subject.meta.read_text() == META
    assert subject.meta.stat().st_mode & 0o777 == 0o640


def test_fix_leaves_a_clean_recipe_untouched(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, RECIPE)
    before = subject.recipe_v1.stat()
    assert run(["-C", str(tmp_path), "lint", "--fix"]) == 0
    assert (subject.recipe_v1.stat().st_ino, subject.recipe_v1.stat().st_mtime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
    )


def test_fix_keeps_a_byte_order_mark(tmp_path: Path) -> None:
    subject = feedstock(tmp_path, "\ufeff" + BROKEN)
    run(["-C", str(tmp_path), "lint", "--fix"])
    assert subject.meta.read_bytes() == b"\xef\xbb\xbf" + META.encode()


def test_fix_does_not_write_through_a_link(tmp_path: Path) -> None:
    subject = feedstock(tmp_path / "a", META)
    outside = tmp_path / "meta.yaml"
    outside.write_text(BROKEN)
    subject.meta.unlink()
    subject.meta.symlink_to(outside)
    assert run(["-C", str(tmp_path / "a"), "lint", "--fix"]) != 0
    assert outside.read_text() == BROKEN


@pytest.mark.processes
@pytest.mark.usefixtures("limited_process")
def test_a_recipe_that_exhausts_the_machine_is_refused(tmp_path: Path) -> None:
    feedstock(tmp_path, changed(META, "{{ version }}.tar", "{{ 'a' * 10 ** 10 }}.tar"))
    assert run(["-C", str(tmp_path), "lint"]) == UnsafeTemplate.exit_code


def test_a_folder_without_a_recipe_is_no_feedstock(tmp_path: Path) -> None:
    assert run(["-C", str(tmp_path), "lint"]) == FeedstockNotFound.exit_code


VARIANTS = "".join(
    f"{key}:\n  - {value}\n"
    for key, value in {
        "c_compiler": "gcc",
        "c_compiler_version": "'13'",
        "c_stdlib": "sysroot",
        "c_stdlib_version": "'2.17'",
        "cxx_compiler": "gxx",
    }.items()
)
# A recipe, a text to replace and its replacement: what another command refuses or warns of.
FAULTS = [
    (META, "number: 0", "number: zero"),
    (META, '"{{ version }}"', '"{{ versoin }}"'),
    (META, "# [linux]", "# [linux and]"),
    (META, "# [linux]", "# [linx]"),
    (META, "# [win]", "# [win) or osx]"),
    (META, "    - small --version\n", "    - 'echo \"#1\"'  # [linux]\n"),
    (META, '{% set version = "1.10" %}', '{% set version = "1.10" '),
    (META, "zlib  # [linux]", "small"),
    (META, ">=1.2,<2", ">=1.2<"),
    (META, '"small"', '"Small"'),
    (META, '"1.10"', '"1-10"'),
    (META, "  number: 0\n", "  number: 0\n  nmber: 1\n"),
    (META, "  number: 0\n", "  number: 0\n  noarch: pythn\n"),
    (META, "  number: 0\n", "  number: 0\n  number: 1\n"),
    (META, "  number: 0\n", "  number: [0\n"),
    (META, "  sha256", "  patches:\n    - missing.patch\n  sha256"),
    (META, "    - zlib >=1.2,<2", "    -\n    - zlib"),
    (META, "    - zlib  # [linux]", "    - zlib: 1"),
    (META, "  run:\n    - zlib  # [linux]\n", "  run: [zlib, small]\n"),
    (META, "  name: {{ name }}\n", ""),
    (OUTPUTS, "name: libsmall", "name: small-split"),
    (RECIPE, "if: linux\n", "if: linux and\n"),
    (RECIPE, "  number: 0\n", "  number: 0\n  skip: osx) and linux\n"),
    (RECIPE, "version: ${{ version }}", "version: ${{ versoin }}"),
    (RECIPE, "version: ${{ version }}", "version: ${{ version | nope }}"),
    (RECIPE, "number: 0", "number: zero"),
    (RECIPE, ">=1.2,<2", ">=1.2<"),
    (RECIPE, "  number: 0\n", "  number: 0\n  nmber: 1\n"),
    (RECIPE, "  number: 0\n", "  number: 0\n  number: 1\n"),
    (RECIPE, "  number: 0\n", "  number: 0\n  script: {interpreter: bashh, content: x}\n"),
    (RECIPE, "  - script:\n      - small --version\n", "  - script:\n      content: x\n      secrets: [A]\n"),
    (RECIPE, "  sha256", "  patches: [missing.patch]\n  sha256"),
    (RECIPE, "zlib >=1.2,<2", "${{ pin_subpackage('small', lower_bund='x') }}"),
    (RECIPE, "name: small", "name: Sm all"),
    (RECIPE, "      - small --version", "      - small: --version"),
    (RECIPE, "zlib >=1.2,<2", "zlib ${{ zlib_version }}"),
]


@pytest.mark.parametrize(("recipe", "old", "new"), FAULTS, ids=[new.strip()[:40] for _, _, new in FAULTS])
def test_lint_says_what_other_commands_refuse_or_warn_of(tmp_path: Path, recipe: str, old: str, new: str) -> None:
    v1 = recipe.startswith("context:")
    files = {"recipe/build.sh": "true\n", "recipe/LICENSE": ""}
    builders.expanded(tmp_path, recipe, VARIANTS, files=files, v1=v1)
    subject = builders.feedstock(tmp_path, changed(recipe, old, new), VARIANTS, files=files, v1=v1)
    doubts: Doubts = {}
    others = faults_of(lambda: matrix.configs(subject, None, doubts))
    configs = config_file.read_configs(subject, subject.config_names)
    others += faults_of(lambda: check_recipe(subject, configs, RunOptions(configs=(), command="")))
    others += [*doubts.values(), *(warning for config in configs for warning in warnings_of(subject, config))]
    assert others
    messages: list[LintMessage] = []
    refused = faults_of(lambda: messages.extend(check_feedstock(subject, of_conda_forge=False, fix=False).messages))
    if refused:  # the rules cannot read it
        assert str(refused[0]) in map(str, others)
        return
    said = {(message.at.file, message.at.line): message for message in messages}
    for error in others:
        assert error.at is not None
        message = said[error.at.file, error.at.line]
        assert message.cure == error.hint or not message.id.startswith("kiln-refused") or not error.hint


def faults_of(work: Callable[[], object]) -> list[KilnError]:
    try:
        work()
    except KilnError as error:
        return [error, *error.others]
    return []


def warnings_of(subject: Feedstock, config: BuildConfig) -> tuple[KilnError, ...]:
    try:
        return render.render(subject, config).warnings
    except KilnError:
        return ()


def test_what_the_engine_lacks_is_a_hint_where_no_config_is_built(tmp_path: Path) -> None:
    recipe = changed(META, "    - zlib >=1.2,<2\n", "    - python\n    - python >=3.9  # [win]\n")
    recipe = changed(recipe, "  run:\n", "  run:\n    - python\n").replace("  skip: true  # [win]\n", "")
    recipe = changed(recipe, "  number: 0\n", "  number: 0\n  pin_depends: strict  # [linux]\n")
    subject = feedstock(tmp_path, recipe, {"conda-forge.yml": "provider: {win_64: azure}\n"})
    write_ci_support(subject, matrix.configs(subject))
    lints = check_feedstock(subject, of_conda_forge=False, fix=False).messages
    found = {message.id: message for message in lints if message.id.startswith("kiln-")}
    assert "does not have 'build/pin_depends'" in found["kiln-refused"].text
    assert found["kiln-refused"].text.endswith("; only in linux_64_")
    assert found["kiln-warning"].text.endswith("which a solver chooses; only in win_64_")
    line = recipe[: recipe.index("python >=3.9")].count("\n") + 1
    assert str(found["kiln-warning"].at) == f"recipe/meta.yaml:{line}:7"


@pytest.mark.parametrize("recipe", [META, RECIPE], ids=["meta.yaml", "recipe.yaml"])
def test_a_feedstock_without_its_pinning_is_judged_by_what_no_pinning_cures(tmp_path: Path, recipe: str) -> None:
    v1 = recipe is RECIPE
    files = {"recipe/build.sh": "true\n", "recipe/LICENSE": ""}
    needs = changed(recipe, "zlib >=1.2,<2", "zlib " + ("${{ zlib }}.*" if v1 else "{{ zlib }}"))
    subject = builders.feedstock(tmp_path / "a", needs, files=files, v1=v1)
    found = check_feedstock(subject, of_conda_forge=False, fix=False).messages
    assert not [message for message in found if message.id == "kiln-refused"]
    broken = changed(needs, "number: 0", "number: zero")
    subject = builders.feedstock(tmp_path / "b", broken, files=files, v1=v1)
    (refused,) = (
        message
        for message in check_feedstock(subject, of_conda_forge=False, fix=False).messages
        if message.id == "kiln-refused"
    )
    assert "zero" in refused.text


def test_a_fault_of_a_variant_file_is_reported_once_by_its_path(tmp_path: Path) -> None:
    variants = {"recipe/conda_build_config.yaml": "zlib:\n  - 1\nzip_keys:\n  - [zlib]\n"}
    result = check_feedstock(feedstock(tmp_path, META, variants), of_conda_forge=False, fix=False)
    places = [str(message.at) for message in result.messages if "reads as a selector" in message.text]
    assert places == ["recipe/conda_build_config.yaml:4:5"]
