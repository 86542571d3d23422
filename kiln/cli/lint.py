"""``kiln lint``: check the recipe and its settings against the rules of conda-smithy's linter, or correct them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import LintFailed

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.lint import LintMessage
    from kiln.model.feedstock import Feedstock


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln lint``."""
    parser.add_argument("--conda-forge", action="store_true", help="add the rules for feedstocks of conda-forge")
    parser.add_argument("--json", action="store_true", help="print the messages as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the messages.

    Raises:
        LintFailed: there are lints.
    """
    from kiln import load

    feedstock = load.find(root)
    messages = checked(feedstock, of_conda_forge=options.conda_forge)
    print(as_json(messages) if options.json else "\n".join(lines(messages)))
    lints = [message for message in messages if message.severity == "lint"]
    if lints:
        raise LintFailed("the recipe breaks rules of conda-forge", why=f"{len(lints)} lints")
    return 0


def checked(feedstock: Feedstock, *, of_conda_forge: bool) -> list[LintMessage]:
    """Return the messages about a feedstock, with those of shellcheck if it is installed."""
    from kiln import limits, lint
    from kiln.lint import scripts

    def check() -> tuple[list[LintMessage], bool]:
        return lint.check(feedstock, of_conda_forge=of_conda_forge), lint.shellcheck_enabled(feedstock)

    messages, enabled = limits.bounded(check)
    program = shutil.which("shellcheck", path=os.environ.get("PATH", os.defpath))
    return messages + (scripts.messages(feedstock, Path(program), enabled=enabled) if program else [])


def as_json(messages: Sequence[LintMessage]) -> str:
    """Return messages as JSON: lints and hints, each with id, message, place and cure."""
    entries = {
        f"{severity}s": [entry(message) for message in messages if message.severity == severity]
        for severity in ("lint", "hint")
    }
    return json.dumps(entries, indent=2)


def entry(message: LintMessage) -> dict[str, object]:
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


def lines(messages: Sequence[LintMessage]) -> list[str]:
    """Return messages as lines of text."""
    texts = []
    for message in messages:
        texts.append(f"{message.at}: {message.severity.value} {message.id}: {message.text}")
        if message.cure:
            texts.append(f"  try: {message.cure}")
    return texts
