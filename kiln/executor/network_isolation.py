"""Run a recipe's scripts in a separate container, without the network that the engine's container has.

The engine solves, fetches packages and sources, makes environments, runs the script and packs its files, all in one
call. So its shell is replaced by a small program: it writes the command to a folder, and a loop in the other container,
which sees the same folders under the same paths, runs the command. Output and exit code return through the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import BuildFailed, KilnError
from kiln.operating_system import file_operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path


BASH = "/bin/bash"
HINT = "the script has no network: grant it in the recipe (extra: network: [{}]), or --network always"
# Messages of programs that try to use a missing network.
WANTED_NETWORK = re.compile(
    r"could not resolve|temporary failure in name resolution|name or service not known|network is unreachable"
    r"|unknown host|failed to resolve|getaddrinfo",
    re.IGNORECASE,
)
OVER = "over"  # a file of this name ends the loop

# A waiting process looks for a file, and is woken by a pipe: no message is lost that was sent before it waited.
RINGS = 'echo 1<>"{}/bell"'

# A replacement of bash, for the engine and for tests: conda_build.sh and run_test.sh are a recipe's scripts.
SHELL = f"""#!/bin/sh
case "$*" in
*conda_build.sh | *run_test.sh) [ -z "${{KILN_APART:-}}" ] || exec {BASH} "$@" ;;
*) exec {BASH} "$@" ;;
esac
queue=$(dirname "$(dirname "$0")")
call=$(mktemp -d "$queue/XXXXXX")
mkfifo "$call/said" "$call/bell"
(umask 077 && export -p >"$call/environment")
pwd >"$call/place"
printf '%s\n' "$@" >"$call/words"
: >"$call/ready"
{RINGS.format("$queue")}
cat "$call/said" &
reader=$!
{BASH} -c '
exec 3<>"$1/bell"
until [ -e "$1/code" ] || [ -e "$2/{OVER}" ]; do read -r -t 1 _ <&3; done
' kiln "$call" "$queue"
for pause in 0.01 0.04 0.05 0.1 0.2 0.3 0.3; do # a background process of the script may keep its output open forever
    kill -0 "$reader" 2>/dev/null || break
    sleep "$pause"
done
kill "$reader" 2>/dev/null
[ -e "$call/code" ] || echo "the container in which scripts run without the network has ended" >&2
exit "$(cat "$call/code" || echo 1)"
"""

# One script; its variables, which may be secrets, are removed from the folder at once.
ONE = f'. "$0/environment"; rm "$0/environment"; cd "$(cat "$0/place")" && exec {BASH} "$@"'

# The loop; the exit code is written before the output ends, so that it is there for the reader of the output.
LOOP = f"""
exec 4<>"$1/bell"
while [ ! -e "$1/{OVER}" ]; do
    for ready in "$1"/*/ready; do
        [ -e "$ready" ] || continue
        call=${{ready%/ready}}
        rm "$ready"
        mapfile -t words <"$call/words"
        exec 3>"$call/said"
        env -i KILN_APART=1 /bin/sh -c '{ONE}' "$call" "${{words[@]}}" \
            >&3 2>&1 </dev/null 3>&- 4>&-
        echo "$?" >"$call/code.part"
        mv "$call/code.part" "$call/code"
        exec 3>&-
        {RINGS.format("$call")}
    done
    read -r -t 1 _ <&4
done
exit 0
"""


@contextlib.contextmanager
def shared_script_queue(queue: Path) -> Iterator[Callable[[], None]]:
    """Make the folder that both containers see; yield a function that ends the loop, and may be called repeatedly.

    The function uses descriptors from before the containers' start: scripts can replace folder and pipe by links.
    """
    files.remove(queue)
    (queue / "bin").mkdir(parents=True)
    file_operations.make_named_pipe(queue / "bell")
    files.write_text(queue / "bin" / "bash", SHELL)
    (queue / "bin" / "bash").chmod(0o755)
    folder = os.open(queue, os.O_RDONLY | file_operations.FOLDER | file_operations.PRIVATE)
    bell = os.open("bell", os.O_RDWR | file_operations.NO_LINK, dir_fd=folder)
    try:
        yield partial(_end_script_loop, folder, bell)
    finally:
        os.close(bell)
        os.close(folder)


def script_loop_command(queue: Path) -> tuple[str, ...]:
    """Return the command of the container without the network; ``queue`` is the folder as that container sees it."""
    return (BASH, "-c", LOOP, "kiln", str(queue))


def _end_script_loop(folder: int, bell: int) -> None:
    """End the loop after its current script; a shell that still waits for a script reports that the container ended."""
    with contextlib.suppress(OSError):  # a script has removed the folder, and ends with its container
        with contextlib.suppress(FileNotFoundError):
            os.unlink(OVER, dir_fd=folder)
        os.close(os.open(OVER, os.O_WRONLY | os.O_CREAT | os.O_EXCL | file_operations.PRIVATE, 0o600, dir_fd=folder))
    with contextlib.suppress(BlockingIOError):
        os.write(bell, b"\n")


def environment_with_queue_shell(queue: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which bash is the program that passes scripts on."""
    return {**variables, "PATH": f"{queue / 'bin'}{os.pathsep}{variables.get('PATH', os.defpath)}"}


def isolated_script_count(queue: Path) -> int:
    """Return how many scripts were run without the network."""
    return len(list(queue.glob("*/code")))


def require_isolated_script_run(queue: Path, before: int, step: str) -> None:
    """Refuse the result of a script that was run by another bash, and so with the network.

    Raises:
        BuildFailed: when no further script was passed on since ``before``.
    """
    if isolated_script_count(queue) == before:
        raise BuildFailed(
            f"{step} ran its script outside the container without the network",
            why="the engine found another bash, one in the build environment for example",
            hint=HINT.format(step),
        )


def add_network_hint(error: KilnError, step: str) -> None:
    """Set an error's hint to granting the network, when the script tried to use it."""
    if WANTED_NETWORK.search(f"{error.what}\n{error.why}"):
        error.hint = HINT.format(step)


def is_network_granted(step: str, granted: Iterable[str]) -> bool:
    """Return whether the network is granted to a step's script, by its name or a pattern."""
    return any(fnmatchcase(step, pattern) for pattern in granted)
