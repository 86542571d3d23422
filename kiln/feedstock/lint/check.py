"""Check a recipe and its settings against the rules of conda-smithy's linter, and its shell scripts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.base import process
from kiln.base.position import Place
from kiln.base.serialization import mapping_or_empty
from kiln.base.yaml import read_text
from kiln.feedstock.lint import conda_forge, metadata, requirements, sections, texts
from kiln.feedstock.lint.model import (
    LintedFeedstock,
    LintedRecipe,
    LintMessage,
    Rule,
    Severity,
    read_settings,
    recipe_files,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


_TIMEOUT = 120.0  # seconds
# SC2154 reports variables without a value: those of the build's environment have none in a script.
_OPTIONS = ("--norc", "--shell=bash", "--exclude=SC2154", "--format=json")
_ALL = "--enable=all"  # as conda-smithy, if conda-forge.yml has shellcheck: enabled: true
_WARNINGS = "--severity=warning"
REPORT, FAILURE, OWN_REPORT = "R-042", "R-043", "kiln-shellcheck"
REFUSED, WARNED = "kiln-refused", "kiln-warning"  # by another command


def shellcheck_messages(feedstock: Feedstock, program: Path, *, enabled: bool) -> list[LintMessage]:
    """Return shellcheck's comments on the recipe's scripts: all of them if ``enabled``, else errors and warnings."""
    scripts = sorted(path.name for path in feedstock.recipe.glob("*.sh") if path.is_file() and not path.is_symlink())
    if not scripts:
        return []
    argv: list[str | Path] = [
        program,
        *_OPTIONS,
        _ALL if enabled else _WARNINGS,
        *(f"recipe/{name}" for name in scripts),
    ]
    result = process.capture(argv, env={}, cwd=feedstock.root, timeout=_TIMEOUT)
    comments = _parse_comments(result.stdout) if result.exit_code in {0, 1} else None
    if comments is None:
        text = f"shellcheck failed with exit code {result.exit_code}"
        return [_shellcheck_hint(FAILURE, text, Place(file="recipe"), "run shellcheck recipe/*.sh")]
    return [_message_of_comment(comment, REPORT if enabled else OWN_REPORT) for comment in comments]


def _parse_comments(text: str) -> list[dict[str, Any]] | None:
    try:
        comments = json.loads(text)
    except ValueError:
        return None
    return comments if isinstance(comments, list) else None


def _message_of_comment(comment: dict[str, Any], rule: str) -> LintMessage:
    at = Place(file=str(comment["file"]), line=int(comment["line"]), column=int(comment["column"]))
    code = f"SC{comment['code']}"
    return _shellcheck_hint(rule, f"{code}: {comment['message']}", at, f"see www.shellcheck.net/wiki/{code}")


def _shellcheck_hint(rule: str, text: str, at: Place, cure: str) -> LintMessage:
    return LintMessage(id=rule, severity=Severity.HINT, text=text, at=at, cure=cure, fixable=False)


RULES: tuple[Rule, ...] = (
    *sections.VALIDITY_RULES,
    *sections.SECTION_RULES,
    *sections.KEY_RULES,
    *metadata.RULES,
    *sections.TEST_RULES,
    *requirements.RULES,
    *texts.RULES,
    *conda_forge.CONDA_FORGE_YML_RULES,
    *conda_forge.CONDA_FORGE_RULES,
)
# The recipe that is linted may not be the one that is read; and nothing is known about the keys of another format.
_STOPS = (sections.second_recipe_file, sections.unknown_schema_version)


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
        if {rule.skip, rule.id} & subject.skipped_rules:
            continue
        known = len(messages)
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
        if len(messages) > known and rule.check in _STOPS:
            break
    return sorted(messages.values(), key=message_sort_key)


def is_shellcheck_enabled(feedstock: Feedstock) -> bool:
    """Return whether conda-forge.yml asks for shellcheck's optional checks too.

    Raises:
        KilnError: the settings cannot be read.
    """
    return mapping_or_empty(read_settings(feedstock).get("shellcheck")).get("enabled") is True


def message_sort_key(message: LintMessage) -> tuple[bool, str, int, int]:
    """Return the key by which messages are sorted: lints first, each in the order of the file."""
    return message.severity is Severity.HINT, message.at.file, message.at.line, message.at.column
