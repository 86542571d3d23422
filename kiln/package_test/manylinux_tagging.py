"""Compare a wheel's platform tag with its binaries, and give the wheel the tag that these fulfill.

A wheel tagged ``manylinux_2_28_x86_64`` needs nothing that a system of that age lacks (PEP 600). auditwheel determines
the tag that the binaries fulfill. NVIDIA's libraries do not count, as upstream: they come from separate packages.
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

    from kiln.package_test.wheel_name import WheelName


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

BARE = "linux_x86_64"  # the tag of a wheel that promises nothing, which PyPI refuses


def fulfilled_platform_tag(wheel: WheelName) -> str | None:
    """Return the oldest platform tag that a wheel's binaries fulfill; None without binaries, or without auditwheel.

    Raises:
        TestsFailed: when its name promises more than that.
    """
    audit = _audit_wheel(wheel.path)
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


def _audit_wheel(path: Path) -> WheelAbIInfo | None:
    if importlib.util.find_spec("auditwheel") is None:  # it comes with kiln, but another image may lack it
        return None
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
    if tag in {None, BARE} or wheel.platform != BARE:
        target = folder / wheel.path.name
        files.link_or_copy(wheel.path, target)
        return target
    target = folder / wheel.path.name.replace(f"-{BARE}.whl", f"-{tag}.whl")
    with files.full_disk_as_kiln_error(folder), files.atomic_replacement(target) as part:
        retag_wheel(wheel.path, part, BARE, str(tag))
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
