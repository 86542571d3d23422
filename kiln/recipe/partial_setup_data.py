"""The values of a setup.py, as a template reads them: one that only running the file would give is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import TemplateFault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.source_position import Place


class SetupData(dict[str, Any]):
    """The values of a setup.py; reading one that only running the file would give is an error."""

    def __init__(self, values: Mapping[str, Any], unknown: Mapping[str, Place], *, complete: bool) -> None:
        super().__init__(values)
        self._unknown = dict(unknown)
        self._complete = complete

    def __getitem__(self, key: str) -> Any:
        """Return the value of an argument."""
        self._require_known(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an argument, or the default when the file does not give it."""
        self._require_known(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        """Return whether the file gives an argument."""
        if key not in self._unknown:
            self._require_known(str(key))
        return key in self._unknown or super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the arguments, which must all be known."""
        self._require_all()
        return super().__iter__()

    def __len__(self) -> int:
        """Return the number of arguments, which must all be known."""
        self._require_all()
        return super().__len__()

    def __bool__(self) -> bool:
        """Return whether there is an argument."""
        return bool(super().__len__() or self._unknown or len(self))

    def __repr__(self) -> str:
        """Return the arguments with their values, which must all be known."""
        self._require_all()
        return super().__repr__()

    def keys(self) -> Any:
        """Return the names of the arguments, which must all be known."""
        self._require_all()
        return super().keys()

    def values(self) -> Any:
        """Return the values of the arguments, which must all be known."""
        self._require_all()
        return super().values()

    def items(self) -> Any:
        """Return the arguments with their values, which must all be known."""
        self._require_all()
        return super().items()

    def copy(self) -> dict[str, Any]:
        """Return the arguments, which must all be known."""
        return dict(self.items())

    def known(self) -> dict[str, Any]:
        """Return the known values alone, in which a template may read any key."""
        return dict(super().items())

    def _require_all(self) -> None:
        for key in self._unknown if self._unknown or self._complete else ("its arguments",):
            self._require_known(key)

    def _require_known(self, key: str) -> None:
        if key in self._unknown or not (self._complete or super().__contains__(key)):
            raise TemplateFault(
                f"the template reads {str(key)[:40]!r} of setup.py, which only running that file would give",
                why=f"{self._unknown.get(key) or 'its arguments'}: kiln runs no code while rendering",
                hint="write the value into the recipe",
            )
