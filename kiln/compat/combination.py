"""A combination to judge, from and to a variant of a recipe, and the results of judging it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError, did_you_mean
from kiln.base.patterns import lazy_pattern
from kiln.compat import tables
from kiln.compat.tables import is_at_least, is_below, is_version, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.compat.tables import Row


class Verdict(str, Enum):
    """The verdicts from good to bad; the worst finding decides."""

    WORKS = "works"
    COSTS = "works with a cost"
    UNKNOWN = "unknown"
    CANNOT = "cannot work"

    def __init__(self, _: str) -> None:
        self.rank = len(type(self).__members__)  # 0 for the best


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of one rule: ``rows`` are the facts that it rests on, none where the tables have none."""

    rule: str
    verdict: Verdict
    reason: str
    rows: tuple[Row, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        rows = [{"place": row.place, "row": dict(row.cells[:-1]), "source": row["source"]} for row in self.rows]
        return {"rule": self.rule, "verdict": self.verdict.value, "reason": self.reason, "rows": rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A similar combination with a better verdict: ``changes`` are the names of the parts that differ."""

    combination: Combination
    verdict: Verdict
    changes: tuple[str, ...]
    variants: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the suggestion as JSON values."""
        return {
            "combination": self.combination.as_data(),
            "verdict": self.verdict.value,
            "changes": list(self.changes),
            "variants": list(self.variants),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorResult:
    """The verdict on a combination; ``variants`` are lines for the recipe's conda_build_config.yaml."""

    combination: Combination
    verdict: Verdict
    findings: tuple[Finding, ...]
    nearest: tuple[Suggestion, ...] = ()
    variants: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "verdict": self.verdict.value,
            "combination": self.combination.as_data(),
            "findings": [finding.as_data() for finding in self.findings],
            "nearest": [suggestion.as_data() for suggestion in self.nearest],
            "variants": list(self.variants),
        }


def worst_verdict(findings: tuple[Finding, ...]) -> Verdict:
    """Return the worst verdict of all findings; without any it is unknown."""
    return max((finding.verdict for finding in findings), key=lambda verdict: verdict.rank, default=Verdict.UNKNOWN)


WORKS, COSTS, UNKNOWN, CANNOT = Verdict.WORKS, Verdict.COSTS, Verdict.UNKNOWN, Verdict.CANNOT


def finding_with_rows(rule: str, verdict: Verdict, reason: str, *rows: Row) -> Finding:
    """Return a finding that rests on rows."""
    return Finding(rule=rule, verdict=verdict, reason=reason, rows=rows)


def unknown_finding(rule: str, reason: str) -> Finding:
    """Return the finding that the tables have no row."""
    return Finding(rule=rule, verdict=UNKNOWN, reason=reason)


def bazel_finding(rule: str, release: str, tested: str, bazel: str, row: Row | None) -> Finding:
    """Return the finding about a Bazel, compared with the one that a release is built with."""
    if row is None:
        return unknown_finding(rule, f"no table has {release}")
    reason = f"{release} is built with Bazel {tested}"
    if versions_agree(tested, bazel):
        return finding_with_rows(rule, WORKS, reason, row)
    if version_numbers(tested)[0] == version_numbers(bazel)[0] > 0 and is_at_least(bazel, tested):
        return finding_with_rows(rule, COSTS, f"{reason}; {bazel} is untested", row)
    return finding_with_rows(rule, UNKNOWN, f"{reason}; whether {bazel} builds it is not documented", row)


def release_row(combination: Combination) -> Row | None:
    """Return the row of a combination's release of Serving, else of TensorFlow."""
    if combination.serving:
        return tables.serving_row(combination.serving)
    return tables.tensorflow_row(combination.tf) if combination.tf else None


def with_release_cuda_unless_given(combination: Combination) -> Combination:
    """Return the combination with a CUDA: its own, or the one that its release is built or tested with.

    A package that is built without CUDA gets none.
    """
    if combination.cuda is not None or combination.has_cuda is False:
        return combination
    row = release_row(combination)
    return combination if row is None else combination.with_versions(cuda=row["cuda"])


EXAMPLES = {  # of versions that can be left open, by their names
    "tf": "2.21",
    "serving": "2.20",
    "cuda": "12.5",
    "cudnn": "9.3",
    "python": "3.12",
    "bazel": "7.4.1",
    "driver": "580.65.06",
    "glibc": "2.28",
    "numpy": "2.1",
    "keras": "3.12",
    "protobuf": "6.31.1",
    "metal": "1.2.0",
}
VERSIONS = tuple(EXAMPLES)
COMPILERS = {"gcc": "GCC", "clang": "clang"}
SYSTEM_NAMES = {"linux": "Linux", "wsl2": "WSL2", "windows": "Windows", "macos": "macOS"}
ARCHS = {"x86_64": "x86_64", "aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64"}
_VERSIONS_AND_COMPILERS = (*VERSIONS[:6], "compiler", "host", *VERSIONS[6:])
_CAPABILITY = lazy_pattern(r"(?:(?:sm|compute)_)?(?P<number>\d{1,2}\.\d|\d{2,3})(?P<suffix>[af]?)")
# What GPUs with one compute capability are told apart by: memory, form, clocks, a part of one (MIG), the market.
_MEANINGLESS = lazy_pattern(
    r"(?: |(?<= )(?:\d{1,3} (?:gb?|gib)|hbm \d ?e?|e|mig|\d g|gb|(?:sxm|pcie?|nvl|dgxs|fhhl|oam)(?: \d)?|hgx|ti|super"
    r"|laptop|mobile|desktop|n?v?gpu|with|max q|design|generation|d|jetson|agx|developer kit|module"
    r"|(?:server|workstation|sff) edition|max q workstation edition)(?= ))*"
)
_COMPILER = lazy_pattern(r"(?P<name>gcc|clang)[ -]?(?P<version>\d{1,3}(?:\.\d{1,3}){0,2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU: its compute capability, ``7.0``, and its rows, none when the capability itself was given."""

    name: str
    capability: str
    rows: tuple[Row, ...] = ()

    @property
    def text(self) -> str:
        """The GPU for people: ``V100 (7.0)``."""
        return self.capability if self.name == self.capability else f"{self.name} ({self.capability})"

    @property
    def is_jetson(self) -> bool:
        """Whether JetPack brings the driver of the GPU, which is a Tegra's."""
        return tables.is_tegra(capability_number(self.capability))

    @property
    def arch_row(self) -> Row | None:
        """The row that names the processor, if all machines with the GPU have that of it: Jetson, GH200, Thor."""
        return self._row_with("arch")

    @property
    def forward_row(self) -> Row | None:
        """The row that says that CUDA's forward compatibility serves the GPU, if it serves all of its capability."""
        return self._row_with("forward")

    def _row_with(self, column: str) -> Row | None:
        """Return a row of the GPU, else one of its capability, if the column is set in all of them."""
        rows = [row for row in self.rows if row.table == "gpu"]
        rows = rows or [row for row in tables.table_rows("gpu") if row["capability"] == self.capability]
        return rows[0] if rows and all(row[column] for row in rows) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """The parts to judge; None and empty parts are left open.

    ``compiler`` is ``gcc 13`` or ``clang 18.1.8``; ``host`` is nvcc's host compiler where it is another one.
    ``built_for`` is a list of compute capabilities in the notation of TensorFlow's builds, ``sm_70`` for machine code,
    ``compute_90`` for machine code and PTX. ``loaded`` is the version of the driver's kernel module where it may differ
    from that of its library, ``driver``. ``avx`` and ``arch`` (``x86_64``, ``aarch64``) are the processor's. ``metal``
    is the version of tensorflow-metal, ``system`` one of SYSTEM_NAMES. ``platform`` (``linux-64``) and ``has_cuda`` are
    those of the package of a config, which is judged in place of upstream's wheel.
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
    numpy: str | None = None
    keras: str | None = None
    protobuf: str | None = None
    metal: str | None = None
    avx: bool | None = None
    arch: str | None = None
    system: str | None = None
    platform: str | None = None
    has_cuda: bool | None = None
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
            "numpy": "NumPy",
            "keras": "Keras",
            "metal": "tensorflow-metal",
        }
        words = [
            value if name == "compiler" else f"{names.get(name, name)} {value}"
            for name, value in self.specified_versions()
        ]
        words += [word for word in (self.platform, SYSTEM_NAMES.get(self.system or ""), self.arch) if word]
        words += [gpu.text for gpu in self.gpus]
        words += [f"built for {','.join(self.built_for)}"] if self.built_for else []
        return ", ".join(words) or "nothing that a table is about"

    @property
    def needs_cuda(self) -> bool:
        """Whether a part is only of use with CUDA."""
        return bool(self.gpus or self.cuda or self.cudnn or self.driver)

    @property
    def driver_column(self) -> str:
        """The tables' column of drivers: WSL2 has that of Windows, whose numbers are others than those of Linux."""
        is_windows = self.system in {"windows", "wsl2"} or (self.platform or "").startswith("win-")
        return "windows" if is_windows else "driver"

    def specified_versions(self) -> tuple[tuple[str, str], ...]:
        """Return the versions and compilers that are not left open, by name."""
        return tuple([(name, value) for name in _VERSIONS_AND_COMPILERS if (value := getattr(self, name)) is not None])

    def with_versions(self, **versions: str | None) -> Combination:
        """Return the combination with other versions."""
        return replace(self, **versions)  # type: ignore[arg-type]  # the names are those of the versions

    def as_data(self) -> dict[str, Any]:
        """Return the parts that are not left open, as JSON values."""
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data["gpus"] = [{"name": gpu.name, "capability": gpu.capability} for gpu in self.gpus]
        data["built_for"] = list(self.built_for)
        return {name: value for name, value in data.items() if value not in (None, [])}


def combination_from_options(options: Mapping[str, str | None]) -> Combination:
    """Return the combination of options: versions by their names, ``compiler``, ``find_gpu`` and ``built_for`` as text.

    Raises:
        UsageError: for an invalid version or compiler, or an unknown GPU.
    """
    texts = {name: value.strip() for name, value in options.items() if value is not None}
    compiler_name, host, gpu_names, built_for, arch, system = (
        texts.pop(name, None) for name in ("compiler", "host", "gpu", "built_for", "arch", "system")
    )
    if system is not None and system.lower() not in SYSTEM_NAMES:
        raise UsageError(f"--system {system!r} is not a system of the tables", hint=" or ".join(SYSTEM_NAMES))
    if arch is not None and arch.lower() not in ARCHS:
        raise UsageError(f"--arch {arch!r} is not a processor of the tables", hint=" or ".join(ARCHS))
    texts = {name: value.removeprefix("v") for name, value in texts.items()}
    for name, value in texts.items():
        if not is_version(value):
            raise UsageError(
                f"--{name} {value!r} is not a version", hint=f"--{name} {EXAMPLES[name]}, as many numbers as are known"
            )
    return Combination(
        compiler=None if compiler_name is None else _parse_compiler(compiler_name),
        host=None if host is None else _parse_compiler(host),
        arch=None if arch is None else ARCHS[arch.lower()],
        system="macos" if system is None and "metal" in texts else system and system.lower(),
        gpus=() if gpu_names is None else tuple(dict.fromkeys(map(find_gpu, gpu_names.split(",")))),
        built_for=()
        if built_for is None
        else tuple(_checked_capability(part.strip()) for part in built_for.split(",")),
    ).with_versions(**texts)


def find_gpu(name: str) -> Gpu:
    """Return the GPU of a name: ``7.0``, ``sm_70``, ``V100``, ``Tesla V100-SXM2-16GB``, ``p3``, ``p3.2xlarge``."""
    name = name.strip()
    if number := _CAPABILITY.fullmatch(name.lower().replace("sm_", "sm").removeprefix("sm")):
        return Gpu(name=dotted_capability(number["number"]), capability=dotted_capability(number["number"]))
    machine_name = name.lower().removeprefix("standard_")
    family = machine_name.partition(".")[0]
    for machine in tables.table_rows("cloud"):
        if re.fullmatch(machine["machine"].replace("#", r"\d{1,4}"), family):
            row = _find_gpu_row(machine["gpu"])
            assert row is not None, f"{machine.place} names a GPU that gpu.csv does not have"
            doubt = "" if machine["verified"] == "yes" else ", not verified"
            return Gpu(name=f"{row['gpu']} of {family}{doubt}", capability=row["capability"], rows=(machine, row))
    row = _find_gpu_row(name)
    if row is None:
        makers = "only NVIDIA's GPUs have one, and no other runs a build for CUDA"
        instead = f"a compute capability will do too, such as --gpu 7.0 (nvidia-smi --query-gpu=compute_cap); {makers}"
        hint = " ".join(filter(None, (_similar_gpu_names_hint(name), instead)))
        raise UsageError(f"no table has a GPU {name!r}", hint=hint)
    return Gpu(name=row["gpu"], capability=row["capability"], rows=(row,))


def _find_gpu_row(name: str) -> Row | None:
    """Return the row of a GPU as NVIDIA's tools write it: the longest name that leaves no word with a meaning."""
    words = _normalized_gpu_name(name)
    rows = [
        row
        for row in tables.table_rows("gpu")
        if (own := _normalized_gpu_name(row["gpu"])) in words
        and _MEANINGLESS.fullmatch(words.replace(own, "  ", 1).replace(f" {row['architecture'].lower()} ", "  "))
    ]
    return max(rows, key=lambda row: len(_normalized_gpu_name(row["gpu"])), default=None)


def _normalized_gpu_name(name: str) -> str:
    """Return the letters and the numbers of a name as words: `` rtx 5090 `` for ``RTX-5090`` and ``rtx5090``."""
    words = [word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in {"nvidia", "geforce", "tesla"}]
    return f" {' '.join(words)} "


def _similar_gpu_names_hint(name: str) -> str:
    """Return 'did you mean ...?' with the GPUs and machines that begin with a name or contain it, else similar ones."""
    names = [*(row["gpu"] for row in tables.table_rows("gpu")), *(row["machine"] for row in tables.table_rows("cloud"))]
    longer = [other for other in names if len(name) > 1 and _is_truncated_gpu_name(name.lower(), other.lower())]
    candidates = [other for other in longer if other.lower().startswith(name.lower())] or longer
    if candidates:
        return f"did you mean {' or '.join(map(repr, candidates[:3]))}?"
    shorter = [other for other in names if _normalized_gpu_name(other) in _normalized_gpu_name(name)]
    return did_you_mean(name, shorter or [other for other in names if _is_possible_misspelling(name, other)])


def _is_truncated_gpu_name(name: str, other: str) -> bool:
    """Return whether a name is a part of another one, and no number that ends in 0 is a part of a longer one.

    Numbers of GPUs end in 0: RTX 509 is RTX 5090 cut short, H20 and RTX A500 are GPUs of their own.
    """
    _, part, rest = other.partition(name)
    return bool(part) and not (part.endswith("0") and rest[:1].isdigit())


def _is_possible_misspelling(name: str, other: str) -> bool:
    """Return whether a name may be another one, misspelt: the same letters, or the same number after similar words.

    MI300X is as similar to B300 as a misspelt name is, and g4ad to g4dn, but they are of another maker. A number that
    ends in 0 is no misspelt one: A1000 is not A100, RTX A1000 not RTX A6000. Nor is RTX A4500 RTX PRO 4500.
    """
    letters, digits = ([re.sub(f"[^{kind}]", "", text.lower()) for text in (name, other)] for kind in ("a-z", "0-9"))
    if letters[0] == letters[1]:
        return digits[0] == digits[1] or not digits[0].endswith("0")
    words = [_normalized_gpu_name(text).split() for text in (name, other)]
    is_similar = len(words[0]) == len(words[1]) and all(
        did_you_mean(one, [two]) for one, two in zip(*words, strict=True)
    )
    return digits[0] == digits[1] and len(digits[0]) > 2 and is_similar


def _parse_compiler(text: str) -> str:
    """Return a compiler as the tables write it: ``gcc 13`` for ``GCC-13``."""
    match = _COMPILER.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is not a compiler", hint="gcc-13, clang-18.1.8")
    return f"{match['name']} {match['version']}"


def dotted_capability(number: str) -> str:
    """Return a compute capability with its dot: ``7.0`` for ``70``, ``12.0`` for ``120``."""
    return number if "." in number else f"{number[:-1]}.{number[-1]}"


def _is_capability(text: str) -> bool:
    """Return whether a text is a compute capability in any notation of `capability_number`."""
    return _CAPABILITY.fullmatch(text) is not None


def capability_number(capability: str) -> int:
    """Return a compute capability as compilers write it: 70 for ``7.0``, ``sm_70`` and ``compute_70``."""
    match = _CAPABILITY.fullmatch(capability)
    if match is None:
        raise ValueError(f"{capability!r} is not a compute capability")
    return int(match["number"].replace(".", ""))


def capability_suffix(capability: str) -> str:
    """Return what confines a target to its own GPUs: ``a`` to one capability, ``f`` to a generation, else nothing.

    Source: PTX ISA, ``.target``.
    """
    match = _CAPABILITY.fullmatch(capability)
    return match["suffix"] if match else ""


def _checked_capability(part: str) -> str:
    if not _is_capability(part):
        raise UsageError(f"{part!r} is not a compute capability", hint="sm_70 is machine code, compute_90 that and PTX")
    return part


NONE = {"None", "undefined", ""}


def conda_build_config_lines(combination: Combination) -> tuple[str, ...]:
    """Return the lines of conda_build_config.yaml for a combination, with versions as in the names of packages."""
    if combination.cuda is None:
        return ()
    cuda = combination.cuda
    if "." not in cuda:  # a major version alone means its newest minor version
        cuda = next((minor for minor in tables.cuda_minor_versions() if versions_agree(minor, cuda)), cuda)
    compiler = combination.host or combination.compiler or ""
    gcc = (
        compiler.split()[1].split(".")[0] if compiler.startswith("gcc ") else newest_accepted_compiler(combination.cuda)
    )
    values = {
        "cuda_compiler_version": _minor_version(cuda),
        "cudnn": _cudnn_minor_version(combination),
        "c_compiler_version": gcc,
        "cxx_compiler_version": gcc,
    }
    if combination.python and "." in combination.python:
        python = _minor_version(combination.python)
        # The end of the build strings of conda-forge's Python: the ABI since 3.13.
        suffix = "cpython" if is_below(python, "3.13") else f"cp{python.replace('.', '')}"
        values["python"] = f"{python}.* *_{suffix}"
    values["cuda_compute_capabilities"] = ",".join(capabilities_extended_for_gpus(combination) or combination.built_for)
    return tuple(line for key, value in values.items() if value for line in (f"{key}:", f'  - "{value}"'))


def _minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _cudnn_minor_version(combination: Combination) -> str:
    """Return the combination's cuDNN, else the one that the release is tested with."""
    if combination.cudnn:
        return _minor_version(combination.cudnn)
    row = release_row(combination)
    if row is None or not combination.cuda or not versions_agree(row["cuda"], combination.cuda):
        return ""
    return _minor_version(row["cudnn"])


def newest_accepted_compiler(cuda: str | None, name: str = "gcc") -> str:
    """Return the newest GCC or clang that a CUDA accepts as its host compiler, ``13``; empty where that is unknown."""
    row = tables.cuda_compiler_row(cuda) if cuda else None
    if row is None or not row[f"{name}_below"]:
        return ""
    major, *minor = version_numbers(row[f"{name}_below"])
    return str(int(major) if minor else int(major) - 1)


def capabilities_extended_for_gpus(combination: Combination) -> tuple[str, ...]:
    """Return the capabilities that include the GPUs'; empty when they do already, or CUDA does not support them."""
    row = tables.cuda_compiler_row(combination.cuda) if combination.cuda else None
    if row is None:
        return ()
    supported = {int(number) for number in row["capabilities"].split()}
    own = {capability_number(gpu.capability) for gpu in combination.gpus} & supported
    upstream = tables.newest_row_including("upstream", combination.tf) if combination.tf else None
    names = combination.built_for or (upstream["capabilities"].split(",") if upstream else ())
    listed = {capability_number(name) for name in names}
    if own <= listed:
        return ()
    confined = [name for name in names if capability_suffix(name)]
    plain = {capability_number(name) for name in names if name not in confined}
    numbers = sorted((plain & supported) | (own - listed))
    return (*confined, *(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}")


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
        platform=first.get("target_platform"),
        has_cuda="cuda_compiler_version" in first,
        built_for=tuple(name for name in listed if _is_capability(name)),
    )
    values = variant.get("python", ("",)) if serving is None else ("",)
    pythons = dict.fromkeys(_version_or_none(value.split(".*")[0].split(" ")[0]) for value in values)
    return tuple(common.with_versions(python=python) for python in pythons)


def _version_or_none(text: str | None) -> str | None:
    return text if text is not None and is_version(text) else None
