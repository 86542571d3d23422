"""What upstream passes to Bazel, as a table: ``python -m tests.bazelrc SOURCES`` writes it.

It is tests/fixtures/compile/upstream.csv.

``SOURCES`` are TensorFlow's. Of its .bazelrc the table has the configurations that the release builds and the recipe's
compile.ini name, and those that these name; of ci/official/envs the arguments of the release builds.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "fixtures" / "compile" / "upstream.csv"
RELEASES = ("linux_x86", "linux_x86_cuda", "linux_arm64", "macos_arm64")
RC_LINE = re.compile(r"(?:build|common)(?::(?P<config>\w+))?\s+(?P<flags>-.*)")
ENV_LINE = re.compile(r"TFCI_(?:BAZEL_COMMON_ARGS|BUILD_PIP_PACKAGE_(?:WHEEL_NAME_)?ARGS?)=(?P<flags>.*)")
NAMED = re.compile(r"--config[= ](\w+)")
# Flags whose value may follow after a space.
WITH_VALUE = frozenset({"--repo_env", "--action_env", "--define", "--copt", "--config", "-c"})

Configurations = dict[str, list[str]]


def of_sources(sources: Path) -> Iterator[tuple[str, str, str]]:
    """Yield rows: a configuration, one flag of it, the file that has it; that of all builds has no name."""
    configurations = read_bazelrc((sources / ".bazelrc").read_text(encoding="utf-8"))
    releases = {name: read_env((sources / "ci/official/envs" / name).read_text(encoding="utf-8")) for name in RELEASES}
    plan = (ROOT / "recipe" / "compile.ini").read_text(encoding="utf-8")
    wanted = {
        "",
        "linux",
        *NAMED.findall(plan),
        *(name for flags in releases.values() for name in NAMED.findall(" ".join(flags))),
    }
    while (
        more := {name for known in wanted for name in NAMED.findall(" ".join(configurations.get(known, [])))} - wanted
    ):
        wanted |= more
    for name, flags in configurations.items():
        if name in wanted:
            yield from ((name, flag, ".bazelrc") for flag in flags)
    for name, flags in releases.items():
        yield from ((f"ci {name}", flag, f"ci/official/envs/{name}") for flag in flags)


def read_bazelrc(text: str) -> Configurations:
    """Return the flags of each configuration of a .bazelrc, in the file's order."""
    result: Configurations = {}
    for line in text.splitlines():
        if match := RC_LINE.match(line):
            result.setdefault(match["config"] or "", []).extend(_flags(match["flags"]))
    return result


def read_env(text: str) -> list[str]:
    """Return the flags in an environment file of upstream's CI."""
    return [flag for line in text.splitlines() if (match := ENV_LINE.match(line)) for flag in _flags(match["flags"])]


def _flags(text: str) -> Iterator[str]:
    words = iter(word for part in shlex.split(text, comments=True) for word in part.split())
    for word in words:
        if word in WITH_VALUE:
            yield f"{word}{' ' if word == '-c' else '='}{next(words)}"
        else:
            yield word


def table(path: Path = TABLE) -> Configurations:
    """Return the flags of each configuration of the table."""
    result: Configurations = {}
    for row in files.csv_rows(path):
        result.setdefault(row["config"], []).append(row["flag"])
    return result


def expanded(flags: Iterable[str], configurations: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield flags, and in the place of a configuration its own; KeyError for an unknown one."""
    for flag in flags:
        if match := NAMED.fullmatch(flag):
            yield from expanded(configurations[match[1]], configurations)
        else:
            yield flag


def main(arguments: list[str]) -> int:
    """Write the table of TensorFlow's sources."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("config", "flag", "file"))
    rows.writerows(of_sources(Path(arguments[0])))
    rows.writerows(("configure opt", flag, "configure.py") for flag in table()["configure opt"])
    files.write_text(TABLE, text.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
