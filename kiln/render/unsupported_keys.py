"""Refuse recipes with keys that do not exist, or that the engine does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault, raise_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.recipe_key_faults import KeyFault
    from kiln.model.rendered import RenderedConfig


def require_supported(renderings: Iterable[RenderedConfig], *, own_engine: bool) -> None:
    """Refuse renderings whose recipe has an unknown key, or with kiln's ``own_engine`` one that it does not have.

    Raises:
        RecipeFault: with all keys at fault.
    """
    faults = dict.fromkeys(fault for rendered in renderings for fault in rendered.key_faults)
    errors = [_error(fault) for fault in faults if own_engine or not fault.known]
    raise_all(errors)


def warnings(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return a line for each key at fault."""
    notes = ((fault, f" ({fault.hint})" if fault.hint and not fault.known else "") for fault in rendered.key_faults)
    return tuple(f"{fault.at}: {fault.what}{note}" for fault, note in notes)


def _error(fault: KeyFault) -> RecipeFault:
    return RecipeFault(fault.what, at=fault.at, why=fault.why, hint=fault.hint)
