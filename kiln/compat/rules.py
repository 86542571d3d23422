"""The rules: each looks at a few parts of a combination and says what the rows of the tables tell of them.

A rule is silent when a part that it looks at is left open. Where the tables are silent it says so, and never guesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.answer import Finding, Verdict
from kiln.compat.combination import dotted, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.combination import Combination, Gpu
    from kiln.compat.tables import Row

    Rule = Callable[[Combination], Iterator[Finding]]

WORKS, COSTS, UNKNOWN, CANNOT = Verdict.WORKS, Verdict.COSTS, Verdict.UNKNOWN, Verdict.CANNOT


def findings(asked: Combination) -> tuple[Finding, ...]:
    """Return what every rule says of a combination."""
    return tuple(finding for rule in RULES for finding in rule(asked))


def tensorflow_alone(asked: Combination) -> Iterator[Finding]:
    """Where a release is all that is given, what it is tested with."""
    if asked.tf is None or [name for name, _ in asked.given()] != ["tf"] or asked.gpus:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
    else:
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with {row.text.partition(', ')[2]}", row)


def tensorflow_and_cuda(asked: Combination) -> Iterator[Finding]:
    """Upstream's tested pair works; another minor version is untested; another major version is another library."""
    if asked.tf is None or asked.cuda is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and CUDA"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
    elif lines.agree(row["cuda"], asked.cuda):
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}", row)
    elif built := _built(asked):
        reason = f"upstream tests TensorFlow {asked.tf} with CUDA {row['cuda']}; with {asked.cuda} conda-forge built it"
        yield told(rule, COSTS, reason, row, *built)
    elif lines.numbers(row["cuda"])[0] == lines.numbers(asked.cuda)[0]:
        reason = (
            f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}; {asked.cuda} is of the same major "
            "version, and untested"
        )
        yield told(rule, COSTS, reason, row)
    else:
        reason = (
            f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}, of another major version: upstream's "
            "wheel cannot load "
            f"the libraries of {asked.cuda}, and whether the sources compile with it nobody has told"
        )
        yield told(rule, UNKNOWN, reason, row)


def tensorflow_and_cudnn(asked: Combination) -> Iterator[Finding]:
    """TensorFlow wants the major version of cuDNN that it was compiled with, and no older minor version."""
    if asked.tf is None or asked.cudnn is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and cuDNN"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
        return
    tested = row["cudnn"]
    if lines.numbers(tested)[0] != lines.numbers(asked.cudnn)[0]:
        reason = (
            f"TensorFlow {asked.tf} is tested with cuDNN {tested}; {asked.cudnn} is of another major "
            "version, which upstream's wheel refuses"
        )
        yield told(rule, UNKNOWN, reason, row)
    elif lines.agree(tested, asked.cudnn) or lines.at_least(asked.cudnn, tested):
        yield told(
            rule, WORKS, f"TensorFlow {asked.tf} is tested with cuDNN {tested}, and takes a newer minor version", row
        )
    else:
        reason = (
            f"TensorFlow {asked.tf} is tested with cuDNN {tested}: upstream's wheel refuses the older "
            f"{asked.cudnn}; compiled against it is untested"
        )
        yield told(rule, COSTS, reason, row)


def tensorflow_and_python(asked: Combination) -> Iterator[Finding]:
    """No release runs on a Python that it has dropped; a newer one than upstream's has sometimes been built."""
    if asked.tf is None or asked.python is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and Python"
    if row is None or not row["python"]:
        yield silent(rule, f"no table has the Pythons of TensorFlow {asked.tf}")
        return
    what = f"TensorFlow {asked.tf} is for Python {row['python']}"
    built = [each for each in _builds(asked) if each["python"] and lines.in_ranges(asked.python, each["python"])]
    if lines.in_ranges(asked.python, row["python"]):
        yield told(rule, WORKS, what, row)
    elif built:
        yield told(rule, COSTS, f"{what}; with {asked.python} conda-forge built it", row, built[0])
    elif lines.below(asked.python, lines.span(row["python"])[1]):
        yield told(rule, CANNOT, f"{what}, not for {asked.python}", row)
    else:
        yield told(rule, UNKNOWN, f"{what}; there is no wheel for {asked.python}, which is newer, and no test", row)


def tensorflow_and_bazel(asked: Combination) -> Iterator[Finding]:
    """Sources name the one Bazel that they are tested with."""
    if asked.tf is None or asked.bazel is None:
        return
    row = tables.tensorflow(asked.tf)
    wanted = "" if row is None else (row["bazel_cpu"] if asked.cuda is None and row["bazel_cpu"] else row["bazel"])
    yield _bazel("TensorFlow and Bazel", f"TensorFlow {asked.tf}", wanted, asked.bazel, row)


def serving_and_bazel(asked: Combination) -> Iterator[Finding]:
    """Serving names its own Bazel, which need not be TensorFlow's."""
    if asked.serving is None or asked.bazel is None:
        return
    row = tables.serving(asked.serving)
    yield _bazel("Serving and Bazel", f"Serving {asked.serving}", row["bazel"] if row else "", asked.bazel, row)


def _bazel(rule: str, who: str, wanted: str, given: str, row: Row | None) -> Finding:
    if row is None:
        return silent(rule, f"no table has {who}")
    if lines.agree(wanted, given):
        return told(rule, WORKS, f"{who} is built with Bazel {wanted}", row)
    if lines.numbers(wanted)[0] == lines.numbers(given)[0] > 0 and lines.at_least(given, wanted):
        return told(rule, COSTS, f"{who} is built with Bazel {wanted}; {given} is untested", row)
    return told(rule, UNKNOWN, f"{who} is built with Bazel {wanted}; whether {given} builds it nobody has told", row)


def tensorflow_and_compiler(asked: Combination) -> Iterator[Finding]:
    """Another compiler than upstream's is untested."""
    if asked.tf is None or asked.compiler is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and compiler"
    if row is None or not row["compiler"]:
        yield silent(rule, f"no table has the compiler of TensorFlow {asked.tf}")
        return
    (name, version), (tested, tested_version) = asked.compiler.split(), row["compiler"].split()
    if name == tested and lines.numbers(version)[0] == lines.numbers(tested_version)[0]:
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with {row['compiler']}", row)
    else:
        yield told(
            rule, COSTS, f"TensorFlow {asked.tf} is tested with {row['compiler']}; {asked.compiler} is untested", row
        )


def cuda_and_host_compiler(asked: Combination) -> Iterator[Finding]:
    """CUDA's compiler refuses a GCC that is newer than it knows."""
    host = asked.host or asked.compiler
    if asked.cuda is None or host is None or not host.startswith("gcc "):
        return
    row, rule, version = tables.compiler(asked.cuda), "CUDA and host compiler", host.split()[1]
    if row is None:
        yield silent(rule, f"no table has the host compilers of CUDA {asked.cuda}")
    elif lines.below(version, row["gcc_below"]):
        yield told(rule, WORKS, f"CUDA {asked.cuda} takes a GCC below {row['gcc_below']}", row)
    else:
        yield told(rule, CANNOT, f"CUDA {asked.cuda} refuses GCC {version}: it must be below {row['gcc_below']}", row)


def cuda_and_gpu(asked: Combination) -> Iterator[Finding]:
    """CUDA compiles for the capabilities that it lists; newer GPUs run its PTX, older ones nothing."""
    asked = _with_cuda(asked)
    if asked.cuda is None:
        return
    row, rule = tables.compiler(asked.cuda), "CUDA and GPU"
    if row is None and asked.gpus:
        yield silent(rule, f"no table has the GPUs of CUDA {asked.cuda}")
        return
    for gpu in asked.gpus:
        assert row is not None, "asked above, when there is a GPU"
        yield _cuda_and_gpu(rule, asked.cuda, row, gpu)


def _cuda_and_gpu(rule: str, cuda: str, row: Row, gpu: Gpu) -> Finding:
    known = [int(number) for number in row["capabilities"].split()]
    number = plain(gpu.capability)
    reach = f"CUDA {cuda} compiles for {dotted(str(known[0]))} to {dotted(str(known[-1]))}"
    if number in known:
        return told(rule, WORKS, f"{reach}, {gpu.text} among them", row, *gpu.rows)
    if number < known[0]:
        return told(rule, CANNOT, f"{reach}; {gpu.text} is older than all of them", row, *gpu.rows)
    if any(each // 10 == number // 10 and each < number for each in known):
        return told(
            rule, WORKS, f"{reach}; {gpu.text} runs the machine code of an older GPU of its generation", row, *gpu.rows
        )
    reason = (
        f"{reach}; {gpu.text} is not among them: it runs PTX of an older one, compiled by the driver at "
        "the first start, minutes to half an hour"
    )
    return told(rule, COSTS, reason, row, *gpu.rows)


def builds_and_gpu(asked: Combination) -> Iterator[Finding]:
    """A GPU runs machine code of its own generation, or PTX that is not newer than itself; without either nothing."""
    for who, capabilities, rows in _built_for(asked):
        for gpu in asked.gpus:
            yield _build_and_gpu(who, capabilities, rows, gpu)


def _build_and_gpu(who: str, capabilities: tuple[str, ...], rows: tuple[Row, ...], gpu: Gpu) -> Finding:
    rule, number, listed = "what is built and GPU", plain(gpu.capability), ",".join(capabilities)
    if any(plain(each) // 10 == number // 10 and plain(each) <= number for each in capabilities):
        return told(rule, WORKS, f"{who} has machine code for {gpu.text} ({listed})", *rows, *gpu.rows)
    if any(not each.startswith("sm_") and plain(each) <= number for each in capabilities):
        reason = (
            f"{who} has no machine code for {gpu.text} ({listed}): its PTX is compiled at the first start, "
            "minutes to half an hour"
        )
        return told(rule, COSTS, reason, *rows, *gpu.rows)
    return told(rule, CANNOT, f"{who} has neither machine code nor PTX for {gpu.text} ({listed})", *rows, *gpu.rows)


def _built_for(asked: Combination) -> Iterator[tuple[str, tuple[str, ...], tuple[Row, ...]]]:
    """The lists of capabilities that a combination is about: the one given, else Serving's, else upstream's wheel's."""
    if asked.built_for:
        yield "the build", asked.built_for, ()
    elif asked.serving and (row := tables.serving(asked.serving)):
        yield f"Serving {asked.serving} as released", tuple(row["capabilities"].split(",")), (row,)
    elif (
        asked.tf
        and (row := tables.newest(tables.overlapping(tables.table("upstream"), asked.tf)))
        and _is_default(row, asked)
    ):
        yield f"upstream's TensorFlow {asked.tf}", tuple(row["capabilities"].split(",")), (row,)


def _is_default(row: Row, asked: Combination) -> bool:
    """Whether a combination is upstream's own build, as far as CUDA tells: another CUDA is somebody's own build."""
    return asked.cuda is None or lines.agree(row["cuda"], asked.cuda)


def cuda_and_built_for(asked: Combination) -> Iterator[Finding]:
    """CUDA's compiler refuses a capability that it does not know."""
    if asked.cuda is None or not asked.built_for:
        return
    row, rule = tables.compiler(asked.cuda), "CUDA and what is built"
    if row is None:
        yield silent(rule, f"no table has the GPUs of CUDA {asked.cuda}")
        return
    known = {int(number) for number in row["capabilities"].split()}
    refused = [each for each in asked.built_for if plain(each) not in known]
    if refused:
        yield told(rule, CANNOT, f"CUDA {asked.cuda} does not compile for {', '.join(refused)}", row)
    else:
        yield told(rule, WORKS, f"CUDA {asked.cuda} compiles for all that is built", row)


def cuda_and_driver(asked: Combination) -> Iterator[Finding]:
    """The driver that came with CUDA runs it; an older one of the same major version does, without compiling PTX."""
    asked = _with_cuda(asked)
    if asked.cuda is None or asked.driver is None:
        return
    row, least, rule = tables.driver(asked.cuda), tables.minor_version_driver(asked.cuda), "CUDA and driver"
    if row is None:
        yield silent(rule, f"no table has the driver of CUDA {asked.cuda}")
    elif lines.at_least(asked.driver, row["driver"]):
        yield told(rule, WORKS, f"CUDA {asked.cuda} came with driver {row['driver']}, and newer ones run it", row)
    elif least is not None and lines.at_least(asked.driver, least["driver"]):
        reason = (
            f"CUDA {asked.cuda} came with driver {row['driver']}; from {least['driver']} on, minor-version "
            "compatibility runs it, "
            "but a driver older than CUDA compiles none of its PTX: only GPUs that have machine code in the packages"
        )
        yield told(rule, COSTS, reason, row, least)
    else:
        needed = row if least is None else least
        yield told(
            rule,
            CANNOT,
            f"CUDA {asked.cuda} needs driver {needed['driver']} or newer, and {asked.driver} is older",
            needed,
        )


def driver_and_ptx(asked: Combination) -> Iterator[Finding]:
    """A driver older than CUDA does not compile its PTX, so a GPU without machine code of its own runs nothing."""
    asked = _with_cuda(asked)
    if asked.cuda is None or asked.driver is None:
        return
    row = tables.driver(asked.cuda)
    if row is None or lines.at_least(asked.driver, row["driver"]):
        return
    for finding in (*cuda_and_gpu(asked), *builds_and_gpu(asked)):
        if finding.verdict is COSTS:
            reason = (
                f"the driver has to compile PTX of CUDA {asked.cuda}, which only {row['driver']} and newer "
                f"do, not {asked.driver}"
            )
            yield told("driver and PTX", CANNOT, reason, row, *finding.rows)
            return


def driver_and_gpu(asked: Combination) -> Iterator[Finding]:
    """A driver serves no GPU that its branch has dropped; one older than the first CUDA for a GPU may not know it."""
    for gpu in asked.gpus if asked.driver else ():
        first, final = tables.first_cuda(plain(gpu.capability)), tables.last_driver(gpu.capability)
        row = tables.driver(first["first"]) if first else None
        assert asked.driver is not None, "asked above"
        if final is not None and lines.numbers(asked.driver)[0] > lines.numbers(final["driver"])[0]:
            reason = f"drivers after {final['driver']} do not serve {gpu.text}, and {asked.driver} is one of them"
            yield told("driver and GPU", CANNOT, reason, final, *gpu.rows)
        elif first is None or row is None:
            yield silent("driver and GPU", f"no table has a CUDA for {gpu.text}")
        elif lines.at_least(asked.driver, row["driver"]):
            reason = f"driver {asked.driver} is not older than that of the first CUDA for {gpu.text}, {first['first']}"
            yield told("driver and GPU", WORKS, reason, first, row, *gpu.rows)
        else:
            reason = (
                f"the first CUDA for {gpu.text}, {first['first']}, came with driver {row['driver']}; "
                f"whether {asked.driver} knows the GPU nobody has told"
            )
            yield told("driver and GPU", UNKNOWN, reason, first, row, *gpu.rows)


def driver_and_kernel(asked: Combination) -> Iterator[Finding]:
    """The driver's library and its part in the kernel must be of one version."""
    if asked.driver is None or asked.loaded is None:
        return
    rule = "driver and kernel"
    if lines.agree(asked.driver, asked.loaded):
        yield told(rule, WORKS, f"libcuda and the kernel's module are both {asked.driver}")
    else:
        reason = (
            f"libcuda is {asked.driver}, and the kernel has {asked.loaded} loaded: no CUDA program starts "
            "until they are the same; reboot, or reload the module"
        )
        yield told(rule, CANNOT, reason)


def cudnn_and_cuda(asked: Combination) -> Iterator[Finding]:
    """A cuDNN is made for the CUDAs that NVIDIA's matrix lists, and for those that it was tested with."""
    if asked.cudnn is None or asked.cuda is None:
        return
    rule, what = "cuDNN and CUDA", f"cuDNN {asked.cudnn} and CUDA {asked.cuda}"
    rows = tables.cudnn(asked.cudnn, asked.cuda)
    works = [row for row in rows if row["works"] == "yes"]
    if works:
        yield told(rule, WORKS, f"{what} are made for each other", works[0])
    elif rows:
        yield told(rule, CANNOT, f"NVIDIA does not support {what} together", rows[0])
    elif tested := _tested_together(asked.cudnn, asked.cuda):
        yield told(rule, WORKS, f"{what} are tested together", tested)
    else:
        yield silent(rule, f"no table has {what} together")


def cudnn_and_machine(asked: Combination) -> Iterator[Finding]:
    """A cuDNN has kernels for some GPUs, and needs a driver, for each CUDA that it is made for."""
    if asked.cudnn is None or asked.cuda is None:
        return
    rows = [row for row in tables.cudnn(asked.cudnn, asked.cuda) if row["works"] == "yes"]
    for gpu in asked.gpus if rows else ():
        yield _cudnn_and_gpu(asked, rows, gpu)
    least = min((row for row in rows if row["driver"]), key=lambda row: lines.numbers(row["driver"]), default=None)
    if asked.driver and least and not lines.at_least(asked.driver, least["driver"]):
        reason = (
            f"cuDNN {asked.cudnn} for CUDA {asked.cuda} needs driver {least['driver']} or newer, and "
            f"{asked.driver} is older"
        )
        yield told("cuDNN and driver", CANNOT, reason, least)


def _cudnn_and_gpu(asked: Combination, rows: list[Row], gpu: Gpu) -> Finding:
    rule, number = "cuDNN and GPU", plain(gpu.capability)
    stated = [row for row in rows if row["capability_min"]]
    holding = [row for row in stated if _reach(row)[0] <= number <= _reach(row)[1]]
    if holding:
        return told(rule, WORKS, f"cuDNN {asked.cudnn} has kernels for {gpu.text}", holding[0], *gpu.rows)
    what = f"cuDNN {asked.cudnn} for CUDA {asked.cuda}"
    if len(stated) < len(rows):
        return silent(rule, f"no table has the GPUs of {what}")
    if all(number < _reach(row)[0] for row in stated):
        return told(
            rule, CANNOT, f"{what} has no kernels for {gpu.text}, which is older than all of its GPUs", stated[0]
        )
    return told(
        rule, UNKNOWN, f"NVIDIA's matrix of {what} does not list {gpu.text}, which is newer", stated[0], *gpu.rows
    )


def _reach(row: Row) -> tuple[int, float]:
    highest = row["capability_max"]
    return plain(row["capability_min"]), plain(highest) if highest else float("inf")


def serving_and_the_rest(asked: Combination) -> Iterator[Finding]:
    """A release of Serving comes with a TensorFlow of its own minor version, one CUDA and one cuDNN."""
    if asked.serving is None:
        return
    row, rule = tables.serving(asked.serving), "Serving"
    if row is None:
        yield silent(rule, f"no table has Serving {asked.serving}")
        return
    yield from _serving_and_tensorflow(asked.serving, asked.tf, row)
    for name, shown in (("cuda", "CUDA"), ("cudnn", "cuDNN")):
        given = getattr(asked, name)
        if given is None:
            continue
        if lines.agree(given, row[name]):
            yield told(f"{rule} and {shown}", WORKS, f"Serving {asked.serving} is built with {shown} {row[name]}", row)
        else:
            yield told(f"{rule} and {shown}", *_other_than_serving(asked.serving, shown, given, row[name]), row)


def _other_than_serving(serving: str, shown: str, given: str, own: str) -> tuple[Verdict, str]:
    if lines.numbers(given)[0] == lines.numbers(own)[0]:
        return (
            COSTS,
            f"Serving {serving} is built with {shown} {own}; {given} is of the same major version, and untested",
        )
    return UNKNOWN, f"Serving {serving} is built with {shown} {own}; whether it can be with {given} nobody has told"


def _serving_and_tensorflow(serving: str, tf: str | None, row: Row) -> Iterator[Finding]:
    rule = "Serving and TensorFlow"
    if tf and lines.numbers(tf)[:2] != lines.numbers(serving)[:2]:
        yield told(rule, CANNOT, f"Serving {serving} contains TensorFlow of its own minor version, not {tf}", row)
        return
    own = tables.tensorflow(serving)
    if own is None:
        return
    differ = [
        f"{shown} {row[name]} (TensorFlow: {own[name]})"
        for name, shown in (("cuda", "CUDA"), ("cudnn", "cuDNN"))
        if not lines.agree(row[name], own[name])
    ]
    if differ:
        yield told(
            rule,
            COSTS,
            f"Serving {serving} is built with another {' and '.join(differ)} than TensorFlow is tested with",
            row,
            own,
        )
    else:
        yield told(
            rule, WORKS, f"Serving {serving} is built with the CUDA and cuDNN that TensorFlow is tested with", row, own
        )


def wheel_and_glibc(asked: Combination) -> Iterator[Finding]:
    """Upstream's wheel runs on the glibc that its file name has, and on newer ones."""
    if asked.tf is None or asked.glibc is None:
        return
    row, rule = tables.newest(tables.overlapping(tables.table("wheel"), asked.tf)), "wheel and glibc"
    if row is None:
        yield silent(rule, f"no table has the glibc of TensorFlow {asked.tf}")
    elif lines.at_least(asked.glibc, row["glibc"]):
        yield told(rule, WORKS, f"upstream's wheel of TensorFlow {asked.tf} needs glibc {row['glibc']} or newer", row)
    else:
        yield told(
            rule,
            CANNOT,
            f"upstream's wheel of TensorFlow {asked.tf} needs glibc {row['glibc']}; {asked.glibc} is older",
            row,
        )


def wheel_and_processor(asked: Combination) -> Iterator[Finding]:
    """Upstream's wheels need AVX since 1.6."""
    if asked.tf is None or asked.avx is not False:
        return
    row = next(iter(tables.overlapping(tables.table("processor"), asked.tf)), None)
    if row is not None:
        reason = (
            f"upstream's wheel of TensorFlow {asked.tf} uses AVX, which this processor does not have; "
            "compile it with microarch_level 1"
        )
        yield told("wheel and processor", CANNOT, reason, row)


def _with_cuda(asked: Combination) -> Combination:
    """The combination with the CUDA that its release is built or tested with, where none is given."""
    if asked.cuda is not None:
        return asked
    row = tables.serving(asked.serving) if asked.serving else tables.tensorflow(asked.tf) if asked.tf else None
    return asked if row is None else asked.with_versions(cuda=row["cuda"])


def _builds(asked: Combination) -> list[Row]:
    """What others built of a release of TensorFlow."""
    return [row for row in tables.table("built") if row["tf"] and asked.tf and lines.agree(row["tf"], asked.tf)]


def _built(asked: Combination) -> list[Row]:
    return [row for row in _builds(asked) if asked.cuda and lines.agree(row["cuda"], asked.cuda)][:1]


def _tested_together(cudnn: str, cuda: str) -> Row | None:
    """A row of TensorFlow, Serving or somebody's build that has both."""
    rows = (row for name in ("tensorflow", "serving", "built", "upstream") for row in tables.table(name))
    return next(
        (row for row in rows if row["cudnn"] and lines.agree(row["cudnn"], cudnn) and lines.agree(row["cuda"], cuda)),
        None,
    )


def told(rule: str, verdict: Verdict, reason: str, *rows: Row) -> Finding:
    """Return what rows say."""
    return Finding(rule=rule, verdict=verdict, reason=reason, rows=rows)


def silent(rule: str, reason: str) -> Finding:
    """Return that the tables say nothing."""
    return Finding(rule=rule, verdict=UNKNOWN, reason=reason)


RULES: tuple[Rule, ...] = (
    tensorflow_alone,
    tensorflow_and_cuda,
    tensorflow_and_cudnn,
    tensorflow_and_python,
    tensorflow_and_bazel,
    tensorflow_and_compiler,
    serving_and_the_rest,
    serving_and_bazel,
    cuda_and_gpu,
    cuda_and_built_for,
    builds_and_gpu,
    cuda_and_host_compiler,
    cuda_and_driver,
    driver_and_ptx,
    driver_and_gpu,
    driver_and_kernel,
    cudnn_and_cuda,
    cudnn_and_machine,
    wheel_and_glibc,
    wheel_and_processor,
)
