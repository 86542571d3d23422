"""Stop the Bazel of a script in time: the shell lines that wait for a file, and then interrupt Bazel's client.

They run wherever the script runs, on a host or in a container of its own, so nothing else needs to reach into it. An
interrupted client has its server end the running actions and keep the finished ones; the script's own ``shutdown`` is
not interrupted. Source: https://bazel.build/run/scripts, on Ctrl-C and exit code 8.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

NAME = "stop"  # of the file, in the config's folder

# A process of its own, in no job table: a script's `wait` does not wait for it, and it holds none of its files open.
# The fields of a process's stat after its name are its state and its parent; a name may contain anything.
_LINES = r"""( (
set +ex; trap '' INT
while [ ! -e {file} ]; do kill -0 $$ || exit 0; sleep 0.5; done
interrupted=' '
while kill -0 $$; do
    tree=" $$ " before=''
    while [ "$tree" != "$before" ]; do
        before=$tree
        for place in /proc/[0-9]*; do
            pid=${{place#/proc/}}
            case $tree in *" $pid "*) continue ;; esac
            read -r stat <"$place/stat" || continue
            read -r _ parent _ <<<"${{stat##*) }}"
            case $tree in *" $parent "*) tree="$tree$pid " ;; esac
        done
    done
    for pid in $tree; do
        case $interrupted in *" $pid "*) continue ;; esac
        words=()
        while IFS= read -r -d '' word; do words+=("$word"); done <"/proc/$pid/cmdline"
        case ${{words[0]##*/}} in bazel*) ;; *) continue ;; esac
        case " ${{words[*]}} " in *' shutdown '*) continue ;; esac
        kill -INT "$pid" && interrupted="$interrupted$pid "
    done
    sleep 0.5
done
) </dev/null >/dev/null 2>&1 & ) 3>&- 4>&-
"""


def lines(file: Path) -> str:
    """Return the lines, for the beginning of a script in bash."""
    return _LINES.format(file=shlex.quote(str(file)))
