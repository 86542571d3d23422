"""GPUs and their driver, with the CUDA that compiles for them and the builds that they run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import (
    CANNOT,
    COMPILERS,
    COSTS,
    UNKNOWN,
    WORKS,
    Combination,
    Finding,
    Gpu,
    capability_number,
    capability_suffix,
    dotted_capability,
    finding_with_rows,
    release_row,
    unknown_finding,
    with_release_cuda_unless_given,
)
from kiln.compat.tables import is_at_least, is_below, overlaps_range, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.tables import Row


def judge_cuda_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Judge a GPU by CUDA's list of capabilities: newer GPUs run its PTX, older ones nothing."""
    asked, combination = combination, with_release_cuda_unless_given(combination)
    if combination.cuda is None:
        return
    row, rule = tables.cuda_compiler_row(combination.cuda), "CUDA and GPU"
    if row is None and combination.gpus:
        yield unknown_finding(rule, f"no table has the GPUs of CUDA {combination.cuda}")
        return
    for gpu in combination.gpus:
        assert row is not None, "checked above, when there is a GPU"
        finding = _finding_on_cuda_and_gpu(rule, combination.cuda, row, gpu)
        if finding.verdict is not COSTS or not _is_known_to_fail(asked, gpu):
            yield finding


def _finding_on_cuda_and_gpu(rule: str, cuda: str, row: Row, gpu: Gpu) -> Finding:
    capabilities = [int(number) for number in row["capabilities"].split()]
    number = capability_number(gpu.capability)
    if tables.oldest_cuda_row_for_capability(number) is None:
        return unknown_finding(rule, f"no table has a CUDA that compiles for {gpu.text}")
    lowest, highest = (dotted_capability(str(capabilities[index])) for index in (0, -1))
    reach = f"CUDA {cuda} compiles for {lowest} to {highest}"
    if number in capabilities:
        return finding_with_rows(rule, WORKS, f"{reach}, {gpu.text} among them", row, *gpu.rows)
    if number < capabilities[0]:
        return finding_with_rows(rule, CANNOT, f"{reach}; {gpu.text} is older than all of them", row, *gpu.rows)
    if str(number) in row["doubtful"].split():
        reason = (
            f"{reach}; on {gpu.text}, which is not among them, cuBLAS of such a CUDA is known to end with "
            "CUBLAS_STATUS_EXECUTION_FAILED, for some until the patches of CUDA 9.0 were installed"
        )
        return finding_with_rows(rule, UNKNOWN, reason, row, *gpu.rows)
    if any(_runs_machine_code(older, number) for older in capabilities):
        return finding_with_rows(
            rule, WORKS, f"{reach}; {gpu.text} runs the machine code of an older GPU of its generation", row, *gpu.rows
        )
    reason = (
        f"{reach}; {gpu.text} is not among them: it runs PTX of an older one, compiled by the driver at "
        "the first start, minutes to half an hour"
    )
    return finding_with_rows(rule, COSTS, reason, row, *gpu.rows)


def judge_cuda_and_jetpack(combination: Combination) -> Iterator[Finding]:
    """Refuse a CUDA that is newer than the last JetPack for a Jetson, unless NVIDIA has a newer libcuda for it."""
    cuda = with_release_cuda_unless_given(combination).cuda
    for gpu in combination.gpus if cuda else ():
        assert cuda is not None, "checked above"
        last = tables.last_jetpack_row_for_capability(gpu.capability)
        if last is None or overlaps_range(cuda, "0", last["cuda"]):
            continue
        reason = f"the last JetPack for {gpu.text} is {last['jetpack']}, with CUDA {last['cuda']}; "
        if gpu.forward_row:
            verdict = UNKNOWN
            reason += f"whether {cuda} runs there, with NVIDIA's package with a newer libcuda, is not documented"
        else:
            verdict, reason = CANNOT, f"{reason}{cuda} is newer"
        yield finding_with_rows("CUDA and JetPack", verdict, reason, last, *gpu.rows)


def _runs_machine_code(code: int, number: int) -> bool:
    """Return whether a GPU runs machine code: of its generation, not newer, and of Tegra only with Tegra.

    Source: CUDA C++ Programming Guide, binary compatibility.
    """
    return code // 10 == number // 10 and code <= number and tables.is_tegra(code) == tables.is_tegra(number)


def _have_machine_code(targets: tuple[str, ...], number: int) -> bool:
    """Return whether a GPU runs the machine code of one of the targets; that of ``sm_90a`` runs on 9.0 alone."""
    return any(
        capability_number(target) == number
        if capability_suffix(target) == "a"
        else _runs_machine_code(capability_number(target), number)
        for target in targets
    )


def judge_cuda_and_target_capabilities(combination: Combination) -> Iterator[Finding]:
    """Refuse a capability that CUDA's compiler does not know; without a CUDA, that of the release is only likely."""
    asked, combination = combination.cuda, with_release_cuda_unless_given(combination)
    if combination.cuda is None or not combination.built_for:
        return
    row, rule = tables.cuda_compiler_row(combination.cuda), "CUDA and what is built"
    if row is None:
        yield unknown_finding(rule, f"no table has the GPUs of CUDA {combination.cuda}")
        return
    known = {*row["capabilities"].split(), *row["suffixed"].split()}
    refused = [
        name for name in combination.built_for if f"{capability_number(name)}{capability_suffix(name)}" not in known
    ]
    if refused:
        reason = f"CUDA {combination.cuda} does not compile for {', '.join(refused)}"
        yield finding_with_rows(rule, CANNOT if asked else UNKNOWN, reason, row)
    else:
        yield finding_with_rows(rule, WORKS, f"CUDA {combination.cuda} compiles for all that is built", row)


def judge_target_capabilities_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Judge a build by its machine code of the GPU's generation, or its PTX for the GPU or an older one."""
    if combination.platform and combination.gpus and not combination.built_for:
        yield unknown_finding("what is built and GPU", "the config does not say which GPUs its package is compiled for")
        return
    for name, capabilities, rows in _capabilities_to_judge(combination):
        for gpu in combination.gpus:
            finding = _finding_on_build_and_gpu(name, capabilities, rows, gpu)
            if finding.verdict is not COSTS or not _is_known_to_fail(combination, gpu):
                yield finding


def _finding_on_build_and_gpu(name: str, capabilities: tuple[str, ...], rows: tuple[Row, ...], gpu: Gpu) -> Finding:
    rule, number, listed = "what is built and GPU", capability_number(gpu.capability), ",".join(capabilities)
    if tables.oldest_cuda_row_for_capability(number) is None:
        return unknown_finding(rule, f"no table has a CUDA that compiles for {gpu.text}")
    if _have_machine_code(capabilities, number):
        return finding_with_rows(rule, WORKS, f"{name} has machine code for {gpu.text} ({listed})", *rows, *gpu.rows)
    if any(
        not code.startswith("sm_") and not capability_suffix(code) and capability_number(code) <= number
        for code in capabilities
    ):
        reason = (
            f"{name} has no machine code for {gpu.text} ({listed}): its PTX is compiled at the first start, "
            "minutes to half an hour"
        )
        return finding_with_rows(rule, COSTS, reason, *rows, *gpu.rows)
    return finding_with_rows(
        rule, CANNOT, f"{name} has neither machine code nor PTX for {gpu.text} ({listed})", *rows, *gpu.rows
    )


def _capabilities_to_judge(combination: Combination) -> Iterator[tuple[str, tuple[str, ...], tuple[Row, ...]]]:
    """Yield the list of capabilities to judge: the combination's, else Serving's, else upstream's wheel's."""
    if combination.built_for:
        yield "the build", combination.built_for, ()
    elif combination.serving and (row := tables.serving_row(combination.serving)):
        yield f"Serving {combination.serving} as released", tuple(row["capabilities"].split(",")), (row,)
    elif (
        combination.tf
        and combination.system != "windows"  # whose wheels have other lists
        and (row := tables.newest_row_including("upstream", combination.tf))
        and _is_upstream_build(row, combination)
    ):
        yield f"upstream's TensorFlow {combination.tf}", tuple(row["capabilities"].split(",")), (row,)


def judge_known_failures(combination: Combination) -> Iterator[Finding]:
    """Refuse upstream's wheels on GPUs on which they fail; older wheels, newer GPUs and other builds are unknown."""
    own, version, built_for = release_row(combination), combination.serving or combination.tf, combination.built_for
    is_upstream = own is not None and combination.platform is None and _is_upstream_build(own, combination)
    if version is None or own is None or not (built_for or is_upstream):
        return
    for gpu in combination.gpus:
        number = capability_number(gpu.capability)
        if _have_machine_code(built_for, number):
            continue
        rows = [
            row
            for row in tables.table_rows("known_failure")
            if overlaps_range(version, "0", row["last"]) and capability_number(row["capability_first"]) <= number
        ]
        failures = [
            row
            for row in tables.rows_including(rows, version)
            if overlaps_range(gpu.capability, row["capability_first"], row["capability_last"])
        ]
        if rows:
            yield _known_failure_finding(combination, version, gpu, failures, rows[0])


def _is_known_to_fail(combination: Combination, gpu: Gpu) -> bool:
    """Return whether upstream's wheel fails on a GPU, so that no start of it, with a cost or without, is promised."""
    return any(finding.verdict is CANNOT for finding in judge_known_failures(replace(combination, gpus=(gpu,))))


def _known_failure_finding(
    combination: Combination, version: str, gpu: Gpu, failures: list[Row], nearest: Row
) -> Finding:
    rule, what = "known failure", f"upstream's wheel of TensorFlow {version}"
    if not failures:
        wheels, gpus = (
            first if first == last else f"{first} to {last}"
            for first, last in (
                (nearest["first"], nearest["last"]),
                (nearest["capability_first"], nearest["capability_last"]),
            )
        )
        reason = f"nothing is known about {what} on {gpu.text}; those of {wheels} are known to fail on {gpus}"
        return finding_with_rows(rule, UNKNOWN, reason, nearest, *gpu.rows)
    cuda = tables.oldest_cuda_row_for_capability(capability_number(gpu.capability))
    instead = f"; a build with machine code for it needs CUDA {cuda['first']} or newer" if cuda else ""
    doubt = "; no report has Serving, which contains the same code" if combination.serving else ""
    doubt = "; no report has this build, which has no machine code for it either" if combination.built_for else doubt
    reason = f"{what} is known to fail on {gpu.text}: {failures[0]['symptom']}{doubt}{instead}"
    return finding_with_rows(rule, UNKNOWN if doubt else CANNOT, reason, *failures, *gpu.rows)


def _is_upstream_build(row: Row, combination: Combination) -> bool:
    """Return whether a combination is upstream's build: another CUDA means another build."""
    return combination.cuda is None or versions_agree(row["cuda"], combination.cuda)


def judge_cuda_and_host_compiler(combination: Combination) -> Iterator[Finding]:
    """Refuse a GCC or clang that is newer than CUDA's nvcc accepts; clang as TensorFlow's compiler needs no nvcc."""
    host, asked = combination.host or combination.compiler, combination.cuda
    combination = with_release_cuda_unless_given(combination) if combination.host else combination
    if combination.cuda is None or host is None or (combination.host is None and host.startswith("clang ")):
        return
    row, rule, (name, version) = tables.cuda_compiler_row(combination.cuda), "CUDA and host compiler", host.split()
    below, title = row[f"{name}_below"] if row else "", COMPILERS[name]
    if row is None:
        yield unknown_finding(rule, f"no table has the host compilers of CUDA {combination.cuda}")
    elif not below:
        yield finding_with_rows(rule, UNKNOWN, f"no table has the host compilers of CUDA {combination.cuda}", row)
    elif is_below(version, below):
        yield finding_with_rows(rule, WORKS, f"CUDA {combination.cuda} accepts a {title} below {below}", row)
    elif name == "gcc" and row["gcc_refused"] and is_below(version, row["gcc_refused"]):
        reason = f"CUDA {combination.cuda} lets GCC {version} pass, but with {below} and newer some headers fail"
        yield finding_with_rows(rule, COSTS, reason, row)
    else:
        bound = (name == "gcc" and row["gcc_refused"]) or below
        reason = f"CUDA {combination.cuda} refuses {title} {version}: it must be below {bound}"
        yield finding_with_rows(rule, CANNOT if asked else UNKNOWN, reason, row)


def judge_cuda_and_driver(combination: Combination) -> Iterator[Finding]:
    """Accept the driver that came with CUDA and newer ones; an older one of the major version compiles no PTX."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cuda is None or combination.driver is None or any(gpu.is_jetson for gpu in combination.gpus):
        return  # the driver of a Jetson is judged with the GPU
    row, rule = tables.oldest_driver_row_for_cuda(combination.cuda), "CUDA and driver"
    least, column = tables.minor_compatibility_driver_row(combination.cuda), combination.driver_column
    if row is None or not row[column]:
        where = "" if row is None else " on Windows"
        yield unknown_finding(rule, f"no table has the driver of CUDA {combination.cuda}{where}")
    elif is_at_least(combination.driver, row[column]):
        yield finding_with_rows(
            rule, WORKS, f"CUDA {combination.cuda} came with driver {row[column]}, and newer ones run it", row
        )
    elif least is not None and is_at_least(combination.driver, least[column]):
        reason = (
            f"CUDA {combination.cuda} came with driver {row[column]}; from {least[column]} on, minor-version "
            "compatibility runs it, but a driver older than CUDA compiles none of its PTX: only GPUs that have machine "
            "code in the packages"
        )
        yield finding_with_rows(rule, COSTS, reason, row, least)
    else:
        needed = row if least is None else least
        reason = f"CUDA {combination.cuda} needs driver {needed[column]} or newer, and {combination.driver} is older"
        yield _finding_on_forward_compatibility(rule, reason, combination.cuda, needed, combination)


def _finding_on_forward_compatibility(
    rule: str, reason: str, cuda: str, needed: Row, combination: Combination
) -> Finding:
    """Return the finding on a driver that is too old: NVIDIA's package with a newer libcuda, on some GPUs."""
    served = [gpu.forward_row for gpu in combination.gpus]
    is_windows = combination.driver_column == "windows"  # the package is for Linux
    if is_below(cuda, "10.0") or is_windows or (combination.gpus and not all(served)):
        return finding_with_rows(rule, CANNOT, reason, needed)
    package = f"NVIDIA's cuda-compat-{'-'.join(cuda.split('.')[:2])} (conda-forge: cuda-compat)"
    if not combination.gpus:
        reason = f"{reason}; on GPUs of data centers and Jetson {package} is the way out"
        return finding_with_rows(rule, CANNOT, reason, needed)
    row = tables.newest_row_including("cuda_compat", cuda)
    rows = [item for item in (needed, row, *served) if item]
    branch = str(combination.driver).partition(".")[0]
    if row and branch in row["drivers"].split():
        return finding_with_rows(rule, COSTS, f"{reason}: with {package} it runs beside it", *rows)
    reason = f"{reason}; {package} is the way out, but no table has it beside driver {branch}"
    return finding_with_rows(rule, UNKNOWN, reason, *rows)


def judge_driver_and_ptx(combination: Combination) -> Iterator[Finding]:
    """Refuse PTX of a CUDA that is newer than the driver: a GPU without its machine code runs nothing."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cuda is None or combination.driver is None or any(gpu.is_jetson for gpu in combination.gpus):
        return
    row, column = tables.oldest_driver_row_for_cuda(combination.cuda), combination.driver_column
    least = tables.minor_compatibility_driver_row(combination.cuda) or row
    if row is None or not row[column] or is_at_least(combination.driver, row[column]):
        return
    if least and not is_at_least(combination.driver, least[column]):
        return  # the driver itself is too old; the package with a newer libcuda compiles PTX
    for finding in (*judge_cuda_and_gpu(combination), *judge_target_capabilities_and_gpu(combination)):
        if finding.verdict is COSTS:
            reason = (
                f"the driver has to compile PTX of CUDA {combination.cuda}, which only {row[column]} and newer "
                f"do, not {combination.driver}"
            )
            yield finding_with_rows("driver and PTX", CANNOT, reason, row, *finding.rows)
            return


def judge_driver_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Refuse a GPU that the driver's branch has dropped; one older than its first CUDA, or a Jetson's, is unknown."""
    column = combination.driver_column
    for gpu in combination.gpus if combination.driver else ():
        first = tables.oldest_cuda_row_for_capability(capability_number(gpu.capability))
        final = tables.last_driver_row_for_capability(gpu.capability)
        row = tables.oldest_driver_row_for_cuda(first["first"]) if first else None
        assert combination.driver is not None, "checked above"
        if gpu.is_jetson:
            reason = f"no table has the drivers of JetPack, to which {combination.driver} of {gpu.text} belongs"
            yield unknown_finding("driver and GPU", reason)
        elif final is not None and version_numbers(combination.driver)[0] > version_numbers(final["driver"])[0]:
            # On Windows a branch has several first numbers: 581.80 is of 580.
            verdict, doubt = (
                (CANNOT, f"{combination.driver} is one of them")
                if column == "driver"
                else (UNKNOWN, f"no table has the branch of {combination.driver} on Windows")
            )
            reason = f"drivers after {final['driver']} do not serve {gpu.text}, and {doubt}"
            yield finding_with_rows("driver and GPU", verdict, reason, final, *gpu.rows)
        elif first is None or row is None:
            yield unknown_finding("driver and GPU", f"no table has a CUDA for {gpu.text}")
        elif not row[column]:
            yield unknown_finding("driver and GPU", f"no table has the driver of CUDA {first['first']} on Windows")
        elif is_at_least(combination.driver, row[column]):
            reason = (
                f"driver {combination.driver} is not older than that of the first CUDA for {gpu.text}, {first['first']}"
            )
            yield finding_with_rows("driver and GPU", WORKS, reason, first, row, *gpu.rows)
        else:
            reason = (
                f"the first CUDA for {gpu.text}, {first['first']}, came with driver {row[column]}; "
                f"whether {combination.driver} knows the GPU is not documented"
            )
            yield finding_with_rows("driver and GPU", UNKNOWN, reason, first, row, *gpu.rows)


def judge_driver_and_kernel_module(combination: Combination) -> Iterator[Finding]:
    """Refuse a driver's library and kernel module of different versions."""
    if combination.driver is None or combination.loaded is None:
        return
    rule = "driver and kernel"
    if versions_agree(combination.driver, combination.loaded):
        yield finding_with_rows(rule, WORKS, f"libcuda and the kernel's module are both {combination.driver}")
    else:
        reason = (
            f"libcuda is {combination.driver}, and the kernel has {combination.loaded} loaded: no CUDA program starts "
            "until they are the same; reboot, or reload the module"
        )
        yield finding_with_rows(rule, CANNOT, reason)
