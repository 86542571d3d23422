"""The expiry of temporary credentials, which a detached run cannot renew: it has to be after the end of its plan."""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOGGER = logging.getLogger(__name__)

EXPIRY = {"aws": "AWS_CREDENTIAL_EXPIRATION"}  # as `aws configure export-credentials --format env` writes it
# The variables of credentials that are temporary, whatever their expiry is.
TEMPORARY = {"aws": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"), "openstack": ("OS_TOKEN", "OS_AUTH_TOKEN")}
HINT = "take a longer session of the role, or keys of a user for this alone, or more --workers"


def require_lasting_credentials(
    provider: str,
    environment: Mapping[str, str],
    *,
    begin: float,
    end: float,
    limit: float | None = None,
    begins: bool = True,
) -> None:
    """Refuse credentials that expire before the planned ``end`` of a run; note what else may end them before it.

    That is an expiry before the run's ``limit``, and one that is unknown. For a plan that no run ``begins``, note that
    they will be refused.

    Raises:
        UsageError: when they expire before.
    """
    text = environment.get(EXPIRY.get(provider, ""), "").strip()
    expiry = _parse_expiry_time(text)
    if expiry is not None and expiry < end:
        remaining, needed = (expiry - begin) / 3600, (end - begin) / 3600
        when = f"expire in {remaining:.1f} h" if remaining > 0 else f"expired {-remaining:.1f} h ago"
        fault = f"these {when} ({EXPIRY[provider]}), and the plan takes {needed:.1f} h"
        if begins:
            raise UsageError("--detach needs credentials that last until the end of the run", why=fault, hint=HINT)
        LOGGER.warning("warning: kiln fleet run --detach will refuse these credentials: %s\n  try: %s", fault, HINT)
    elif note := _expiry_note(provider, environment, text, expiry, begin=begin, limit=limit):
        LOGGER.warning("note: %s", note)


def _expiry_note(
    provider: str, environment: Mapping[str, str], text: str, expiry: float | None, *, begin: float, limit: float | None
) -> str:
    """Return why credentials may expire before the end of a run whose plan they outlast; empty if nothing says so."""
    if expiry is not None:
        if limit is None or expiry >= limit:
            return ""
        hours = (expiry - begin) / 3600
        return (
            f"the credentials expire in {hours:.1f} h, before --time-limit: a run that takes longer than planned fails"
        )
    if text:
        return f"{EXPIRY[provider]}={text[:40]!r} is not a time: the credentials may expire before the run ends"
    temporary = next((name for name in TEMPORARY.get(provider, ()) if environment.get(name)), "")
    if not temporary:
        return ""
    known = f", and {EXPIRY[provider]} does not say when they expire" if provider in EXPIRY else ""
    return f"the credentials are temporary ({temporary}){known}: they may expire before the run ends"


def _parse_expiry_time(text: str) -> float | None:
    """Return a time in seconds since the epoch; None for a text that is none."""
    try:
        moment = dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).timestamp()
