"""The choice of wheels for requirements by pip's resolver: nothing is installed, and no source archive is built."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from kiln.base import http, process
from kiln.base.errors import DownloadFailed, RehearsalRefused
from kiln.base.patterns import lazy_pattern
from kiln.build.rehearsal import pip_alone
from kiln.build.rehearsal.packages import PackageTarget
from kiln.build.rehearsal.wheel_download import pip_target_options
from kiln.build.rehearsal.wheels import LockedWheel
from kiln.conda import pypi
from kiln.feedstock.sources import UnavailableItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SECONDS = 600.0
_UNAVAILABLE = lazy_pattern(
    r"Could not find a version that satisfies the requirement (?P<requirement>[^\n]+?)"
    r" \(from versions: (?P<versions>[^)]*)\)"
)
_REQUIRED_BY = lazy_pattern(r"^(?P<requirement>.*?) \(from (?P<parents>.+)\)$")
_WORKERS = 8
_GLIBC = lazy_pattern(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelResolution:
    """The wheels that satisfy requirements together, and the requested projects that none satisfies."""

    wheels: tuple[LockedWheel, ...]
    unavailable: tuple[UnavailableItem, ...] = ()


class RequirementsConflict(Exception):
    """The requirements contradict each other; the text is pip's explanation."""


def resolve_wheels(requirements: Iterable[str], *, python: str, glibc: str, env: Mapping[str, str]) -> WheelResolution:
    """Return the wheels of requirements with all that they require, for a Python and a C library's version.

    A requirement that no wheel satisfies is left out, and the others are resolved again. ``env`` is pip's environment.
    """
    specs = sorted(requirements)
    unavailable: list[UnavailableItem] = []
    while specs:
        report, output = _resolve_with_pip(specs, python=python, glibc=glibc, env=env)
        if report is not None:
            without_wheels = {failure.name for failure in unavailable}
            overlooked = {
                text
                for text in _requirements_missed_by_pip(report, python)
                if _project_name(text) not in without_wheels
            }
            if more := sorted(overlooked - set(specs)):
                specs = [*specs, *more]
                continue
            return WheelResolution(wheels=_wheels_from_report(report, python), unavailable=tuple(unavailable))
        failure = _unavailable_requested_project(output, specs)
        unavailable.append(failure)
        specs = [text for text in specs if _project_name(text) != failure.name]
    return WheelResolution(wheels=(), unavailable=tuple(unavailable))


def pip_resolve_command(requirements: Path, report: Path, *, python: str, glibc: str) -> tuple[str, ...]:
    """Return the argv of kiln's own pip that chooses wheels for a Python and for this machine's C library."""
    return (
        *(sys.executable, pip_alone.__file__),
        *("install", "--dry-run", "--ignore-installed", "--no-input", "--quiet"),
        *("--disable-pip-version-check", "--only-binary=:all:", "--retries=3", "--report", str(report)),
        *pip_target_options(python, platform_tags(glibc)),
        *("--requirement", str(requirements)),
    )


def platform_tags(glibc: str, architecture: str = "x86_64") -> tuple[str, ...]:
    """Return the platform tags of wheels that run with a version of glibc, the newest first."""
    match = _GLIBC.match(glibc)
    newest = int(match[2]) if match and match[1] == "2" else 17
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    names: list[str] = []
    for minor in range(newest, 4, -1):
        names += [f"manylinux_2_{minor}", *([legacy[minor]] if minor in legacy else [])]
    return tuple(f"{name}_{architecture}" for name in (*names, "linux"))


def _resolve_with_pip(
    requirements: Sequence[str], *, python: str, glibc: str, env: Mapping[str, str]
) -> tuple[dict[str, Any] | None, str]:
    """Return pip's report, None when it fails, and its messages."""
    with tempfile.TemporaryDirectory(prefix="kiln-resolve-") as folder:
        file, report = Path(folder) / "requirements.txt", Path(folder) / "report.json"
        file.write_text("".join(f"{text}\n" for text in requirements), encoding="utf-8")
        argv = pip_resolve_command(file, report, python=python, glibc=glibc)
        result = process.run(argv, env={**env, "TMPDIR": folder}, timeout=_SECONDS, tail_lines=400)
        if not result.ok:
            return None, result.tail
        content: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return content, result.tail


def _requirements_missed_by_pip(report: Mapping[str, Any], python: str) -> set[str]:
    """Return what the chosen wheels require with another Python than pip's own, and what conda's packages add.

    pip evaluates markers for the Python that runs it, whatever the target's.
    """
    environment = {**PackageTarget(python=python).marker_environment(), "extra": ""}
    wheels = [entry["metadata"] for entry in report["install"]]
    versions = {canonicalize_name(wheel["name"]): wheel["version"] for wheel in wheels}
    texts = {text for wheel in wheels for text in wheel.get("requires_dist", ())}
    requirements = (
        requirement for text in texts if (requirement := _requirement_or_none(text)) is not None and requirement.marker
    )
    added = {name for wheel in versions for name in pypi.requirements_missing_in_wheel(wheel, python)}
    return (added - versions.keys()) | {
        f"{requirement.name}{requirement.specifier}"
        for requirement in requirements
        if requirement.marker is not None
        and requirement.marker.evaluate(environment)
        and not (
            (version := versions.get(canonicalize_name(requirement.name))) is not None
            and requirement.specifier.contains(version, prereleases=True)
        )
    }


def _requirement_or_none(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _unavailable_requested_project(output: str, requirements: Sequence[str]) -> UnavailableItem:
    """Return the requested project that pip could not provide."""
    projects = {_project_name(text) for text in requirements}
    for match in _UNAVAILABLE.finditer(output):
        text, parents = match["requirement"], ""
        if required := _REQUIRED_BY.match(text):
            text, parents = required["requirement"], required["parents"]
        versions = "no wheel" if match["versions"] in {"", "none"} else f"only {_shortened_versions(match['versions'])}"
        reason = f"{text}: pip's index has {versions} for this Python and machine"
        for candidate in (_project_name(text), *(_project_name(part) for part in parents.split("->"))):
            if candidate in projects:
                because = "" if candidate == _project_name(text) else f"{candidate} requires "
                return UnavailableItem(name=candidate, reason=f"{because}{reason}")
    lines = [line.removeprefix("ERROR: ") for line in output.splitlines() if not line.startswith("WARNING")]
    if pip_alone.REFUSAL in output:
        raise RehearsalRefused(
            "a rehearsal's wheels cannot be chosen: one of them requires a source archive or a repository",
            why="pip would have to build it, and no code runs while a rehearsal is planned; the requirements are"
            f" {', '.join(requirements)}",
            hint="see which of them, or of their requirements, names another one with an address (NAME @ URL)",
        )
    if "conflict" in output or "ResolutionImpossible" in output:
        raise RequirementsConflict("\n".join(lines[-20:]))
    raise DownloadFailed(
        "pip could not resolve the requirements of a rehearsal",
        why="\n".join(lines[-5:]),
        hint="check the network; pip's own settings (PIP_INDEX_URL, PIP_PROXY, pip.conf) apply",
    )


def _shortened_versions(versions: str) -> str:
    names = versions.split(", ")
    return versions if len(names) <= 3 else f"{names[0]} to {names[-1]}"


def _project_name(text: str) -> str:
    try:
        return canonicalize_name(Requirement(text.partition(" (from")[0].strip()).name)
    except InvalidRequirement:
        return canonicalize_name(re.split(r"[\s=<>!~;\[(]", text.strip(), maxsplit=1)[0])


def _wheels_from_report(report: Mapping[str, Any], python: str) -> tuple[LockedWheel, ...]:
    """Return the wheels of pip's report with their sizes."""
    entries = report["install"]
    with ThreadPoolExecutor(_WORKERS) as pool:
        sizes = list(pool.map(_download_size, [entry["download_info"]["url"] for entry in entries]))
    return tuple(_locked_wheel(entry, size, python) for entry, size in zip(entries, sizes, strict=True))


def _locked_wheel(entry: Mapping[str, Any], size: int, python: str) -> LockedWheel:
    url, name = entry["download_info"]["url"], canonicalize_name(entry["metadata"]["name"])
    sha256 = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    file = Path(unquote(urlsplit(url).path)).name
    if not sha256:
        raise DownloadFailed(f"pip's index has no hash of {file}", hint="use an index with hashes, as PyPI has them")
    version = str(entry["metadata"]["version"])
    return LockedWheel(name=name, version=version, file=file, size=size, sha256=sha256, pythons=(python,))


def _download_size(url: str) -> int:
    """Return the size of a file, 0 when its server does not announce it."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        return path.stat().st_size if path.is_file() else 0
    try:
        headers = {"User-Agent": "kiln", **http.request_headers(url)}
        with http.send_request(url, method="HEAD", headers=headers, timeout=30.0) as response:
            return http.content_length(response) or 0
    except http.HttpError:
        return 0
