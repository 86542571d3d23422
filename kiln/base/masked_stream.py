"""Secrets found in files, and masked in output line by line, across chunks and over several lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base import secret_forms
from kiln.base.masking import Mask, is_public_variable, is_secret_variable
from kiln.base.patterns import lazy_pattern
from kiln.base.secret_forms import MASKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


CHUNK = 1 << 22  # bytes
# Values that are not secrets: paths, versions, words and names made of words.
_ORDINARY = re.compile(r"~?(?:/[\w.+@-]*)+|[\d.]+|[A-Za-z]+(?:[-_.:, ][A-Za-z]*\d{0,3})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSearch:
    """A search for values, each under the name that is reported."""

    masks: Mapping[str, Mask]

    @classmethod
    def for_secrets(cls, secrets: Mapping[str, str]) -> SecretSearch:
        """Return the search for values that are too long to occur by chance.

        Bytes are searched as Latin-1 text, so other alphabets are searched by their bytes.
        """
        long = {name: value for name, value in secrets.items() if len(value.strip()) >= secret_forms.ANYWHERE}
        octets = {name: value.encode("utf-8", "surrogatepass") for name, value in long.items()}
        return cls(masks={name: Mask((value, octets[name].decode("latin-1"))) for name, value in long.items()})

    def names_of_secrets_in(self, chunks: Iterator[bytes]) -> tuple[str, ...]:
        """Return the names of the values in a file, which is read in chunks."""
        names: dict[str, None] = {}
        overlap = max((mask.max_form_length for mask in self.masks.values()), default=0)
        rest = ""
        for chunk in chunks:
            text = rest + chunk.decode("latin-1")
            names |= dict.fromkeys(name for name, mask in self.masks.items() if mask.contains_secret(text))
            rest = text[-overlap:]
        return tuple(names)


def secret_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the script variables that no package may contain: by their names, or because they look like secrets.

    A path, a version or a word under another name is in packages for good reasons.
    """
    return {
        name: value
        for name, value in variables.items()
        if is_secret_variable(name) or not (is_public_variable(name) or _ORDINARY.fullmatch(value))
    }


LONGEST_LINE = 1 << 16  # characters; the beginning of a longer line is passed on
BETWEEN = 16  # other lines between two lines of a secret
FEW = 8  # lines to search one by one
_ENCODED_START = lazy_pattern(r"\s*([A-Za-z0-9+/_-]+=*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartialMatch:
    """A secret whose first lines may be buffered lines: ``secret`` is its number, ``places`` are the lines'."""

    secret: int
    places: tuple[int, ...]


class MaskedLineStream:
    """A stream of lines to mask; lines are buffered only while they may be the beginning of a secret.

    A line that begins with ``own`` is a message between two of kiln's processes, whose texts were masked before it was
    written: it is not changed.
    """

    def __init__(self, mask: Mask, *, own: str = "") -> None:
        self._mask = mask
        self._own = own
        self._rest = ""
        self._buffer: list[str] = []
        self._matches: list[_PartialMatch] = []
        # Secrets with lines that are too short to be masked alone, but long enough to reveal something.
        self._multiline = tuple(
            _MultilineSecret.of_secret(secret)
            for secret in mask.secrets
            if len(lines := _secret_lines(secret)) > 1
            and any(secret_forms.SHORTEST // 2 < len(line.strip()) < secret_forms.ANYWHERE for line in lines)
        )
        self._open = False  # True when the line before ended in a part of an encoded secret

    def feed(self, text: str) -> list[str]:
        """Add text, and return the masked lines that are complete."""
        whole, newline, self._rest = (self._rest + text).rpartition("\n")
        lines = whole.split("\n") if newline else []
        if len(self._rest) > max(LONGEST_LINE, 2 * self._mask.max_form_length):
            lines.append(self._pop_beginning_of_endless_line())
        return self._masked_complete_lines([line.rstrip("\r") for line in lines])

    def finish(self) -> list[str]:
        """Return the remaining lines, masked."""
        rest, self._rest = self._rest, ""
        lines = self._feed_line(rest.rstrip("\r")) if rest else []
        return [*lines, *self._release_masked_lines(len(self._buffer))]

    def _masked_complete_lines(self, lines: list[str]) -> list[str]:
        """Return the lines that are complete; many lines are divided in halves until one has to be searched."""
        if not self._buffer and not self._open:
            text = "\n".join(lines)
            if not (self._mask.may_contain_secret(text) or any(each.may_begin_in(text) for each in self._multiline)):
                return lines
        if len(lines) <= FEW:
            return [masked for line in lines for masked in self._feed_line(line)]
        middle = len(lines) // 2
        return [*self._masked_complete_lines(lines[:middle]), *self._masked_complete_lines(lines[middle:])]

    def _pop_beginning_of_endless_line(self) -> str:
        """Remove and return the beginning of an endless line, so that no secret is divided."""
        at = len(self._rest) - self._mask.max_form_length
        for start, end in self._mask.secret_spans(self._rest):
            if start < at < end:
                at = start
        beginning, self._rest = self._rest[:at], self._rest[at:]
        return beginning

    def _feed_line(self, line: str) -> list[str]:
        if self._own and line.startswith(self._own):
            return [*self._release_masked_lines(len(self._buffer)), line]
        self._buffer.append(line)
        number = len(self._buffer) - 1
        matches = [longer for match in self._matches if (longer := self._continue_match(match, line))]
        for index, secret in enumerate(self._multiline):
            if secret.may_begin_in(line):
                matches.append(_PartialMatch(secret=index, places=(number,)))
        self._matches = matches
        return self._release_masked_lines(min((match.places[0] for match in matches), default=len(self._buffer)))

    def _continue_match(self, match: _PartialMatch, line: str) -> _PartialMatch | None:
        """Return a match after one more line; None when it is complete, and masked, or fails.

        Other lines may be between two lines of a secret: blank ones, as in YAML, or those that a script traced.
        """
        secret, now = self._multiline[match.secret], len(self._buffer) - 1
        last = len(secret.lines) - 1
        found = secret.expressions[len(match.places)].match(line)
        if len(match.places) == last and found and found.end():
            self._mask_multiline_secret((*match.places, now), secret, found.end())
            return None
        if len(match.places) < last and found:
            return _PartialMatch(secret=match.secret, places=(*match.places, now))
        return match if now - match.places[-1] <= BETWEEN else None

    def _mask_multiline_secret(self, places: tuple[int, ...], secret: _MultilineSecret, end: int) -> None:
        """Mask a secret in the buffered lines, in the last one up to the character ``end``."""
        lines, (first, *between, last) = self._buffer, places
        start = secret.first_line_position(lines[first])
        lines[first] = f"{lines[first][:start]}{MASKED}" if start >= 0 else lines[first]
        for place in between:
            lines[place] = MASKED
        lines[last] = f"{MASKED}{lines[last][end:]}"

    def _release_masked_lines(self, count: int) -> list[str]:
        lines = []
        for line in self._buffer[:count]:
            lines.append(self._mask.mask_text(self._mask_continued_secret(line)))
            self._open = self._mask.ends_in_encoded_secret(line)
        self._buffer = self._buffer[count:]
        self._matches = [
            _PartialMatch(secret=match.secret, places=tuple(place - count for place in match.places))
            for match in self._matches
            if match.places[0] >= count
        ]
        return lines

    def _mask_continued_secret(self, line: str) -> str:
        """Return a line without the short end of an encoded secret that began in the line before."""
        match = _ENCODED_START.match(line) if self._open else None
        if (
            match is None
            or len(match[1]) >= secret_forms.HEX_WINDOW
            or not self._mask.is_part_of_encoded_secret(match[1].rstrip("="))
        ):
            return line
        return f"{line[: match.start(1)]}{MASKED}{line[match.end(1) :]}"


def _secret_lines(secret: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\r\n?", "\n", secret).split("\n"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _MultilineSecret:
    """A secret of several lines: one expression for each; ``trigger`` is in every form of the first line."""

    trigger: str
    lines: tuple[str, ...]
    expressions: tuple[re.Pattern[str], ...]

    @classmethod
    def of_secret(cls, secret: str) -> _MultilineSecret:
        """Return the lines of a secret; the margin of those after the first is not part of it."""
        lines = _secret_lines(secret)
        patterns = [f"(?:{secret_forms.escaped_pattern(line)})" for line in lines]
        margin = r"[ \t]{0,64}(?:[|>+#] ?)?\\{0,31}"
        first, *between, last = patterns
        expressions = (rf"{first}\r?$", *(f"{margin}{pattern}[ \\t]*$" for pattern in between), f"{margin}{last}")
        return cls(
            trigger=secret_forms.unescaped_part(lines[0]),
            lines=lines,
            expressions=tuple(re.compile(expression, re.MULTILINE) for expression in expressions),
        )

    def first_line_position(self, line: str) -> int:
        """Return the position of the secret's first line at the end of a line, -1 where it is not."""
        match = self.expressions[0].search(line)
        return -1 if match is None else match.start()

    def may_begin_in(self, text: str) -> bool:
        """Return whether any line of a text ends with the secret's first."""
        return self.trigger in text and self.first_line_position(text) >= 0
