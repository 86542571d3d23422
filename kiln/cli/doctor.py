"""``kiln doctor``: whether versions, GPUs and a machine work together, and what a failure means."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import IncompatibleVersions, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from kiln.compat import Answer, Combination, Finding, Suggestion
    from kiln.compat.failures import Failure
    from kiln.compat.probe import MachineFacts

SIGNS = {"works": "✓", "works with a cost": "~", "unknown": "?", "cannot work": "✗"}
OPTIONS = {
    "tf": "TensorFlow's version",
    "serving": "TensorFlow Serving's version",
    "cuda": "the CUDA toolkit's",
    "cudnn": "cuDNN's",
    "python": "Python's",
    "compiler": "what compiles TensorFlow: gcc-13, clang-18.1.8",
    "host": "the compiler that nvcc hands the host's part to, where that is another: gcc-13",
    "bazel": "Bazel's",
    "driver": "the NVIDIA driver's",
    "glibc": "the C library's",
}
MACHINE = ("driver", "loaded", "glibc", "avx", "gpus")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln doctor``."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="a cell by the name of its file in .ci_support")
    for name, meaning in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar="VERSION", help=meaning)
    parser.add_argument(
        "--gpu", metavar="GPU", help="a GPU, a cloud's machine or a capability: V100, p3, 7.0; several with commas"
    )
    parser.add_argument("--cc", metavar="CAPABILITY", help="a compute capability, as --gpu takes it too: 7.0")
    parser.add_argument("--built-for", metavar="LIST", help="what is compiled for: sm_70,sm_80,compute_90")
    parser.add_argument("--here", action="store_true", help="with this machine's driver, GPUs and C library")
    parser.add_argument("--log", metavar="FILE", help="read a failure in a log; '-' is standard input")
    parser.add_argument("--error", metavar="TEXT", help="read a failure in an error text")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Answer for a log, a cell, a combination or this machine; the exit code tells of what cannot work."""
    asked = {name: getattr(options, name) for name in (*OPTIONS, "gpu", "cc", "built_for")}
    given = {name: value for name, value in asked.items() if value is not None}
    one_question(options, given)
    if options.log is not None or options.error is not None:
        return read_failure(options)
    if given:
        return show([combined(given, here=options.here)], as_json=options.json)
    if options.config is not None:
        return show(cell(root, options.config, here=options.here), as_json=options.json)
    return machine(root, as_json=options.json)


def one_question(options: argparse.Namespace, given: dict[str, str]) -> None:
    """Refuse what would be answered in part.

    Raises:
        UsageError: for more than one of a cell, versions, a log and an error text.
    """
    questions = {
        "a cell": options.config is not None,
        "versions": bool(given),
        "a log": options.log is not None,
        "an error text": options.error is not None,
    }
    asked = [name for name, is_asked in questions.items() if is_asked]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} are {len(asked)} questions", hint="ask them one after the other")


def combined(given: dict[str, str], *, here: bool) -> Answer:
    """Return the answer for the combination that the options describe.

    Raises:
        UsageError: for what is no version and no GPU.
    """
    from kiln import compat

    gpus = [given.pop(name) for name in ("gpu", "cc") if name in given]
    wanted = compat.combination({**given, **({"gpu": ",".join(gpus)} if gpus else {})})
    return compat.judge(on_machine(wanted) if here else wanted)


def on_machine(wanted: Combination) -> Combination:
    """Return a combination with what is left open of the machine filled in from this one."""
    import dataclasses

    from kiln.compat import probe

    found = probe.probe(os.environ).running()
    missing = {name: getattr(found, name) for name in MACHINE if getattr(wanted, name) in (None, ())}
    return dataclasses.replace(wanted, **missing)


def cell(root: Path, config: str, *, here: bool) -> list[Answer]:
    """Return the answers for a cell, one for each of its Pythons."""
    from kiln import compat, load
    from kiln.pipeline import compatibility

    found = compatibility.combinations(load.find(root), Path(config).name.removesuffix(".yaml"))
    return [compat.judge(on_machine(each) if here else each) for each in found]


def machine(root: Path, *, as_json: bool) -> int:
    """Tell what this machine has, and what runs and builds on it."""
    from kiln.compat import outlook, probe
    from kiln.resources import Resources

    facts, resources = probe.probe(os.environ), Resources.here()
    disk = shutil.disk_usage(next(place for place in (root, *root.parents) if place.exists())).free
    answers = outlook.answers(facts)
    cudas = outlook.cudas(facts)
    if as_json:
        print(
            json.dumps(
                {
                    "machine": {
                        **facts.as_data(),
                        "cores": resources.cores,
                        "memory": resources.memory,
                        "disk_free": disk,
                    },
                    "cudas": {cuda: verdict.value for cuda, verdict in cudas.items()},
                    "answers": {purpose: answer.as_data() for purpose, answer in answers.items()},
                },
                indent=2,
            )
        )
    else:
        told = machine_text(facts, resources.cores, resources.memory, disk)
        print("\n".join((*told, *outlook_text(outlook.ranges(cudas)))))
        for purpose, answer in answers.items():
            print(f"\n{purpose}: " + "\n".join(answer_text(answer)))
    return code(answers.values())


def show(answers: list[Answer], *, as_json: bool) -> int:
    """Print answers and return the exit code."""
    if as_json:
        data = [answer.as_data() for answer in answers]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    else:
        print("\n\n".join("\n".join(answer_text(answer)) for answer in answers))
    return code(answers)


def code(answers: Iterable[Answer]) -> int:
    """Return the exit code: of its own when something cannot work."""
    return IncompatibleVersions.exit_code if any(answer.verdict.value == "cannot work" for answer in answers) else 0


def answer_text(answer: Answer) -> Iterator[str]:
    """An answer for a person: the verdict, the reasons with their rows, what would do instead."""
    yield f"{answer.verdict.value}: {answer.combination.text}"
    shown: set[str] = set()
    for finding in sorted(answer.findings, key=lambda each: -each.verdict.rank):
        yield from finding_text(finding, shown)
    if answer.nearest:
        yield "nearest that work:"
        for suggestion in answer.nearest:
            yield from suggestion_text(suggestion)
    if answer.variants:
        yield "in recipe/conda_build_config.yaml:"
        yield from (f"    {line}" for line in answer.variants)


def finding_text(finding: Finding, shown: set[str]) -> Iterator[str]:
    """A reason and the rows that it rests on; a row that was shown already is named alone."""
    yield f"  {SIGNS[finding.verdict.value]} {finding.reason}"
    for row in finding.rows:
        if row.place in shown:
            yield f"      {row.place}, above"
            continue
        shown.add(row.place)
        yield f"      {row.place}: {row.text}"
        yield f"          {row.source}"


def suggestion_text(suggestion: Suggestion) -> Iterator[str]:
    """A combination that does, and its variants."""
    cost = "" if suggestion.verdict.value == "works" else f", {suggestion.verdict.value}"
    yield f"  {suggestion.combination.text} (changed: {', '.join(suggestion.changes)}{cost})"
    yield from (f"      {line}" for line in suggestion.variants)


def machine_text(facts: MachineFacts, cores: int, memory: int, disk: int) -> Iterator[str]:
    """What this machine has, a line for each thing."""
    from kiln.files import size_text

    found = {
        "system": f"{facts.system}, kernel {facts.kernel}",
        "cores, memory, free disk": f"{cores}, {size_text(memory)}, {size_text(disk)}",
        "glibc": facts.glibc,
        "AVX": {True: "yes", False: "no", None: None}[facts.avx],
        "NVIDIA driver": facts.driver,
        "in the kernel": facts.loaded,
        "newest CUDA of the driver": facts.cuda,
        "GPUs": "; ".join(f"{card.name} ({card.capability}), {size_text(card.memory)}" for card in facts.cards) or None,
        "gcc": facts.gcc,
        "clang": facts.clang,
        "nvcc": facts.nvcc,
        "Bazel": facts.bazel,
        "container engine": facts.engine,
        "GPUs in containers": facts.engine_gpus or None,
    }
    width = max(map(len, found))
    yield from (f"{name:<{width}}  {value or 'not found'}" for name, value in found.items())
    yield from (f"note: {note}" for note in facts.notes)


def outlook_text(ranges: dict[str, str]) -> Iterator[str]:
    """Which CUDAs run on this machine."""
    for verdict, cudas in ranges.items():
        yield f"CUDA, {verdict}: {cudas}"


def read_failure(options: argparse.Namespace) -> int:
    """Print what a log or an error text tells.

    Raises:
        UsageError: when there is no such file.
    """
    from kiln.compat import failures

    if options.error is not None:
        found = failures.read(io.BytesIO(options.error.encode("utf-8", "replace")))
    elif options.log == "-":
        found = failures.read(sys.stdin.buffer)
    else:
        try:
            with Path(options.log).open("rb") as log:
                found = failures.read(log)
        except OSError as error:
            raise UsageError(f"{options.log} cannot be read", why=error.strerror or str(error)) from error
    print(
        json.dumps([failure.as_data() for failure in found], indent=2)
        if options.json
        else "\n\n".join(failures_text(found))
    )
    return 0


def failures_text(found: tuple[Failure, ...]) -> Iterator[str]:
    """Failures for a person."""
    if not found:
        yield "nothing in it is known; kiln/compat/data/failures.ini holds what is"
    for failure in found:
        more = f", {failure.count} times" if failure.count > 1 else ""
        yield "\n".join(
            (
                f"{failure.name}: line {failure.line}{more}",
                f"    | {failure.text}",
                f"  cause: {failure.cause}",
                f"  cure: {failure.cure}",
                f"  seen: {failure.source}",
            )
        )
