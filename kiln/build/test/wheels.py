"""Wheels: the platform tag that their binaries fulfill, and a test in a fresh venv with pip."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shlex
import shutil
import sys
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from kiln.base import files, process
from kiln.base.errors import BrokenPackage, TestsFailed, program_output_with_margin
from kiln.state.results import TestReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from auditwheel.policy import Policy
    from auditwheel.wheel_abi import WheelAbIInfo

    from kiln.build.test.specs import WheelName


# Libraries of NVIDIA's own packages, or of the driver.
ELSEWHERE = frozenset(
    [
        "libcuda.so.*",
        "libcudart.so.*",
        "libcublas*.so.*",
        "libcudnn*.so.*",
        "libcufft*.so.*",
        "libcupti.so.*",
        "libcurand.so.*",
        "libcusolver*.so.*",
        "libcusparse*.so.*",
        "libnccl.so.*",
        "libnvJitLink.so.*",
        "libnvrtc*.so.*",
    ]
)

BARE = re.compile(r"linux_\w+")  # the tag of a wheel that promises nothing, which PyPI refuses


def fulfilled_platform_tag(wheel: WheelName) -> str | None:
    """Return the oldest platform tag that a wheel's binaries fulfill; None without binaries, or without auditwheel."""
    audit = _audit_wheel(wheel)
    if audit is None:
        return None
    policy = audit.overall_policy
    claimed = [claim for tag in wheel.platform.split(".") if (claim := _policy_of_tag(audit, tag)) is not None]
    broken = [claim for claim in claimed if claim > policy]
    if broken:
        raise TestsFailed(
            f"the wheel {wheel.path.name} promises {broken[0].name}, and its binaries keep {policy.name} alone",
            why=_forbidden_dependencies(audit, broken[0]),
            hint="compile in an older image or with an older sysroot, or let the compile step name a younger tag",
        )
    return str(policy.name)


def _audit_wheel(wheel: WheelName) -> WheelAbIInfo | None:
    if importlib.util.find_spec("auditwheel") is None:  # it comes with kiln, but another image may lack it
        return None
    from auditwheel.architecture import Architecture
    from auditwheel.error import NonPlatformWheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    processor = next((each for each in Architecture if wheel.platform.endswith(f"_{each.value}")), None)
    if processor is None:  # macOS or Windows
        return None
    try:
        return analyze_wheel_abi(
            Libc.GLIBC, processor, wheel.path, ELSEWHERE, disable_isa_ext_check=True, allow_graft=False
        )
    except NonPlatformWheelError:
        return None


def _policy_of_tag(audit: WheelAbIInfo, tag: str) -> Policy | None:
    return next((policy for policy in audit.policies if tag in {policy.name, *policy.aliases}), None)


def _forbidden_dependencies(audit: WheelAbIInfo, policy: Policy) -> str:
    """Return the libraries or symbols of the binaries that a tag forbids."""
    libraries = sorted(audit.external_refs[policy.name].libs)
    symbols = [
        f"{library}: {', '.join(sorted(names)[-3:])}" for library, names in sorted(audit.versioned_symbols.items())
    ]
    return f"they need {', '.join(libraries)}" if libraries else f"the newest symbols are {'; '.join(symbols)}"


def place_wheel_with_tag(wheel: WheelName, folder: Path, tag: str | None) -> Path:
    """Put a wheel into a folder, under ``tag`` when its own tag promises nothing; return the file."""
    if tag is None or BARE.fullmatch(tag) or not BARE.fullmatch(wheel.platform):
        target = folder / wheel.path.name
        files.link_or_copy(wheel.path, target)
        return target
    target = folder / wheel.path.name.replace(f"-{wheel.platform}.whl", f"-{tag}.whl")
    with files.full_disk_as_kiln_error(folder), files.atomic_replacement(target) as part:
        retag_wheel(wheel.path, part, wheel.platform, tag)
    return target


def retag_wheel(source: Path, target: Path, old: str, new: str) -> None:
    """Copy a wheel with another platform tag in its metadata; all else, times included, stays as it is."""
    with zipfile.ZipFile(source) as wheel, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as copy:
        (tags,) = (name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name))
        changed = re.sub(rf"(?m)^(Tag: .*-){re.escape(old)}(\r?)$", rf"\g<1>{new}\g<2>", wheel.read(tags).decode())
        record = tags.replace("/WHEEL", "/RECORD")
        for info in wheel.infolist():
            if info.filename == tags:
                copy.writestr(info, changed)
            elif info.filename == record:
                copy.writestr(info, _updated_record_file(wheel.read(record).decode(), tags, changed.encode()))
            else:
                with wheel.open(info) as content, copy.open(info, "w", force_zip64=True) as written:
                    shutil.copyfileobj(content, written, 1 << 20)


def _updated_record_file(record: str, name: str, content: bytes) -> str:
    """Return RECORD with a file's new hash and size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return re.sub(rf"(?m)^{re.escape(name)},[^,\r\n]*,\d*", f"{name},sha256={digest},{len(content)}", record)


SCRIPT = "run_test.sh"  # the name of a script that may run in a separate container
SINGLE = 'import sys; print("%d%d" % sys.version_info[:2])'


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelTestPlan:
    """The test of a wheel: ``python`` makes the venv in ``folder``, ``modules`` are imported there.

    ``resolved`` when the wheel's requirements are installed with it; without them nothing can be imported if it
    ``needs`` any.
    """

    wheel: Path
    python: Path
    folder: Path
    modules: tuple[str, ...]
    needs: bool
    resolved: bool


def plan_wheel_test(wheel: Path, *, python: Path, folder: Path, network: bool) -> WheelTestPlan:
    """Plan the test of a wheel; its requirements are installed with it where there is a network."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            required = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    except (zipfile.BadZipFile, ValueError) as error:
        raise BrokenPackage(f"{wheel.name} is not a wheel", why=str(error)) from error
    needs = any("extra ==" not in str(requirement) for requirement in required)
    modules = tuple(sorted({module for name in names if (module := _top_level_module(name))}))
    return WheelTestPlan(
        wheel=wheel, python=python, folder=folder, modules=modules, needs=needs, resolved=network or not needs
    )


def _top_level_module(name: str) -> str | None:
    """Return the module that a file at a wheel's top level provides; None for other files."""
    match = re.fullmatch(r"([A-Za-z]\w*)(?:/__init__\.py|\.py|(?:\.[\w-]+)?\.so)", name)
    return match[1] if match else None


def find_wheel_interpreter(
    wheel: WheelName, candidates: Iterable[Path], *, environment: Mapping[str, str]
) -> Path | None:
    """Return the first interpreter that a wheel is for."""
    for candidate in candidates:
        if not candidate.is_file():
            continue
        result = process.capture((candidate, "-I", "-c", SINGLE), env=environment, timeout=60.0)
        if result.ok and wheel.python in {f"cp{result.stdout.strip()}", "py3", "py2.py3"}:
            return candidate
    return None


def install_commands(step: WheelTestPlan) -> tuple[tuple[str, ...], ...]:
    """Return the commands that install a wheel, without running its code: make a venv without pip, run kiln's pip."""
    pip = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", _venv_python(step))
    index_options = ("--only-binary", ":all:") if step.needs and step.resolved else ("--no-index",)
    alone = () if step.resolved else ("--no-deps",)
    return (
        (str(step.python), "-I", "-m", "venv", "--without-pip", str(step.folder)),
        (*pip, "install", "--no-cache-dir", *index_options, *alone, str(step.wheel)),
        *(((*pip, "check"),) if step.resolved else ()),
    )


def import_script_lines(step: WheelTestPlan) -> tuple[str, ...]:
    """Return the shell lines that run the wheel's code; empty when nothing can be imported."""
    if not (step.resolved and step.modules):
        return ()
    words = (_venv_python(step), "-I", "-c", f"import {', '.join(step.modules)}")
    return (f"cd {shlex.quote(str(step.folder))}", shlex.join(words))


def _venv_python(step: WheelTestPlan) -> str:
    return str(step.folder / "bin" / "python")


def execute_wheel_test(
    step: WheelTestPlan,
    *,
    environment: Mapping[str, str],
    apart: Callable[[], AbstractContextManager[Mapping[str, str]]],
    log: Path,
    on_line: Callable[[str], None] | None = None,
) -> TestReport:
    """Install a wheel into a venv and import its modules there; the venv is removed when that works.

    ``environment`` is for pip, ``apart`` yields the one for the wheel's own code.
    """
    files.remove(step.folder)
    installing = [_run_test_command(step, words, environment, log, on_line) for words in install_commands(step)]
    testing = 0.0
    if lines := import_script_lines(step):
        files.write_text(step.folder / SCRIPT, "\n".join(("set -e", *lines, "")))
        with apart() as variables:
            testing = _run_test_command(step, ("bash", str(step.folder / SCRIPT)), variables, log, on_line)
    files.remove(step.folder)
    note = "installed without its requirements, since there is no network, and not imported"
    return TestReport(
        package=step.wheel.name,
        verdict=TestVerdict.PASSED,
        commands=len(installing) - 2 + bool(lines),
        install_seconds=sum(installing),
        seconds=testing,
        notes=() if step.resolved else (note,),
        log=log,
    )


def _run_test_command(
    step: WheelTestPlan,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None,
) -> float:
    result = process.run(words, env=environment, cwd=step.folder.parent, log=log, on_line=on_line)
    if not result.ok:
        raise TestsFailed(
            f"the wheel {step.wheel.name} cannot be used after pip install: exit code {result.exit_code}",
            why=f"the output ends with\n{program_output_with_margin(result.tail)}",
            hint=f"read {log}; the venv is kept in {step.folder}",
        )
    return result.seconds
