"""What is to work together: versions, GPUs and the machine, any of it left open."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from kiln.compat import lines, tables
from kiln.errors import UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.compat.tables import Row

VERSIONS = ("tf", "serving", "cuda", "cudnn", "python", "bazel", "driver", "glibc")
_CAPABILITY = re.compile(r"(?:(?:sm|compute)_)?(?P<number>\d{1,2}\.\d|\d{2,3})[af]?")
_COMPILER = re.compile(r"(?P<name>gcc|clang)[ -]?(?P<version>\d{1,3}(?:\.\d{1,3}){0,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU: its compute capability, ``7.0``, and the rows that say so, none when the capability itself was given."""

    name: str
    capability: str
    rows: tuple[Row, ...] = ()

    @property
    def text(self) -> str:
        """The GPU for people: ``V100 (7.0)``."""
        return self.capability if self.name == self.capability else f"{self.name} ({self.capability})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """What was asked for; None and empty mean that it is left open.

    ``compiler`` is ``gcc 13`` or ``clang 18.1.8``; ``host`` is the one that nvcc hands the host's part to, where
    that is another. ``built_for`` is a list of compute capabilities as TensorFlow's
    builds have it, ``sm_70`` for machine code, ``compute_90`` for machine code and PTX. ``loaded`` is the driver's
    version in the kernel where it may differ from that of its library, ``driver``. ``avx`` is the processor's.
    """

    tf: str | None = None
    serving: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    python: str | None = None
    compiler: str | None = None
    host: str | None = None
    bazel: str | None = None
    driver: str | None = None
    loaded: str | None = None
    glibc: str | None = None
    avx: bool | None = None
    gpus: tuple[Gpu, ...] = ()
    built_for: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The combination in one line."""
        names = {
            "tf": "TensorFlow",
            "serving": "Serving",
            "cuda": "CUDA",
            "cudnn": "cuDNN",
            "python": "Python",
            "bazel": "Bazel",
        }
        told = [value if name == "compiler" else f"{names.get(name, name)} {value}" for name, value in self.given()]
        told += [gpu.text for gpu in self.gpus]
        told += [f"built for {','.join(self.built_for)}"] if self.built_for else []
        return ", ".join(told) or "nothing"

    def given(self) -> tuple[tuple[str, str], ...]:
        """Return what is given of the versions and the compiler, by name."""
        found = ((name, getattr(self, name)) for name in (*VERSIONS[:6], "compiler", "host", *VERSIONS[6:]))
        return tuple((name, value) for name, value in found if value is not None)

    @property
    def key(self) -> object:
        """What tells combinations on one machine apart."""
        return self.given(), self.built_for

    def with_versions(self, **versions: str | None) -> Combination:
        """Return the combination with other versions."""
        return replace(self, **versions)  # type: ignore[arg-type]  # the names are those of the versions

    def as_data(self) -> dict[str, Any]:
        """Return what is given, for programs."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["gpus"] = [{"name": gpu.name, "capability": gpu.capability} for gpu in self.gpus]
        data["built_for"] = list(self.built_for)
        return {name: value for name, value in data.items() if value not in (None, [])}


def combination(asked: Mapping[str, str | None]) -> Combination:
    """Return what a person asks for: versions by their names, ``compiler``, ``gpu`` and ``built_for`` as text.

    Raises:
        UsageError: for what is no version, no compiler or no GPU that is known.
    """
    given = {name: value.strip() for name, value in asked.items() if value is not None}
    compiler_asked, host, gpu_asked, built_for = (
        given.pop(name, None) for name in ("compiler", "host", "gpu", "built_for")
    )
    versions = {name: _version(name, value) for name, value in given.items()}
    return Combination(
        compiler=None if compiler_asked is None else compiler(compiler_asked),
        host=None if host is None else compiler(host),
        gpus=() if gpu_asked is None else tuple(dict.fromkeys(map(gpu, gpu_asked.split(",")))),
        built_for=() if built_for is None else tuple(_built(part.strip()) for part in built_for.split(",")),
    ).with_versions(**versions)


def gpu(name: str) -> Gpu:
    """Return the GPU that a name means: ``7.0``, ``sm_70``, ``V100``, ``Tesla V100-SXM2-16GB``, ``p3``, ``p3.2xlarge``.

    Raises:
        UsageError: when the tables have none such.
    """
    name = name.strip()
    if number := _CAPABILITY.fullmatch(name.lower()):
        return Gpu(name=dotted(number["number"]), capability=dotted(number["number"]))
    family = name.lower().partition(".")[0]
    for machine in tables.table("cloud"):
        if family in {machine["machine"], *([f"{machine['machine']}-{machine['gpu'].lower()}"])}:
            inside = _named(machine["gpu"])
            assert inside is not None, f"{machine.place} names a GPU that gpu.csv does not have"
            doubt = "" if machine["verified"] == "yes" else ", not verified"
            return Gpu(
                name=f"{inside['gpu']} of {machine['machine']}{doubt}",
                capability=inside["capability"],
                rows=(machine, inside),
            )
    found = _named(name)
    if found is None:
        known = [*(row["gpu"] for row in tables.table("gpu")), *(row["machine"] for row in tables.table("cloud"))]
        hint = (
            nearest(name, known)
            or "give its compute capability instead, such as --gpu 7.0 (nvidia-smi --query-gpu=compute_cap)"
        )
        raise UsageError(f"no table has a GPU {name!r}", hint=hint)
    return Gpu(name=found["gpu"], capability=found["capability"], rows=(found,))


def _named(name: str) -> Row | None:
    """The GPU of a name as NVIDIA's tools write it: the longest name in the table that is a part of it."""
    words = f" {re.sub(r'[^a-z0-9]+', ' ', name.lower())} "
    rows = [row for row in tables.table("gpu") if f" {row['gpu'].lower()} " in words]
    return max(rows, key=lambda row: len(row["gpu"]), default=None)


def compiler(text: str) -> str:
    """Return a compiler as the tables write it: ``gcc 13`` for ``GCC-13``.

    Raises:
        UsageError: when it is none.
    """
    found = _COMPILER.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is no compiler", hint="gcc-13, clang-18.1.8")
    return f"{found['name']} {found['version']}"


def dotted(number: str) -> str:
    """Return a compute capability with its dot: ``7.0`` for ``70``, ``12.0`` for ``120``."""
    return number if "." in number else f"{number[:-1]}.{number[-1]}"


def plain(capability: str) -> int:
    """Return a compute capability as compilers write it: 70 for ``7.0``, ``sm_70`` and ``compute_70``."""
    found = _CAPABILITY.fullmatch(capability)
    if found is None:
        raise ValueError(f"{capability!r} is no compute capability")
    return int(found["number"].replace(".", ""))


def _version(name: str, value: str) -> str:
    try:
        lines.numbers(value)
    except ValueError:
        raise UsageError(
            f"--{name} {value!r} is no version", hint=f"--{name} 12.5, as many numbers as are known"
        ) from None
    return value


def _built(part: str) -> str:
    try:
        plain(part)
    except ValueError:
        raise UsageError(
            f"{part!r} is no compute capability", hint="sm_70 is machine code, compute_90 that and PTX"
        ) from None
    return part
