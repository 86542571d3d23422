"""What a wheel's platform tag promises, held against its binaries, and the wheel kept under the tag that they keep.

With ``manylinux_2_28_x86_64`` a wheel needs nothing that a system of that age lacks (PEP 600). auditwheel tells which
promise the binaries keep. NVIDIA's libraries are left out of that, as upstream does: they come from packages of their
own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shutil
import zipfile
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import TestsFailed

if TYPE_CHECKING:
    from pathlib import Path

    from auditwheel.policy import Policy
    from auditwheel.wheel_abi import WheelAbIInfo

    from kiln.check.wheel import Wheel


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

BARE = "linux_x86_64"  # the tag of a wheel that promises nothing, which PyPI refuses


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
