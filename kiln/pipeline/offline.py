"""Scripts of a recipe run in a container of their own, without the network, while the engine beside it has one.

The engine finds packages, fetches them and the sources, makes environments, runs the script and packs what it left, all
in one go. So its shell is a small program: it writes down what it is to run, and a loop in the other container, which
sees the same folders under the same paths, runs that. What is said and the exit code come back through the folder.
"""

from __future__ import annotations

import contextlib
import os
import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.errors import KilnError

BASH = "/bin/bash"
HINT = "the script has no network: grant it in recipe/meta.yaml (extra: network: [{}]), or --network always"
# What programs say that look for a network where there is none.
WANTED_NETWORK = re.compile(
    r"could not resolve|temporary failure in name resolution|name or service not known|network is unreachable"
    r"|unknown host|failed to resolve|getaddrinfo",
    re.IGNORECASE,
)
OVER = "over"  # a file of this name ends the loop

# Who waits looks for a file, and is woken by a bell, a pipe: no message is lost that came before anybody waited.
RINGS = 'echo 1<>"{}/bell"'

# In the place of bash, for the engine and for tests: conda_build.sh and run_test.sh are what a recipe has to run.
SHELL = f"""#!/bin/sh
case "$*" in
*conda_build.sh | *run_test.sh) [ -z "${{KILN_APART:-}}" ] || exec {BASH} "$@" ;;
*) exec {BASH} "$@" ;;
esac
queue=$(dirname "$(dirname "$0")")
room=$(mktemp -d "$queue/XXXXXX")
mkfifo "$room/said" "$room/bell"
export -p >"$room/environment"
pwd >"$room/place"
printf '%s\n' "$@" >"$room/words"
: >"$room/ready"
{RINGS.format("$queue")}
cat "$room/said" &
reader=$!
{BASH} -c '
exec 3<>"$1/bell"
until [ -e "$1/code" ] || [ -e "$2/{OVER}" ]; do read -r -t 1 _ <&3; done
' kiln "$room" "$queue"
for pause in 0.01 0.04 0.05 0.1 0.2 0.3 0.3; do # what a script left in the background may hold its output for ever
    kill -0 "$reader" 2>/dev/null || break
    sleep "$pause"
done
kill "$reader" 2>/dev/null
[ -e "$room/code" ] || echo "the container in which scripts run without the network has ended" >&2
exit "$(cat "$room/code" || echo 1)"
"""

# One script; its variables, which may hold secrets, lie in the folder no longer than they must.
ONE = f'. "$0/environment"; rm "$0/environment"; cd "$(cat "$0/place")" && exec {BASH} "$@"'

# The loop; the code is there before the output ends, so whoever reads to the end finds it.
LOOP = f"""
exec 4<>"$1/bell"
while [ ! -e "$1/{OVER}" ]; do
    for ready in "$1"/*/ready; do
        [ -e "$ready" ] || continue
        room=${{ready%/ready}}
        rm "$ready"
        mapfile -t words <"$room/words"
        exec 3>"$room/said"
        env -i KILN_APART=1 /bin/sh -c '{ONE}' "$room" "${{words[@]}}" \
            >&3 2>&1 </dev/null 3>&- 4>&-
        echo "$?" >"$room/code.part"
        mv "$room/code.part" "$room/code"
        exec 3>&-
        {RINGS.format("$room")}
    done
    read -r -t 1 _ <&4
done
exit 0
"""


def open_queue(queue: Path) -> None:
    """Make the folder that both containers see."""
    files.remove(queue)
    (queue / "bin").mkdir(parents=True)
    os.mkfifo(queue / "bell")
    files.write_text(queue / "bin" / "bash", SHELL)
    (queue / "bin" / "bash").chmod(0o755)


def argv(queue: Path) -> tuple[str, ...]:
    """Return the program of the container without the network; ``queue`` is the folder as that sees it."""
    return (BASH, "-c", LOOP, "kiln", str(queue))


def close(queue: Path) -> None:
    """End the loop once the script that it runs has ended; who still waits for a script is told that nobody runs it."""
    (queue / OVER).touch()
    bell = os.open(queue / "bell", os.O_RDWR | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError), os.fdopen(bell, "wb", buffering=0) as pipe:
        pipe.write(b"\n")


def environment(queue: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which bash is the program that hands scripts over."""
    return {**given, "PATH": f"{queue / 'bin'}{os.pathsep}{given.get('PATH', os.defpath)}"}


def handed_over(queue: Path) -> int:
    """Return how many scripts were run without the network."""
    return len(list(queue.glob("*/code")))


def require_handed_over(queue: Path, before: int, step: str) -> None:
    """Refuse what a script has made that was run by another bash than ours, and so with the network.

    Raises:
        BuildFailed: when no script more was handed over than ``before``.
    """
    if handed_over(queue) == before:
        raise BuildFailed(
            f"{step} ran its script beside the container without the network",
            why="the engine found another bash, one in the build environment for example",
            hint=HINT.format(step),
        )


def explain(error: KilnError, step: str) -> None:
    """Let a failure's hint be how a script gets the network, when it looked for one in vain."""
    if WANTED_NETWORK.search(f"{error.what}\n{error.why}"):
        error.hint = HINT.format(step)


def is_granted(step: str, granted: Iterable[str]) -> bool:
    """Whether the network is granted to a step's script, by its name or a pattern."""
    return any(fnmatchcase(step, pattern) for pattern in granted)
