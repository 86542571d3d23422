"""Channels with conda-forge's packages next to ours: several releases of CUDA's libraries, cuDNN, protobuf and Abseil.

Names, versions and ranges have the shape that conda-forge gives them: CUDA's libraries are bound to one release of
``cuda-version``, cuDNN to a major version, and protobuf, gRPC and Abseil to each other by exact versions. There are
fewer of them, and they have no content.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from tests.solving import PYTHONS, ROOT, older, record, rendered, stand_ins, write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.solving import Record

# By release of CUDA, in the order of LIBRARIES; NVIDIA's release notes, table "CUDA Toolkit component versions".
TOOLS = ("cuda-cudart", "cuda-cupti", "cuda-nvcc-tools", "cuda-nvrtc", "libnvjitlink")
LIBRARIES = (*TOOLS, "libcublas", "libcufft", "libcurand", "libcusolver", "libcusparse")
VERSIONS = {
    "12.4": "12.4.127 12.4.127 12.4.131 12.4.127 12.4.127 12.4.5.8 11.2.1.3 10.3.5.147 11.6.1.9 12.3.1.170",
    "12.5": "12.5.82 12.5.82 12.5.82 12.5.82 12.5.82 12.5.3.2 11.2.3.61 10.3.6.82 11.6.3.83 12.5.1.3",
    "12.6": "12.6.77 12.6.80 12.6.85 12.6.85 12.6.85 12.6.4.1 11.3.0.4 10.3.7.77 11.7.1.2 12.5.4.2",
    "12.8": "12.8.90 12.8.90 12.8.93 12.8.93 12.8.93 12.8.4.1 11.3.3.83 10.3.9.90 11.7.3.90 12.5.8.93",
    "12.9": "12.9.79 12.9.79 12.9.86 12.9.86 12.9.86 12.9.1.4 11.4.1.4 10.3.10.19 11.7.5.82 12.5.10.65",
    "13.0": "13.0.96 13.0.85 13.0.88 13.0.88 13.0.88 13.1.0.3 12.0.0.61 10.4.0.35 12.0.4.66 12.6.3.3",
}
# Version: the major versions of CUDA that it is made for, and the oldest glibc.
CUDNNS = {
    "8.9.7.29": ("12", "2.17"),
    "9.3.0.75": ("12", "2.17"),
    "9.8.0.87": ("12", "2.17"),
    "9.10.2.21": ("12", "2.17"),
    "9.11.0.98": ("12", "2.28"),
    "9.17.1.4": ("12 13", "2.28"),
}
# Abseil, protobuf, gRPC and protobuf for Python, which conda-forge builds against each other.
STACKS = (
    ("20250127.1", "5.29.3", "1.71.0", "5.29.3"),
    ("20250512.1", "6.31.1", "1.73.1", "6.31.1"),
    ("20260107.0", "6.33.5", "1.78.0", "6.33.5"),
)
# The names of __archspec by level: conda-forge/microarch-level-feedstock, recipe/variants.yaml of build number 4.
LEVELS = {
    1: "x86_64 nocona core2 k10",
    2: "x86_64_v2 nehalem westmere sandybridge ivybridge bulldozer piledriver steamroller",
    3: "x86_64_v3 haswell broadwell skylake mic_knl cannonlake excavator zen zen2 zen3",
    4: "x86_64_v4 skylake_avx512 cascadelake icelake sapphirerapids zen4 zen5",
}


def channels(folder: Path) -> dict[str, Path]:
    """Write the channels: ``own``, both feedstocks' packages; ``base``, what conda-forge has; ``main``, Anaconda's."""
    own = [*rendered(), *rendered(ROOT / "serving")]
    main = list(cuda_9())
    others = [*neighbors(), *older("2.18.0", "12.6"), *levels()]
    base = [item for item in stand_ins([*own, *others]) if item["name"] != "cudatoolkit" or item["version"] != "9.0"]
    return {
        "own": write(folder / "own", own),
        "base": write(folder / "base", [*others, *base]),
        "main": write(folder / "main", main),
    }


def cuda_9() -> Iterator[Record]:
    """Return CUDA 9.0's libraries, which conda-forge does not have."""
    yield record("cudatoolkit", "9.0", "h13b8566_0")
    for version in ("7.0.5", "7.1.2", "7.3.1", "7.6.5"):
        yield record("cudnn", version, "cuda9.0_0", ("cudatoolkit 9.0.*",))


def neighbors() -> Iterator[Record]:
    """Return conda-forge's packages that TensorFlow meets in an environment."""
    yield from _cuda()
    yield from _stacks()
    yield record("tsl_robin_map", "1.4.0", "h54a6638_0", ("__glibc >=2.17,<3.0.a0",))
    yield record("pip", "25.2", "pyh0_0", ("python >=3.9",))
    yield from _microarch_levels()
    yield record("uses-avx2", "1", depends=("_x86_64-microarch-level >=3", "tensorflow"))


def _microarch_levels() -> Iterator[Record]:
    """Return ``_x86_64-microarch-level``: a build for each name, weighed down, and one for each level with a pattern.

    The former are for clients that match no regular expressions (CEP 29), such as conda, the latter for rattler's.
    """
    name = "_x86_64-microarch-level"
    for level, processors in LEVELS.items():
        for processor in processors.split():
            depends = (f"__archspec[version='1.*', build='{processor}']",)
            yield record(name, str(level), f"4_{processor}", depends, number=4, features=f"{name}-p-0")
        pattern = "|".join(item for other, more in LEVELS.items() if other >= level for item in more.split())
        depends = (f"__archspec[version='1.*', build='^({pattern})$']",)
        yield record(name, str(level), f"4_level{level}", depends, number=4)


def _cuda() -> Iterator[Record]:
    for cuda, versions in VERSIONS.items():
        above = f"{cuda.partition('.')[0]}.{int(cuda.partition('.')[2]) + 1}.0a0"
        release = f"cuda-version >={cuda},<{above}"
        for name, version in zip(LIBRARIES, versions.split(), strict=True):
            yield record(name, version, "h0_0", (release, "__glibc >=2.17,<3.0.a0"))
    for version, (majors, glibc) in CUDNNS.items():
        for major in majors.split():
            cuda = f"cuda-version >={major},<{int(major) + 1}.0a0"
            yield record("cudnn", version, f"h{major}_0", (cuda, f"__glibc >={glibc},<3.0.a0", "libcublas"))
    for major in ("12", "13"):
        yield record("nccl", "2.28.9.1", f"h{major}_0", (f"cuda-version >={major},<{int(major) + 1}.0a0",))


def _stacks() -> Iterator[Record]:
    for abseil, protobuf, grpc, python in STACKS:
        day = int(abseil.partition(".")[0])
        pin = f"libabseil >={abseil},<{day + 1}.0a0"
        yield record("libabseil", abseil, "cxx17_h0_0", constrains=(f"abseil-cpp ={abseil}",))
        yield record("libprotobuf", protobuf, "h0_0", (pin, "__glibc >=2.17,<3.0.a0"))
        bound = f"libprotobuf >={protobuf},<{protobuf}.1"
        yield record("libgrpc", grpc, "h0_0", (pin, bound))
        for version in PYTHONS:
            minor = version.rpartition(".")[0]
            build, interpreter = f"py{minor.replace('.', '')}h0_0", f"python {minor}.*"
            yield record("protobuf", python, build, (interpreter, pin), constrains=(f"libprotobuf {protobuf}",))
            yield record("grpcio", grpc, build, (interpreter, f"libgrpc {grpc} h0_0"))


def present_release(subdir: str = "linux-64") -> Iterator[Record]:
    """Return conda-forge's TensorFlow 2.19.1, its feedstock of January 2026 as conda-build renders it.

    On linux-64 the levels 1 and 3 of the processor, with CUDA 12.8 and without; on linux-aarch64 one for the CPU. Its
    tensorflow-gpu and tensorflow-cpu are one package for all Pythons; only tensorflow and tensorflow-base are weighed
    down, for the CPU.
    """
    cudas = ("", "128") if subdir == "linux-64" else ("",)
    for level, cuda in itertools.product((1, 3) if subdir == "linux-64" else (1,), cudas):
        for item in _build_of_present_release(level, cuda, on_intel=subdir == "linux-64"):
            yield {**item, "subdir": subdir}


def _build_of_present_release(level: int, cuda: str, *, on_intel: bool) -> Iterator[Record]:
    number = 3 + 25 * (level - 1) + (200 if cuda else 0)
    start = f"cuda{cuda}" if cuda else "cpu_"
    features = "" if cuda else "tensorflow-cpu"
    driver = ("__cuda",) if cuda else ()
    compiled = ("__glibc >=2.17,<3.0.a0", *((f"_x86_64-microarch-level >={level}",) if on_intel else ()), *driver)
    compiled += ("cuda-version >=12.8,<13", "cudnn >=9.10,<10") if cuda else ()

    def made(name: str, python: str, *depends: str, weighed_down: bool = False) -> Record:
        build = f"{start}{python}h{level}_{number}"
        return record(name, "2.19.1", build, depends, number=number, features=features if weighed_down else "")

    yield made("libtensorflow_framework", "", *compiled)
    library = f"libtensorflow_framework 2.19.1 {start}h{level}_{number}"
    yield from (made(name, "", *compiled, library) for name in ("libtensorflow", "libtensorflow_cc"))
    for minor in ("3.10", "3.11", "3.12"):
        tag = f"py{minor.replace('.', '')}"
        python, build = f"python {minor}.*", f"{start}{tag}h{level}_{number}"
        libraries = (library, f"libtensorflow_cc 2.19.1 {start}h{level}_{number}")
        wants = ("grpcio >=1.73", "keras >=3.5", "numpy >=1.23,<3", "protobuf >=5.26", "tensorboard >=2.19,<2.20")
        yield made("tensorflow-base", tag, python, *compiled, *libraries, *wants, weighed_down=True)
        base = f"tensorflow-base 2.19.1 {build}"
        yield made("tensorflow-estimator", tag, python, base)
        yield made("tensorflow", tag, python, base, f"tensorflow-estimator 2.19.1 {build}", *driver, weighed_down=True)
        if on_intel:
            yield made("tensorflow-avx2" if level > 1 else "tensorflow-sse3", tag, f"tensorflow 2.19.1 {build}")
    kind, pattern = ("tensorflow-gpu", f"cuda{cuda}*_{number}") if cuda else ("tensorflow-cpu", f"cpu*_{number}")
    yield made(kind, "", f"tensorflow 2.19.1 {pattern}")


def downstreams() -> Iterator[Record]:
    """Return packages that need TensorFlow: with an open range, and bound to the release that they were linked with."""
    for name, needs in (
        ("tensorflow-hub", "tensorflow >=1.15"),
        ("keras-tuner", "tensorflow >=2.0"),
        ("asks-for-c", "libtensorflow >=2.19"),
        ("asks-for-cc", "libtensorflow_cc >=2.19"),
        ("linked-with-cc", "libtensorflow_cc 2.19.1.*"),
    ):
        yield {**record(name, "1", depends=(needs,)), "subdir": "noarch"}


def levels() -> Iterator[Record]:
    """Return a release whose builds require a level of the processor, and the higher one has the higher number."""
    for level, number in ((1, 0), (3, 50)):
        for cuda, more in (((), 0), (("__cuda", "cuda-version >=12.6,<13"), 200)):
            build = f"{'cuda126' if cuda else 'cpu_'}py312hlevel{level}_{number + more}"
            depends = ("python 3.12.*", "__glibc >=2.17,<3.0.a0", *cuda, f"_x86_64-microarch-level >={level}")
            features = "" if cuda else "tensorflow-cpu"
            yield record("tensorflow", "2.19.1", build, depends, number=number + more, features=features)
