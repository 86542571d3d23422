"""The expiry of temporary credentials, which a detached run cannot renew: it has to be after the end of its plan."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGGER = logging.getLogger(__name__)

VARIABLES = {"aws": "AWS_CREDENTIAL_EXPIRATION"}  # as `aws configure export-credentials --format env` writes it


def require_lasting(provider: str, environment: Mapping[str, str], *, begin: float, end: float) -> None:
    """Refuse credentials that expire before the planned ``end`` of a run; note a time that cannot be read.

    Raises:
        UsageError: when they expire before.
    """
    name = VARIABLES.get(provider, "")
    text = environment.get(name, "").strip()
    if not text:
        return
    try:
        expiry = dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        LOGGER.warning("note: %s=%r is not a time: the credentials may expire before the run ends", name, text[:40])
        return
    if expiry.tzinfo is None:
        expiry = expiry.replace(tzinfo=dt.timezone.utc)
    remaining, needed = (expiry.timestamp() - begin) / 3600, (end - begin) / 3600
    if remaining < needed:
        when = f"expire in {remaining:.1f} h" if remaining > 0 else f"expired {-remaining:.1f} h ago"
        raise UsageError(
            "--detach needs credentials that last until the end of the run",
            why=f"these {when} ({name}), and the plan takes {needed:.1f} h",
            hint="take a longer session of the role, or keys of a user for this alone, or more --workers",
        )
