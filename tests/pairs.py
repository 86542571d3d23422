"""Pairs of commands that start at the same moment on one feedstock, and what they must leave.

Each pair starts in a fresh copy of a feedstock of three configs, which takes a second to build. Whatever the processes
do to each other, the packages are those of an undisturbed build, and nothing else is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.files import remove, sha256
from kiln.feedstock import matrix, rerender
from kiln.state.ledger.ledger import Ledger
from tests import builders
from tests.builders import LINUX_ONLY

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

ROOT = Path(__file__).resolve().parents[1]
LETTERS = "abc"
A, B, C = (f"linux_64_letter{letter}" for letter in LETTERS)
RECIPE = """\
package:
  name: small
  version: 1
build:
  string: h{{ PKG_HASH }}_{{ letter }}
  script:
    - mkdir -p $PREFIX/share
    - echo {{ letter }} > $PREFIX/share/letter
about:
  license: MIT
"""
EPOCH = "1790000000"  # so that a package is the same whenever it is built
LOCKED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two commands; ``configs`` are those that are built in the end, ``contested`` whether they want the same one."""

    name: str
    one: tuple[str, ...]
    other: tuple[str, ...]
    configs: tuple[str, ...]
    contested: bool


def build(*configs: str) -> tuple[str, ...]:
    """Return the words of a build on this machine."""
    return ("build", *configs, "--container", "none")


PAIRS = (
    Pair(name="the same config", one=build(A), other=build(A), configs=(A,), contested=True),
    Pair(name="overlapping configs", one=build(A, B), other=build(B, C), configs=(A, B, C), contested=True),
    Pair(name="all configs", one=build("--all"), other=build("--all", "-j", "2"), configs=(A, B, C), contested=True),
    Pair(name="different configs", one=build(A), other=build(B), configs=(A, B), contested=False),
    Pair(name="a build and --debug", one=build(A), other=build(A, "--debug"), configs=(A,), contested=True),
    Pair(name="a build and rerender", one=build(A), other=("rerender",), configs=(A,), contested=False),
    Pair(name="two of rerender", one=("rerender",), other=("rerender",), configs=(), contested=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of a command: its exit code and its output."""

    words: tuple[str, ...]
    code: int
    text: str


def feedstock(folder: Path, letters: str = LETTERS) -> Path:
    """Write a feedstock of one config for each letter, and return its folder."""
    result = builders.feedstock(folder, RECIPE, "\n- ".join(("letter:", *letters)) + "\n", LINUX_ONLY)
    rerender.write_ci_support(result, matrix.configs(result))
    return result.root


def packages(root: Path) -> dict[str, str]:
    """Return the hashes of the packages in the channel of a feedstock, by their names."""
    return {file.name: sha256(file) for file in (root / "build_artifacts" / "linux-64").glob("*.conda")}


def run(root: Path, *commands: tuple[str, ...]) -> list[Ended]:
    """Start commands at the same moment, and wait for all: each reads one pipe, which is closed for all at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SOURCE_DATE_EPOCH": EPOCH}
    start, gun = os.pipe()
    started = [
        subprocess.Popen(
            ("bash", "-c", 'read -r _ <&"$0"; exec "$@" </dev/null', str(start), *kiln(root, words)),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(start,),
        )
        for words in commands
    ]
    os.close(start)
    os.close(gun)
    texts = [process.communicate()[0] for process in started]
    return [
        Ended(words=words, code=process.returncode, text=text)
        for words, process, text in zip(commands, started, texts, strict=True)
    ]


def kiln(root: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command of kiln's."""
    return (sys.executable, "-m", "kiln", "-C", str(root), *words)


def faults(pair: Pair, root: Path, expected: dict[str, str]) -> list[str]:
    """Run a pair in a feedstock, and return what is wrong with how it ended and what it left."""
    ended = run(root, pair.one, pair.other)
    result = list(_of_ends(pair, ended))
    if "--debug" in pair.other:  # which builds nothing, should it have been first
        ended += run(root, pair.one)
    missing = [config for config in pair.configs if _state(root, config) not in {"done", "cached"}]
    result += [f"{config} is not built" for config in missing]
    target = {name: hashed for name, hashed in expected.items() if name[-len("a.conda")] in _letters(pair.configs)}
    if packages(root) != target:
        result.append(f"the packages are {packages(root)}, not {target}")
    result += [f"left behind: {path.relative_to(root)}" for path in left_behind(root)]
    if result:
        result += [f"{' '.join(item.words)} ended with {item.code}:\n{item.text}" for item in ended]
    return result


def _of_ends(pair: Pair, ended: list[Ended]) -> Iterator[str]:
    codes = sorted(item.code for item in ended)
    allowed: Collection[list[int]] = ([0, 0], [0, LOCKED]) if pair.contested else ([0, 0],)
    # Of two that overlap each may meet the other, on different configs.
    if codes not in allowed and not (len(pair.configs) > 1 and codes == [LOCKED, LOCKED]):
        yield f"ended with {codes}"
    for item in ended:
        if "Traceback" in item.text:
            yield "a traceback"
        if item.code == LOCKED and "holds" not in item.text:
            yield "the process that holds the lock is not named"


def _state(root: Path, config: str) -> str:
    """Return what the ledger says of a config."""
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        state = ledger.latest_config_states().get(config)
    return "unknown" if state is None else state.value


def _letters(configs: tuple[str, ...]) -> set[str]:
    return {config[-1] for config in configs}


def left_behind(root: Path) -> list[Path]:
    """Return files that no finished run leaves: folders of work, half-written files, jobs."""
    artifacts = root / "build_artifacts"
    parts = [path for path in root.rglob("*") if path.name.endswith((".part", ".job.json"))]
    return [*(artifacts / "work").glob("*"), *parts, *artifacts.glob(".unindexed*"), *artifacts.glob("*.broken*")]


def undisturbed(folder: Path) -> dict[str, str]:
    """Return the hashes of the packages of a build in a folder that nothing disturbs; the folder is gone afterwards."""
    root = feedstock(folder)
    (ended,) = run(root, build("--all"))
    assert ended.code == 0, ended.text
    made = packages(root)
    remove(root)
    return made


def trial(pair: Pair, folder: Path, number: int, expected: dict[str, str]) -> Iterator[list[str]]:
    """Run a pair so many times, each in a new feedstock at the same place; yield the faults of each."""
    for _ in range(number):
        yield faults(pair, feedstock(folder), expected)
        remove(folder)
