"""Plans the compile: from a cell's variant to Bazel's flags, as compile.ini has it, or the reason why it cannot be.

Writes the flags into a file for ``bazel --bazelrc`` and prints shell assignments for build.sh. Standard library only,
Python 3.9 or newer.
"""

from __future__ import annotations

import argparse
import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import kernels
import machine_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETE = re.compile(r"\d+\.\d+\.\d+")
CAPABILITY = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)")


class BadPlan(Exception):
    """The cell cannot be compiled as it is described; the text says what is wrong and what to try."""


@dataclass(frozen=True)
class Machine:
    """What the build may use: cores, and memory in megabytes."""

    cpus: int
    memory: int


@dataclass(frozen=True)
class Plan:
    """Bazel's flags for a cell, and what build.sh needs beside them."""

    flags: tuple[str, ...]
    capabilities: tuple[str, ...]
    target: str
    folder: str
    bazel_version: str
    nvcc_target: str
    nvcc_file: str
    kernels_in: str


def main(arguments: list[str]) -> int:
    """Do what the command line asks; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, help="compile.ini")
    parser.add_argument("--bazelrc", type=Path, help="write Bazel's flags here and print what build.sh needs")
    parser.add_argument("--nvcc", type=Path, help="see whether this nvcc accepts what the cell wants, instead")
    parser.add_argument(
        "--wheel", type=Path, help="see whether this wheel has the kernels that the cell wants, instead"
    )
    given = parser.parse_args(arguments)
    try:
        plan = make(read(given.settings), os.environ)
        if given.nvcc:
            require(plan.capabilities, accepted_by(given.nvcc), by=str(given.nvcc))
            return 0
        if given.wheel:
            require_kernels(plan, given.wheel)
            return 0
        program, chosen = find_bazel(plan.bazel_version, os.environ)
    except BadPlan as error:
        sys.stderr.write(f"compile_plan.py: {error}\n")
        return 1
    given.bazelrc.write_text("".join(f"{line}\n" for line in bazelrc(plan)), encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in assignments(plan, program, chosen)))
    return 0


def read(path: Path) -> configparser.ConfigParser:
    """Return the settings; names keep their case and values are taken as they are."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.optionxform = str
    try:
        settings.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, configparser.Error) as error:
        raise BadPlan(str(error)) from error
    return settings


def make(settings: configparser.ConfigParser, environment: Mapping[str, str]) -> Plan:
    """Return the plan for the cell whose variant the environment has."""
    cuda = required(environment, "cuda_compiler_version")
    machine = machine_from(environment)
    memory_per_job = int(setting(settings, "bazel", "megabytes_per_job"))
    values = {
        "python": required(environment, "PY_VER"),
        "cpus": str(machine.cpus),
        "memory": str(machine.memory * 9 // 10),  # the rest is for Bazel itself
        "jobs": str(max(1, min(machine.cpus, machine.memory // memory_per_job))),
    }
    level = environment.get("microarch_level") or "default"
    sections = ["bazel", "python", chosen(settings, "level", level)]
    capabilities: tuple[str, ...] = ()
    if cuda == "None":
        sections.append("cuda None")
    else:
        section = chosen(settings, "cuda", cuda)
        capabilities = capabilities_for(settings, section, environment.get("cuda_compute_capabilities", ""))
        values |= cuda_values(settings, section, environment, capabilities)
        sections.append("cuda")
    flags = [flag for section in sections for flag in flag_list(settings, section, values)]
    return Plan(
        flags=(*flags, *places(environment)),
        capabilities=capabilities,
        target=setting(settings, "wheel", "target"),
        folder=setting(settings, "wheel", "folder"),
        bazel_version=setting(settings, "bazel", "version"),
        nvcc_target=settings.get("cuda", "nvcc_target", fallback="") if capabilities else "",
        nvcc_file=settings.get("cuda", "nvcc_file", fallback="") if capabilities else "",
        kernels_in=setting(settings, "cuda", "kernels_in") if capabilities else "",
    )


def required(environment: Mapping[str, str], name: str) -> str:
    """Return a variable that a build always has."""
    if not environment.get(name):
        raise BadPlan(f"the variable {name} is not set; it is part of a cell's variant")
    return environment[name]


def setting(settings: configparser.ConfigParser, section: str, name: str) -> str:
    """Return a value that must be there."""
    try:
        return settings[section][name]
    except KeyError:
        raise BadPlan(f"the settings have no {name!r} in [{section}]") from None


def chosen(settings: configparser.ConfigParser, kind: str, value: str) -> str:
    """Return the section that a value of the variant selects, such as ``cuda 12.9``."""
    section = f"{kind} {value}"
    if section not in settings:
        known = ", ".join(sorted(name.split(" ")[1] for name in settings if name.startswith(f"{kind} ")))
        raise BadPlan(f"the settings have no section [{section}]; there are {known}")
    return section


def flag_list(settings: configparser.ConfigParser, section: str, values: Mapping[str, str]) -> list[str]:
    """Return the flags of a section with its names in braces replaced."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in values:
            raise BadPlan(f"nothing is known as {found[0]} in [{section}]; known are {', '.join(sorted(values))}")
        return values[found[1]]

    lines = (line.strip() for line in setting(settings, section, "flags").splitlines())
    return [re.sub(r"\{(\w+)\}", value, line) for line in lines if line]


def cuda_values(
    settings: configparser.ConfigParser, section: str, environment: Mapping[str, str], capabilities: tuple[str, ...]
) -> dict[str, str]:
    """Return what the flags of a CUDA build name: versions in full, as upstream's hermetic toolkits want them."""
    version, cudnn = setting(settings, section, "version"), setting(settings, section, "cudnn")
    for name, number in (("version", version), ("cudnn", cudnn)):
        if not COMPLETE.fullmatch(number):
            raise BadPlan(f"{name} = {number} in [{section}] is not complete; three numbers are needed, as in 12.5.1")
    wanted = environment.get("cudnn", "")
    if wanted and not f"{cudnn}.".startswith(f"{wanted}."):
        raise BadPlan(f"the variant asks for cuDNN {wanted}, and [{section}] has {cudnn}; change one of them")
    compiler = setting(settings, f"compiler {setting(settings, section, 'compiler')}", "flag")
    return {"version": version, "cudnn": cudnn, "compiler": compiler, "capabilities": ",".join(capabilities)}


def capabilities_for(settings: configparser.ConfigParser, section: str, given: str) -> tuple[str, ...]:
    """Return the compute capabilities of a CUDA build as upstream writes them.

    ``sm_80`` is machine code alone, ``compute_90`` machine code and PTX. They are the variant's own, if it names
    some, or the policy's architectures as far as this CUDA and its compiler accept them.
    """
    compiler = f"compiler {setting(settings, section, 'compiler')}"
    accepted = numbers(setting(settings, section, "architectures"))
    by_compiler = settings.get(compiler, "architectures", fallback="")
    if by_compiler:
        accepted &= numbers(by_compiler)
    if given.strip():
        wanted = tuple(part.strip() for part in given.split(",") if part.strip())
        require(wanted, accepted, by=f"[{section}] with [{compiler}]")
        return wanted
    policy = sorted({int(name) for name in settings["architectures"] if name.isdecimal()} & accepted)
    if not policy:
        raise BadPlan(f"[{section}] with [{compiler}] accepts none of the architectures in [architectures]")
    return (*(f"sm_{number}" for number in policy), f"compute_{policy[-1]}")


def numbers(text: str) -> set[int]:
    """Return the architectures that a line names."""
    return {int(word) for word in text.split()}


def require(wanted: tuple[str, ...], accepted: set[int], *, by: str) -> None:
    """Raise BadPlan where a compute capability is badly written or not among those that a compiler accepts."""
    for capability in wanted:
        parts = CAPABILITY.fullmatch(capability)
        if not parts:
            raise BadPlan(f"{capability!r} is no compute capability; they are written sm_80 and compute_90")
        if int(parts["number"]) not in accepted:
            known = " ".join(str(number) for number in sorted(accepted))
            raise BadPlan(f"{capability} is not accepted by {by}, which knows {known}")


def accepted_by(nvcc: Path) -> set[int]:
    """Return the architectures that an nvcc says it can compile for."""
    try:
        said = subprocess.run([str(nvcc), "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadPlan(f"{nvcc} cannot be asked what it compiles for: {error}") from error
    return {int(number) for number in re.findall(r"compute_(\d+)", said.stdout)}


def require_kernels(plan: Plan, wheel: Path) -> None:
    """Raise BadPlan where a wheel has no kernel at all for a capability that was asked for; tell what it has."""
    if not plan.capabilities:
        return
    try:
        held = kernels.in_wheel(wheel, plan.kernels_in)
    except KeyError:
        raise BadPlan(f"{wheel.name} has no {plan.kernels_in}") from None
    sys.stdout.write("".join(f"kernels: {row}\n" for row in kernels.told(held)))
    without = kernels.missing(held, plan.capabilities)
    if without:
        raise BadPlan(f"{plan.kernels_in} in {wheel.name} has no kernel for {' '.join(without)}")


def places(environment: Mapping[str, str]) -> list[str]:
    """Return the flags for what the caller provides: caches, the file of events, downloads that are there already."""
    wanted = {
        "BAZEL_DISK_CACHE": "--disk_cache={}",
        "BAZEL_REMOTE_CACHE": "--remote_cache={}",
        # What no action's own key holds, the system's compilers for one, divides the entries of a cache that all share.
        "BAZEL_CACHE_KEY": "--remote_default_exec_properties=cache-silo-key={}",
        "BAZEL_BUILD_EVENTS": "--build_event_json_file={}",
        "BAZEL_DISTDIR": "--distdir={}",
    }
    # Upstream's own settings have Bazel print all flags, and the address of a cache may hold a password.
    # Of what it shows, Bazel writes ten kilobytes at a time into its events unless told otherwise, minutes' worth.
    return [
        "--noannounce_rc",
        *(["--bes_outerr_buffer_size=256"] if environment.get("BAZEL_BUILD_EVENTS") else []),
        *(flag.format(environment[name]) for name, flag in wanted.items() if environment.get(name)),
    ]


def machine_from(environment: Mapping[str, str]) -> Machine:
    """Return what the caller says that this build may use; where it is silent, what the machine or container gives."""
    cpus = environment.get("BAZEL_CPUS") or environment.get("CPU_COUNT") or machine_limits.cpus()
    memory = environment.get("BAZEL_MEMORY_MB") or machine_limits.memory() // 10**6
    try:
        return Machine(cpus=max(1, int(cpus)), memory=int(memory))
    except ValueError:
        raise BadPlan(f"BAZEL_CPUS or CPU_COUNT is {cpus!r}, BAZEL_MEMORY_MB {memory!r}; numbers are needed") from None


def find_bazel(wanted: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the program that is Bazel of a version, and the USE_BAZEL_VERSION with which it is; empty: with none.

    A Bazel that is there in this version is taken as it is. Otherwise bazelisk, or the script that Debian's and
    Google's packages install, may bring another version under the name ``bazel``.
    """
    found = []
    plain = {name: value for name, value in environment.items() if name != "USE_BAZEL_VERSION"}
    for program, version in (("bazel", ""), ("bazel", wanted), ("bazelisk", wanted)):
        if not shutil.which(program):
            continue
        answer = version_of(program, {**plain, **({"USE_BAZEL_VERSION": version} if version else {})})
        if answer == wanted:
            return program, version
        found.append(f"{program}{f' with USE_BAZEL_VERSION={version}' if version else ''} is {answer!r}")
    raise BadPlan(
        f"this TensorFlow is compiled by Bazel {wanted}, and {'; '.join(found) or 'there is no bazel on PATH'}. "
        f"Install Bazel {wanted} (conda-forge: bazel {wanted}), or bazelisk, which fetches it"
    )


def version_of(program: str, environment: Mapping[str, str]) -> str:
    """Return the version that a Bazel says it is, or else what it says instead."""
    said = subprocess.run([program, "--version"], env=dict(environment), capture_output=True, text=True, check=False)
    found = re.match(r"bazel (\S+?)-?(?:\s|$)", said.stdout)
    return found[1] if found else f"{said.stdout} {said.stderr}".strip()[:200]


def bazelrc(plan: Plan) -> list[str]:
    """Return the lines of a file for ``--bazelrc``."""
    return ["# Written by compile_plan.py from compile.ini and the cell's variant.", *map(line, plan.flags)]


def line(flag: str) -> str:
    """Return the line of a flag; what would end it early is quoted."""
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'build "{escaped}"' if re.search(r"[\s#\"'\\]", flag) else f"build {flag}"


def assignments(plan: Plan, program: str, bazel_version: str) -> list[str]:
    """Return shell lines with what build.sh needs; the flags as comments, for the log, without a password."""
    variables = {
        "bazel": program,
        "target": plan.target,
        "wheel_folder": plan.folder,
        "nvcc_target": plan.nvcc_target,
        "nvcc_file": plan.nvcc_file,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    shown = "".join(f"  {without_password(flag)}\n" for flag in plan.flags)
    lines.append(f"flags={shlex.quote(shown)}")
    return [*lines, f"export USE_BAZEL_VERSION={bazel_version}" if bazel_version else "unset USE_BAZEL_VERSION"]


def without_password(flag: str) -> str:
    """Return a flag with the user and password of a URL in it hidden."""
    name, equals, value = flag.partition("=")
    return f"{name}{equals}{value.replace(urlsplit(value).netloc.rpartition('@')[0], '***')}" if "@" in value else flag


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
