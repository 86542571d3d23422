"""What a provider's answer means: no capacity, a quota, a permission that is missing, or a moment's fault."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from kiln.base.errors import CredentialsRefused

TABLE = Path(__file__).with_name("answers.yml")
# The name of what is not allowed, the closest first: ec2:RunInstances, os_compute_api:servers:create, or the operation.
PERMISSIONS = tuple(
    map(
        re.compile,
        (
            r"not authorized to perform:? ([\w-]+:\w+)",
            r"requested action: (\w+:\w+)",
            r"Policy doesn't allow (\S+) to be",
            r"when calling the (\w+) operation",
        ),
    )
)


class AnswerKind(str, Enum):
    """What an answer means; `TRANSIENT` ones are asked for again, and `UNREACHABLE` is none at all."""

    TRANSIENT = "transient"
    UNREACHABLE = "unreachable"
    CAPACITY = "capacity"
    QUOTA = "quota"
    PERMISSION = "permission"
    CREDENTIALS = "credentials"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderAnswer:
    """A row of answers.yml: the ``codes`` of the documentation in ``source``, what they mean, and the ``cure``."""

    kind: AnswerKind
    provider: str
    cure: str
    codes: tuple[str, ...] = ()
    source: str = ""

    @property
    def refuses_credentials(self) -> bool:
        """True where nothing but other credentials, or other rights of theirs, helps."""
        return self.kind in {AnswerKind.CREDENTIALS, AnswerKind.PERMISSION}

    def matches(self, reason: str, provider: str) -> bool:
        """Return whether this row tells what a provider, '' for any, has answered."""
        if provider and self.provider not in {"", provider}:
            return False
        return not self.codes or _code_pattern(self.codes).search(reason) is not None


@functools.cache
def _code_pattern(codes: tuple[str, ...]) -> re.Pattern[str]:
    numbers = "|".join(code for code in codes if code.isdecimal())
    words = [rf"(?<!\w){re.escape(code)}(?!\w)" for code in codes if not code.isdecimal()]
    statuses = [rf"(?:HTTP(?: Error)? |Exception: |occurred \()(?:{numbers})\b"] if numbers else []
    return re.compile("|".join((*words, *statuses)), re.IGNORECASE)


@functools.cache
def provider_answers() -> tuple[ProviderAnswer, ...]:
    """Return the table, in the order in which its rows are compared."""
    from kiln.base import yaml

    rows = yaml.load(TABLE.read_text(encoding="utf-8"))
    return tuple(
        ProviderAnswer(**{**row, "kind": AnswerKind(row["kind"]), "codes": tuple(map(str, row.get("codes", ())))})
        for row in rows
    )


def classify(reason: str, provider: str = "") -> ProviderAnswer:
    """Return what an answer of a provider, of any by default, means."""
    rows = (row for row in provider_answers() if (row.codes or row.provider == provider or not row.provider))
    return next(row for row in rows if row.matches(reason, provider))


def credentials_error(reason: str, provider: str = "") -> CredentialsRefused:
    """Return the error for an answer that refuses the credentials, or says that they lack a permission, and which."""
    answer, what = classify(reason, provider), "the provider does not accept the credentials"
    if answer.kind is AnswerKind.PERMISSION:
        names = [match[1] for pattern in PERMISSIONS if (match := pattern.search(reason))]
        what = f"the credentials lack the permission {names[0]}" if names else "the credentials lack a permission"
    return CredentialsRefused(what, why=reason, hint=answer.cure)
