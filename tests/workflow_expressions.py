"""GitHub's expressions, as far as the workflows that kiln writes use them; anything else is an error.

Source: "Evaluate expressions in workflows and actions" of GitHub's documentation.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

STATUS = ("always", "success", "failure", "cancelled")
_TOKEN = re.compile(r"\s*(?:('(?:[^']|'')*')|(\d+)|([A-Za-z_][\w-]*)|(&&|\|\||==|!=|>|[!().,*]))")
_EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contexts:
    """The names in expressions: GitHub's contexts, the status so far by function, and the checkout."""

    values: Mapping[str, Any]
    status: Mapping[str, bool] = field(default_factory=dict)
    workspace: Path | None = None


def value_of(text: Any, contexts: Contexts) -> Any:
    """Return a value of a workflow, with its expressions replaced: typed, if it is nothing but one expression."""
    if not isinstance(text, str):
        return text
    if (whole := _EXPRESSION.fullmatch(text.strip())) and whole[1].count("${{") == 0:
        return evaluated(whole[1], contexts)
    return _EXPRESSION.sub(lambda match: as_text(evaluated(match[1], contexts)), text)


def holds(condition: Any, contexts: Contexts) -> bool:
    """Return whether the condition of a job or a step holds; ``success()`` is part of one without a status function."""
    if condition is None:
        return contexts.status["success"]
    text = str(condition).strip()
    text = whole[1] if (whole := _EXPRESSION.fullmatch(text)) else text
    has_status = any(re.search(rf"\b{name}\s*\(", text) for name in STATUS)
    return (has_status or contexts.status["success"]) and bool(evaluated(text, contexts))


def evaluated(text: str, contexts: Contexts) -> Any:
    """Return the value of an expression."""
    parser = _Parser(_tokens(text), contexts)
    value = parser.alternatives()
    assert not parser.tokens, f"{parser.tokens} is left of {text}"
    return value


def as_text(value: Any) -> str:
    """Return a value as it is in a text."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    assert isinstance(value, (str, int)), value
    return str(value)


def hash_files(workspace: Path, *patterns: str) -> str:
    """Return the hash of the files that match; empty without any."""
    paths = sorted({path for pattern in patterns for path in workspace.glob(pattern) if path.is_file()})
    parts = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in paths)
    return hashlib.sha256(parts).hexdigest() if paths else ""


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        assert match, f"no expression of GitHub at {text[position:]!r}"
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str], contexts: Contexts) -> None:
        self.tokens, self.contexts = tokens, contexts

    def take(self, *expected: str) -> str:
        if self.tokens and self.tokens[0] in expected:
            return self.tokens.pop(0)
        return ""

    def alternatives(self) -> Any:
        value = self.conditions()
        while self.take("||"):
            other = self.conditions()
            value = value or other
        return value

    def conditions(self) -> Any:
        value = self.comparison()
        while self.take("&&"):
            other = self.comparison()
            value = value and other
        return value

    def comparison(self) -> Any:
        value = self.operand()
        if operator := self.take("==", "!=", ">"):
            other = self.operand()
            assert type(value) is type(other), f"{value!r} {operator} {other!r} compares different types"
            return value > other if operator == ">" else (value == other) is (operator == "==")
        return value

    def operand(self) -> Any:
        if self.take("!"):
            return not self.operand()
        if self.take("("):
            value = self.alternatives()
            assert self.take(")")
            return value
        token = self.tokens.pop(0)
        if token.startswith("'"):
            return token[1:-1].replace("''", "'")
        if token.isdigit():
            return int(token)
        return self.call(token) if self.take("(") else self.named(token)

    def call(self, name: str) -> Any:
        arguments = []
        while not self.take(")"):
            arguments.append(self.alternatives())
            self.take(",")
        if name in STATUS:
            assert not arguments
            return self.contexts.status[name]
        functions: dict[str, Callable[..., Any]] = {
            "contains": lambda where, what: what in where,
            "fromJSON": json.loads,
            "hashFiles": self.hashes,
        }
        return functions[name](*arguments)

    def hashes(self, *patterns: str) -> str:
        assert self.contexts.workspace is not None, "hashFiles is for steps alone"
        return hash_files(self.contexts.workspace, *patterns)

    def named(self, name: str) -> Any:
        value = self.contexts.values[name]
        while self.take("."):
            key = self.tokens.pop(0)
            if key == "*":
                assert self.take(".")
                field_name = self.tokens.pop(0)
                return [each[field_name] for each in value.values()]
            value = None if value is None else value[key]
        return value
