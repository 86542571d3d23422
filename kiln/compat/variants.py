"""What a combination is in a recipe's variants, and what a recipe's variants are as a combination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.combination import Combination, plain

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE = {"None", "undefined", ""}


def variants(wanted: Combination) -> tuple[str, ...]:
    """Return the lines of conda_build_config.yaml for a combination, versions as far as packages name them."""
    if wanted.cuda is None:
        return ()
    values = {"cuda_compiler_version": _cuda(wanted.cuda), "cudnn": _cudnn(wanted), **_compilers(wanted)}
    if wanted.python and "." in wanted.python:
        values["python"] = f"{_minor(wanted.python)}.* *_{_build(_minor(wanted.python))}"
    values["cuda_compute_capabilities"] = ",".join(completed_list(wanted) or wanted.built_for)
    return tuple(line for key, value in values.items() if value for line in (f"{key}:", f'  - "{value}"'))


def _build(python: str) -> str:
    """How conda-forge's builds of a Python end: with the ABI where there is one without the global lock too."""
    return "cpython" if lines.below(python, "3.13") else f"cp{python.replace('.', '')}"


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cuda(version: str) -> str:
    """The CUDA as packages are named for it; a major version alone stands for the newest of its minor ones."""
    newest = (cuda for cuda in tables.cuda_lines() if lines.agree(cuda, version))
    return _minor(version) if "." in version else next(newest, version)


def _cudnn(wanted: Combination) -> str:
    """The cuDNN asked for, else the one that the release is tested with."""
    if wanted.cudnn:
        return _minor(wanted.cudnn)
    row = tables.serving(wanted.serving) if wanted.serving else tables.tensorflow(wanted.tf) if wanted.tf else None
    return _minor(row["cudnn"]) if row is not None and wanted.cuda and lines.agree(row["cuda"], wanted.cuda) else ""


def _compilers(wanted: Combination) -> dict[str, str]:
    """The GCC asked for, else the newest one that CUDA takes."""
    given = wanted.host or wanted.compiler or ""
    version = given.split()[1].split(".")[0] if given.startswith("gcc ") else newest_gcc(wanted.cuda)
    return {"c_compiler_version": version, "cxx_compiler_version": version} if version else {}


def newest_gcc(cuda: str | None) -> str:
    """Return the newest GCC that a CUDA takes as its host compiler: ``13``; nothing where that is not known."""
    row = tables.compiler(cuda) if cuda else None
    if row is None:
        return ""
    major, *minor = lines.numbers(row["gcc_below"])
    return str(int(major) if minor else int(major) - 1)


def completed_list(wanted: Combination) -> tuple[str, ...]:
    """Return the list of capabilities that serves the GPUs too; nothing when the present one does, or CUDA cannot."""
    row = tables.compiler(wanted.cuda) if wanted.cuda else None
    if row is None:
        return ()
    known = {int(number) for number in row["capabilities"].split()}
    own = {plain(gpu.capability) for gpu in wanted.gpus} & known
    listed = {plain(each) for each in wanted.built_for} or _policy(wanted)
    if own <= listed:
        return ()
    every = sorted((listed & known) | own)
    return (*(f"sm_{number}" for number in every), f"compute_{every[-1]}")


def _policy(wanted: Combination) -> set[int]:
    """What upstream compiles the release for by itself, where that is known."""
    row = tables.newest(tables.overlapping(tables.table("upstream"), wanted.tf)) if wanted.tf else None
    return {plain(each) for each in row["capabilities"].split(",")} if row else set()


def of_variant(
    variant: Mapping[str, tuple[str, ...]], *, tf: str | None = None, serving: str | None = None
) -> tuple[Combination, ...]:
    """Return the combinations that a cell is, one for each of its Pythons; what is no version is left open.

    Serving's server has no Python, and what its clients import is one package for all of them.
    """
    first = {key: values[0] for key, values in variant.items() if values and values[0] not in NONE}
    listed = tuple(part.strip() for part in first.get("cuda_compute_capabilities", "").split(",") if part.strip())
    gcc = _version(first.get("cxx_compiler_version")) if first.get("cxx_compiler", "gxx") == "gxx" else None
    common = Combination(
        tf=_version(tf),
        serving=_version(serving),
        cuda=_version(first.get("cuda_compiler_version")),
        cudnn=_version(first.get("cudnn")),
        host=f"gcc {gcc}" if gcc else None,
        bazel=_version(first.get("bazel")),
        built_for=tuple(each for each in listed if _is_capability(each)),
    )
    values = variant.get("python", ("",)) if serving is None else ("",)
    pythons = dict.fromkeys(_version(value.split(".*")[0].split(" ")[0]) for value in values)
    return tuple(common.with_versions(python=python) for python in pythons)


def _version(text: str | None) -> str | None:
    try:
        lines.numbers(text or "")
    except ValueError:
        return None
    return text


def _is_capability(text: str) -> bool:
    try:
        plain(text)
    except ValueError:
        return False
    return True
