"""Measure the memory of a container's program from inside, where the kernel's counters can be read.

Engines do not report it: the counters go with the container, Podman does not notice the kernel's out-of-memory killer,
and neither engine reports a build whose compiler was killed and which then failed. So a small shell runs along with the
program, and its last lines contain the figures.
"""

from __future__ import annotations

import re

HELD = "[kiln] most memory held at once:"
KILLS = "[kiln] processes ended for want of memory:"

# cgroups of version 2 first, then of version 1, where the group's own figures include those below it as total_*.
# The kernel's own high-water mark is useless: it counts cached files, too, as long as memory is free.
SCRIPT = f"""
if [ -r /sys/fs/cgroup/memory.stat ]; then
    stat=/sys/fs/cgroup/memory.stat events=/sys/fs/cgroup/memory.events programs=anon shared=shmem
else
    stat=/sys/fs/cgroup/memory/memory.stat events=/sys/fs/cgroup/memory/memory.oom_control
    programs=total_rss shared=total_shmem
fi
most=0
look() {{
    held=0
    while read -r key value; do
        case $key in "$programs" | "$shared") held=$((held + value)) ;; esac
    done <"$stat"
    if [ "$held" -gt "$most" ]; then most=$held; fi
}}
watch() {{
    trap 'echo "{HELD} $most"; exit 0' TERM
    while :; do
        look
        sleep 1 >/dev/null &
        wait "$!"
    done
}}
watcher=
if [ -r "$stat" ]; then
    watch 2>/dev/null &
    watcher=$!
fi
"$@"
code=$?
if [ -n "$watcher" ]; then
    {{ kill -TERM "$watcher" && wait "$watcher"; }} 2>/dev/null
    while read -r key value; do
        if [ "$key" = oom_kill ]; then echo "{KILLS} $value"; fi
    done <"$events"
fi
exit "$code"
"""

_FIGURES = {mark: re.compile(re.escape(mark) + r" (\d+)$") for mark in (HELD, KILLS)}


def watched_command(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs ``argv``, passes its exit code on and reports its memory in the last lines."""
    return ("sh", "-c", SCRIPT, "kiln", *argv)


def is_memory_figure_line(line: str) -> bool:
    """Return whether a line of output is one of the watcher's."""
    return any(figure.match(line) for figure in _FIGURES.values())


def split_output_peak_and_kills(tail: str) -> tuple[str, int | None, int]:
    """Return the tail without the watcher's lines, the peak memory in bytes, and the number of killed processes."""
    values: dict[str, int] = {}
    lines = []
    for line in tail.splitlines():
        if is_memory_figure_line(line):
            mark, _, value = line.rpartition(" ")
            values[mark] = int(value)
        else:
            lines.append(line)
    return "\n".join(lines), values.get(HELD), values.get(KILLS, 0)
