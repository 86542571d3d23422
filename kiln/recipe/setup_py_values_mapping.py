"""The values of a setup.py, as a template reads them: one that only running the file would give is an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kiln.errors import TemplateFault

if TYPE_CHECKING:
    from kiln.model.source_position import Place


class SetupData(Mapping[str, Any]):
    """The values of a setup.py; reading one that only running the file would give is an error."""

    def __init__(self, values: Mapping[str, Any], unknown: Mapping[str, Place], *, complete: bool) -> None:
        self._values = values
        self._unknown = unknown
        self._complete = complete

    def __getitem__(self, key: str) -> Any:
        """Return the value of an argument."""
        self._require_known(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        """Return whether the file gives an argument."""
        return key in self._unknown or super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the arguments, which must all be known."""
        self._require_all_known()
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of arguments, which must all be known."""
        self._require_all_known()
        return len(self._values)

    def __bool__(self) -> bool:
        """Return whether there is an argument."""
        return bool(self._values or self._unknown or len(self))

    def __repr__(self) -> str:
        """Return the arguments with their values, which must all be known."""
        return repr(self.copy())

    def copy(self) -> dict[str, Any]:
        """Return the arguments, which must all be known."""
        return dict(self)

    def known_values(self) -> dict[str, Any]:
        """Return the known values alone, in which a template may read any key."""
        return dict(self._values)

    def _require_all_known(self) -> None:
        for key in self._unknown if self._unknown or self._complete else ("its arguments",):
            self._require_known(key)

    def _require_known(self, key: str) -> None:
        if key in self._unknown or not (self._complete or key in self._values):
            raise TemplateFault(
                f"the template reads {str(key)[:40]!r} of setup.py, which only running that file would give",
                why=f"{self._unknown.get(key) or 'its arguments'}: kiln runs no code while rendering",
                hint="write the value into the recipe",
            )
