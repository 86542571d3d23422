"""Rules of the linter, the problems that their checks yield, and the messages that users see."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kiln.lint.linted_feedstock import LintedFeedstock
    from kiln.model.source_position import Place


class Severity(str, Enum):
    """The severity of a rule: a lint fails the command, a hint does not."""

    LINT = "lint"
    HINT = "hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A violation of a rule: its description, its place, and the cure, where it differs from the rule's."""

    text: str
    at: Place
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of conda-smithy's linter, with its id there.

    ``check`` yields the problems of a feedstock. ``fixable`` rules have a function in `kiln.lint.recipe_correction`.
    Rules for ``conda_forge`` apply only to feedstocks of that organization, rules for ``others`` to all but those.
    ``skip`` is the name under ``linter: skip:`` in conda-forge.yml that turns the rule off.
    """

    id: str
    check: Callable[[LintedFeedstock], Iterable[Problem]]
    cure: str
    _: KW_ONLY
    severity: Severity
    fixable: bool = False
    conda_forge: bool = False
    others: bool = False
    skip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintMessage:
    """A message of the linter."""

    id: str
    severity: Severity
    text: str
    at: Place
    cure: str
    fixable: bool


# Called with the id, the check and the cure; a violated lint fails the command, a hint is only reported.
lint_rule = partial(Rule, severity=Severity.LINT)
hint_rule = partial(Rule, severity=Severity.HINT)
