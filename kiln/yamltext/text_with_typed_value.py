"""Values of variant files that are whole numbers or truth values: text to whoever compares them, and typed for recipes.

conda_build_config.yaml knows text alone. In variants.yaml, and in the files of .ci_support for recipe.yaml, an unquoted
13 is a number and an unquoted true a truth value, which shows in expressions, in hashes, and in how they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.yamltext.strict_reader import PlacedText


class TypedText(str):
    """The text of a number or a truth value, as Python prints it, together with the value; numbers sort as such."""

    __slots__ = ("typed",)

    typed: bool | int

    def __new__(cls, typed: bool | int) -> TypedText:
        """Make the text of a value."""
        result = super().__new__(cls, typed)
        result.typed = typed
        return result

    def __lt__(self, other: str) -> bool:
        return self.typed < other.typed if isinstance(other, TypedText) else super().__lt__(other)

    def __reduce__(self) -> tuple[type[TypedText], tuple[bool | int]]:
        return TypedText, (self.typed,)


def as_text(value: Any) -> str:
    """Return a value as text; typed text stays typed."""
    return value if isinstance(value, str) else str(value)


def typed_variant_value(value: Any) -> Any:
    """Return the value that a text of a variant stands for in recipe.yaml."""
    return value.typed if isinstance(value, TypedText) else value


def variant_value_with_booleans(value: Any) -> Any:
    """Return the same, with the words true and false as truth values: conda-smithy hands them over as such."""
    return _TRUTH.get(value, value) if type(value) is str else typed_variant_value(value)


def scalar_value(source: PlacedText) -> Any:
    """Return the value that YAML 1.2 gives a scalar of recipe.yaml; a version such as 1.10 stays text."""
    if not source.plain:
        return str(source)
    if source in SPELLINGS_OF_TRUTH:
        return SPELLINGS_OF_TRUTH[str(source)]
    if source in NULLS:
        return None
    return int(source) if is_integer(source) else str(source)


def is_integer(word: str) -> bool:
    """Return whether a text is a decimal integer that fits into 64 bits."""
    digits = word[1:] if word[:1] in {"-", "+"} else word
    return digits.isascii() and digits.isdigit() and len(digits) < 19


_TRUTH = {"true": True, "false": False}
SPELLINGS_OF_TRUTH = {spelling: word == "true" for word in _TRUTH for spelling in (word, word.title(), word.upper())}
NULLS = frozenset({"", "~", "null", "Null", "NULL"})
