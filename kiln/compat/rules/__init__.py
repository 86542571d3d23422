"""The rules: each judges a few parts of a combination by the rows of the tables.

A rule yields nothing when one of its parts is left open. Where the tables have no row it says so, and never guesses.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import (
    COSTS,
    SYSTEM_NAMES,
    WORKS,
    Combination,
    Finding,
    Gpu,
    Verdict,
    capability_number,
    dotted_capability,
    finding_with_rows,
    unknown_finding,
)
from kiln.compat.rules import gpu as rules_gpu
from kiln.compat.rules import tensorflow
from kiln.compat.tables import is_at_least, is_below, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.tables import Row

    Rule = Callable[[Combination], Iterator[Finding]]


def _single_part_findings(combination: Combination) -> Iterator[Finding]:
    yield from _cuda_findings(combination)
    yield from _gpu_findings(combination)
    yield from _system_findings(combination)
    if combination.driver is not None:
        yield from _accepted_cuda_range_finding(
            "driver", f"driver {combination.driver} runs", rules_gpu.judge_cuda_and_driver, combination
        )
    compiler = combination.host or combination.compiler
    if compiler is not None and (combination.host or compiler.startswith("gcc ")):
        yield from _accepted_cuda_range_finding(
            "host compiler", f"{compiler} is accepted by nvcc of", rules_gpu.judge_cuda_and_host_compiler, combination
        )
    if combination.built_for:
        yield from _accepted_cuda_range_finding(
            "what is built",
            f"{','.join(combination.built_for)} is compiled by",
            rules_gpu.judge_cuda_and_target_capabilities,
            combination,
        )


def _system_findings(combination: Combination) -> Iterator[Finding]:
    """Yield the releases that upstream has wheels of for another system than Linux, with CUDA and without."""
    rows = [row for row in tables.table_rows("system") if row["system"] == combination.system]
    name = SYSTEM_NAMES.get(combination.system or "", "")
    for cuda, words in (("yes", "with CUDA"), ("no", "without CUDA")):
        if of_kind := [row for row in rows if row["cuda"] == cuda]:
            releases = _range_text(of_kind[0]["first"], of_kind[-1]["last"])
            instead = f"; for a GPU: {of_kind[-1]['instead']}" if of_kind[-1]["instead"] else ""
            reason = f"upstream has wheels for {name} {words} of TensorFlow {releases}{instead}"
            yield finding_with_rows("system", WORKS, reason, *dict.fromkeys((of_kind[0], of_kind[-1])))


def _discontinued_machine_findings(combination: Combination) -> Iterator[Finding]:
    """Yield a finding for a machine that its provider does not sell any more."""
    for gpu in combination.gpus:
        for row in gpu.rows:
            if row.table == "cloud" and row["sold"] == "no":
                reason = f"{row['provider'].upper()} does not sell {row['machine']} any more"
                yield finding_with_rows("cloud", WORKS, reason, row)


def _cuda_findings(combination: Combination) -> Iterator[Finding]:
    if combination.cuda is None:
        return
    compiler, driver = tables.cuda_compiler_row(combination.cuda), tables.oldest_driver_row_for_cuda(combination.cuda)
    least, column = tables.minor_compatibility_driver_row(combination.cuda), combination.driver_column
    if compiler is None or driver is None:
        yield unknown_finding("CUDA", f"no table has CUDA {combination.cuda}")
        return
    capabilities = compiler["capabilities"].split()
    generations = f"{dotted_capability(capabilities[0])} to {dotted_capability(capabilities[-1])}"
    gcc = f"a GCC below {compiler['gcc_below']}" if compiler["gcc_below"] else "host compilers that no table has"
    reach = f"compiles for {generations}, and accepts {gcc}"
    yield finding_with_rows("CUDA", WORKS, f"CUDA {combination.cuda} {reach}", compiler)
    if not driver[column]:
        yield unknown_finding("CUDA", f"no table has the driver of CUDA {combination.cuda} on Windows")
        return
    minor = f"; from {least[column]} on, minor-version compatibility runs it" if least else ""
    rows = (driver,) if least is None else (driver, least)
    yield finding_with_rows("CUDA", WORKS, f"CUDA {combination.cuda} came with driver {driver[column]}{minor}", *rows)


def _gpu_findings(combination: Combination) -> Iterator[Finding]:
    for gpu in combination.gpus:
        rows = tables.cuda_rows_for_capability(capability_number(gpu.capability))
        last = tables.last_driver_row_for_capability(gpu.capability)
        if not rows:
            yield unknown_finding("GPU", f"no table has a CUDA that compiles for {gpu.text}")
            continue
        if jetpack := tables.last_jetpack_row_for_capability(gpu.capability):
            reason = f"the last JetPack for {gpu.text} is {jetpack['jetpack']}, with CUDA {jetpack['cuda']}"
            yield finding_with_rows("GPU", WORKS, reason, jetpack)
            rows, last = tuple(row for row in rows if is_at_least(jetpack["cuda"], row["first"])), None
        newest = rows[-1]["last"] if jetpack is None else jetpack["cuda"]
        ends = f"CUDA {rows[0]['first']} to {newest} compile for {gpu.text}{_older_cudas_text(gpu, rows[0])}"
        yield finding_with_rows("GPU", WORKS, ends, *dict.fromkeys((rows[0], rows[-1])), *gpu.rows)
        if last is not None:
            yield finding_with_rows(
                "GPU", WORKS, f"the last drivers for {gpu.text} are those of {last['driver']}", last
            )


def _range_text(oldest: str, newest: str) -> str:
    return newest if oldest == newest else f"{oldest} to {newest}"


def _older_cudas_text(gpu: Gpu, oldest: Row) -> str:
    """Return the CUDAs before those that compile for a GPU whose machine code or PTX it runs."""
    first = oldest["first"]
    older = [cuda for cuda in tables.cuda_minor_versions() if is_below(cuda, first) and not versions_agree(cuda, first)]
    judged = [(cuda, rules_gpu.judge_cuda_and_gpu(Combination(cuda=cuda, gpus=(gpu,)))) for cuda in older]
    verdicts = [(cuda, finding.verdict) for cuda, findings_of_cuda in judged for finding in findings_of_cuda]
    text = ""
    for good, words in ((WORKS, "by the machine code of its generation"), (COSTS, "with a cost, by their PTX")):
        if accepted := [cuda for cuda, verdict in verdicts if verdict is good]:
            text += f"; {words}, CUDA {_range_text(accepted[-1], accepted[0])}"
    return text


def _accepted_cuda_range_finding(name: str, words: str, rule: Rule, combination: Combination) -> Iterator[Finding]:
    """Yield the CUDAs that a rule accepts with one part, from the oldest to the newest, and those with a cost."""
    judged = [
        (cuda, finding)
        for cuda in tables.cuda_minor_versions()
        for finding in rule(combination.with_versions(cuda=cuda))
    ]
    texts, rows, verdicts = [], [], []
    for good, cost in ((WORKS, ""), (COSTS, "with a cost ")):
        if accepted := [(cuda, finding) for cuda, finding in judged if finding.verdict is good]:
            (newest, first), (oldest, last) = accepted[0], accepted[-1]
            texts.append(f"{cost}CUDA {_range_text(oldest, newest)}")
            rows += [*first.rows, *last.rows]
            verdicts.append(good)
    if not texts:
        yield unknown_finding(name, f"{words} no CUDA that the tables have")
        return
    yield finding_with_rows(name, verdicts[0], f"{words} {', '.join(texts)}", *dict.fromkeys(rows))


def _accepting_release_findings(combination: Combination, rules: tuple[Rule, ...]) -> Iterator[Finding]:
    """Yield the releases of TensorFlow that accept all parts; without one, that this is not documented."""
    if (
        combination.tf is not None
        or combination.serving is not None
        or not (combination.specified_versions() or combination.gpus or combination.built_for or combination.system)
    ):
        return
    if combination.cuda is not None and tables.oldest_driver_row_for_cuda(combination.cuda) is None:
        return  # the tables do not have that CUDA
    verdicts = [(row, _verdict_with_release(combination, row, rules)) for row in tables.table_rows("tensorflow")]
    works, costs = ([row for row, verdict in verdicts if verdict is good] for good in (WORKS, COSTS))
    if works:
        reason = _release_range_text(works, "as upstream tests them")
        if costs and (_is_newer(costs[0], works[0]) or _is_newer(works[-1], costs[-1])):
            reason += f"; {_release_range_text(costs, 'with a cost').partition(', ')[2]}"
        yield finding_with_rows("releases", WORKS, reason, *dict.fromkeys((works[0], works[-1], *costs[:1])))
        return
    if costs:
        reason = _release_range_text(costs, "with a cost")
        yield finding_with_rows("releases", COSTS, reason, *dict.fromkeys((costs[0], costs[-1])))
        return
    newest = tables.table_rows("tensorflow")[0]
    if cuda := _newest_accepted_cuda(combination, newest, rules):
        reason = (
            f"TensorFlow {newest['tf']} accepts it when it is built with CUDA {cuda}, which upstream's wheel is not"
        )
        yield finding_with_rows("releases", COSTS, reason, newest)
        return
    yield unknown_finding("releases", "no release of TensorFlow in the tables is known to accept all of it")


def _newest_accepted_cuda(combination: Combination, row: Row, rules: tuple[Rule, ...]) -> str | None:
    """Return the newest CUDA, of the major version of a release's, with which it accepts the GPUs and other parts."""
    if combination.cuda is not None or not combination.gpus:
        return None
    major = version_numbers(row["cuda"])[:1]
    lines = (cuda for cuda in tables.cuda_minor_versions() if version_numbers(cuda)[:1] == major)
    return next(
        (cuda for cuda in lines if _verdict_with_release(combination.with_versions(cuda=cuda), row, rules) is COSTS),
        None,
    )


def _verdict_with_release(combination: Combination, row: Row, rules: tuple[Rule, ...]) -> Verdict:
    """Return the verdict on a release with the parts, at most COSTS; the release's CUDA replaces one left open."""
    # A Mac, and Windows today, has TensorFlow for the CPU.
    cuda = row["cuda"] if combination.needs_cuda or combination.system in {None, "linux", "wsl2"} else None
    whole, worst = combination.with_versions(tf=row["tf"], cuda=combination.cuda or cuda), WORKS
    for finding in (finding for rule in rules for finding in rule(whole)):
        worst = max(worst, finding.verdict, key=lambda verdict: verdict.rank)
        if worst.rank > COSTS.rank:
            break
    return worst


def _is_newer(row: Row, other: Row) -> bool:
    return version_numbers(row["tf"]) > version_numbers(other["tf"])


def _release_range_text(fitting: list[Row], words: str) -> str:
    newest, oldest = fitting[0]["tf"], fitting[-1]["tf"]
    older = "" if newest == oldest else f", {oldest} the oldest"
    return f"of TensorFlow's releases, {words}, {newest} is the newest that accepts it{older}"


RULES: tuple[Rule, ...] = (
    tensorflow.state_tested_versions,
    tensorflow.judge_tensorflow_and_cuda,
    tensorflow.judge_tensorflow_and_cudnn,
    tensorflow.judge_tensorflow_and_python,
    tensorflow.judge_tensorflow_and_bazel,
    tensorflow.judge_tensorflow_and_compiler,
    tensorflow.judge_serving_and_its_libraries,
    tensorflow.judge_serving_and_bazel,
    tensorflow.judge_serving_and_python,
    rules_gpu.judge_cuda_and_gpu,
    rules_gpu.judge_cuda_and_jetpack,
    rules_gpu.judge_cuda_and_target_capabilities,
    rules_gpu.judge_target_capabilities_and_gpu,
    rules_gpu.judge_known_failures,
    rules_gpu.judge_cuda_and_host_compiler,
    rules_gpu.judge_cuda_and_driver,
    rules_gpu.judge_driver_and_ptx,
    rules_gpu.judge_driver_and_gpu,
    rules_gpu.judge_driver_and_kernel_module,
    tensorflow.judge_cudnn_and_cuda,
    tensorflow.judge_cudnn_and_machine,
    tensorflow.judge_wheel_and_glibc,
    tensorflow.judge_wheel_and_processor,
    tensorflow.judge_build_and_architecture,
    tensorflow.judge_package_and_machine,
    tensorflow.judge_tensorflow_and_packages,
    tensorflow.judge_tensorflow_and_system,
    tensorflow.judge_metal,
)
OF_WHEELS = {  # nothing about a package of another build
    tensorflow.judge_wheel_and_glibc,
    tensorflow.judge_wheel_and_processor,
    tensorflow.judge_build_and_architecture,
    tensorflow.judge_tensorflow_and_system,
}


def findings(combination: Combination) -> Iterator[Finding]:
    """Yield the findings of all rules; without any, the rows of the tables about the single parts.

    Parts that only a release connects, a Python and a CUDA for example, are searched for among the releases.
    """
    has_findings, whole = False, combination
    if combination.has_cuda is False:  # no other rule is about a GPU that the package does not use
        combination = replace(combination, cudnn=None, gpus=(), driver=None, loaded=None)
    for rule in RULES:
        if whole.platform is None or rule not in OF_WHEELS:
            for finding in rule(whole if rule is tensorflow.judge_package_and_machine else combination):
                has_findings = True
                yield finding
    if not has_findings:
        yield from _single_part_findings(combination)
    if not has_findings or combination.python or combination.bazel:
        yield from _accepting_release_findings(combination, RULES)
    yield from _discontinued_machine_findings(combination)
