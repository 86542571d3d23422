"""The table of settings is complete: against conda-smithy's schema, and on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.feedstock import settings as feedstock_settings
from kiln.feedstock.settings import UsedBy

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
    for name, setting in feedstock_settings.rows_of_settings_table().items():
        if name and setting.used_by is part:
            groups.setdefault((setting.effect, setting.replacement), []).append(f"`{name}`")
    return [
        f"| {', '.join(names)} | {effect}{f'. Deprecated: use {replacement}' if replacement else ''} |"
        for (effect, replacement), names in groups.items()
    ]


def test_the_table_has_all_keys_of_conda_smithy_and_kilns_own_section() -> None:
    keys = {line for line in KEYS.read_text().splitlines() if not line.startswith("#")}
    assert len(keys) > 100
    assert {key for key in feedstock_settings.setting_definitions() if key and key.partition(".")[0] != "kiln"} == keys


def test_every_setting_has_an_effect_or_the_reason_why_not() -> None:
    assert [
        name for name, setting in feedstock_settings.rows_of_settings_table().items() if name and not setting.effect
    ] == []


@pytest.mark.parametrize("part", list(UsedBy))
def test_the_page_has_the_table(part: UsedBy) -> None:
    _, _, rest = PAGE.read_text().partition(f"## {SECTIONS[part]}\n")
    section = rest.partition("\n## ")[0].splitlines()
    assert [line for line in section if line.startswith("| `")] == rows_of(part)


def test_what_conda_smithy_ignores_is_not_a_fault_for_its_linter() -> None:
    settings = {"provider": {"linux_46": "azure"}, "workflow_settings": {"pagefile_size": [{"platfrom": "linux_64"}]}}
    assert list(feedstock_settings.SchemaCheck().faults(settings)) == []
    assert [(fault.path, fault.cure) for fault in feedstock_settings.unknown_settings_smithy_ignores(settings)] == [
        (("provider", "linux_46"), "did you mean 'linux_64' or 'linux' or 'linux_32'?"),
        (("workflow_settings", "pagefile_size"), ""),
    ]


def test_settings_without_use_have_their_reason() -> None:
    settings = {"docker": {"command": "sh", "fallback_image": "x"}, "choco": None, "bot": {"automerge": True}}
    [fault] = feedstock_settings.settings_without_use(settings)
    assert (fault.path, fault.cure) == (
        ("docker", "command"),
        feedstock_settings.setting_definitions()["docker.command"].effect,
    )


def test_an_unlisted_setting_belongs_to_the_one_that_contains_it() -> None:
    assert (
        feedstock_settings.setting_definition_of_path(("conda_build", "filename_hashing"))
        == feedstock_settings.setting_definitions()["conda_build"]
    )
    assert (
        feedstock_settings.setting_definition_of_path(("azure", "settings_linux", "other"))
        == feedstock_settings.setting_definitions()["azure.settings_linux"]
    )
    assert feedstock_settings.setting_definition_of_path(("unknown",)) is None
