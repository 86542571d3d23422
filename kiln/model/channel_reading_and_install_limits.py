"""Limits on the time, memory and disk space that channels and packages of others may take."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kiln.lazy_pattern import lazy_pattern

_UNITS = {"": 1, "s": 1, "min": 60, "h": 3600, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_AMOUNT = lazy_pattern(r"(\d{1,9})(s|min|h|kB|MB|GB|TB)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on reading channels and installing packages; times in seconds, sizes in bytes.

    ``stall`` is the longest time without progress, ``solve`` the time for fetching indexes and selecting packages,
    ``install`` the time for fetching and linking them. ``memory`` is that of the process which does so, ``index`` the
    unpacked size of one index file, ``package`` the size of a package file whose index has no size for it. ``unpacked``
    and ``files`` limit what one installation may unpack.
    """

    stall: int = 120
    solve: int = 900
    install: int = 6 * 3600
    memory: int = 4 * 10**9
    index: int = 2 * 10**9
    package: int = 20 * 10**9
    unpacked: int = 200 * 10**9
    files: int = 2_000_000

    @classmethod
    def parse(cls, text: str) -> Limits:
        """Return the limits with some of them changed, as in ``solve=1h index=4GB``.

        Raises:
            ValueError: naming the invalid word.
        """
        names = {field.name for field in dataclasses.fields(cls)}
        changes: dict[str, int] = {}
        for word in text.replace(",", " ").split():
            name, _, value = word.partition("=")
            amount = _AMOUNT.fullmatch(value)
            if name not in names or not amount or int(amount[1]) == 0:
                raise ValueError(f"invalid limit {word!r}: write NAME=VALUE with a name of {', '.join(sorted(names))}")
            changes[name] = int(amount[1]) * _UNITS[amount[2] or ""]
        return cls(**changes)
