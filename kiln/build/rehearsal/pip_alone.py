"""Run pip so that it cannot start a program: no build of a source archive, and no version control.

``--only-binary`` does not cover a requirement with an address (``name @ URL``), which a wheel may have. Run by path.
"""

from __future__ import annotations

import os
import runpy
import sys

REFUSAL = "pip must not start a program while wheels are chosen"
_STARTS = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system"}
)


def refuse_child_process(event: str, values: tuple[object, ...]) -> None:
    """Raise PermissionError before a program starts, but for ``keyring``, which the user's settings may name.

    pip omits from its requests what it cannot ask, such as the version of ``rustc``.
    """
    keyring = event == "subprocess.Popen" and os.path.basename(str(values[0])) == "keyring"  # noqa: PTH119
    if event in _STARTS and not keyring:
        raise PermissionError(REFUSAL)


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if path != folder]
    sys.addaudithook(refuse_child_process)  # it cannot be removed
    runpy.run_module("pip", run_name="__main__", alter_sys=True)
