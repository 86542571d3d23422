"""Plans the compile: from a config's variant to Bazel's flags, as compile.ini has it, or the reason why it cannot be.

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
import remote_execution

if TYPE_CHECKING:
    from collections.abc import Mapping

COMPLETE = re.compile(r"\d+\.\d+\.\d+")
CAPABILITY = re.compile(r"(?P<kind>sm|compute)_(?P<number>\d+)")


class BadPlan(Exception):
    """The config cannot be compiled; the text says why and what to try."""


@dataclass(frozen=True)
class Machine:
    """The resources of the build: cores, and memory in megabytes."""

    cpus: int
    memory: int


@dataclass(frozen=True)
class Plan:
    """Bazel's flags for a config, and the other values for build.sh."""

    flags: tuple[str, ...]
    capabilities: tuple[str, ...]
    target: str
    folder: str
    bazel_version: str
    nvcc_target: str
    nvcc_file: str
    kernels_in: str
    library_targets: str
    library_folder: str
    library_flags: tuple[str, ...]
    executor: remote_execution.Executor | None = None


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=Path, help="compile.ini")
    parser.add_argument(
        "--bazelrc", type=Path, help="write Bazel's flags to this file and print the values for build.sh"
    )
    parser.add_argument(
        "--show",
        type=Path,
        metavar="CONFIG",
        help="only print Bazel's command lines for a config: its file in .ci_support",
    )
    parser.add_argument("--nvcc", type=Path, help="only check that this nvcc accepts the config's capabilities")
    parser.add_argument(
        "--wheel", type=Path, help="only check that this wheel has kernels for the config's capabilities"
    )
    options = parser.parse_args(arguments)
    try:
        variant = variant_of(options.show) if options.show else {}
        plan = make(read(options.settings), {**os.environ, **variant})
        if options.show:
            sys.stdout.write(command_lines(plan))
            return 0
        if options.nvcc:
            require(plan.capabilities, accepted_by(options.nvcc), by=str(options.nvcc))
            return 0
        if options.wheel:
            require_kernels(plan, options.wheel)
            return 0
        program, section_for = find_bazel(plan.bazel_version, os.environ)
    except BadPlan as error:
        sys.stderr.write(f"compile_plan.py: {error}\n")
        return 1
    options.bazelrc.touch()
    options.bazelrc.chmod(0o600)  # the address of a cache may hold a password
    lines = bazelrc(plan)
    if plan.executor:  # its credentials are in files of their own, which build.sh removes after the compile
        lines.append(f"import {plan.executor.write(options.bazelrc.absolute().with_name('remote'))}")
    options.bazelrc.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    sys.stdout.write("".join(f"{line}\n" for line in assignments(plan, program, section_for)))
    return 0


def read(path: Path) -> configparser.ConfigParser:
    """Return the settings; names keep their case and values are not interpolated."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.optionxform = str
    try:
        settings.read_string(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, configparser.Error) as error:
        raise BadPlan(str(error)) from error
    return settings


def make(settings: configparser.ConfigParser, environment: Mapping[str, str]) -> Plan:
    """Return the plan for the config whose variant is in the environment."""
    cuda = required(environment, "cuda_compiler_version")
    machine = machine_from(environment)
    memory_per_job = int(setting(settings, "bazel", "megabytes_per_job"))
    values = {
        "python": required(environment, "PY_VER"),
        "cpus": str(machine.cpus),
        "memory": str(machine.memory * 9 // 10),  # the rest is for Bazel itself
        "jobs": str(max(1, min(machine.cpus, machine.memory // memory_per_job))),
    }
    platform = environment.get("target_platform") or "linux-64"
    level = environment.get("microarch_level") or "2"
    system = section_for(settings, "system", platform.partition("-")[0])
    sections = ["bazel", system, "python"]
    if platform == "linux-64":
        sections.append(section_for(settings, "level", level))
    capabilities: tuple[str, ...] = ()
    if cuda == "None":
        sections.append("cuda None")
    else:
        section = section_for(settings, "cuda", cuda)
        capabilities = capabilities_for(settings, section, environment.get("cuda_compute_capabilities", ""))
        values |= cuda_values(settings, section, environment, capabilities)
        sections.append("cuda")
    if platform != "linux-64":
        sections.append(section_for(settings, "platform", platform))
    if libraries := system_libraries(settings):
        values |= {"libraries": ",".join(libraries), "prefix": required(environment, "PREFIX")}
        sections.append("system libraries")
    flags = [flag for section in sections for flag in flag_list(settings, section, values)]
    try:
        executor = remote_execution.executor(settings, environment)
    except ValueError as error:
        raise BadPlan(str(error)) from None
    if executor:
        flags += executor.public_flags()
        environment = executor.environment(environment)
    return Plan(
        flags=(*flags, *places(environment)),
        capabilities=capabilities,
        target=setting(settings, "wheel", "target"),
        folder=setting(settings, "wheel", "folder"),
        bazel_version=setting(settings, "bazel", "version"),
        nvcc_target=settings.get("cuda", "nvcc_target", fallback="") if capabilities else "",
        nvcc_file=settings.get("cuda", "nvcc_file", fallback="") if capabilities else "",
        kernels_in=setting(settings, "cuda", "kernels_in") if capabilities else "",
        library_targets=settings[system].get("library_targets") or setting(settings, "libraries", "targets"),
        library_folder=setting(settings, "libraries", "folder"),
        library_flags=tuple(flag_list(settings, "libraries", values)),
        executor=executor,
    )


def variant_of(path: Path) -> dict[str, str]:
    """Return the variant of a config as the variables of its build."""
    try:
        found = re.findall(r"^(\w+):\n- '?([^'\n]*)'?$", path.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError as error:
        raise BadPlan(str(error)) from error
    variant = dict(found)
    return {**variant, "PY_VER": variant.get("python", "").partition(".*")[0]}


def command_lines(plan: Plan) -> str:
    """Return the two calls of Bazel, a flag to a line, without the passwords in addresses."""
    calls = ((plan.flags, plan.target), ((*plan.flags, *plan.library_flags), plan.library_targets))
    return "".join(
        " \\\n  ".join(["bazel build", *(shlex.quote(without_password(flag)) for flag in flags), f"{targets}\n"])
        for flags, targets in calls
    )


def required(environment: Mapping[str, str], name: str) -> str:
    """Return a variable that every build has."""
    if not environment.get(name):
        raise BadPlan(f"the variable {name} is not set; it is part of a config's variant")
    return environment[name]


def setting(settings: configparser.ConfigParser, section: str, name: str) -> str:
    """Return a required value."""
    try:
        return settings[section][name]
    except KeyError:
        raise BadPlan(f"the settings have no {name!r} in [{section}]") from None


def section_for(settings: configparser.ConfigParser, kind: str, value: str) -> str:
    """Return the section that a value of the variant selects, such as ``cuda 12.9``."""
    section = f"{kind} {value}"
    if section not in settings:
        names = ", ".join(sorted(name.split(" ")[1] for name in settings if name.startswith(f"{kind} ")))
        raise BadPlan(f"the settings have no section [{section}]; there are {names}")
    return section


def flag_list(settings: configparser.ConfigParser, section: str, values: Mapping[str, str]) -> list[str]:
    """Return the flags of a section with its names in braces replaced."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise BadPlan(f"unknown name {match[0]} in [{section}]; the known names are {', '.join(sorted(values))}")
        return values[match[1]]

    lines = (line.strip() for line in setting(settings, section, "flags").splitlines())
    return [re.sub(r"\{(\w+)\}", value, line) for line in lines if line]


def system_libraries(settings: configparser.ConfigParser) -> list[str]:
    """Return upstream's names of the libraries to take from the prefix, in the order that upstream writes them."""
    used = sorted(settings.get("system libraries", "use", fallback="").split())
    known = {line.split()[0] for line in settings.get("system libraries", "packages", fallback="").splitlines() if line}
    if unknown := [name for name in used if name not in known]:
        raise BadPlan(f"use in [system libraries] names {unknown[0]}; its packages name {', '.join(sorted(known))}")
    return used


def cuda_values(
    settings: configparser.ConfigParser, section: str, environment: Mapping[str, str], capabilities: tuple[str, ...]
) -> dict[str, str]:
    """Return the values in the flags of a CUDA build: full versions, which upstream's hermetic toolkits require."""
    version, cudnn = setting(settings, section, "version"), setting(settings, section, "cudnn")
    for name, number in (("version", version), ("cudnn", cudnn)):
        if not COMPLETE.fullmatch(number):
            raise BadPlan(f"{name} = {number} in [{section}] is not complete; three numbers are needed, as in 12.5.1")
    variant_cudnn = environment.get("cudnn", "")
    if variant_cudnn and not f"{cudnn}.".startswith(f"{variant_cudnn}."):
        raise BadPlan(f"the variant asks for cuDNN {variant_cudnn}, and [{section}] has {cudnn}; change one of them")
    compiler = setting(settings, f"compiler {setting(settings, section, 'compiler')}", "flag")
    return {"version": version, "cudnn": cudnn, "compiler": compiler, "capabilities": ",".join(capabilities)}


def capabilities_for(settings: configparser.ConfigParser, section: str, requested: str) -> tuple[str, ...]:
    """Return the compute capabilities of a CUDA build as upstream writes them.

    ``sm_80`` is machine code alone, ``compute_90`` machine code and PTX. They are the variant's, if it has any, else
    the policy's architectures that this CUDA and its compiler accept.
    """
    compiler = f"compiler {setting(settings, section, 'compiler')}"
    accepted = numbers(setting(settings, section, "architectures"))
    by_compiler = settings.get(compiler, "architectures", fallback="")
    if by_compiler:
        accepted &= numbers(by_compiler)
    if requested.strip():
        capabilities = tuple(part.strip() for part in requested.split(",") if part.strip())
        require(capabilities, accepted, by=f"[{section}] with [{compiler}]")
        oldest = min(capabilities, key=lambda capability: int(capability.rpartition("_")[2]))
        if int(capabilities[0].rpartition("_")[2]) > int(oldest.rpartition("_")[2]):
            # The recipe bounds __cuda_arch and cuDNN by the first.
            raise BadPlan(f"cuda_compute_capabilities must begin with its oldest GPU, {oldest}, not {capabilities[0]}")
        return capabilities
    policy = sorted({int(name) for name in settings["architectures"] if name.isdecimal()} & accepted)
    if not policy:
        raise BadPlan(f"[{section}] with [{compiler}] accepts none of the architectures in [architectures]")
    return (*(f"sm_{number}" for number in policy), f"compute_{policy[-1]}")


def numbers(text: str) -> set[int]:
    """Return the architectures of a line."""
    return {int(word) for word in text.split()}


def require(capabilities: tuple[str, ...], accepted: set[int], *, by: str) -> None:
    """Raise BadPlan for a compute capability that is malformed, or that a compiler does not accept."""
    for capability in capabilities:
        parts = CAPABILITY.fullmatch(capability)
        if not parts:
            raise BadPlan(f"{capability!r} is not a compute capability, such as sm_80 or compute_90")
        if int(parts["number"]) not in accepted:
            accepted_numbers = " ".join(str(number) for number in sorted(accepted))
            raise BadPlan(f"{capability} is not accepted by {by}, which accepts {accepted_numbers}")


def accepted_by(nvcc: Path) -> set[int]:
    """Return the architectures that an nvcc lists."""
    try:
        result = subprocess.run([str(nvcc), "--list-gpu-arch"], capture_output=True, text=True, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        raise BadPlan(f"{nvcc} does not list its architectures: {error}") from error
    return {int(number) for number in re.findall(r"compute_(\d+)", result.stdout)}


def require_kernels(plan: Plan, wheel: Path) -> None:
    """Print the kernels of a wheel; raise BadPlan if it has no kernel at all for one of the plan's capabilities."""
    if not plan.capabilities:
        return
    try:
        library_kernels = kernels.in_wheel(wheel, plan.kernels_in)
    except KeyError:
        raise BadPlan(f"{wheel.name} has no {plan.kernels_in}") from None
    sys.stdout.write("".join(f"kernels: {row}\n" for row in kernels.lines(library_kernels)))
    without = kernels.missing(library_kernels, plan.capabilities)
    if without:
        raise BadPlan(f"{plan.kernels_in} in {wheel.name} has no kernel for {' '.join(without)}")


def places(environment: Mapping[str, str]) -> list[str]:
    """Return the flags for paths and addresses of the caller: caches, the file of events, existing downloads."""
    flag_templates = {
        "BAZEL_DISK_CACHE": "--disk_cache={}",
        "BAZEL_REMOTE_CACHE": "--remote_cache={}",
        # Separates the entries of a shared cache by what no action's key covers, such as the system's compilers.
        "BAZEL_CACHE_KEY": "--remote_default_exec_properties=cache-silo-key={}",
        "BAZEL_BUILD_EVENTS": "--build_event_json_file={}",
        "BAZEL_PROFILE": "--profile={}",
        "BAZEL_DISTDIR": "--distdir={}",
    }
    # Upstream's own settings have Bazel print all flags, and the address of a cache may hold a password.
    # By default Bazel writes its output into the events ten kilobytes, or minutes, at a time.
    return [
        "--noannounce_rc",
        *(["--bes_outerr_buffer_size=256"] if environment.get("BAZEL_BUILD_EVENTS") else []),
        *(flag.format(environment[name]) for name, flag in flag_templates.items() if environment.get(name)),
    ]


def machine_from(environment: Mapping[str, str]) -> Machine:
    """Return the resources that the caller grants this build, by default those of the machine or container."""
    cpus = environment.get("BAZEL_CPUS") or environment.get("CPU_COUNT") or machine_limits.cpus()
    memory = environment.get("BAZEL_MEMORY_MB") or machine_limits.memory() // 10**6
    try:
        return Machine(cpus=max(1, int(cpus)), memory=int(memory))
    except ValueError:
        raise BadPlan(f"BAZEL_CPUS or CPU_COUNT is {cpus!r}, BAZEL_MEMORY_MB {memory!r}; numbers are needed") from None


def find_bazel(required_version: str, environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the program that runs a version of Bazel, and the USE_BAZEL_VERSION that it needs; empty for none.

    A Bazel of this version is used directly. Otherwise bazelisk, or the script of Debian's and Google's packages, may
    run this version under the name ``bazel``.
    """
    alternatives = []
    plain = {name: value for name, value in environment.items() if name != "USE_BAZEL_VERSION"}
    for program, version in (("bazel", ""), ("bazel", required_version), ("bazelisk", required_version)):
        if not shutil.which(program):
            continue
        answer = version_of(program, {**plain, **({"USE_BAZEL_VERSION": version} if version else {})})
        if answer == required_version:
            return program, version
        alternatives.append(f"{program}{f' with USE_BAZEL_VERSION={version}' if version else ''} is {answer!r}")
    raise BadPlan(
        f"this TensorFlow is compiled by Bazel {required_version}, "
        f"and {'; '.join(alternatives) or 'bazel is not on PATH'}. "
        f"Install Bazel {required_version} (conda-forge: bazel {required_version}), or bazelisk, which fetches it"
    )


def version_of(program: str, environment: Mapping[str, str]) -> str:
    """Return the version that a Bazel prints, or its whole output."""
    result = subprocess.run([program, "--version"], env=dict(environment), capture_output=True, text=True, check=False)
    match = re.match(r"bazel (\S+?)-?(?:\s|$)", result.stdout)
    return match[1] if match else f"{result.stdout} {result.stderr}".strip()[:200]


def bazelrc(plan: Plan) -> list[str]:
    """Return the lines of a file for ``--bazelrc``."""
    return [
        "# Written by compile_plan.py from compile.ini and the config's variant.",
        *(line(flag) for flag in plan.flags),
        *(line(flag, "build:libraries") for flag in plan.library_flags),
    ]


def line(flag: str, command: str = "build") -> str:
    """Return the line of a flag, quoted if it has special characters."""
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'{command} "{escaped}"' if re.search(r"[\s#\"'\\]", flag) else f"{command} {flag}"


def assignments(plan: Plan, program: str, bazel_version: str) -> list[str]:
    """Return shell lines with the values for build.sh, and the flags, without passwords, for the log."""
    variables = {
        "bazel": program,
        "target": plan.target,
        "wheel_folder": plan.folder,
        "nvcc_target": plan.nvcc_target,
        "nvcc_file": plan.nvcc_file,
        "library_targets": plan.library_targets,
        "library_folder": plan.library_folder,
    }
    lines = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    flag_lines = "".join(f"  {without_password(flag)}\n" for flag in plan.flags)
    lines.append(f"flags={shlex.quote(flag_lines)}")
    return [*lines, f"export USE_BAZEL_VERSION={bazel_version}" if bazel_version else "unset USE_BAZEL_VERSION"]


def without_password(flag: str) -> str:
    """Return a flag with the user and password of its URL hidden."""
    name, equals, value = flag.partition("=")
    return f"{name}{equals}{value.replace(urlsplit(value).netloc.rpartition('@')[0], '***')}" if "@" in value else flag


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
