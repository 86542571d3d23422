"""Run the tests: `python -m tests`; `--fast` checks a change in a minute, `--all` runs everything, `--bench` measures.

Other arguments are pytest's: `python -m tests tests/unit/conda/test_specs.py -k order`.

By any Python from 3.10 on with nothing installed: the environment (.venv) and the test tools are set up on first use.
"""

import sys

if sys.version_info >= (3, 10):  # noqa: UP036 - this file parses under older ones too, to report that
    import os
    from pathlib import Path

    # Many containers set it. The tests start kiln thousands of times, and would compile it and themselves every time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    ROOT = Path(__file__).resolve().parents[1]
    sys.path.insert(0, str(ROOT))

    from kiln.base.bootstrap import exec_in_environment
    from kiln.base.environment import RUN, TEST

    words = sys.argv[1:]
    if words[:1] == ["--bench"]:
        exec_in_environment(ROOT, "-m", "tests.bench", *words[1:], locks=(RUN, TEST))
    module = "tests.lanes" if words in ([], ["--fast"], ["--all"]) else "pytest"
    exec_in_environment(ROOT, "-m", module, *words, locks=(RUN, TEST))
else:
    sys.stderr.write("error: this is Python " + sys.version.split()[0] + ", but kiln needs 3.10 or newer\n")
    sys.stderr.write("  try: python3.14 -m tests, or python3.13, python3.12, python3.11, python3.10\n")
    sys.exit(12)
