"""TensorFlow and TensorFlow Serving with CUDA, cuDNN, Python, Bazel and compilers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import (
    ARCHS,
    CANNOT,
    COSTS,
    SYSTEM_NAMES,
    UNKNOWN,
    WORKS,
    Combination,
    Finding,
    Gpu,
    bazel_finding,
    capability_number,
    finding_with_rows,
    unknown_finding,
    with_release_cuda_unless_given,
)
from kiln.compat.tables import (
    have_same_major,
    is_at_least,
    is_below,
    is_in_ranges,
    lowest_and_highest,
    version_numbers,
    versions_agree,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.tables import Row


def judge_cudnn_and_cuda(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN by NVIDIA's matrix of CUDAs, then by the pairs that were tested."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cudnn is None or combination.cuda is None:
        return
    rule, what = "cuDNN and CUDA", f"cuDNN {combination.cudnn} and CUDA {combination.cuda}"
    rows = tables.cudnn_rows_for_cuda(combination.cudnn, combination.cuda)
    working = [row for row in rows if row["works"] == "yes"]
    if working:
        yield finding_with_rows(rule, WORKS, f"{what} are made for each other", working[0])
    elif rows:
        yield finding_with_rows(rule, CANNOT, f"NVIDIA does not support {what} together", rows[0])
    elif tested := _row_with_both_versions(combination.cudnn, combination.cuda):
        yield finding_with_rows(rule, WORKS, f"{what} are tested together", tested)
    else:
        yield unknown_finding(rule, f"no table has {what} together")


def judge_cudnn_and_machine(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN by the GPUs and the driver that it requires with a CUDA."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cudnn is None or combination.cuda is None:
        return
    rows = [row for row in tables.cudnn_rows_for_cuda(combination.cudnn, combination.cuda) if row["works"] == "yes"]
    for gpu in combination.gpus if rows else ():
        yield _finding_on_cudnn_and_gpu(combination, rows, gpu)
    column = combination.driver_column
    least = min((row for row in rows if row[column]), key=lambda row: version_numbers(row[column]), default=None)
    # Forward compatibility is judged with CUDA and driver, a Jetson's driver with the GPU.
    served = combination.gpus and all(gpu.forward_row or gpu.is_jetson for gpu in combination.gpus)
    if combination.driver and least and not served and not is_at_least(combination.driver, least[column]):
        reason = (
            f"cuDNN {combination.cudnn} for CUDA {combination.cuda} needs driver {least[column]} or newer, and "
            f"{combination.driver} is older"
        )
        yield finding_with_rows("cuDNN and driver", CANNOT, reason, least)


def _finding_on_cudnn_and_gpu(combination: Combination, rows: list[Row], gpu: Gpu) -> Finding:
    rule, number = "cuDNN and GPU", capability_number(gpu.capability)
    stated = [row for row in rows if row["capability_max"]]
    holding = [row for row in stated if _capability_range(row)[0] <= number <= _capability_range(row)[1]]
    if holding:
        return finding_with_rows(
            rule, WORKS, f"cuDNN {combination.cudnn} has kernels for {gpu.text}", holding[0], *gpu.rows
        )
    what = f"cuDNN {combination.cudnn} for CUDA {combination.cuda}"
    if len(stated) < len(rows):
        return unknown_finding(rule, f"no table has the GPUs of {what}")
    if all(number < _capability_range(row)[0] for row in stated):
        return finding_with_rows(
            rule, CANNOT, f"{what} has no kernels for {gpu.text}, which is older than all of its GPUs", stated[0]
        )
    return finding_with_rows(
        rule, UNKNOWN, f"NVIDIA's matrix of {what} does not list {gpu.text}, which is newer", stated[0], *gpu.rows
    )


def _capability_range(row: Row) -> tuple[int, int]:
    return capability_number(row["capability_min"]), capability_number(row["capability_max"])


def _row_with_both_versions(cudnn: str, cuda: str) -> Row | None:
    """Return a row of TensorFlow, Serving or a known build that has both."""
    rows = (row for name in ("tensorflow", "serving", "built", "upstream") for row in tables.table_rows(name))
    return next(
        (
            row
            for row in rows
            if row["cudnn"] and versions_agree(row["cudnn"], cudnn) and versions_agree(row["cuda"], cuda)
        ),
        None,
    )


def state_tested_versions(combination: Combination) -> Iterator[Finding]:
    """Yield the versions that a release is tested with, where nothing else is given."""
    if combination.tf is None or combination.gpus or len(combination.specified_versions()) > 1:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
    else:
        yield finding_with_rows(
            rule, WORKS, f"TensorFlow {combination.tf} is tested with {row.text.partition(', ')[2]}", row
        )


def judge_tensorflow_and_cuda(combination: Combination) -> Iterator[Finding]:
    """Accept upstream's tested pair; another minor version is untested, another major version another library."""
    if combination.tf is None or combination.cuda is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and CUDA"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
        return
    tested = f"TensorFlow {combination.tf} is tested with CUDA {row['cuda']}"
    if versions_agree(row["cuda"], combination.cuda):
        yield finding_with_rows(rule, WORKS, tested, row)
    elif builds := [
        row for row in tables.third_party_build_rows(combination.tf) if versions_agree(row["cuda"], combination.cuda)
    ]:
        pair = f"TensorFlow {combination.tf} with CUDA {row['cuda']}"
        reason = f"upstream tests {pair}; with {combination.cuda} conda-forge built it"
        yield finding_with_rows(rule, COSTS, reason, row, builds[0])
    elif have_same_major(row["cuda"], combination.cuda):
        reason = f"{tested}; {combination.cuda} is of the same major version, and untested"
        yield finding_with_rows(rule, COSTS, reason, row)
    else:
        reason = (
            f"{tested}, of another major version: upstream's wheel cannot load the libraries of {combination.cuda}, "
            "and whether the sources compile with it is not documented"
        )
        yield finding_with_rows(rule, UNKNOWN, reason, row)


def judge_tensorflow_and_cudnn(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN: TensorFlow needs the major version that it was compiled with, and no older minor version."""
    if combination.tf is None or combination.cudnn is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and cuDNN"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
        return
    tested = f"TensorFlow {combination.tf} is tested with cuDNN {row['cudnn']}"
    if not have_same_major(row["cudnn"], combination.cudnn):
        reason = f"{tested}; {combination.cudnn} is of another major version, which upstream's wheel refuses"
        yield finding_with_rows(rule, UNKNOWN, reason, row)
    elif versions_agree(row["cudnn"], combination.cudnn) or is_at_least(combination.cudnn, row["cudnn"]):
        yield finding_with_rows(rule, WORKS, f"{tested}, and accepts a newer minor version", row)
    else:
        reason = f"{tested}: upstream's wheel refuses the older {combination.cudnn}; compiled against it is untested"
        yield finding_with_rows(rule, COSTS, reason, row)


def judge_tensorflow_and_python(combination: Combination) -> Iterator[Finding]:
    """Refuse a Python that a release has dropped; a newer one than upstream's is unknown."""
    if combination.tf is None or combination.python is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and Python"
    if row is None or not row["python"]:
        yield unknown_finding(rule, f"no table has the Pythons of TensorFlow {combination.tf}")
        return
    what = f"TensorFlow {combination.tf} is for Python {row['python']}"
    if is_in_ranges(combination.python, row["python"]):
        yield finding_with_rows(rule, WORKS, what, row)
    elif is_below(combination.python, lowest_and_highest(row["python"])[1]):
        yield finding_with_rows(rule, CANNOT, f"{what}, not for {combination.python}", row)
    else:
        yield finding_with_rows(
            rule, UNKNOWN, f"{what}; there is no wheel for {combination.python}, which is newer, and no test", row
        )


def judge_tensorflow_and_bazel(combination: Combination) -> Iterator[Finding]:
    """Judge a Bazel: the sources name the one that they are tested with."""
    if combination.tf is None or combination.bazel is None:
        return
    row = tables.tensorflow_row(combination.tf)
    tested = (
        "" if row is None else (row["bazel_cpu"] if combination.cuda is None and row["bazel_cpu"] else row["bazel"])
    )
    yield bazel_finding("TensorFlow and Bazel", f"TensorFlow {combination.tf}", tested, combination.bazel, row)


def judge_tensorflow_and_compiler(combination: Combination) -> Iterator[Finding]:
    """Judge a compiler: another one than upstream's is untested."""
    if combination.tf is None or combination.compiler is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and compiler"
    if row is None or not row["compiler"]:
        yield unknown_finding(rule, f"no table has the compiler of TensorFlow {combination.tf}")
        return
    (name, version), (tested, tested_version) = combination.compiler.split(), row["compiler"].split()
    reason = f"TensorFlow {combination.tf} is tested with {row['compiler']}"
    if name == tested and have_same_major(version, tested_version):
        yield finding_with_rows(rule, WORKS, reason, row)
    else:
        yield finding_with_rows(rule, COSTS, f"{reason}; {combination.compiler} is untested", row)


def judge_wheel_and_glibc(combination: Combination) -> Iterator[Finding]:
    """Accept the glibc in the file name of upstream's wheel, and newer ones."""
    if combination.tf is None or combination.glibc is None:
        return
    row, rule = tables.newest_row_including("wheel", combination.tf), "wheel and glibc"
    if row is None:
        yield unknown_finding(rule, f"no table has the glibc of TensorFlow {combination.tf}")
        return
    need = f"upstream's wheel of TensorFlow {combination.tf} needs glibc {row['glibc']}"
    if is_at_least(combination.glibc, row["glibc"]):
        yield finding_with_rows(rule, WORKS, f"{need} or newer", row)
    else:
        yield finding_with_rows(rule, CANNOT, f"{need}; {combination.glibc} is older", row)


def judge_wheel_and_processor(combination: Combination) -> Iterator[Finding]:
    """Refuse a processor without AVX, which upstream's wheels need since 1.6."""
    if combination.tf is None or combination.avx is not False:
        return
    row = _processor_row("avx", combination.tf)
    if row is not None:
        reason = (
            f"upstream's wheel of TensorFlow {combination.tf} uses AVX, which this processor does not have; "
            "compile it with microarch_level 1"
        )
        yield finding_with_rows("wheel and processor", CANNOT, reason, row)


def _processor_row(needs: str, tf: str) -> Row | None:
    rows = [row for row in tables.table_rows("processor") if row["needs"] == needs]
    return next(iter(tables.rows_including(rows, tf)), None)


SYSTEMS_OF_PLATFORMS = {"linux": ("linux", "wsl2"), "osx": ("macos",), "win": ("windows",)}


def judge_package_and_machine(combination: Combination) -> Iterator[Finding]:
    """Refuse a config's package on another system or processor; built without CUDA it leaves a GPU unused."""
    if combination.platform is None:
        return
    rule, what = "package", f"a package for {combination.platform}"
    name, _, processor = combination.platform.partition("-")
    arch = "x86_64" if processor == "64" else ARCHS.get(processor, processor)
    for gpu in combination.gpus:
        if arch == "x86_64" and (row := gpu.arch_row):
            reason = f"{gpu.text} is only in machines with an aarch64 processor, on which {what} does not install"
            yield finding_with_rows(rule, CANNOT, reason, row)
    if combination.system is not None and combination.system not in SYSTEMS_OF_PLATFORMS.get(name, ()):
        reason = f"{what} does not install on {SYSTEM_NAMES[combination.system]}"
        yield Finding(rule=rule, verdict=CANNOT, reason=reason)
    elif combination.arch not in {None, arch} and name != "linux" and arch == "x86_64":
        yield unknown_finding(rule, f"no table has {what} on {combination.arch}, which can only emulate its processor")
    elif combination.arch not in {None, arch}:
        yield Finding(rule=rule, verdict=CANNOT, reason=f"{what} does not install on {combination.arch}")
    if combination.gpus and combination.has_cuda is False:
        gpus = ", ".join(gpu.text for gpu in combination.gpus)
        reason = f"the package is built without CUDA: it runs on the CPU and does not use {gpus}"
        yield Finding(rule=rule, verdict=COSTS, reason=reason)


def judge_build_and_architecture(combination: Combination) -> Iterator[Finding]:
    """Refuse upstream's wheel on a GPU beside an aarch64 processor, and a GPU beside a processor that it never has."""
    rule = "processor"
    fixed = [(gpu, row) for gpu in combination.gpus if (row := gpu.arch_row)]
    for gpu, row in fixed if combination.arch == "x86_64" else ():
        yield finding_with_rows(rule, CANNOT, f"{gpu.text} is only in machines with an aarch64 processor", row)
    if combination.arch == "x86_64" or not (fixed or combination.arch) or combination.built_for:
        return
    if combination.system in {"macos", "windows"}:
        return  # their wheels are judged with the system
    own = tables.tensorflow_row(combination.tf) if combination.tf else None
    if combination.serving:
        yield unknown_finding(rule, f"no table has Serving {combination.serving} for aarch64")
    if combination.tf is None or (own and combination.cuda and not versions_agree(own["cuda"], combination.cuda)):
        return  # not upstream's wheel
    source = _processor_row("x86_64 for CUDA", combination.tf)
    what = f"upstream's wheel of TensorFlow {combination.tf} for aarch64"
    if source is None:
        yield unknown_finding(rule, f"no table has {what}")
    else:
        instead = "; compile it for the GPU (--built-for)" if combination.needs_cuda else ""
        verdict = CANNOT if combination.needs_cuda else WORKS
        yield finding_with_rows(rule, verdict, f"{what} has no CUDA{instead}", source, *(row for _, row in fixed))


def judge_tensorflow_and_packages(combination: Combination) -> Iterator[Finding]:
    """Judge NumPy, Keras and protobuf by what the metadata of upstream's wheel requires: pip installs nothing else."""
    if combination.tf is None:
        return
    for package, title in (("numpy", "NumPy"), ("keras", "Keras"), ("protobuf", "protobuf")):
        version: str | None = getattr(combination, package)
        if version is None:
            continue
        rule, rows = f"TensorFlow and {title}", tables.requirement_rows(package, combination.tf)
        if not rows:
            yield unknown_finding(rule, f"no table has the {title} that TensorFlow {combination.tf} requires")
            continue
        fitting = [
            row
            for row in rows
            if tables.can_be_within(version, row["oldest"], row["below"]) and version not in row["not"].split()
        ]
        row = (fitting or rows)[0]
        below = f" and older than {row['below']}" if row["below"] else ""
        below += f", but not {', '.join(row['not'].split())}" if row["not"] else ""
        need = f"TensorFlow {combination.tf} requires {title} {row['oldest']} or newer{below}"
        if fitting:
            yield finding_with_rows(rule, WORKS, need, row)
        else:
            otherwise = row["otherwise"] or f"pip does not install {version} beside it"
            yield finding_with_rows(rule, CANNOT, f"{need}; {otherwise}", row)


def judge_tensorflow_and_system(combination: Combination) -> Iterator[Finding]:
    """Judge another system than Linux: upstream has wheels for it, with or without CUDA."""
    system, tf = combination.system, combination.tf
    if system in {None, "linux"} or tf is None:
        return
    assert system is not None, "checked above"
    rule, title = "system", SYSTEM_NAMES[system]
    rows = [row for row in tables.table_rows("system") if row["system"] == system]
    row = next(iter(tables.rows_including(rows, tf)), None)
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {tf} on {title}")
        return
    what = f"upstream's wheel of TensorFlow {tf} for {title}"
    if combination.arch and combination.arch not in row["archs"].split():
        yield finding_with_rows(
            rule, CANNOT, f"there is no wheel of TensorFlow {tf} for {title} on {combination.arch}", row
        )
        return
    if row["cuda"] == "yes":
        driver = "; the driver is that of Windows, and none is installed in WSL" if system == "wsl2" else ""
        yield finding_with_rows(rule, WORKS, f"{what} has CUDA{driver}", row)
    elif combination.needs_cuda:
        yield finding_with_rows(rule, CANNOT, f"{what} has no CUDA; instead: {row['instead']}", row)
    else:
        yield finding_with_rows(rule, WORKS, f"{what} runs on the CPU; for a GPU: {row['instead']}", row)


def judge_metal(combination: Combination) -> Iterator[Finding]:
    """Judge Apple's plug-in by the releases that it is made for, and by those into which it does not load."""
    if combination.metal is None:
        return
    rule, what = "tensorflow-metal", f"tensorflow-metal {combination.metal}"
    if combination.system != "macos":
        row = tables.table_rows("metal")[0]
        yield finding_with_rows(rule, CANNOT, f"{what} is for macOS alone", row)
        return
    if combination.tf is None:
        return
    of_release = tables.rows_including(tables.table_rows("metal"), combination.tf)
    rows = [row for row in of_release if versions_agree(row["metal"], combination.metal)]
    both = f"{what} and TensorFlow {combination.tf}"
    if any(row["works"] == "no" for row in rows):
        yield finding_with_rows(rule, CANNOT, f"{what} does not load into TensorFlow {combination.tf}", *rows)
    elif rows:
        yield finding_with_rows(
            rule, WORKS, f"{both} are made for each other, on macOS {rows[0]['macos']} or newer", *rows
        )
    elif of_release and all(row["works"] == "yes" for row in of_release):
        made = f"TensorFlow {combination.tf} has tensorflow-metal {of_release[-1]['metal']}"
        yield finding_with_rows(
            rule, UNKNOWN, f"{made}; whether {combination.metal} loads is not documented", of_release[-1]
        )
    else:
        yield unknown_finding(rule, f"no table has {both} together")


def judge_serving_and_its_libraries(combination: Combination) -> Iterator[Finding]:
    """Judge the TensorFlow, CUDA and cuDNN of a release of Serving, which is built with one of each."""
    if combination.serving is None:
        return
    row, rule = tables.serving_row(combination.serving), "Serving"
    if row is None:
        yield unknown_finding(rule, f"no table has Serving {combination.serving}")
        return
    yield from _findings_on_serving_and_tensorflow(combination.serving, combination.tf, row)
    for name, title in (("cuda", "CUDA"), ("cudnn", "cuDNN")):
        version = getattr(combination, name)
        if version is None:
            continue
        verdict, reason = WORKS, f"Serving {combination.serving} is built with {title} {row[name]}"
        if not versions_agree(version, row[name]):
            if have_same_major(version, row[name]):
                verdict, reason = COSTS, f"{reason}; {version} is of the same major version, and untested"
            else:
                verdict, reason = UNKNOWN, f"{reason}; whether it can be with {version} is not documented"
        yield finding_with_rows(f"{rule} and {title}", verdict, reason, row)


def _findings_on_serving_and_tensorflow(serving: str, tf: str | None, row: Row) -> Iterator[Finding]:
    rule = "Serving and TensorFlow"
    if tf and version_numbers(tf)[:2] != version_numbers(serving)[:2]:
        yield finding_with_rows(
            rule, CANNOT, f"Serving {serving} contains TensorFlow of its own minor version, not {tf}", row
        )
        return
    own = tables.tensorflow_row(serving)
    if own is None:
        yield unknown_finding(rule, f"no table has TensorFlow {serving}, which Serving {serving} would contain")
        return
    differ = [
        f"{title} {row[name]} (TensorFlow: {own[name]})"
        for name, title in (("cuda", "CUDA"), ("cudnn", "cuDNN"))
        if not versions_agree(row[name], own[name])
    ]
    if differ:
        yield finding_with_rows(
            rule,
            COSTS,
            f"Serving {serving} is built with another {' and '.join(differ)} than TensorFlow is tested with",
            row,
            own,
        )
    else:
        yield finding_with_rows(
            rule, WORKS, f"Serving {serving} is built with the CUDA and cuDNN that TensorFlow is tested with", row, own
        )


def judge_serving_and_python(combination: Combination) -> Iterator[Finding]:
    """Judge the Python of Serving's client by the TensorFlow of the same minor version."""
    if (
        combination.serving is not None
        and combination.tf is None
        and tables.tensorflow_row(combination.serving) is not None
    ):
        yield from judge_tensorflow_and_python(
            combination.with_versions(tf=".".join(combination.serving.split(".")[:2]))
        )


def judge_serving_and_bazel(combination: Combination) -> Iterator[Finding]:
    """Judge the Bazel of Serving, which need not be TensorFlow's."""
    if combination.serving is None or combination.bazel is None:
        return
    row = tables.serving_row(combination.serving)
    yield bazel_finding(
        "Serving and Bazel", f"Serving {combination.serving}", row["bazel"] if row else "", combination.bazel, row
    )
