"""What CUDA compiles for, what is compiled, and what of it a GPU runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.combination import dotted, plain
from kiln.compat.rules.common import CANNOT, COSTS, WORKS, silent, told, with_cuda

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination, Gpu
    from kiln.compat.tables import Row


def cuda_and_gpu(asked: Combination) -> Iterator[Finding]:
    """CUDA compiles for the capabilities that it lists; newer GPUs run its PTX, older ones nothing."""
    asked = with_cuda(asked)
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
    if tables.first_cuda(number) is None:
        return silent(rule, f"no table has a CUDA that compiles for {gpu.text}")
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


def builds_and_gpu(asked: Combination) -> Iterator[Finding]:
    """A GPU runs machine code of its own generation, or PTX that is not newer than itself; without either nothing."""
    for who, capabilities, rows in _built_for(asked):
        for gpu in asked.gpus:
            yield _build_and_gpu(who, capabilities, rows, gpu)


def _build_and_gpu(who: str, capabilities: tuple[str, ...], rows: tuple[Row, ...], gpu: Gpu) -> Finding:
    rule, number, listed = "what is built and GPU", plain(gpu.capability), ",".join(capabilities)
    if tables.first_cuda(number) is None:
        return silent(rule, f"no table has a CUDA that compiles for {gpu.text}")
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
