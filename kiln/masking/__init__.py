"""The masking of secrets in whatever kiln writes: one mask for the process.

Code that receives a secret calls `protect`; the output of every process that `kiln.process_runner` starts, every
`kiln.errors.KilnError` and the output of the command line then go through the mask. A mask hides a secret in every
form of `kiln.masking.forms`, and the credentials of any URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.masking.forms import literal_forms
from kiln.masking.mask import Mask, is_maskable
from kiln.masking.urls import MASKED, secrets_of, without_credentials
from kiln.masking.variables import is_public, is_secret, script_secrets, unmaskable_names
from kiln.masking.variables import secrets_of as secrets_of_variables

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MASKED",
    "Mask",
    "current",
    "is_maskable",
    "is_public",
    "is_secret",
    "literal_forms",
    "masked",
    "protect",
    "script_secrets",
    "secrets_of",
    "secrets_of_variables",
    "unmaskable_names",
    "without_credentials",
]


class _Current:
    """The mask of this process."""

    mask = Mask()


def protect(secrets: Iterable[str]) -> None:
    """Mask secrets from now on in everything that this process writes."""
    _Current.mask = _Current.mask.with_more(secrets)


def current() -> Mask:
    """Return the mask of this process."""
    return _Current.mask


def masked(text: str) -> str:
    """Return a text with this process's secrets masked."""
    return _Current.mask.mask_text(text)
