"""The conversion of combinations to variants of a recipe, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import Combination, capability_number, is_capability
from kiln.compat.results import release_row
from kiln.compat.version_ranges import is_below, is_version, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE = {"None", "undefined", ""}


def conda_build_config_lines(combination: Combination) -> tuple[str, ...]:
    """Return the lines of conda_build_config.yaml for a combination, with versions as in the names of packages."""
    if combination.cuda is None:
        return ()
    values = {
        "cuda_compiler_version": _cuda_minor_version(combination.cuda),
        "cudnn": _cudnn_minor_version(combination),
        **_compiler_versions(combination),
    }
    if combination.python and "." in combination.python:
        values["python"] = (
            f"{_minor_version(combination.python)}.* *_{_python_build_suffix(_minor_version(combination.python))}"
        )
    values["cuda_compute_capabilities"] = ",".join(capabilities_extended_for_gpus(combination) or combination.built_for)
    return tuple(line for key, value in values.items() if value for line in (f"{key}:", f'  - "{value}"'))


def _python_build_suffix(python: str) -> str:
    """Return the end of the build strings of conda-forge's Python: the ABI since 3.13."""
    return "cpython" if is_below(python, "3.13") else f"cp{python.replace('.', '')}"


def _minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cuda_minor_version(version: str) -> str:
    """Return the CUDA as in the names of packages; a major version alone means its newest minor version."""
    newest = (cuda for cuda in tables.cuda_minor_versions() if versions_agree(cuda, version))
    return _minor_version(version) if "." in version else next(newest, version)


def _cudnn_minor_version(combination: Combination) -> str:
    """Return the combination's cuDNN, else the one that the release is tested with."""
    if combination.cudnn:
        return _minor_version(combination.cudnn)
    row = release_row(combination)
    if row is None or not combination.cuda or not versions_agree(row["cuda"], combination.cuda):
        return ""
    return _minor_version(row["cudnn"])


def _compiler_versions(combination: Combination) -> dict[str, str]:
    """Return the combination's GCC, else the newest one that CUDA accepts."""
    compiler = combination.host or combination.compiler or ""
    version = (
        compiler.split()[1].split(".")[0] if compiler.startswith("gcc ") else newest_accepted_gcc(combination.cuda)
    )
    return {"c_compiler_version": version, "cxx_compiler_version": version} if version else {}


def newest_accepted_gcc(cuda: str | None) -> str:
    """Return the newest GCC that a CUDA accepts as its host compiler, ``13``; empty where that is unknown."""
    row = tables.cuda_compiler_row(cuda) if cuda else None
    if row is None or not row["gcc_below"]:
        return ""
    major, *minor = version_numbers(row["gcc_below"])
    return str(int(major) if minor else int(major) - 1)


def capabilities_extended_for_gpus(combination: Combination) -> tuple[str, ...]:
    """Return the capabilities that include the GPUs'; empty when they do already, or CUDA does not support them."""
    row = tables.cuda_compiler_row(combination.cuda) if combination.cuda else None
    if row is None:
        return ()
    supported = {int(number) for number in row["capabilities"].split()}
    own = {capability_number(gpu.capability) for gpu in combination.gpus} & supported
    listed = {capability_number(name) for name in combination.built_for} or _upstream_capabilities(combination)
    if own <= listed:
        return ()
    numbers = sorted((listed & supported) | own)
    return (*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}")


def _upstream_capabilities(combination: Combination) -> set[int]:
    """Return the capabilities that upstream compiles the release for, empty where that is unknown."""
    row = tables.newest_row_including("upstream", combination.tf) if combination.tf else None
    return {capability_number(name) for name in row["capabilities"].split(",")} if row else set()


def combinations_of_variant(
    variant: Mapping[str, tuple[str, ...]], *, tf: str | None = None, serving: str | None = None
) -> tuple[Combination, ...]:
    """Return the combinations of a config, one for each of its Pythons; values that are not versions are left open.

    Serving's server has no Python, and the package for its clients is one for all of them.
    """
    first = {key: values[0] for key, values in variant.items() if values and values[0] not in NONE}
    listed = tuple(part.strip() for part in first.get("cuda_compute_capabilities", "").split(",") if part.strip())
    gcc = _version_or_none(first.get("cxx_compiler_version")) if first.get("cxx_compiler", "gxx") == "gxx" else None
    common = Combination(
        tf=_version_or_none(tf),
        serving=_version_or_none(serving),
        cuda=_version_or_none(first.get("cuda_compiler_version")),
        cudnn=_version_or_none(first.get("cudnn")),
        host=f"gcc {gcc}" if gcc else None,
        bazel=_version_or_none(first.get("bazel")),
        built_for=tuple(name for name in listed if is_capability(name)),
    )
    values = variant.get("python", ("",)) if serving is None else ("",)
    pythons = dict.fromkeys(_version_or_none(value.split(".*")[0].split(" ")[0]) for value in values)
    return tuple(common.with_versions(python=python) for python in pythons)


def _version_or_none(text: str | None) -> str | None:
    return text if text is not None and is_version(text) else None
