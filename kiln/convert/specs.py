"""Requirements of meta.yaml in recipe.yaml's strict notation: each version has an operator or an asterisk.

The ``min_pin`` and ``max_pin`` of pins become bounds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from kiln.convert.meta_yaml_tree import RecipePart, ScalarPart, UnconvertiblePart
from kiln.convert.recipe_yaml_expression_composition import ExpressionText
from kiln.render.unresolved_pins import pin_run_as_build_bounds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Pieces = tuple[str | ExpressionText, ...]

_TOKEN = re.compile("\ue000\\d+\ue001")
_EQUALS = re.compile(r"([^\s=<>!~]+)\s*=([^=\s]+)=(\S+)")
_BARE = re.compile("[0-9A-Za-z_.+\ue000\ue001-]+")
_OPERATORS = re.compile(r"[<>=!~*|,\s]")
_PIN = re.compile(r"pin_(?:subpackage|compatible)\(")
_PARTS = re.compile(r"([,|])")
EXPORTING_LANGUAGES = frozenset({"python", "r-base"})  # whose packages export their own bounds
# Where conda-build adds an asterisk to a bare version: in what it creates environments from (environ.py), and in run
# (render.finalize_metadata).
LOOSE = frozenset({"build", "host", "run", "test"})


def strict_match_spec(spec: str, section: str, plain: Callable[[str], bool] = lambda _: True) -> str:
    """Return a match spec as rattler-build takes it; ``plain`` says whether a token is a version without operators.

    A bare version matches its patches, too, where conda-build adds an asterisk to it, and elsewhere exactly.
    ``name=1.0=build`` is conda's older notation.
    """
    spec = " ".join(spec.split())
    if equals := _EQUALS.fullmatch(spec):
        version = "*" if equals[2] == "*" else f"=={equals[2]}" if "*" not in equals[2] else equals[2]
        return f"{equals[1]} {version} {equals[3]}"
    words = spec.split(" ")
    if len(words) < 2:
        return spec
    words[1] = "".join(_strict_version(part, section, plain, alone=len(words) == 2) for part in _PARTS.split(words[1]))
    return " ".join(words)


def _strict_version(part: str, section: str, plain: Callable[[str], bool], *, alone: bool) -> str:
    if not _BARE.fullmatch(part) or not all(map(plain, _TOKEN.findall(part))):
        return part
    return f"{part}.*" if section in LOOSE and alone else f"=={part}"


def pieces_with_rewritten_text(pieces: Pieces, rewrite: Callable[[str], str]) -> Pieces:
    """Return pieces after a change of their text, in which numbered tokens stand for the expressions."""
    exprs = [piece for piece in pieces if isinstance(piece, ExpressionText)]
    numbers = count()
    text = "".join(piece if isinstance(piece, str) else f"\ue000{next(numbers)}\ue001" for piece in pieces)
    parts = enumerate(re.split("\ue000(\\d+)\ue001", rewrite(text)))
    return tuple(exprs[int(words)] if index % 2 else words for index, words in parts if words)


@dataclass(frozen=True)
class SpecConverter:
    """Converts requirements; ``values`` are all values of each key of the variants, ``constants`` those of context."""

    values: Mapping[str, frozenset[str]]
    constants: Mapping[str, str]
    run_pins: Mapping[str, Mapping[str, str] | str]

    def convert(self, part: RecipePart, section: str) -> RecipePart:
        """Return a requirement in recipe.yaml's notation.

        Raises:
            UnconvertiblePart: it has no equivalent there.
        """
        if not isinstance(part, ScalarPart):
            raise UnconvertiblePart(part.number, "a requirement is text")
        if any("x.x" in piece.split() for piece in part.pieces if isinstance(piece, str)):
            raise UnconvertiblePart(part.number, "the requirement 'name x.x' has no equivalent; write the version out")
        first = part.pieces[0] if part.pieces else ""
        name = part.template_text
        if section == "run" and name in self.run_pins and name not in EXPORTING_LANGUAGES:
            lower, upper = pin_run_as_build_bounds(self.run_pins[name])
            bounds = f'lower_bound="{lower}", upper_bound="{upper}"'
            return replace(part, pieces=(ExpressionText(f'pin_compatible("{name}", {bounds})'),))
        if isinstance(first, ExpressionText) and _PIN.match(first.text):
            return self._converted_pin(part, first)
        return self._converted_text_spec(part, section)

    def _converted_pin(self, part: ScalarPart, pin: ExpressionText) -> ScalarPart:
        rest = [piece for piece in part.pieces[1:] if not isinstance(piece, str) or piece.strip()]
        if not rest:
            return replace(part, pieces=(pin,))
        stripped = tuple(piece.strip() if isinstance(piece, str) else piece for piece in rest)
        build = ScalarPart(pieces=stripped).as_expression
        if any(isinstance(piece, str) and " " in piece for piece in stripped):
            raise UnconvertiblePart(part.number, "a pin is followed by more than a build string")
        argument = build.text if build.is_constant else f"({build.text}) or none"
        return replace(part, pieces=(ExpressionText(f"{pin.text[:-1]}, build={argument})"),))

    def _converted_text_spec(self, part: ScalarPart, section: str) -> ScalarPart:
        exprs = [piece for piece in part.pieces if isinstance(piece, ExpressionText)]
        pieces = pieces_with_rewritten_text(
            part.pieces,
            lambda text: strict_match_spec(
                text, section, lambda token: self._has_bare_versions(exprs[int(token[1:-1])])
            ),
        )
        return replace(part, pieces=pieces)

    def _has_bare_versions(self, expr: ExpressionText) -> bool:
        """Return whether the values of an expression are bare versions, as far as they are known."""
        known = self.values.get(expr.text, frozenset())
        if expr.text in self.constants:
            known = frozenset({self.constants[expr.text]})
        return not any(_OPERATORS.search(value) for value in known)
