"""``kiln doctor``: check whether versions, a GPU and a machine work together, or explain a failure."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import IncompatibleVersions, UsageError
from kiln.cli.output import print_folded

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

    from kiln.compat.causes import LogFailure
    from kiln.compat.combination import Combination, DoctorResult, Finding, Suggestion
    from kiln.compat.machine import MachineFacts

SIGNS = {"works": "✓", "works with a cost": "~", "unknown": "?", "cannot work": "✗"}
OPTIONS = {
    "tf": "check this version of TensorFlow",
    "serving": "check this version of TensorFlow Serving",
    "cuda": "check this version of the CUDA toolkit",
    "cudnn": "check this version of cuDNN",
    "python": "check this version of Python",
    "compiler": "check this compiler of TensorFlow: gcc-13, clang-18.1.8",
    "host": "check this host compiler of nvcc, if it differs from --compiler: gcc-13",
    "bazel": "check this version of Bazel",
    "driver": "check this version of the NVIDIA driver",
    "glibc": "check this version of the C library",
    "numpy": "check this version of NumPy",
    "keras": "check this version of Keras",
    "protobuf": "check this version of protobuf",
    "metal": "check this version of tensorflow-metal",
}
VARIANT_FILE = "conda_build_config.yaml"
MACHINE = ("driver", "loaded", "glibc", "avx", "arch", "system", "gpus")
MACHINE_OPTIONS = ("driver", "arch", "system", "gpu", "cc")  # a config can be checked for a machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln doctor``."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="name of a config's file in .ci_support")
    for name, meaning in OPTIONS.items():
        parser.add_argument(f"--{name}", metavar="VERSION", help=meaning)
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        help="check these GPUs, cloud instances or compute capabilities, separated by commas: V100, p3, 7.0",
    )
    parser.add_argument("--cc", metavar="CAPABILITY", help="check this compute capability, like --gpu 7.0")
    parser.add_argument(
        "--built-for", metavar="LIST", help="check builds for these GPU targets: sm_70,sm_80,compute_90"
    )
    parser.add_argument("--arch", metavar="ARCH", help="check this processor: x86_64 or aarch64")
    parser.add_argument("--system", metavar="SYSTEM", help="check this system: linux, wsl2, windows or macos")
    parser.add_argument("--here", action="store_true", help="add this machine's driver, GPUs and C library")
    parser.add_argument("--log", metavar="FILE", help="explain the failure in this log; '-' reads standard input")
    parser.add_argument("--error", metavar="TEXT", help="explain this error message")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Check a log, a config, a combination or this machine; the exit code reports incompatibilities."""
    names = (*OPTIONS, "gpu", "cc", "built_for", "arch", "system")
    versions = {name: value for name in names if (value := getattr(options, name)) is not None}
    of_machine = {name: versions[name] for name in MACHINE_OPTIONS if options.config is not None and name in versions}
    _require_at_most_one_question(options, {name: versions[name] for name in versions.keys() - of_machine.keys()})
    if options.log is not None or options.error is not None:
        return _diagnose_log_or_error_text(options)
    if options.config is not None:
        return _print_config_results(root, options, of_machine)
    if versions:
        result = judge_combination(_combination_of_options(versions), here=options.here)
        return print_results([result], as_json=options.json)
    return _show_machine_and_runnable_versions(root, as_json=options.json)


def _require_at_most_one_question(options: argparse.Namespace, versions: dict[str, str]) -> None:
    questions = {
        "a config": options.config is not None,
        "versions": bool(versions),
        "a log": options.log is not None,
        "an error text": options.error is not None,
    }
    subjects = [name for name, is_present in questions.items() if is_present]
    if len(subjects) > 1:
        raise UsageError(f"{' and '.join(subjects)} cannot be checked at once", hint="run one command for each")


def _combination_of_options(versions: dict[str, str]) -> Combination:
    from kiln.compat.combination import combination_from_options as combination_of

    gpus = [versions.pop(name) for name in ("gpu", "cc") if name in versions]
    return combination_of({**versions, **({"gpu": ",".join(gpus)} if gpus else {})})


def judge_combination(combination: Combination, *, here: bool) -> DoctorResult:
    """Return the result for a combination; with ``here``, this machine's properties fill in those that are unset."""
    from kiln.compat import verdict as compat_verdict

    if not here:
        return compat_verdict.judge_combination(combination)
    import dataclasses

    from kiln.compat import machine

    facts = machine.probe_machine(os.environ)
    running = facts.runtime_combination()
    values = {name: getattr(running, name) for name in MACHINE if getattr(combination, name) in (None, ())}
    filled = dataclasses.replace(combination, **values)
    uses_gpu = combination.needs_cuda and combination.has_cuda is not False and filled.system in {"linux", "wsl2"}
    runs_here = combination.driver is None and filled.system == running.system and filled.arch == running.arch
    missing = facts.missing_gpu_finding() if uses_gpu and runs_here else None
    return compat_verdict.judge_combination(filled, of_machine=missing)


def _print_config_results(root: Path, options: argparse.Namespace, of_machine: dict[str, str]) -> int:
    import dataclasses

    from kiln.recipe import feedstock as recipe_feedstock
    from kiln.run import recipe_checks

    feedstock, name = recipe_feedstock.load(root), Path(options.config).name.removesuffix(".yaml")
    combinations = recipe_checks.version_combinations_of_config(feedstock, name)
    asked = _combination_of_options(of_machine)
    machine = {name: value for name in MACHINE if (value := getattr(asked, name)) not in (None, ())}
    results = [judge_combination(dataclasses.replace(one, **machine), here=options.here) for one in combinations]
    if not combinations:
        results = [recipe_checks.result_for_config_outside_tables(feedstock, name)]
    is_new = (feedstock.recipe / "variants.yaml").is_file()
    return print_results(results, as_json=options.json, variant_file="variants.yaml" if is_new else VARIANT_FILE)


def _show_machine_and_runnable_versions(root: Path, *, as_json: bool) -> int:
    """Print this machine's properties, and what runs and builds on it."""
    from kiln.base.serialization import to_json
    from kiln.base.system.files import nearest_existing_path
    from kiln.base.system.machine import MachineResources
    from kiln.compat import machine
    from kiln.compat import verdict as compat_verdict

    facts, resources = machine.probe_machine(os.environ), MachineResources.of_this_machine()
    arch = machine.cuda_arch_version(
        os.environ,
        has_cuda=machine.has_virtual_cuda_package(os.environ, facts.cuda),
        capabilities=lambda: [card.capability for card in facts.cards],
    )
    disk = shutil.disk_usage(nearest_existing_path(root)).free
    answers = compat_verdict.newest_tensorflow_results(facts)
    cudas = compat_verdict.cuda_verdicts(facts)
    if as_json:
        measured = {"cuda_arch": arch, "cores": resources.cores, "memory": resources.memory, "disk_free": disk}
        data = {
            "machine": {**to_json(facts), **measured},
            "cudas": {cuda: verdict.value for cuda, verdict in cudas.items()},
            "answers": {purpose: answer.as_data() for purpose, answer in answers.items()},
        }
        print(json.dumps(data, indent=2))
    else:
        lines = _machine_property_lines(facts, arch, resources.cores, resources.memory, disk)
        ranges = compat_verdict.cuda_ranges_by_verdict(cudas)
        print_folded("\n".join((*lines, *(f"CUDA, {verdict}: {found}" for verdict, found in ranges.items()))))
        for purpose, answer in answers.items():
            print_folded(f"\n{purpose}: " + "\n".join(_doctor_result_lines(answer)))
    return exit_code(answers.values())


def print_results(answers: list[DoctorResult], *, as_json: bool, variant_file: str = VARIANT_FILE) -> int:
    """Print results and return the exit code."""
    if as_json:
        data = [answer.as_data() for answer in answers]
        print(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    else:
        print_folded("\n\n".join("\n".join(_doctor_result_lines(answer, variant_file)) for answer in answers))
    return exit_code(answers)


def exit_code(answers: Iterable[DoctorResult]) -> int:
    """Return the exit code: IncompatibleVersions' if something cannot work, else 0."""
    return IncompatibleVersions.exit_code if any(answer.verdict.value == "cannot work" for answer in answers) else 0


def _doctor_result_lines(answer: DoctorResult, variant_file: str = VARIANT_FILE) -> Iterator[str]:
    """Yield the lines of a result: the verdict, the reasons with their rows, and working alternatives."""
    yield f"{answer.verdict.value}: {answer.combination.text}"
    printed: set[str] = set()
    for finding in sorted(answer.findings, key=lambda finding: -finding.verdict.rank):
        yield from _finding_lines(finding, printed)
    if answer.nearest:
        yield "nearest working combinations:"
        for suggestion in answer.nearest:
            yield from _suggestion_lines(suggestion)
    if answer.variants:
        yield f"in recipe/{variant_file}:"
        yield from (f"    {line}" for line in answer.variants)


def _finding_lines(finding: Finding, printed: set[str]) -> Iterator[str]:
    """Yield the lines of a reason and its table rows; a row printed before is only referred to."""
    yield f"  {SIGNS[finding.verdict.value]} {finding.reason}"
    for row in finding.rows:
        if row.place in printed:
            yield f"      {row.place}, above"
            continue
        printed.add(row.place)
        yield f"      {row.place}: {row.text}"
        yield f"          {row['source']}"


def _suggestion_lines(suggestion: Suggestion) -> Iterator[str]:
    cost = "" if suggestion.verdict.value == "works" else f", {suggestion.verdict.value}"
    yield f"  {suggestion.combination.text} (changed: {', '.join(suggestion.changes)}{cost})"
    yield from (f"      {line}" for line in suggestion.variants)


def _machine_property_lines(facts: MachineFacts, arch: str | None, cores: int, memory: int, disk: int) -> Iterator[str]:
    """Yield a line for each property of this machine; ``arch`` is the version of ``__cuda_arch``."""
    from kiln.base.files import human_readable_size

    properties = {
        "system": f"{facts.system}, kernel {facts.kernel}",
        "cores, memory, free disk": f"{cores}, {human_readable_size(memory)}, {human_readable_size(disk)}",
        "glibc": facts.glibc,
        "AVX": {True: "yes", False: "no", None: None}[facts.avx],
        "NVIDIA driver": facts.driver,
        "in the kernel": facts.loaded,
        "newest CUDA of the driver": facts.cuda,
        "GPUs": "; ".join(
            f"{card.name} ({card.capability}), {human_readable_size(card.memory)}" for card in facts.cards
        )
        or None,
        "for solvers, __cuda_arch": arch,
        "gcc": facts.gcc,
        "clang": facts.clang,
        "nvcc": facts.nvcc,
        "Bazel": facts.bazel,
        "container engine": facts.engine,
        "GPUs in containers": facts.engine_gpus or None,
    }
    width = max(map(len, properties))
    yield from (f"{name:<{width}}  {value or 'not found'}" for name, value in properties.items())
    yield from (f"note: {note}" for note in facts.notes)


def _diagnose_log_or_error_text(options: argparse.Namespace) -> int:
    from kiln.compat import causes

    if options.error is not None:
        matches = causes.failures_in_log(io.BytesIO(options.error.encode("utf-8", "replace")))
    elif options.log == "-":
        matches = causes.failures_in_log(sys.stdin.buffer)
    else:
        try:
            with Path(options.log).open("rb") as log:
                matches = causes.failures_in_log(log)
        except OSError as error:
            raise UsageError(f"{options.log} cannot be read", why=error.strerror or str(error)) from error
    print(
        json.dumps([failure.as_data() for failure in matches], indent=2)
        if options.json
        else "\n\n".join(_known_failure_texts(matches))
    )
    return 0


def _known_failure_texts(matches: tuple[LogFailure, ...]) -> Iterator[str]:
    if not matches:
        yield "no known failure found; the tables in kiln/compat/data/*failures.ini list the known ones"
    for failure in matches:
        more = f", {failure.count} times" if failure.count > 1 else ""
        more += {"consequence": ", follows from another", "harmless": ", harmless"}.get(failure.kind.value, "")
        yield "\n".join(
            (
                f"{failure.name}: line {failure.line}{more}",
                f"    | {failure.text}",
                f"  cause: {failure.cause}",
                f"  cure: {failure.cure}",
                f"  seen: {failure.source}",
            )
        )
