#!/usr/bin/env python3
"""Build this feedstock's packages: conda-forge's entry point, for any Python from 3.10 on without installed packages.

It sets up an environment in .venv on first use, and passes all arguments to `kiln build`; see --help.
"""

import sys

if sys.version_info >= (3, 10):  # noqa: UP036 - older Pythons parse this file too, and get an error message
    from pathlib import Path

    ROOT = Path(__file__).resolve().parent
    sys.path.insert(0, str(ROOT))

    from kiln.bootstrap import enter

    words = ["--called", Path(__file__).name, "-C", str(ROOT), "build", "--calling-python", sys.executable]
    enter(ROOT, "-m", "kiln", *(words + sys.argv[1:]))  # Python 2.7 must be able to parse this
else:
    sys.stderr.write("error: this is Python " + sys.version.split()[0] + ", but kiln needs 3.10 or newer\n")
    sys.stderr.write("  try: python3.14 build-locally.py, or python3.13, python3.12, python3.11, python3.10\n")
    sys.exit(12)
