"""Misspelled settings are refused with a near miss, and those without effect are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln.base.errors import BudgetSpent, MalformedYaml, RecipeFault
from kiln.cli import main
from kiln.feedstock.settings import (
    SchemaCheck,
    TypedSettings,
    UsedBy,
    no_effect_notes,
    read_document,
    rows_of_settings_table,
    setting_definition_of_path,
    setting_definitions,
    settings_without_use,
    unknown_settings_smithy_ignores,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "conda-forge.yml"
    path.write_text(text)
    return path


# A file, the places and texts of all errors, and the cure of the first.
REFUSED = [
    ("githb: {}\n", ["1:1: unknown setting 'githb'"], "did you mean 'github'?"),
    (
        "build_platfrom: {}\nconda_build:\n  error_overlinkng: true\ndocker: {run_arg: x}\n",
        [
            "1:1: unknown setting 'build_platfrom'",
            "3:3: unknown setting 'conda_build.error_overlinkng'",
            "4:10: unknown setting 'docker.run_arg'",
        ],
        "did you mean 'build_platform'?",
    ),
    (
        "bot: {}\nworkflow_settings:\n  store_build_artifact: true\n",
        ["3:3: unknown setting 'workflow_settings.store_build_artifact'"],
        "did you mean 'store_build_artifacts'?",
    ),
    ("provider: {linx: azure}\n", ["1:12: unknown setting 'provider.linx'"], "did you mean 'linux' or 'linux_64'"),
    ("channel_priority: strickt\n", ["1:1: channel_priority is 'strickt', expected one of"], "did you mean 'strict'?"),
    (
        "github_actions: {timeout_minutes: soon}\n",
        ["1:18: github_actions.timeout_minutes is 'soon', expected an integer"],
        "",
    ),
    ("conda_build: {error_overlinking: maybe}\n", ["1:15: conda_build.error_overlinking is 'maybe'"], ""),
    ("azure: {forc: true}\n", ["1:9: unknown setting 'azure.forc'"], "did you mean 'force'?"),
]
COMMAND_EFFECT = setting_definitions()["docker.command"].effect
NOTED = [
    ("", []),
    ("[]\n", []),
    (  # conda-smithy ignores it, and it is no misspelling
        "remote_ci_setup_channels: [conda-forge]\n",
        ["conda-forge.yml:1:1: unknown setting 'remote_ci_setup_channels' (did you mean 'remote_ci_setup'?)"],
    ),
    ("bot: {automerge: true}\nprovider: {linux_64: azure}\n", []),
    ("conda_build: {error_overdepending: true, filename_hashing: false}\n", []),
    ("something: 1\n", ["conda-forge.yml:1:1: unknown setting 'something'"]),
    ("azure: {max_parallel: many}\n", ["conda-forge.yml:1:9: azure.max_parallel is 'many', expected an integer"]),
    (
        "github: {}\ndocker:\n  command: sh\n",
        [f"conda-forge.yml:3:3: docker.command has no effect in kiln ({COMMAND_EFFECT})"],
    ),
]


@pytest.mark.parametrize(("text", "errors", "cure"), REFUSED)
def test_misspelled_and_invalid_settings_are_refused_all_at_once(
    tmp_path: Path, text: str, errors: list[str], cure: str
) -> None:
    with pytest.raises(RecipeFault) as caught:
        read_document(written(tmp_path, text))
    heads = [f"{error.at}: {error.what}" for error in (caught.value, *caught.value.others)]
    assert len(heads) == len(errors)
    for head, expected in zip(heads, errors, strict=True):
        assert head.startswith(f"conda-forge.yml:{expected}")
    assert caught.value.hint.startswith(cure)


@pytest.mark.parametrize(("text", "lines"), NOTED)
def test_settings_without_effect_are_named(tmp_path: Path, text: str, lines: list[str]) -> None:
    path = written(tmp_path, text)
    read_document(path)
    assert no_effect_notes(path) == lines


def test_a_missing_file_has_the_defaults(tmp_path: Path) -> None:
    settings = TypedSettings.read(tmp_path / "conda-forge.yml")
    assert settings.get_text("channel_priority", "strict") == "strict"
    assert settings.get_nested("github_actions").get_number("timeout_minutes", 360) == 360
    assert settings.get_list("secrets", []) == []
    assert no_effect_notes(tmp_path / "conda-forge.yml") == []


def test_numbers_may_be_quoted(tmp_path: Path) -> None:
    settings = TypedSettings.read(written(tmp_path, "conda_build: {zstd_compression_level: '19'}\n"))
    assert settings.get_nested("conda_build").get_number("zstd_compression_level", 16) == 19


def test_a_setting_that_decides_packages_has_one_value(tmp_path: Path) -> None:
    with pytest.raises(MalformedYaml, match="channel_priority"):
        read_document(written(tmp_path, "channel_priority: strict\nchannel_priority: disabled\n"))
    assert read_document(written(tmp_path, "bot: {a: 1}\nbot: {a: 2}\n")).value == {"bot": {"a": "2"}}


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, "min_py_ver: '38'\n")
    assert TypedSettings.read(path).get_text("min_py_ver", "") == "38"
    written(tmp_path, "min_py_ver: '39'\n")
    assert TypedSettings.read(path).get_text("min_py_ver", "") == "39"
    written(tmp_path, "githb: {}\n")
    for _ in range(2):
        with pytest.raises(RecipeFault, match="unknown setting 'githb'"):
            read_document(path)


KEYS = Path(__file__).with_name("conda_smithy_keys.txt")
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "conda-forge-yml.md"
SECTIONS = {
    UsedBy.MATRIX: "The matrix",
    UsedBy.BUILD: "Builds",
    UsedBy.WORKFLOW: "The workflow",
    UsedBy.PUBLISH: "Publication",
    UsedBy.LINT: "The linter",
    UsedBy.NONE: "Without effect",
    UsedBy.OTHERS: "Of other programs",
}


def rows_of(part: UsedBy) -> list[str]:
    """Return the rows of a part's table on the page: settings of one effect share a row."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name, setting in rows_of_settings_table().items():
        if name and setting.used_by is part:
            groups.setdefault((setting.effect, setting.replacement), []).append(f"`{name}`")
    return [
        f"| {', '.join(names)} | {effect}{f'. Deprecated: use {replacement}' if replacement else ''} |"
        for (effect, replacement), names in groups.items()
    ]


def test_the_table_has_all_keys_of_conda_smithy_and_kilns_own_section() -> None:
    keys = {line for line in KEYS.read_text().splitlines() if not line.startswith("#")}
    assert len(keys) > 100
    assert {key for key in setting_definitions() if key and key.partition(".")[0] != "kiln"} == keys


def test_every_setting_has_an_effect_or_the_reason_why_not() -> None:
    assert [name for name, setting in rows_of_settings_table().items() if name and not setting.effect] == []


@pytest.mark.parametrize("part", list(UsedBy))
def test_the_page_has_the_table(part: UsedBy) -> None:
    _, _, rest = PAGE.read_text().partition(f"## {SECTIONS[part]}\n")
    section = rest.partition("\n## ")[0].splitlines()
    assert [line for line in section if line.startswith("| `")] == rows_of(part)


def test_what_conda_smithy_ignores_is_not_a_fault_for_its_linter() -> None:
    settings = {"provider": {"linux_46": "azure"}, "workflow_settings": {"pagefile_size": [{"platfrom": "linux_64"}]}}
    assert list(SchemaCheck().faults(settings)) == []
    assert [(fault.path, fault.cure) for fault in unknown_settings_smithy_ignores(settings)] == [
        (("provider", "linux_46"), "did you mean 'linux_64' or 'linux' or 'linux_32'?"),
        (("workflow_settings", "pagefile_size"), ""),
    ]


def test_settings_without_use_have_their_reason() -> None:
    settings = {"docker": {"command": "sh", "fallback_image": "x"}, "choco": None, "bot": {"automerge": True}}
    [fault] = settings_without_use(settings)
    assert (fault.path, fault.cure) == (("docker", "command"), setting_definitions()["docker.command"].effect)


def test_an_unlisted_setting_belongs_to_the_one_that_contains_it() -> None:
    assert setting_definition_of_path(("conda_build", "filename_hashing")) == setting_definitions()["conda_build"]
    assert (
        setting_definition_of_path(("azure", "settings_linux", "other"))
        == setting_definitions()["azure.settings_linux"]
    )
    assert setting_definition_of_path(("unknown",)) is None


PAGE_EXAMPLES = (Path(__file__).parents[3] / "docs" / "how-to" / "build-in-ci.md").read_text()
EXAMPLES: list[tuple[str, str]] = re.findall(r"```(yaml|sh)\n(.*?)```", PAGE_EXAMPLES, re.DOTALL)


def test_the_commands_of_the_page_have_options_of_kiln() -> None:
    commands = [line for line in PAGE_EXAMPLES.splitlines() if "build-locally.py" in line and "--handover" in line]
    assert len(commands) >= 5
    parser, _ = main.command_parser_and_module("build")
    for line in commands:
        words = line.partition("build-locally.py")[2].partition("||")[0].replace('"', "").split()
        options = parser.parse_args(words)
        assert options.budget.seconds in {2.5 * 3600, 5.5 * 3600}
        assert options.handover.name == "handover"


def test_the_settings_of_the_page_are_kilns() -> None:
    sections: list[Any] = [yaml.safe_load(text) for kind, text in EXAMPLES if kind == "yaml"]
    names = [f"kiln.{name}" for section in sections for name in (section.get("kiln") or {})]
    assert len(names) >= 6
    assert set(names) <= setting_definitions().keys()


@pytest.mark.parametrize("example", [text for kind, text in EXAMPLES if "--handover" in text and "CONFIG" in text])
def test_each_example_knows_the_exit_code_of_an_unfinished_build(example: str) -> None:
    if "code" in example:
        assert str(BudgetSpent.exit_code) in example


def test_each_job_of_gitlab_and_azure_continues_the_one_before() -> None:
    parsed = [yaml.safe_load(text) for kind, text in EXAMPLES if kind == "yaml"]
    (gitlab,) = [text for text in parsed if ".job" in text]
    assert gitlab[".job"]["allow_failure"] == {"exit_codes": BudgetSpent.exit_code}
    assert [gitlab[f"build-{number}"].get("needs") for number in (1, 2, 3)] == [None, ["build-1"], ["build-2"]]
    assert gitlab["build-3"]["allow_failure"] is False
    (azure,) = [text for text in parsed if "jobs" in text]
    first, second = azure["jobs"]
    assert second["dependsOn"] == first["job"]
    assert f"dependencies.{first['job']}.outputs['{first['steps'][0]['name']}.unfinished']" in second["condition"]
