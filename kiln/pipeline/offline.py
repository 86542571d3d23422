"""Scripts of a recipe run in a container of their own, without the network, while the engine beside it has one.

The engine finds packages, fetches them and the sources, makes environments, runs the script and packs what it left, all
in one go. So its shell is a small program: it writes down what it is to run, and a loop in the other container, which
sees the same folders under the same paths, runs that. What is said and the exit code come back through the folder.
"""

from __future__ import annotations

import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import BuildFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

BASH = "/bin/bash"
HINT = "the script has no network: grant it in recipe/meta.yaml (extra: network: [{}]), or --network always"
OVER = "over"  # a file of this name ends the loop

# In the place of bash, for the engine and for tests: conda_build.sh and run_test.sh are what a recipe has to run.
SHELL = f"""#!/bin/sh
case "$*" in
*conda_build.sh | *run_test.sh) [ -z "${{KILN_APART:-}}" ] || exec {BASH} "$@" ;;
*) exec {BASH} "$@" ;;
esac
queue=$(dirname "$(dirname "$0")")
room=$(mktemp -d "$queue/XXXXXX")
mkfifo "$room/said"
export -p >"$room/environment"
pwd >"$room/place"
printf '%s\\n' "$@" >"$room/words"
: >"$room/ready"
cat "$room/said" &
reader=$!
while [ ! -e "$room/code" ]; do sleep 0.1; done
for _ in 1 2 3 4 5 6 7 8 9 10; do # what a script left in the background may hold its output for ever
    kill -0 "$reader" 2>/dev/null || break
    sleep 0.1
done
kill "$reader" 2>/dev/null
exit "$(cat "$room/code")"
"""

# One script; its variables, which may hold secrets, lie in the folder no longer than they must.
ONE = f'. "$0/environment"; rm "$0/environment"; cd "$(cat "$0/place")" && exec {BASH} "$@"'

# The loop; the code is there before the output ends, so whoever reads to the end finds it.
LOOP = f"""
while [ ! -e "$1/{OVER}" ]; do
    for ready in "$1"/*/ready; do
        [ -e "$ready" ] || continue
        room=${{ready%/ready}}
        rm "$ready"
        set -- "$1"
        while IFS= read -r word; do set -- "$@" "$word"; done <"$room/words"
        queue=$1
        shift
        exec 3>"$room/said"
        env -i KILN_APART=1 /bin/sh -c '{ONE}' "$room" "$@" \\
            >&3 2>&1 </dev/null 3>&-
        echo "$?" >"$room/code.part"
        mv "$room/code.part" "$room/code"
        exec 3>&-
        set -- "$queue"
    done
    sleep 0.1
done
"""


def open_queue(queue: Path) -> None:
    """Make the folder that both containers see."""
    files.remove(queue)
    (queue / "bin").mkdir(parents=True)
    files.write_text(queue / "bin" / "bash", SHELL)
    (queue / "bin" / "bash").chmod(0o755)


def argv(queue: Path) -> tuple[str, ...]:
    """Return the program of the container without the network; ``queue`` is the folder as that sees it."""
    return ("sh", "-c", LOOP, "kiln", str(queue))


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


def is_granted(step: str, granted: Iterable[str]) -> bool:
    """Whether the network is granted to a step's script, by its name or a pattern."""
    return any(fnmatchcase(step, pattern) for pattern in granted)
