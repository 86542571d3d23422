"""Channels to solve in: what this feedstock renders, older releases as conda-forge has them, stand-ins for the rest.

Nothing is built: a solver sees metadata alone. The stand-ins have the names, versions and requirements that decide a
solve on conda-forge; what they do not have is content.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from kiln.base.errors import SolveFailed
from kiln.build.rehearsal import wheel_download
from kiln.build.rehearsal.packages import library_run_exports
from kiln.conda import pypi
from kiln.conda.solve import solve
from kiln.conda.specs import package_name
from kiln.feedstock import config_file
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.conda.solve import VirtualPackages
    from kiln.recipe.rendered import Output

Record = dict[str, Any]

ROOT = Path(__file__).parents[1]
PYTHONS = {"3.10.19": "cpython", "3.11.14": "cpython", "3.12.12": "cpython", "3.13.11": "cp313"}
NUMPYS = {
    "1.26.4": ("3.10", "3.11", "3.12"),
    "2.2.6": ("3.10", "3.11", "3.12", "3.13"),
    "2.3.5": ("3.11", "3.12", "3.13"),
}
CUDAS = ("11.8", "12.0", "12.4", "12.5", "12.6", "12.8", "12.9", "13.0")
OF_ALL_TWELVE = ("cudnn", "nccl")  # made for a major version of CUDA, not for one release
COMPILED = ("grpcio", "h5py", "ml_dtypes", "wrapt")  # for each Python
OF_A_RELEASE = re.compile(r"cuda-(?!version)|lib(cu|nvj)")
TIMESTAMP = 1_760_000_000_000


# But for rattler they are programs that have to be put on the PATH; see docs/explanation/choosing-a-build.md.
PROGRAMS = ("libsolv-conda", "conda-classic")
SOLVERS = ("rattler", *(pytest.param(name, marks=[pytest.mark.trial, pytest.mark.needs(name)]) for name in PROGRAMS))
IN_BRACKETS = re.compile(r"\[version='([^']*)', build='([^']*)'\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solver:
    """One solver; ``solve`` returns version and build by name, or None when it refuses."""

    name: str
    folder: Path

    def solve(
        self,
        channels: Iterable[Path],
        *specs: str,
        cuda: str | None,
        arch: str | None = None,
        processor: str = "x86_64",
        subdir: str = "linux-64",
        flexible: bool = False,
    ) -> dict[str, tuple[str, str]] | None:
        virtual_packages = {**machine(cuda, arch), "__archspec": ("1", processor)}
        if self.name != "rattler":
            return self._program(channels, specs, virtual_packages, subdir, flexible=flexible)
        try:
            records = solve(
                [item.as_uri() for item in channels],
                specs,
                virtual_packages=virtual_packages,
                platform=subdir,
                priority="flexible" if flexible else "strict",
            )
        except SolveFailed:
            return None
        return {item.name.normalized: (str(item.version), str(item.build)) for item in records}

    def _program(
        self, channels: Iterable[Path], specs: Iterable[str], packages: VirtualPackages, subdir: str, *, flexible: bool
    ) -> dict[str, tuple[str, str]] | None:
        virtual = self.folder / "machine.json"
        offered = {f"{name}-1-0.conda": record(name, *told) for name, told in packages.items()}
        virtual.write_text(json.dumps({"packages": {}, "packages.conda": offered}))
        indexes = [str(self._index(place, channel, subdir)) for place, channel in enumerate(channels)]
        argv = [self.name, "flexible" if flexible else "strict", str(virtual), *indexes, "--", *specs]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        if said.startswith("refused"):
            return None
        return {name: (version, build) for name, version, build in (line.split() for line in said.splitlines())}

    def _index(self, place: int, channel: Path, subdir: str) -> Path:
        """Write a channel's packages of a platform and of all platforms in one file, which gets one priority.

        mamba reads ``name[version='1.*', build='x']`` itself, and gives libsolv ``name 1.* x``.
        """
        texts = [(channel / each / "repodata.json").read_text() for each in (subdir, "noarch")]
        platform, noarch = (json.loads(IN_BRACKETS.sub(r" \1 \2", text))["packages.conda"] for text in texts)
        file = self.folder / f"{place}.json"
        file.write_text(json.dumps({"packages": {}, "packages.conda": {**noarch, **platform}}))
        return file


def record(
    name: str,
    version: str,
    build: str = "0",
    depends: Iterable[str] = (),
    constrains: Iterable[str] = (),
    number: int = 0,
    features: str = "",
) -> Record:
    """Return one package as an index has it."""
    result = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": number,
        "depends": list(depends),
        "constrains": list(constrains),
        "subdir": "linux-64",
        "timestamp": TIMESTAMP,
        "size": 1,
        "sha256": "0" * 64,
        "md5": "0" * 32,
    }
    return {**result, "track_features": features} if features else result


def write(channel: Path, records: Iterable[Record]) -> Path:
    """Write an index without packages; returns the channel."""
    packages: dict[str, dict[str, Record]] = {"linux-64": {}, "noarch": {}}
    for item in records:
        file = f"{item['name']}-{item['version']}-{item['build']}.conda"
        packages.setdefault(item["subdir"], {})[file] = item
    for subdir, held in packages.items():
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        index = {"info": {"subdir": subdir}, "packages": {}, "packages.conda": held, "repodata_version": 1}
        (channel / subdir / "repodata.json").write_text(json.dumps(index))
    return channel


def rendered(root: Path = ROOT, subdir: str = "linux-64") -> list[Record]:
    """Return every output of every config of this feedstock, as its package's index.json will say."""
    feedstock = recipe_feedstock.load(root)
    files = sorted(feedstock.config_folder.glob(f"{subdir.replace('-', '_')}_*.yaml"))
    configs = (config_file.read_config(feedstock, path.stem) for path in files)
    outputs = (item for config in configs for item in pins.close_static_pins(render.render(feedstock, config)).outputs)
    return list({(item.name, item.build_string): of_output(item) for item in outputs if not item.skip}.values())


def of_output(output: Output) -> Record:
    """Return one output as an index has it, with what conda-forge's build tools export: glibc and the level."""
    build = {package_name(spec): spec for spec in output.requirements.build}
    run = (*output.requirements.run, *exported(output), *_exported_strongly(build, output.requirements.run))
    made = record(
        output.name,
        output.version,
        output.build_string,
        run,
        output.requirements.run_constrained,
        output.build_number,
        " ".join(output.track_features),
    )
    return {**made, "subdir": output.subdir}


def _exported_strongly(build: Mapping[str, str], run: Iterable[str]) -> Iterator[str]:
    sysroot = next((spec.split()[1].removesuffix(".*") for name, spec in build.items() if "sysroot" in name), "")
    if sysroot and not any(spec.startswith("__glibc") for spec in run):
        yield f"__glibc >={sysroot},<3.0.a0"
    if level := build.get("x86_64-microarch-level", ""):
        yield f"_x86_64-microarch-level >={level.split()[1].removesuffix('.*')}"


def exported(output: Output) -> Iterator[str]:
    """Yield what the host requirements of a CUDA output export, as the packages of a rehearsal do."""
    host = {package_name(spec) for spec in output.requirements.host}
    cuda = next((spec.split()[1] for spec in output.requirements.host if spec.startswith("cuda-version ")), "")
    for wheel in (
        wheel_download.plan_from_locks(python="3.12", cuda=cuda.removesuffix(".*")).dependencies if cuda else ()
    ):
        if pypi.name_mapping(wheel.name).exported_by in host:
            yield from library_run_exports(wheel.name, Version(wheel.version))["weak"]


def stand_ins(records: Iterable[Record]) -> Iterator[Record]:
    """Return the dependencies of the packages: Pythons, NumPys, CUDA, and each other package at its oldest version."""
    records = list(records)
    yield from _foundations()
    made = {item["name"] for item in records} | {"python", "numpy", "cuda-version"}
    expected = {spec for item in records for spec in item["depends"]}
    for spec in sorted(expected):
        name = package_name(spec)
        if name not in made and not name.startswith("__"):
            yield from _stand_in(name, next(iter(re.findall(r">=([\d.]+)", spec)), "1.0"), records)


def _foundations() -> Iterator[Record]:
    for version, tag in PYTHONS.items():
        yield record("python", version, f"h0_0_{tag}")
    for version, pythons in NUMPYS.items():
        yield from (record("numpy", version, f"py{minor.replace('.', '')}h0_0", _of_python(minor)) for minor in pythons)
    for cuda in CUDAS:
        constrains = (f"cudatoolkit {cuda}|{cuda}.*", f"__cuda >={cuda.split('.')[0]}")
        yield record("cuda-version", cuda, "h0_3", constrains=constrains)
    yield record("cudatoolkit", "11.8.0", "h0_13", ("__glibc >=2.17,<3.0.a0",), ("__cuda >=11",))


def _stand_in(name: str, version: str, records: Iterable[Record]) -> Iterator[Record]:
    if name in OF_ALL_TWELVE:
        yield record(name, version, "h0_0", ("cuda-version >=12,<13.0a0",))
    elif OF_A_RELEASE.match(name):
        for cuda in {_cuda_of(item) for item in records if f"{name} >={version}," in str(item["depends"])}:
            major, minor = cuda.split(".")
            yield record(name, version, f"h{minor}_0", (f"cuda-version >={cuda},<{major}.{int(minor) + 1}.0a0",))
    elif name in COMPILED:
        for python in PYTHONS:
            minor = python.rsplit(".", 1)[0]
            yield record(name, version, f"py{minor.replace('.', '')}h0_0", (*_of_python(minor), "numpy >=1.23,<3"))
    else:
        yield record(name, version, "pyh0_0")


def _cuda_of(package: Record) -> str:
    result = re.search(r"cuda-version >=(\d+\.\d+)", str(package["depends"]))
    assert result, package
    return result[1]


def _of_python(minor: str) -> tuple[str, ...]:
    major, number = minor.split(".")
    return (f"python >={minor},<{major}.{int(number) + 1}.0a0",)


def older(version: str, cuda: str) -> list[Record]:
    """Return an older release in the shape that conda-forge gave it: a bare ``__cuda``, and CPU builds weighed down."""
    result: list[Record] = []
    above = int(cuda.partition(".")[0]) + 1
    library = "cudatoolkit >=11.8,<12" if cuda == "11.8" else f"cuda-version >={cuda},<{above}"
    for python in ("3.10", "3.11"):
        tag = f"py{python.replace('.', '')}hold"
        gpu = ("__cuda", library)
        result += _release(version, f"cuda{cuda.replace('.', '')}{tag}_200", _of_python(python), gpu, number=200)
        result += _release(version, f"cpu_{tag}_0", _of_python(python), features="tensorflow-cpu")
    return result


def _release(
    version: str, build: str, python: Iterable[str], gpu: Iterable[str] = (), number: int = 0, features: str = ""
) -> Iterator[Record]:
    """Yield the packages of one build of an older release: base, plain, and the one that requires its kind."""
    driver = [spec for spec in gpu if spec.startswith("__")]
    needs = (*python, *gpu, "numpy >=1.22.3,<3")
    yield record("tensorflow-base", version, build, needs, number=number, features=features)
    chosen = (*python, *driver, f"tensorflow-base {version} {build}")
    yield record("tensorflow", version, build, chosen, number=number, features=features)
    kind, expected = ("tensorflow-gpu", "cuda*") if gpu else ("tensorflow-cpu", "cpu*")
    yield record(kind, version, build, (f"tensorflow {version} {expected}",), number=number)


def machine(cuda: str | None, arch: str | None = None) -> Mapping[str, tuple[str, str]]:
    """Return the virtual packages of a machine whose driver runs CUDA up to ``cuda``, or of one without.

    ``arch`` is the lowest capability of its GPUs, where the client detects it.
    """
    offered = {"__unix": ("0", "0"), "__linux": ("6.1", "0"), "__glibc": ("2.36", "0"), "__archspec": ("1", "x86_64")}
    gpu = {} if arch is None else {"__cuda_arch": (arch, "0")}
    return offered if cuda is None else {**offered, "__cuda": (cuda, "0"), **gpu}
