"""conda-build's names for a package's own name, version and build number, replaced by these."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.convert.tree import DictPart, ListPart, Part, ScalarPart
from kiln.convert.v1_expression_builder import ATOM, Expr, literal

if TYPE_CHECKING:
    from collections.abc import Mapping

_OWN = re.compile(r"\b(PKG_NAME|PKG_VERSION|build_number)\b")


def expr_of(given: ScalarPart) -> Expr:
    """Return a text as an expression; a number that is not quoted stays a number."""
    is_number = given.plain and len(given.pieces) == 1 and str(given.pieces[0]).isdigit()
    return literal(int(str(given.pieces[0]))) if is_number else given.expr


def substituted(part: Part, values: Mapping[str, Expr], key: str) -> Part:
    """Return a part with expressions in the place of names; a build string knows the build number itself."""
    if isinstance(part, DictPart):
        return replace(part, pairs=[(name, substituted(item, values, name)) for name, item in part.pairs])
    if isinstance(part, ListPart):
        return replace(part, items=[substituted(item, values, key) for item in part.items])
    if not isinstance(part, ScalarPart):
        return part

    known = {name: value for name, value in values.items() if (name, key) != ("build_number", "string")}

    def value(match: re.Match[str]) -> str:
        return known[match[1]].within(ATOM) if match[1] in known else match[1]

    def placed(piece: str | Expr) -> str | Expr:
        if isinstance(piece, str):
            return piece
        whole = known.get(piece.text)
        is_text = whole is not None and whole.is_constant
        return str(whole.constant) if whole and is_text else replace(piece, text=_OWN.sub(value, piece.text))

    return replace(part, pieces=tuple(map(placed, part.pieces)))
