"""Run an operation of each CUDA library on this machine's GPUs and name each that fails; or say why none can run.

gpu_operations.py runs them, in one process. Where a library ends that process, another one runs those that follow.
Standard library only.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

EVENT = re.compile(r"(began|passed|failed) ([^:\n]+)(?:: (.*))?\n?")
OPERATIONS = (sys.executable, str(Path(__file__).with_name("gpu_operations.py")))


def main() -> int:
    """Run all operations; return the exit code."""
    passed, failed = run(OPERATIONS)
    for library, reason in failed.items():
        sys.stderr.write(f"GPU: {library} fails: {reason}\n")
    if passed and not failed:
        sys.stdout.write(f"GPU: all agree with the CPU: {', '.join(passed)}\n")
    return 1 if failed else 0


def run(command: tuple[str, ...]) -> tuple[list[str], dict[str, str]]:
    """Run the operations; return the libraries that passed, and the reasons of those that failed."""
    passed: list[str] = []
    failed: dict[str, str] = {}
    begun = ""
    while True:
        more = ("--after", begun) if begun else ()
        before, begun = begun, ""
        with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                event = EVENT.fullmatch(line)
                if event and event[1] == "began":
                    begun = event[2]
                elif event and event[1] == "passed":
                    passed.append(event[2])
                elif event:
                    failed[event[2]] = event[3] or "no reason given"
        if process.returncode == 0:
            return passed, failed
        if not begun or begun == before or begun in passed or begun in failed:
            failed["the start"] = ending(process.returncode)
            return passed, failed
        failed[begun] = ending(process.returncode)


def ending(code: int) -> str:
    """Return the words for the exit code of a process."""
    return f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"


if __name__ == "__main__":
    sys.exit(main())
