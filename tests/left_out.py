"""One line about the tests that a run skipped because of missing programs, with the command that installs these."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from kiln.base import process

if TYPE_CHECKING:
    from collections.abc import Sequence

MISSING = "is not on this machine"
_MISSING = re.compile(rf"'?([\w.+-]+)'? {MISSING}")


def summary(reasons: Sequence[str], manager: str) -> str:
    """Return the line; ``reasons`` are those of all skipped tests, ``manager`` is the system's package manager."""
    if not reasons:
        return "left out: nothing"
    programs = Counter(program for reason in reasons for program in set(_MISSING.findall(reason)))
    others = sum(_MISSING.search(reason) is None for reason in reasons)
    parts = [f"{program} ({count})" for program, count in sorted(programs.items())]
    parts += [f"other reasons ({others}, named above)"] if others else []
    names = sorted({process.system_package_of_program(program, manager) for program in programs} - {""})
    install_hint = f"; to run more of them: {process.installation_command(names, manager)}" if names else ""
    unknown = sorted(program for program in programs if not process.system_package_of_program(program, manager))
    unavailable = f"; in no package of this system: {', '.join(unknown)}" if unknown else ""
    tests = "1 test" if len(reasons) == 1 else f"{len(reasons)} tests"
    return f"left out: {tests}, for want of {', '.join(parts)}{install_hint}{unavailable}"
