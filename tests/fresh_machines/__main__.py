"""``python3 -m tests.fresh_machines``, by any Python that kiln runs on: the environment is set up on first use."""

from __future__ import annotations

import sys
from pathlib import Path

from kiln.base.bootstrap import exec_in_environment
from kiln.base.environment import RUN, TEST

if __name__ == "__main__":
    exec_in_environment(
        Path(__file__).resolve().parents[2], "-m", "tests.fresh_machines.check", *sys.argv[1:], locks=(RUN, TEST)
    )
