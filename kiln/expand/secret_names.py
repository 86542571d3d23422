"""The names of the secrets that CI gives to builds, by conda-forge.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from kiln.conda_forge_yml import TypedSettings

_SECRET = lazy_pattern(r"[A-Za-z_][A-Za-z0-9_]*")


def secret_names(settings: TypedSettings) -> tuple[str, ...]:
    """Return the names of secrets in settings.

    Raises:
        RecipeFault: a name cannot be a variable's.
    """
    names = settings.items("secrets", [])
    for name in names:
        if not _SECRET.fullmatch(name):
            raise RecipeFault(
                f"secrets: {name!r} is not the name of a variable",
                at=settings.place("secrets"),
                hint="letters, digits and underscores",
            )
    return tuple(dict.fromkeys(names))
