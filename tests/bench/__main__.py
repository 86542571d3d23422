"""``python -m tests --bench [SECTION ...]`` prints one table of figures; compare figures of one run."""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
from importlib import import_module

from kiln.__main__ import flush_and_exit
from kiln.base.system.machine import processor_name
from kiln.base.text import table

SECTIONS = (
    "start",
    "matrix",
    "hostile",
    "finished",
    "ledger",
    "view",
    "container",
    "rehearsal",
    "fleet",
    "by_hand",
    "publish",
    "install",
    "image",
    "compile",
)


def main() -> None:
    """Run the sections that were asked for, all by default."""
    parser = argparse.ArgumentParser(prog="python -m tests --bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; default: all")
    sections = parser.parse_args().sections or SECTIONS
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    rows = [row for section in sections for row in import_module(f"tests.bench.{section}").rows()]
    machine = processor_name() or platform.machine()
    print(f"{dt.datetime.now(tz=dt.timezone.utc):%Y-%m-%d}, {machine}, {os.cpu_count()} cores,")
    print(f"Python {platform.python_version()}\n")
    print(table(("what", "measured", "may take"), rows, right=(1, 2)))
    flush_and_exit(0)


if __name__ == "__main__":
    main()
