"""The values that a recipe's text writes out, by their positions, and the recipe as one config sees it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.yaml import PlacedText, ScalarInterpretation, parse_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.base.errors import KilnError


HASHES = {"md5": 32, "sha1": 40, "sha224": 56, "sha256": 64, "sha384": 96, "sha512": 128}  # hexadecimal digits

_COMMENT_LINE = re.compile(r"^[ \t]*#[^\n]*", re.MULTILINE)
_TEMPLATE_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)
_SET = lazy_pattern(r"\{%[-+]?\s*set\s+(?P<key>\w+(?:\s*,\s*\w+)*)\s*=(?P<value>.*?)[-+]?%\}", re.DOTALL)
_CONSTANT = lazy_pattern(
    r"\"(?P<double>[^\"\\\n]*)\"|'(?P<single>[^'\\\n]*)'|(?<![\w.])(?P<number>\d+(?:\.\d+)?)(?![\w.])"
)
_PAIR = lazy_pattern(
    r"(?<![\w.-])(?P<key>version|number|git_rev|git_tag|" + "|".join(HASHES) + r")['\"]?[ \t]*:[ \t]+"
    r"(?:\"(?P<double>[^\"\\\n{]*)\"|'(?P<single>[^'\n{]*)'|(?P<plain>[^\s'\"{}#,\[\]&*!|>%@`][^\s{}#,\[\]]*))"
)
_URL_LINE = lazy_pattern(r"^.*(?:://|git_rev|git_tag).*$", re.MULTILINE)
_URL = lazy_pattern(r"[a-z][a-z+]*://(?:\{\{.*?\}\}|[^\s'\"{}\\])+")
_BREAK = lazy_pattern(r"\r\n|[\n\r\x85\u2028\u2029]")  # a line break of YAML 1.1
_V1_KEYS = frozenset({"version", "number", "url", "git", "rev", "tag", "expected_commit", "md5", "sha256"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Literal:
    """A value in a recipe's text, from ``start`` to ``end`` without the ``quote`` around it.

    ``key`` is the YAML key or the variable that it is a value of; it is the whole value if ``alone``. ``jinja`` marks a
    value of ``set``.
    """

    start: int
    end: int
    text: str
    key: str
    quote: str = ""
    alone: bool = True
    jinja: bool = False

    def quoted_if_needed(self, value: str) -> str:
        """Return a new value as it is written here: in quotes where it would be a number otherwise."""
        if self.quote or not self.alone:
            return value
        if self.jinja:
            return value if re.fullmatch(r"0|[1-9][0-9]*", value) else f'"{value}"'
        return f'"{value}"' if value.isdigit() and not self.text.isdigit() else value


def replace_literals(text: str, values: Mapping[Literal, str]) -> str:
    """Return a text with other values in place of some literals, and not a byte else."""
    parts, at = [], 0
    for literal in sorted(values, key=lambda literal: literal.start):
        parts += [text[at : literal.start], literal.quoted_if_needed(values[literal])]
        at = literal.end
    return "".join([*parts, text[at:]])


def place_of_offset(file: str, text: str, offset: int) -> Place:
    """Return the place of an offset in a text."""
    line = text.count("\n", 0, offset) + 1
    return Place(file=file, line=line, column=offset - text.rfind("\n", 0, offset))


def without_comments(text: str) -> str:
    """Return a meta.yaml of the same length with blanks in place of lines and templates that are comments."""
    for pattern in (_COMMENT_LINE, _TEMPLATE_COMMENT):
        text = pattern.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)
    return text


def meta_yaml_literals(text: str) -> tuple[Literal, ...]:
    """Return the constants of a meta.yaml's ``set`` lines, and its literal versions, numbers, revisions and hashes."""
    clear = without_comments(text)
    constants = {literal.start: literal for literal in _jinja_set_literals(clear)}
    return (*constants.values(), *(literal for literal in _key_value_literals(clear) if literal.start not in constants))


def names_read_by_their_own_statements(text: str) -> set[str]:
    """Return the names that a meta.yaml sets to a value made of them, as of a variant key with a default."""
    statements = _SET.finditer(without_comments(text))
    pairs = ((set(re.findall(r"\w+", match[key])) for key in ("key", "value")) for match in statements)
    return set().union(*(names & words for names, words in pairs))


def _jinja_set_literals(clear: str) -> Iterator[Literal]:
    for statement in _SET.finditer(clear):
        value = statement["value"]
        for constant in _CONSTANT.finditer(value):
            start, end, quote = _constant_span_and_quote(constant, statement.start("value"))
            yield Literal(
                start=start,
                end=end,
                text=clear[start:end],
                key=statement["key"],
                quote=quote,
                alone=constant[0] == value.strip(),
                jinja=True,
            )


def _key_value_literals(clear: str) -> Iterator[Literal]:
    for pair in _PAIR.finditer(clear):
        start, end, quote = _constant_span_and_quote(pair, 0)
        yield Literal(start=start, end=end, text=clear[start:end], key=pair["key"], quote=quote)


def _constant_span_and_quote(match: re.Match[str], offset: int) -> tuple[int, int, str]:
    name = match.lastgroup or ""
    return offset + match.start(name), offset + match.end(name), {"double": '"', "single": "'"}.get(name, "")


def meta_yaml_version_literals_in_urls(text: str, version: str) -> tuple[Literal, ...]:
    """Return where the lines of URLs and revisions in a meta.yaml write a version out."""
    clear = without_comments(text)
    spans = [line.span() for line in _URL_LINE.finditer(clear)]
    return tuple(literal for span in spans for literal in _version_literals_in_span(clear, version, *span))


def url_literals(text: str) -> tuple[Literal, ...]:
    """Return the addresses in a recipe of either format, each with its templates as one literal."""
    return tuple(
        Literal(start=match.start(), end=match.end(), text=match[0], key="url", alone=False)
        for match in _URL.finditer(without_comments(text))
    )


def _version_literals_in_span(text: str, version: str, start: int, end: int) -> Iterator[Literal]:
    pattern = re.compile(rf"(?<![0-9])(?<![0-9]\.){re.escape(version)}(?![0-9]|\.[0-9])")
    for match in pattern.finditer(text, start, end):
        yield Literal(start=match.start(), end=match.end(), text=version, key="url", quote="", alone=False)


def recipe_yaml_literals(text: str, file: str) -> tuple[Literal, ...]:
    """Return the literal values of a recipe.yaml's context, and its literal versions, numbers, revisions and hashes."""
    return tuple(
        literal
        for literal in _scalar_literals(text, file)
        if literal.key != "url" and "${{" not in literal.text and literal.text.split() == [literal.text]
    )


def recipe_yaml_version_literals_in_urls(text: str, file: str, version: str) -> tuple[Literal, ...]:
    """Return where the URLs and revisions in a recipe.yaml write a version out."""
    return tuple(
        part
        for literal in _scalar_literals(text, file)
        if literal.key in {"url", "git", "rev", "tag"}
        for part in _version_literals_in_span(text, version, literal.start, literal.end)
    )


def _scalar_literals(text: str, file: str) -> Iterator[Literal]:
    root = parse_document(text, file, ScalarInterpretation.PLACED).value
    starts = [0, *(match.end() for match in _BREAK.finditer(text))]
    for key, scalar in _editable_scalars(root, ""):
        literal = _literal_of_scalar(text, starts, str(key), scalar)
        if literal is not None:
            yield literal


def _editable_scalars(node: Any, key: str) -> Iterator[tuple[str, PlacedText]]:
    """Yield the scalars that may be edited, each with its key; in a list, or in a branch of it, the list's key."""
    if isinstance(node, PlacedText):
        if key:
            yield key, node
    elif isinstance(node, list):
        for item in node:
            yield from _editable_scalars(item, key)
    elif isinstance(node, dict):
        for name, value in node.items():
            if name == "context" and isinstance(value, dict):
                yield from ((str(entry), item) for entry, item in value.items() if isinstance(item, PlacedText))
            else:
                yield from _editable_scalars(
                    value, key if name in {"then", "else"} else name if name in _V1_KEYS else ""
                )


def _literal_of_scalar(text: str, starts: list[int], key: str, scalar: PlacedText) -> Literal | None:
    """Return a scalar's literal; None where its value does not stand in the text as it is, as with escapes."""
    start = starts[scalar.line - 1] + scalar.column - 1
    quote = text[start] if not scalar.plain and text[start : start + 1] in {"'", '"'} else ""
    start += len(quote)
    end = start + len(scalar)
    if text[start:end] != scalar or (not scalar.plain and (not quote or text[end : end + 1] != quote)):
        return None
    return Literal(start=start, end=end, text=str(scalar), key=key, quote=quote)


def line_numbers_text(text: str, literals: Iterable[Literal]) -> str:
    """Return the lines of literals, for a message: ``lines 3, 7``."""
    lines = sorted({place_of_offset("", text, literal.start).line for literal in literals})
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageView:
    """A package: the recipe's top level, or an output by its position; ``number`` is None where the recipe has none."""

    name: str
    version: str
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A source: a file by its ``urls``, mirrors of each other; a repository ``git`` at a ``revision``; or a folder.

    ``hashes`` are pairs of a key and its value. ``revision`` is empty for a source without one. ``commit`` is the
    commit that the revision must be, if the recipe says so. ``other`` is a repository of another kind than git's.
    """

    urls: tuple[str, ...] = ()
    hashes: tuple[tuple[str, str], ...] = ()
    git: str = ""
    revision: str = ""
    commit: str = ""
    other: str = ""

    @property
    def identity(self) -> tuple[tuple[str, ...], str, str, str]:
        """Return what is downloaded: it changes with the version, unless the source has a version of its own."""
        return (self.urls, self.git, self.revision, self.other)

    @property
    def display_name(self) -> str:
        """The name in messages; empty for a folder."""
        return next(iter((*self.urls, self.git, self.other)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeView:
    """A recipe at one variant: the ``version`` is the one that sources follow, ``packages`` have theirs."""

    version: str
    packages: tuple[PackageView, ...]
    sources: tuple[SourceView, ...]


Views = tuple["RecipeView | None", ...]


def sources_of_views(views: Views) -> Iterator[SourceView]:
    """Yield the sources of a recipe at all variants where it is valid."""
    for view in views:
        yield from view.sources if view is not None else ()


def paired_sources(before: Views, after: Views) -> Iterator[tuple[SourceView, SourceView]]:
    """Yield the sources of a recipe before and after a change, at the variants where it has as many of them."""
    for old, new in zip(before, after, strict=True):
        if old is not None and new is not None and len(old.sources) == len(new.sources):
            yield from zip(old.sources, new.sources, strict=True)


def hash_values(source: SourceView) -> Iterator[str]:
    """Yield the hashes of a source, and the commit that its revision must be."""
    yield from (value for _, value in source.hashes)
    if source.commit:
        yield source.commit


def placeholder_hashes(literals: Iterable[Literal]) -> dict[Literal, str]:
    """Return for each literal a hash of the same length that no file has."""
    lengths = set(HASHES.values())
    return {
        literal: f"{index:x}".rjust(len(literal.text) if len(literal.text) in lengths else 64, "a")
        for index, literal in enumerate(literals)
    }


def build_numbers(views: Views) -> tuple[int, ...]:
    """Return the different build numbers of a recipe's packages, in ascending order."""
    packages = (package for view in views if view is not None for package in view.packages)
    return tuple(sorted({package.number for package in packages if package.number is not None}))


class RecipeText(Protocol):
    """The text of a recipe, and how it is read at all of its variants; ``file`` is its name in messages.

    ``fault`` is the first fault of the latest text, at a variant where it is invalid.
    """

    file: str
    text: str
    literals: tuple[Literal, ...]
    fault: KilnError | None

    def views_at_variants(self, text: str) -> Views:
        """Return what another text says at each variant, always in the same order; None where it is invalid there."""

    def version_literals_in_urls(self, version: str) -> tuple[Literal, ...]:
        """Return where the URLs and revisions of the text write a version out."""


def version_expression(file: str) -> str:
    """Return how a recipe's file writes its version in a text."""
    return "${{ version }}" if file.endswith("recipe.yaml") else "{{ version }}"


def views_with_values(recipe: RecipeText, values: Mapping[Literal, str]) -> Views:
    """Return what a recipe says at each variant with other values in place of some literals."""
    return recipe.views_at_variants(replace_literals(recipe.text, values))


def changed_value_positions(
    before: Views, after: Views, of: Callable[[RecipeView], Sequence[object]]
) -> tuple[frozenset[tuple[int, int]], bool]:
    """Return the positions of values that differ after a change, by variant, and whether any became invalid."""
    positions: set[tuple[int, int]] = set()
    invalid = False
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is None:
            continue
        if new is None or len(of(new)) != len(of(old)):
            invalid = True
            continue
        pairs = enumerate(zip(of(old), of(new), strict=True))
        positions |= {(index, position) for position, (one, other) in pairs if one != other}
    return frozenset(positions), invalid
