"""``kiln lint``: check the recipe and its settings against the rules of conda-smithy's linter, or correct them."""

from __future__ import annotations

import json
import os
import stat
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kiln.base.errors import KilnError, LintFailed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from kiln.feedstock.lint.model import LintMessage
    from kiln.recipe.feedstock import Feedstock

_BOM = "\ufeff"
_REFUSED_BY_RULES = ("kiln-", "R-027")  # the ids of rules on what other commands refuse


class LintResult(NamedTuple):
    """The messages about a feedstock, and those that were corrected."""

    messages: list[LintMessage]
    fixed: list[LintMessage]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln lint``."""
    parser.add_argument(
        "--fix", action="store_true", help="correct the recipe where a message has one answer, and print the others"
    )
    parser.add_argument("--conda-forge", action="store_true", help="add the rules for feedstocks of conda-forge")
    parser.add_argument(
        "--settings",
        action="store_true",
        help="print what kiln does with each setting in conda-forge.yml, and check nothing",
    )
    parser.add_argument("--json", action="store_true", help="print the messages as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the messages.

    Raises:
        LintFailed: there are lints.
    """
    from kiln.base.text import count_text
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    if options.settings:
        print(setting_effects_text(feedstock, as_json=options.json))
        return 0
    result = check_feedstock(feedstock, of_conda_forge=options.conda_forge, fix=options.fix)
    print(lint_result_as_json(result) if options.json else "\n".join(lint_result_lines(result)))
    lints = [message for message in result.messages if message.severity == "lint"]
    if lints:
        fixable = any(message.fixable for message in lints) and not options.fix
        raise LintFailed(
            f"{count_text(len(lints), 'lint')} in the recipe or conda-forge.yml",
            hint="kiln lint --fix corrects some of them" if fixable else "",
        )
    return 0


def setting_effects_text(feedstock: Feedstock, *, as_json: bool) -> str:
    """Return what kiln does with each setting of a feedstock, as text or as JSON."""
    from kiln.base import limits
    from kiln.feedstock import settings

    uses = limits.run_bounded(lambda: settings.setting_uses(feedstock.conda_forge_yml))
    if as_json:
        return json.dumps([use._asdict() for use in uses], indent=2)
    if not uses:
        return "conda-forge.yml has no settings; all have conda-forge's defaults"
    lines = []
    for use in uses:
        name = {"none": "no effect", "others": "of other programs"}.get(use.used_by, use.used_by)
        lines.append(f"{use.file}:{use.line}:{use.column}: {use.setting}: {name}")
        lines += textwrap.wrap(use.effect, 78, initial_indent="  ", subsequent_indent="  ")
    return "\n".join(lines)


def check_feedstock(feedstock: Feedstock, *, of_conda_forge: bool, fix: bool) -> LintResult:
    """Return the messages about a feedstock, with those of shellcheck if it is installed; correct it before."""
    from kiln.base import limits, process
    from kiln.feedstock.lint import check
    from kiln.run import recipe_checks

    fixed = correct_recipe(feedstock, of_conda_forge=of_conda_forge) if fix else []
    try:
        messages, enabled = limits.run_bounded(
            lambda: (check.check(feedstock, of_conda_forge=of_conda_forge), check.is_shellcheck_enabled(feedstock))
        )
    except KilnError as error:
        # Without a variant a template may fail for another reason than in all other commands, whose answer counts.
        refused, _ = recipe_checks.faults_and_warnings(feedstock)
        raise next(iter(refused), error) from error
    messages = sorted([*messages, *refusals_and_warnings(feedstock, messages)], key=check.message_sort_key)
    # shellcheck runs outside of the limits, which its runtime exceeds at its start.
    program = process.program_on_path("shellcheck", env=os.environ)
    script_messages = check.shellcheck_messages(feedstock, Path(program), enabled=enabled) if program else []
    return LintResult(messages + script_messages, fixed)


def refusals_and_warnings(feedstock: Feedstock, reported: list[LintMessage]) -> Iterator[LintMessage]:
    """Yield what rerender, render and build would refuse or warn of, and no rule has reported in the same line."""
    from kiln.base.position import Place
    from kiln.feedstock.lint import check
    from kiln.feedstock.lint.model import LintMessage, Severity, recipe_files
    from kiln.run import recipe_checks

    refused, warned = recipe_checks.faults_and_warnings(feedstock)
    said = {(message.at.file, message.at.line, message.text) for message in reported}
    own = {(message.at.file, message.at.line) for message in reported if message.id.startswith(_REFUSED_BY_RULES)}
    for severity, rule, errors in ((Severity.LINT, check.REFUSED, refused), (Severity.HINT, check.WARNED, warned)):
        for error in errors:
            at = error.at or Place(file=recipe_files(feedstock)[0])
            if (at.file, at.line, error.what) not in said and (at.file, at.line) not in own:
                text = f"{error.what}: {error.why}" if error.why else error.what
                cure = error.hint or "correct it as the message says"
                yield LintMessage(id=rule, severity=severity, text=text, at=at, cure=cure, fixable=False)


def correct_recipe(feedstock: Feedstock, *, of_conda_forge: bool) -> list[LintMessage]:
    """Correct the recipe on disk and return the messages that this answers."""
    from kiln.base import files, limits
    from kiln.base.yaml import read_text
    from kiln.feedstock.lint import fixes
    from kiln.feedstock.lint.model import recipe_files

    file = recipe_files(feedstock)[0]
    path = files.safe_path_inside(feedstock.root / file, feedstock.root)
    text = read_text(path, file)
    correction = limits.run_bounded(lambda: fixes.correct_recipe(feedstock, text, of_conda_forge=of_conda_forge))
    if correction.text != text:
        mark = _BOM if path.read_bytes().startswith(_BOM.encode()) else ""
        files.write_text(path, mark + correction.text, mode=stat.S_IMODE(path.stat().st_mode))
    return list(correction.fixed)


def lint_result_as_json(result: LintResult) -> str:
    """Return the messages as JSON: lints, hints and what was corrected, each with id, message, place and cure."""
    entries = {
        f"{severity}s": [message_as_json(message) for message in result.messages if message.severity == severity]
        for severity in ("lint", "hint")
    }
    return json.dumps({**entries, "fixed": [message_as_json(message) for message in result.fixed]}, indent=2)


def message_as_json(message: LintMessage) -> dict[str, object]:
    """Return a message as a JSON object."""
    return {
        "id": message.id,
        "message": message.text,
        "file": message.at.file,
        "line": message.at.line or None,
        "column": message.at.column or None,
        "cure": message.cure,
        "fixable": message.fixable,
    }


def lint_result_lines(result: LintResult) -> list[str]:
    """Return the messages as lines of text, and their count."""
    from kiln.base.text import count_text

    texts = [f"{message.at}: fixed {message.id}: {message.text}" for message in result.fixed]
    for message in result.messages:
        texts.append(f"{message.at}: {message.severity.value} {message.id}: {message.text}")
        texts.append(f"  try: {message.cure}")
    lints = [message for message in result.messages if message.severity == "lint"]
    hints = [message for message in result.messages if message.severity == "hint"]
    fixed = f", {count_text(len(result.fixed), 'message')} fixed" if result.fixed else ""
    return [*texts, f"{count_text(len(lints), 'lint')}, {count_text(len(hints), 'hint')}{fixed}"]
