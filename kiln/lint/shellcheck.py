"""Messages about shell scripts, from shellcheck."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln import process_runner
from kiln.lint.rule_model import LintMessage, Severity
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

_TIMEOUT = 120.0  # seconds
# SC2154 reports variables without a value: those of the build's environment have none in a script.
_OPTIONS = ("--norc", "--shell=bash", "--exclude=SC2154", "--format=json")
_ALL = "--enable=all"  # as conda-smithy, if conda-forge.yml has shellcheck: enabled: true
_WARNINGS = "--severity=warning"
REPORT, FAILURE, OWN_REPORT = "R-042", "R-043", "kiln-shellcheck"


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
    result = process_runner.capture(argv, env={}, cwd=feedstock.root, timeout=_TIMEOUT)
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
