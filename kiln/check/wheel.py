"""The wheel that a compile ends in, as a product: named and tagged rightly, and installed by pip into a fresh venv.

What a wheel's name says of its platform is a promise: with ``manylinux_2_28_x86_64`` it needs nothing that a system of
that age lacks (PEP 600). auditwheel tells which promise the binaries keep. NVIDIA's libraries are left out of that, as
upstream does: they come from packages of their own.
"""

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

from kiln import command, files
from kiln.errors import BrokenPackage, TestsFailed, excerpt
from kiln.model.artifact import TestReport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from auditwheel.policy import Policy
    from auditwheel.wheel_abi import WheelAbIInfo

# What is opened from NVIDIA's own packages, or from the driver.
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
SCRIPT = "run_test.sh"  # the name of a script that may run in a container of its own
BARE = "linux_x86_64"  # the tag of a wheel that promises nothing, which PyPI refuses
NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
SINGLE = 'import sys; print("%d%d" % sys.version_info[:2])'


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel's name taken apart, as PEP 427 has it; tags are joined by dots where there are several."""

    path: Path
    name: str
    version: str
    python: str
    abi: str
    platform: str

    @classmethod
    def of(cls, path: Path) -> Wheel:
        """Return the parts of a wheel's name.

        Raises:
            BrokenPackage: when it is no wheel's name.
        """
        match = NAME.fullmatch(path.name)
        if match is None:
            form = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl (PEP 427)"
            raise BrokenPackage(f"{path.name} is no name of a wheel", why=form)
        return cls(path=path, **match.groupdict())

    @property
    def tags(self) -> str:
        """The tags as they stand in the name."""
        return f"{self.python}-{self.abi}-{self.platform}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The test of a wheel: ``python`` makes the venv in ``folder``, ``modules`` are imported there.

    ``resolved`` is whether what the wheel requires is installed with it; else nothing can be imported if it ``needs``
    something.
    """

    wheel: Path
    python: Path
    folder: Path
    modules: tuple[str, ...]
    needs: bool
    resolved: bool


def require_python(wheel: Wheel, python: str | None) -> None:
    """Refuse a wheel that is not for the Python that its cell is for (``3.11``; None for a cell without one).

    Raises:
        TestsFailed: with both.
    """
    wanted = {f"cp{python.replace('.', '')}", "py3", "py2.py3"} if python else {wheel.python}
    stable = wheel.abi == "abi3"  # one for all later ones
    if wheel.python not in wanted and not stable:
        raise TestsFailed(f"the wheel {wheel.path.name} is for {wheel.python}", why=f"the cell is for Python {python}")


def promise(wheel: Wheel) -> str | None:
    """Return the oldest platform tag that a wheel's binaries keep; None for a wheel without any binaries.

    Raises:
        TestsFailed: when its name promises more than that.
    """
    told = _audited(wheel.path)
    if told is None:
        return None
    kept = told.overall_policy
    claimed = [found for tag in wheel.platform.split(".") if (found := _policy(told, tag)) is not None]
    broken = [policy for policy in claimed if policy > kept]
    if broken:
        raise TestsFailed(
            f"the wheel {wheel.path.name} promises {broken[0].name}, and its binaries keep {kept.name} alone",
            why=_reasons(told, broken[0]),
            hint="compile in an older image or with an older sysroot, or let the compile step name a younger tag",
        )
    return str(kept.name)


def can_audit() -> bool:
    """Whether auditwheel is here; it comes with kiln, but an image of somebody else's may lack it."""
    return importlib.util.find_spec("auditwheel") is not None


def _audited(path: Path) -> WheelAbIInfo | None:
    from auditwheel.architecture import Architecture
    from auditwheel.error import NonPlatformWheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    try:
        return analyze_wheel_abi(
            Libc.GLIBC, Architecture.x86_64, path, ELSEWHERE, disable_isa_ext_check=True, allow_graft=False
        )
    except NonPlatformWheelError:
        return None


def _policy(told: WheelAbIInfo, tag: str) -> Policy | None:
    return next((policy for policy in told.policies if tag in {policy.name, *policy.aliases}), None)


def _reasons(told: WheelAbIInfo, wanted: Policy) -> str:
    """What a tag forbids of what the binaries use."""
    libraries = sorted(told.external_refs[wanted.name].libs)
    symbols = [
        f"{library}: {', '.join(sorted(names)[-3:])}" for library, names in sorted(told.versioned_symbols.items())
    ]
    return f"they need {', '.join(libraries)}" if libraries else f"the newest symbols are {'; '.join(symbols)}"


def placed(wheel: Wheel, folder: Path, tag: str | None) -> Path:
    """Put a wheel into a folder, under the ``tag`` that it keeps when its own promises nothing; returns the file."""
    if tag in {None, BARE} or wheel.platform != BARE:
        target = folder / wheel.path.name
        files.link_or_copy(wheel.path, target)
        return target
    target = folder / wheel.path.name.replace(f"-{BARE}.whl", f"-{tag}.whl")
    with files.no_room_as_disk_full(folder), files.replacing(target) as part:
        retag(wheel.path, part, BARE, str(tag))
    return target


def retag(source: Path, target: Path, old: str, new: str) -> None:
    """Copy a wheel with another platform tag in its metadata; all else, times included, stays as it is."""
    with zipfile.ZipFile(source) as wheel, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as copy:
        (tags,) = (name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name))
        changed = re.sub(rf"(?m)^(Tag: .*-){re.escape(old)}(\r?)$", rf"\g<1>{new}\g<2>", wheel.read(tags).decode())
        record = tags.replace("/WHEEL", "/RECORD")
        for info in wheel.infolist():
            if info.filename == tags:
                copy.writestr(info, changed)
            elif info.filename == record:
                copy.writestr(info, _recorded(wheel.read(record).decode(), tags, changed.encode()))
            else:
                with wheel.open(info) as content, copy.open(info, "w", force_zip64=True) as written:
                    shutil.copyfileobj(content, written, 1 << 20)


def _recorded(record: str, name: str, content: bytes) -> str:
    """Return RECORD with a file's new hash and size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return re.sub(rf"(?m)^{re.escape(name)},[^,\r\n]*,\d*", f"{name},sha256={digest},{len(content)}", record)


def plan(wheel: Path, *, python: Path, folder: Path, network: bool) -> Plan:
    """Plan the test of a wheel; what it requires is installed with it where there is a network.

    Raises:
        BrokenPackage: when the file is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            required = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    except (zipfile.BadZipFile, ValueError) as error:
        raise BrokenPackage(f"{wheel.name} is no wheel", why=str(error)) from error
    needs = any("extra ==" not in str(requirement) for requirement in required)
    modules = tuple(sorted({found for name in names if (found := _module(name))}))
    return Plan(wheel=wheel, python=python, folder=folder, modules=modules, needs=needs, resolved=network or not needs)


def _module(name: str) -> str | None:
    """The module that a file at a wheel's top makes importable, if it does."""
    match = re.fullmatch(r"([A-Za-z]\w*)(?:/__init__\.py|\.py|(?:\.[\w-]+)?\.so)", name)
    return match[1] if match else None


def interpreter(wheel: Wheel, candidates: Iterable[Path], *, environment: Mapping[str, str]) -> Path | None:
    """Return the first interpreter that a wheel is for."""
    for candidate in candidates:
        if not candidate.is_file():
            continue
        said = command.capture((candidate, "-I", "-c", SINGLE), env=environment, timeout=60.0)
        if said.ok and wheel.python in {f"cp{said.stdout.strip()}", "py3", "py2.py3"}:
            return candidate
    return None


def commands(step: Plan) -> tuple[tuple[str, ...], ...]:
    """Return what installs a wheel, which runs no code of it: a venv without pip of its own, then kiln's pip."""
    pip = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", _inside(step))
    found = ("--only-binary", ":all:") if step.needs and step.resolved else ("--no-index",)
    alone = () if step.resolved else ("--no-deps",)
    return (
        (str(step.python), "-I", "-m", "venv", "--without-pip", str(step.folder)),
        (*pip, "install", "--no-cache-dir", *found, *alone, str(step.wheel)),
        *(((*pip, "check"),) if step.resolved else ()),
    )


def script(step: Plan) -> tuple[str, ...]:
    """Return the shell lines that run code of the wheel; none when nothing of it can be imported."""
    if not (step.resolved and step.modules):
        return ()
    words = (_inside(step), "-I", "-c", f"import {', '.join(step.modules)}")
    return (f"cd {shlex.quote(str(step.folder))}", shlex.join(words))


def _inside(step: Plan) -> str:
    return str(step.folder / "bin" / "python")


def execute(
    step: Plan,
    *,
    environment: Mapping[str, str],
    apart: Callable[[], AbstractContextManager[Mapping[str, str]]],
    log: Path,
    on_line: Callable[[str], None] | None = None,
) -> TestReport:
    """Install a wheel into a venv and import its modules there; the venv is removed when that works.

    ``environment`` is for pip, ``apart`` gives the one in which the wheel's own code runs.

    Raises:
        TestsFailed: with the end of the output.
    """
    files.remove(step.folder)
    installing = [_run(step, words, environment, log, on_line) for words in commands(step)]
    testing = 0.0
    if lines := script(step):
        files.write_text(step.folder / SCRIPT, "\n".join(("set -e", *lines, "")))
        with apart() as given:
            testing = _run(step, ("bash", str(step.folder / SCRIPT)), given, log, on_line)
    files.remove(step.folder)
    note = "installed without what it requires, for want of a network, and not imported"
    return TestReport(
        package=step.wheel.name,
        verdict=Verdict.PASSED,
        commands=len(installing) - 2 + bool(lines),
        install_seconds=sum(installing),
        seconds=testing,
        notes=() if step.resolved else (note,),
        log=log,
    )


def _run(
    step: Plan,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None,
) -> float:
    ended = command.run(words, env=environment, cwd=step.folder.parent, log=log, on_line=on_line)
    if not ended.ok:
        raise TestsFailed(
            f"the wheel {step.wheel.name} cannot be used after pip install: exit code {ended.exit_code}",
            why=f"the output ends with\n{excerpt(ended.tail)}",
            hint=f"read {log}; the venv is kept in {step.folder}",
        )
    return ended.seconds
