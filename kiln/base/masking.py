"""The masking of secrets in whatever kiln writes: one mask for the process.

Code that receives a secret calls `register_secrets`; the output of every process that `kiln.base.process` starts, every
`kiln.base.errors.KilnError` and the output of the command line then go through the mask. A mask hides a secret in every
form of `kiln.base.secret_forms`, and the credentials of any URL.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from kiln.base import secret_forms
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.base.secret_forms import EscapedForms


_TO_SPACES = bytes(
    code if chr(code).isascii() and (chr(code).isalnum() or code in b"+/_-") else 32 for code in range(256)
)
_RUN = lazy_pattern(r"[A-Za-z0-9+/_-]+")
_PADDED = 4  # characters next to a part of base64 that hold bits of it, or pad it
_WORTH = 2 * secret_forms.WINDOW - 1  # a run this long has a whole window at a multiple of its length


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
        return secret_forms.mask_spans(text, [*self.secret_spans(text), *secret_forms.credential_spans(text)])

    def mask_secrets_only(self, text: str) -> str:
        """Return a text with secrets masked, but not the credentials of its URLs."""
        return secret_forms.mask_spans(text, self.secret_spans(text))

    def may_contain_secret(self, text: str) -> bool:
        """Return whether a text may contain something to mask; False is certain."""
        return secret_forms.has_credentials(text) or self.contains_secret(text)

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
            at = text.find(literal)
            while at >= 0:
                spans.append((at, at + len(literal)))
                at = text.find(literal, at + 1)
        return [*spans, *self._spans_of_encoded_windows(text)] if self.secrets else spans

    def _has_encoded_window(self, text: str) -> bool:
        """Return whether a long run of letters and digits has a window of an encoded secret."""
        base64, hexadecimal = self._encoded_windows
        size, wide = secret_forms.WINDOW, secret_forms.HEX_WINDOW
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
            for at in range(len(word) - secret_forms.WINDOW + 1):
                if word[at : at + secret_forms.WINDOW] in base64:
                    first, end = start + at, min(run.end(), start + at + secret_forms.WINDOW + _PADDED)
                    while text[end : end + 1] == "=":
                        end += 1
                    yield max(start, first - _PADDED), end
                if word[at : at + secret_forms.HEX_WINDOW].lower() in hexadecimal:
                    yield start + at, start + at + secret_forms.HEX_WINDOW

    def ends_in_encoded_secret(self, line: str) -> bool:
        """Return whether a line ends in the middle of an encoded secret."""
        base64, hexadecimal = self._encoded_windows
        return line[-secret_forms.WINDOW :] in base64 or line[-secret_forms.HEX_WINDOW :].lower() in hexadecimal

    def is_part_of_encoded_secret(self, text: str) -> bool:
        """Return whether a text is part of the encoded form of a secret."""
        return any(text in encoded or text.lower() in encoded for encoded in self._encoded_secrets)

    @functools.cached_property
    def _encoded_secrets(self) -> tuple[str, ...]:
        spellings = [octets for secret in self.secrets for octets in secret_forms.line_break_variants(secret)]
        return tuple(
            text for octets in spellings for text in (*secret_forms.base64_at_all_offsets(octets), octets.hex())
        )

    @functools.cached_property
    def _escaped_forms(self) -> tuple[EscapedForms, ...]:
        parts = (part for secret in self.secrets for part in (secret, secret.strip(), *maskable_lines(secret)))
        return tuple(map(secret_forms.EscapedForms, dict.fromkeys(parts)))

    @functools.cached_property
    def _complete_encoded_forms(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(text for secret in self.secrets for text in secret_forms.complete_encoded_forms(secret))
        )

    @functools.cached_property
    def _encoded_windows(self) -> tuple[frozenset[str], frozenset[str]]:
        windows = {window for secret in self.secrets for window in secret_forms.windows_of_encoded_forms(secret)}
        base64 = frozenset(window for window in windows if len(window) == secret_forms.WINDOW)
        return base64, frozenset(window for window in windows if len(window) == secret_forms.HEX_WINDOW)

    @functools.cached_property
    def max_form_length(self) -> int:
        """The number of characters of a secret's longest form."""
        return 24 * max(map(len, self.secrets), default=0) + 4096


def is_maskable(secret: str) -> bool:
    """Return whether a value is long enough to be masked."""
    return len(secret.strip()) >= secret_forms.SHORTEST


def maskable_lines(secret: str) -> tuple[str, ...]:
    """Return the lines of a secret of several lines that are long enough to be masked on their own."""
    lines = secret.splitlines()
    return tuple(line.strip() for line in lines if len(line.strip()) >= secret_forms.ANYWHERE) if len(lines) > 1 else ()


_NAME = lazy_pattern(
    r"TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL|(?:^|_)PASS$|(?:^|_)PWD$",
    re.IGNORECASE,
)
_PARTS = ("token", "key", "secret", "pass", "cred", "pwd")  # each name that _NAME matches contains one of these
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_PLACE = lazy_pattern(r"_(?:FILE|PATH|DIR|URL|URI|HOST|NAME|TYPE|ENDPOINT|EXPIRATION)S?$|^(?:OLD)?PWD$", re.IGNORECASE)


# Variables that recipes pass to their scripts, and others that are never secret.
_PUBLIC = lazy_pattern(
    r"PATH|HOME|USER|LANG|LC_\w+|TERM|TMPDIR|SHELL|PWD|CI|CONFIG|CPU_COUNT|FEEDSTOCK_NAME|UPLOAD_PACKAGES|IS_PR_BUILD"
    r"|HOST_USER_ID|BUILD_WITH_CONDA_DEBUG|BUILD_OUTPUT_ID|GIT_BRANCH|UPLOAD_ON_BRANCH|flow_run_id|sha|GITHUB_ACTIONS"
    r"|SOURCE_DATE_EPOCH|SSL_CERT_(?:FILE|DIR)|REQUESTS_CA_BUNDLE|NO_PROXY|no_proxy|PYENV_ROOT|XDG_\w+"
)


def is_public_variable(name: str) -> bool:
    """Return whether a variable is one of the system's, or of conda-forge's, that are not secret."""
    return _PUBLIC.fullmatch(name) is not None


def is_secret_variable(name: str) -> bool:
    """Return whether a variable is secret by its name: ``*TOKEN*``, ``*PASSWORD*``, but not ``*_FILE``."""
    if name in _FOLDERS or (name.isascii() and not any(part in name.lower() for part in _PARTS)):
        return False  # almost all variables, for which no expression is compiled
    return _NAME.search(name) is not None and _PLACE.search(name) is None


def secrets_of_script_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets among the variables that a recipe requests: all but the public ones."""
    values = [value for name, value in environment.items() if not is_public_variable(name)]
    return (*values, *secrets_of_environment(environment))


_SWITCH = lazy_pattern(r"\d*|y|n|yes|no|on|off|all", re.IGNORECASE)


def unmaskable_variable_names(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of script variables that may be secret, and are too short to be masked."""
    return tuple(
        name
        for name, value in variables.items()
        if value
        and not is_maskable(value)
        and not is_public_variable(name)
        and (is_secret_variable(name) or not _SWITCH.fullmatch(value))
    )


def secrets_of_environment(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of an environment: the values of secret variables, and the credentials in any URL."""
    secrets = [value for name, value in environment.items() if is_secret_variable(name)]
    secrets += [secret for value in environment.values() for secret in secret_forms.secrets_in_urls(value)]
    return tuple(dict.fromkeys(secrets))


class _ProcessMask:
    """The mask of this process."""

    mask = Mask()


def register_secrets(secrets: Iterable[str]) -> None:
    """Mask secrets from now on in everything that this process writes."""
    _ProcessMask.mask = _ProcessMask.mask.with_more_secrets(secrets)


def current_mask() -> Mask:
    """Return the mask of this process."""
    return _ProcessMask.mask


def masked(text: str) -> str:
    """Return a text with this process's secrets masked."""
    return _ProcessMask.mask.mask_text(text)
