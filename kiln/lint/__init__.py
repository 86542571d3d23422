"""Check a recipe and its settings against the rules of conda-smithy's linter, without a variant and without network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lint import (
    conda_forge_only,
    conda_forge_yml_rules,
    package_metadata_rules,
    recipe_validity_rules,
    requirement_rules,
    section_rules,
    text_rules,
)
from kiln.lint.linted_feedstock import LintedFeedstock, LintedRecipe, read_settings, recipe_files
from kiln.lint.rule_model import LintMessage, Rule, Severity
from kiln.serialization import mapping_or_empty
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from kiln.model.feedstock import Feedstock

__all__ = ["RULES", "LintMessage", "check", "is_shellcheck_enabled", "recipe_files"]

RULES: tuple[Rule, ...] = (
    *recipe_validity_rules.RULES,
    *section_rules.RULES,
    *recipe_validity_rules.KEY_RULES,
    *package_metadata_rules.RULES,
    *section_rules.TEST_RULES,
    *requirement_rules.RULES,
    *text_rules.RULES,
    *conda_forge_yml_rules.RULES,
    *conda_forge_only.RULES,
)
_STOPS = frozenset({"R-051"})  # with two recipes, nothing else is checked: it is unclear which one counts


def rules_of_organization(*, of_conda_forge: bool) -> tuple[Rule, ...]:
    """Return the rules for feedstocks of conda-forge, or those for all others."""
    return tuple(rule for rule in RULES if not (rule.others if of_conda_forge else rule.conda_forge))


def check(
    feedstock: Feedstock, recipe: LintedRecipe | None = None, *, of_conda_forge: bool = False
) -> list[LintMessage]:
    """Return the messages about a feedstock, lints first, each in the order of the file.

    ``recipe`` takes the place of the recipe on disk.

    Raises:
        KilnError: the recipe or the settings cannot be read.
    """
    name = recipe_files(feedstock)[0]
    recipe = recipe or LintedRecipe.from_text(read_text(feedstock.root / name, name), name)
    subject = LintedFeedstock(feedstock=feedstock, recipe=recipe, settings=read_settings(feedstock))
    messages: dict[tuple[object, ...], LintMessage] = {}
    for rule in rules_of_organization(of_conda_forge=of_conda_forge):
        if rule.skip and rule.skip in subject.skipped_rules:
            continue
        for problem in rule.check(subject):
            message = LintMessage(
                id=rule.id,
                severity=rule.severity,
                text=problem.text,
                at=problem.at,
                cure=problem.cure or rule.cure,
                fixable=rule.fixable,
            )
            messages.setdefault((message.id, message.text, message.at), message)
        if messages and rule.id in _STOPS:
            break
    return sorted(messages.values(), key=_message_sort_key)


def is_shellcheck_enabled(feedstock: Feedstock) -> bool:
    """Return whether conda-forge.yml asks for shellcheck's optional checks too.

    Raises:
        KilnError: the settings cannot be read.
    """
    return mapping_or_empty(read_settings(feedstock).get("shellcheck")).get("enabled") is True


def _message_sort_key(message: LintMessage) -> tuple[bool, str, int, int]:
    return message.severity is Severity.HINT, message.at.file, message.at.line, message.at.column
