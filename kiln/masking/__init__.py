"""The masking of secrets in whatever kiln writes: one mask for the process.

Code that receives a secret calls `register_secrets`; the output of every process that `kiln.process_runner` starts,
every `kiln.errors.KilnError` and the output of the command line then go through the mask. A mask hides a secret in
every form of `kiln.masking.forms`, and the credentials of any URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.masking.mask import Mask
from kiln.masking.urls import secrets_in_urls, with_masked_credentials
from kiln.masking.variables import (
    is_public_variable,
    is_secret_variable,
    secrets_of_environment,
    secrets_of_script_variables,
    unmaskable_variable_names,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "Mask",
    "current_mask",
    "is_public_variable",
    "is_secret_variable",
    "masked",
    "register_secrets",
    "secrets_in_urls",
    "secrets_of_environment",
    "secrets_of_script_variables",
    "unmaskable_variable_names",
    "with_masked_credentials",
]


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
