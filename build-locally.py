#!/usr/bin/env python3
"""Build this feedstock's packages: conda-forge's entry point, run by any Python from 3.10 on with nothing installed.

It makes an environment of its own (.venv) on first use, then hands every argument to `kiln build`; see --help.
"""

import sys

if sys.version_info >= (3, 10):  # noqa: UP036 - this file parses under older ones too, to tell them so
    from pathlib import Path

    ROOT = Path(__file__).resolve().parent
    sys.path.insert(0, str(ROOT))

    from kiln.bootstrap import enter

    words = ["--called", Path(__file__).name, "-C", str(ROOT), "build", "--python", sys.executable]
    enter(ROOT, "-m", "kiln", *(words + sys.argv[1:]))  # in words that Python 2.7 can parse
else:
    sys.stderr.write("error: this is Python " + sys.version.split()[0] + ", but kiln needs 3.10 or newer\n")
    sys.stderr.write("  try: python3.13 build-locally.py, or python3.12, python3.11, python3.10\n")
    sys.exit(12)
