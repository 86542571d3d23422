"""The mask of secrets in texts: it covers every part of a secret in any form, searched in the original text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern
from kiln.masking import forms, urls

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.masking.forms import EscapedForms

_TO_SPACES = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or code in b"+/_-") else 32 for code in range(256)
)
_RUN = lazy_pattern(r"[A-Za-z0-9+/_-]+")
_PADDED = 4  # characters next to a part of base64 that hold bits of it, or pad it
_WORTH = 2 * forms.WINDOW - 1  # a run this long has a whole window at a multiple of its length


class Mask:
    """A mask of a set of secrets, compiled once and used for any number of texts."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        stripped = (secret.strip("\r\n") for secret in secrets)
        self.secrets = tuple(dict.fromkeys(secret for secret in stripped if is_maskable(secret)))

    def with_more_secrets(self, secrets: Iterable[str]) -> Mask:
        """Return a mask of further secrets, too; itself when it has them all."""
        more = Mask((*self.secrets, *secrets))
        return self if more.secrets == self.secrets else more

    def mask_text(self, text: str) -> str:
        """Return a text with secrets and the credentials of URLs masked."""
        return urls.mask_spans(text, [*self.secret_spans(text), *urls.credential_spans(text)])

    def mask_secrets_only(self, text: str) -> str:
        """Return a text with secrets masked, but not the credentials of its URLs."""
        return urls.mask_spans(text, self.secret_spans(text))

    def may_contain_secret(self, text: str) -> bool:
        """Return whether a text may contain something to mask; False is certain."""
        return urls.has_credentials(text) or self.contains_secret(text)

    def contains_secret(self, text: str) -> bool:
        """Return whether there is a secret in a text."""
        if any(literal in text for literal in self._complete_encoded_forms):
            return True
        if any(form.trigger in text and form.pattern.search(text) for form in self._escaped_forms):
            return True
        return bool(self.secrets) and self._has_encoded_window(text)

    def secret_spans(self, text: str) -> list[tuple[int, int]]:
        """Return the spans of secrets, or parts of their encoded forms, in a text."""
        spans: list[tuple[int, int]] = []
        for form in self._escaped_forms:
            if form.trigger in text:
                spans += [match.span() for match in form.pattern.finditer(text)]
        for literal in self._complete_encoded_forms:
            spans += _spans_of_literal(literal, text)
        return [*spans, *self._spans_of_encoded_windows(text)] if self.secrets else spans

    def _has_encoded_window(self, text: str) -> bool:
        """Return whether a long run of letters and digits has a window of an encoded secret."""
        base64, hexadecimal = self._encoded_windows
        size, wide = forms.WINDOW, forms.HEX_WINDOW
        for run in text.encode("latin-1", "replace").translate(_TO_SPACES).decode("latin-1").split():
            if len(run) < _WORTH:
                continue
            for at in range(0, len(run), size):
                if run[at : at + size] in base64:
                    return True
            for at in range(0, len(run) - wide + 1, wide):
                if run[at : at + wide].lower() in hexadecimal:
                    return True
        return False

    def _spans_of_encoded_windows(self, text: str) -> Iterator[tuple[int, int]]:
        base64, hexadecimal = self._encoded_windows
        for run in _RUN.finditer(text):
            start, word = run.span()[0], run[0]
            for at in range(len(word) - forms.WINDOW + 1):
                if word[at : at + forms.WINDOW] in base64:
                    first, last = start + at, start + at + forms.WINDOW
                    yield max(start, first - _PADDED), _end_of_padding(text, min(run.end(), last + _PADDED))
                if word[at : at + forms.HEX_WINDOW].lower() in hexadecimal:
                    yield start + at, start + at + forms.HEX_WINDOW

    def ends_in_encoded_secret(self, line: str) -> bool:
        """Return whether a line ends in the middle of an encoded secret."""
        base64, hexadecimal = self._encoded_windows
        return line[-forms.WINDOW :] in base64 or line[-forms.HEX_WINDOW :].lower() in hexadecimal

    def is_part_of_encoded_secret(self, text: str) -> bool:
        """Return whether a text is part of the encoded form of a secret."""
        return any(text in encoded or text.lower() in encoded for encoded in self._encoded_secrets)

    @functools.cached_property
    def _encoded_secrets(self) -> tuple[str, ...]:
        spellings = [octets for secret in self.secrets for octets in forms.line_break_variants(secret)]
        return tuple(text for octets in spellings for text in (*forms.base64_at_all_offsets(octets), octets.hex()))

    @functools.cached_property
    def _escaped_forms(self) -> tuple[EscapedForms, ...]:
        parts = (part for secret in self.secrets for part in (secret, secret.strip(), *maskable_lines(secret)))
        return tuple(map(forms.EscapedForms, dict.fromkeys(parts)))

    @functools.cached_property
    def _complete_encoded_forms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for secret in self.secrets for text in forms.complete_encoded_forms(secret)))

    @functools.cached_property
    def _encoded_windows(self) -> tuple[frozenset[str], frozenset[str]]:
        windows = {window for secret in self.secrets for window in forms.windows_of_encoded_forms(secret)}
        base64 = frozenset(window for window in windows if len(window) == forms.WINDOW)
        return base64, frozenset(window for window in windows if len(window) == forms.HEX_WINDOW)

    @functools.cached_property
    def max_form_length(self) -> int:
        """The number of characters of a secret's longest form."""
        return 24 * max(map(len, self.secrets), default=0) + 4096


def is_maskable(secret: str) -> bool:
    """Return whether a value is long enough to be masked."""
    return len(secret.strip()) >= forms.SHORTEST


def maskable_lines(secret: str) -> tuple[str, ...]:
    """Return the lines of a secret of several lines that are long enough to be masked on their own."""
    lines = secret.splitlines()
    return tuple(line.strip() for line in lines if len(line.strip()) >= forms.ANYWHERE) if len(lines) > 1 else ()


def _end_of_padding(text: str, at: int) -> int:
    while text[at : at + 1] == "=":
        at += 1
    return at


def _spans_of_literal(literal: str, text: str) -> Iterator[tuple[int, int]]:
    at = text.find(literal)
    while at >= 0:
        yield at, at + len(literal)
        at = text.find(literal, at + 1)
