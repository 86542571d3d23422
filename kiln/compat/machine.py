"""The facts of this machine, and its virtual package ``__cuda_arch``."""

from __future__ import annotations

import ctypes
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import KilnError, MissingTool, UsageError
from kiln.base.patterns import lazy_pattern
from kiln.base.system import machine
from kiln.compat.combination import ARCHS, Combination, Finding, Gpu, Verdict
from kiln.compat.tables import version_numbers
from kiln.container.engine import ASIDE, EngineKind, choose_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


NAME = "__cuda_arch"
OVERRIDE = "CONDA_OVERRIDE_CUDA_ARCH"
CUDA_OVERRIDE = "CONDA_OVERRIDE_CUDA"
_CAPABILITY = lazy_pattern(r"\d{1,4}\.\d{1,4}")


def cuda_arch_version(
    overrides: Mapping[str, str], *, has_cuda: bool, capabilities: Callable[[], Iterable[str]]
) -> str | None:
    """Return the version of the package, None if it is absent: without ``__cuda``, a GPU or with an empty override.

    ``capabilities`` detects those of the GPUs, such as ``9.0``; it is called only if the answer depends on them.

    Raises:
        UsageError: when CONDA_OVERRIDE_CUDA_ARCH is not a compute capability.
    """
    override = overrides.get(OVERRIDE)
    if override and not _CAPABILITY.fullmatch(override):
        raise UsageError(f"{OVERRIDE}={override!r} is not a compute capability", hint=f"{OVERRIDE}=9.0, for example")
    if not has_cuda:
        return None
    if override is not None:
        return override or None
    versions = [capability for capability in capabilities() if _CAPABILITY.fullmatch(capability)]
    return min(versions, key=version_numbers, default=None)


def has_virtual_cuda_package(overrides: Mapping[str, str], cuda: str | None) -> bool:
    """Return whether ``__cuda`` exists: what CONDA_OVERRIDE_CUDA says, else whether the driver knows a CUDA."""
    return bool(overrides.get(CUDA_OVERRIDE, cuda))


MODULE = Path("/proc/driver/nvidia/version")
PROCESSOR = Path("/proc/cpuinfo")
CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))  # folders of the container device interface's descriptions
SECONDS = 20.0  # for a program to print its version
NVML = "NVML"  # begins the note that the driver's management library, which lists the GPUs, does not answer
_NAME_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE
_VERSION_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE
_VERSION = lazy_pattern(r"\d{1,6}(?:\.\d{1,6}){1,3}")
_MODULE = lazy_pattern(r"Kernel Module(?: for \S{1,40})? {1,8}(\d{1,6}(?:\.\d{1,6}){1,3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCard:
    """A GPU of this machine; ``memory`` in bytes, 0 when it is unknown."""

    name: str
    capability: str
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts; None for those that were not found, and ``notes`` say why.

    ``driver`` is the version of the driver's libraries, ``loaded`` that of its module in the kernel, ``cuda`` the
    newest CUDA that the driver knows. ``engine_gpus`` says how containers get GPUs, empty when they do not.
    """

    system: str
    kernel: str
    glibc: str | None
    avx: bool | None
    driver: str | None
    loaded: str | None
    cuda: str | None
    cards: tuple[GpuCard, ...]
    gcc: str | None
    clang: str | None
    nvcc: str | None
    bazel: str | None
    engine: str | None
    engine_gpus: str
    notes: tuple[str, ...]

    def runtime_combination(self) -> Combination:
        """Return the parts that matter to a program that runs here."""
        return Combination(
            driver=self.driver,
            loaded=self.loaded if self.driver else None,
            glibc=self.glibc,
            avx=self.avx,
            arch=ARCHS.get(self.system.rpartition(", ")[2]),
            system=self._system_of_tables(),
            gpus=tuple(dict.fromkeys(Gpu(name=card.name, capability=card.capability) for card in self.cards)),
        )

    def _system_of_tables(self) -> str:
        """Return the system as the tables name it: a kernel of WSL2 says so in its release."""
        if "microsoft" in self.kernel.lower():
            return "wsl2"
        return "macos" if self.system.startswith("Darwin") else "linux"

    def missing_gpu_finding(self) -> Finding | None:
        """Return the finding that programs here use no GPU; None where a driver is, though it may list no GPU.

        What is not found is certain to be missing only where no part of a driver is: containers, WSL2 and a Jetson may
        have the other parts elsewhere.
        """
        system = "WSL2" if self._system_of_tables() == "wsl2" else "Jetson" if "tegra" in self.kernel else None
        kernel, lists_gpus = self.loaded or system, not any(note.startswith(NVML) for note in self.notes)
        if self.cards or (self.cuda and not self.driver) or (self.driver and kernel and not lists_gpus):
            return None
        verdict = Verdict.UNKNOWN if self.driver or kernel else Verdict.CANNOT
        if self.driver:
            reason = (
                f"driver {self.driver} is on this machine, and no GPU: see `nvidia-smi -L`, and load the module of the "
                "kernel (`sudo modprobe nvidia`); in a virtual machine or a batch job request a GPU"
            )
        elif kernel:
            reason = (
                "the libraries of NVIDIA's driver (libcuda, NVML) were not found here, beside the kernel's part "
                f"({kernel}): start a container with --gpus all, on a Jetson with --runtime nvidia; in WSL2 install "
                "the driver in Windows; else put the libraries' folder into LD_LIBRARY_PATH"
            )
        else:
            reason = (
                "no NVIDIA driver was found on this machine (libcuda, NVML, nvidia-smi, a module in the kernel), and "
                "no program uses a GPU without it: install it, which no package of CUDA does; in a container, a "
                "virtual machine or a batch job request a GPU. A build needs none: ask without --here"
            )
        return Finding(rule="GPU here", verdict=verdict, reason=reason)

    def build_combination(self) -> Combination:
        """Return the parts that matter to a build here, outside of containers."""
        return Combination(bazel=self.bazel, host=f"gcc {self.gcc}" if self.gcc else None)


def probe_machine(env: Mapping[str, str]) -> MachineFacts:
    """Return the facts of this machine; programs run with the environment ``env``."""
    notes: list[str] = []
    driver, cards = _driver_and_gpus(env, notes)
    library, cuda = _libcuda_and_newest_cuda_versions(notes)
    engine, engine_gpus = _container_engine_and_gpu_support(env, notes)
    return MachineFacts(
        system=f"{process.os_release().get('PRETTY_NAME', platform.system())}, {platform.machine()}",
        kernel=platform.release(),
        glibc=glibc[0] if (glibc := _VERSION.search(machine.c_library_version())) else None,
        avx=_has_avx(PROCESSOR),
        driver=library or driver,
        loaded=_loaded_kernel_module_version(MODULE),
        cuda=cuda,
        cards=cards,
        gcc=_program_version("gcc", ("-dumpfullversion", "-dumpversion"), env),
        clang=_program_version("clang", ("--version",), env),
        nvcc=_program_version("nvcc", ("--version",), env, after="release "),
        bazel=_program_version("bazel", ("--version",), env),
        engine=engine,
        engine_gpus=engine_gpus,
        notes=tuple(notes),
    )


def _driver_and_gpus(env: Mapping[str, str], notes: list[str]) -> tuple[str | None, tuple[GpuCard, ...]]:
    try:
        return driver_and_gpus_from_nvml()
    except OSError as error:
        notes.append(f"{NVML}: {error}")
    try:
        return _driver_and_gpus_from_nvidia_smi(env)
    except (MissingTool, ValueError) as error:
        notes.append(f"nvidia-smi: {error}".splitlines()[0])
        return None, ()


def driver_version(env: Mapping[str, str]) -> str | None:
    """Return the version of this machine's NVIDIA driver, or None."""
    return _driver_and_gpus(env, [])[0]


def gpu_descriptions(env: Mapping[str, str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return this machine's GPUs, for people: name, capability and driver of each; and notes on what is missing."""
    notes: list[str] = []
    version, cards = _driver_and_gpus(env, notes)
    return tuple(f"{card.name} ({card.capability}), driver {version}" for card in cards), tuple(notes)


def compute_capabilities(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the compute capabilities of this machine's GPUs."""
    return tuple(card.capability for card in _driver_and_gpus(env, [])[1])


def driver_and_gpus_from_nvml(library: str = "libnvidia-ml.so.1") -> tuple[str, tuple[GpuCard, ...]]:
    """Return the driver's version and the GPUs, from the driver's management library."""
    functions = ctypes.CDLL(library)
    _call_nvml(functions, "nvmlInit_v2")
    try:
        version = ctypes.create_string_buffer(_VERSION_BYTES)
        _call_nvml(functions, "nvmlSystemGetDriverVersion", version, ctypes.c_uint(_VERSION_BYTES))
        count = ctypes.c_uint()
        _call_nvml(functions, "nvmlDeviceGetCount_v2", ctypes.byref(count))
        cards = tuple(_nvml_gpu_card(functions, index) for index in range(count.value))
        return version.value.decode(errors="replace"), cards
    finally:
        functions.nvmlShutdown()


class _NvmlMemory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def _nvml_gpu_card(functions: ctypes.CDLL, index: int) -> GpuCard:
    handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    name, memory = ctypes.create_string_buffer(_NAME_BYTES), _NvmlMemory()
    _call_nvml(functions, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    _call_nvml(functions, "nvmlDeviceGetName", handle, name, ctypes.c_uint(_NAME_BYTES))
    _call_nvml(functions, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    if functions.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
        memory = _NvmlMemory()  # a GPU that shares the machine's memory reports none
    capability = f"{major.value}.{minor.value}"
    return GpuCard(name=name.value.decode(errors="replace"), capability=capability, memory=int(memory.total))


def _call_nvml(functions: ctypes.CDLL, name: str, *arguments: Any) -> None:
    try:
        code = getattr(functions, name)(*arguments)
    except AttributeError as error:
        raise OSError(f"the library has no {name}") from error
    if code:
        functions.nvmlErrorString.restype = ctypes.c_char_p
        raise OSError(f"{name}: {(functions.nvmlErrorString(code) or b'').decode(errors='replace')} ({code})")


def _driver_and_gpus_from_nvidia_smi(env: Mapping[str, str]) -> tuple[str | None, tuple[GpuCard, ...]]:
    query = ("nvidia-smi", "--query-gpu=driver_version,name,compute_cap,memory.total", "--format=csv,noheader,nounits")
    answer = process.capture(query, env=env, timeout=SECONDS)
    if not answer.ok:
        raise ValueError((answer.stdout or answer.tail).strip() or f"exit code {answer.exit_code}")
    return parse_nvidia_smi_output(answer.stdout)


def parse_nvidia_smi_output(text: str) -> tuple[str | None, tuple[GpuCard, ...]]:
    """Return the driver and the GPUs of nvidia-smi's table: driver, name, capability and MiB of memory in each line."""
    rows = [[part.strip() for part in line.split(",")] for line in text.splitlines() if line.strip()]
    if any(len(row) != 4 for row in rows):
        raise ValueError(f"nvidia-smi answers {text.strip()[:200]!r}")
    cards = tuple(
        GpuCard(name=name, capability=capability, memory=int(memory) << 20 if memory.isdecimal() else 0)
        for _, name, capability, memory in rows
    )
    return (rows[0][0] if rows else None), cards


def _libcuda_and_newest_cuda_versions(notes: list[str]) -> tuple[str | None, str | None]:
    """Return the version of libcuda, by its file's name, and of the newest CUDA that it knows.

    On a Jetson and in WSL2 the name is libcuda.so.1.1, which is no driver's version.
    """
    try:
        functions = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        notes.append(f"CUDA's driver library: {error}")
        return None, None
    version = ctypes.c_int()
    is_known = not functions.cuDriverGetVersion(ctypes.byref(version)) and version.value
    match = re.search(
        r"libcuda\.so\.(\d{2,6}(?:\.\d{1,6}){1,3})$", files.text_or_empty(Path("/proc/self/maps")), re.MULTILINE
    )
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}" if is_known else None
    return (match[1] if match else None), cuda


def _loaded_kernel_module_version(file: Path) -> str | None:
    match = _MODULE.search(files.text_or_empty(file))
    return match[1] if match else None


def _has_avx(file: Path) -> bool | None:
    flags = next((line for line in files.text_or_empty(file).splitlines() if line.startswith("flags")), None)
    return None if flags is None else "avx" in flags.split()


def _program_version(
    program: str, arguments: tuple[str, ...], env: Mapping[str, str], *, after: str = ""
) -> str | None:
    try:
        answer = process.capture((program, *arguments), env=env, cwd=ASIDE, timeout=SECONDS)
    except MissingTool:
        return None
    match = _VERSION.search(answer.stdout.partition(after)[2] if after else answer.stdout)
    return match[0] if answer.ok and match else None


def _container_engine_and_gpu_support(env: Mapping[str, str], notes: list[str]) -> tuple[str | None, str]:
    """Return the container engine that answers, and how its containers get GPUs."""
    try:
        choice = choose_engine(None, env=env)
    except KilnError as error:
        notes.append(f"container engine: {error.what}")
        return None, ""
    if choice.engine is None:
        notes.append(f"container engine: {'; '.join(note.partition(' (')[0] for note in choice.notes[:2])}")
        return None, ""
    engine, gpus = choice.engine, ""
    if any("nvidia" in file.name for folder in CDI if folder.is_dir() for file in folder.iterdir()):
        gpus = "CDI"
    elif engine.kind is EngineKind.DOCKER:
        runtimes = engine.run_command("info", "--format", "{{json .Runtimes}}")
        gpus = "nvidia runtime" if runtimes.ok and '"nvidia"' in runtimes.stdout else ""
    return f"{engine.kind.value} {engine.version}", gpus
