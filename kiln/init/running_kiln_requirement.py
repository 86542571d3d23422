"""The requirement by which pip installs this kiln elsewhere: the wheel, the commit or the version that runs now.

A name and a version alone are used only where pip recorded that this kiln came from its index: on another index the
same name may be another project. Source: PEP 610, ``direct_url.json``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from kiln import channel_url_credentials, files, git
from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "kiln"
_CLONE = Path(__file__).parents[2]
_SSH = re.compile(r"(?P<user>[\w.-]+@)?(?P<host>[\w.-]+):(?P<path>[^/:].*)")
_URL = re.compile(r"[a-z+]+://")
_PATH_LIKE = re.compile(r"\.{0,2}/|file:")
_COMMIT = re.compile(r"[^@]+@[^@]+")  # the last part of a repository's path
_HINT = "--kiln 'kiln @ git+https://HOST/REPOSITORY@COMMIT', or a wheel's path"  # another project has the name on PyPI


@dataclass(frozen=True, slots=True, kw_only=True)
class KilnRequirement:
    """A requirement line for pip; ``note`` says where it does not work."""

    line: str
    note: str = ""


def parse_given_requirement(text: str) -> KilnRequirement:
    """Return a requirement that the user gives, pinned: a version, a URL, a wheel or a folder.

    Raises:
        UsageError: it is not a requirement on kiln, or leaves the version open.
    """
    if _PATH_LIKE.match(text) or (text.endswith(".whl") and "://" not in text):
        return _requirement_of_local_file(_existing_file_url(text))
    try:
        requirement = Requirement(f"{NAME} @ {text}" if _URL.match(text) else text)
    except InvalidRequirement as error:
        raise UsageError(f"--kiln {text!r} is not a requirement", why=str(error).splitlines()[0], hint=_HINT) from error
    if requirement.name != NAME:
        raise UsageError(f"--kiln names {requirement.name}", why=f"the project is called {NAME}", hint=_HINT)
    if requirement.url is not None:
        return (
            _requirement_of_local_file(requirement.url)
            if requirement.url.startswith("file:")
            else _requirement_of_url(requirement.url)
        )
    operators = [item.operator for item in requirement.specifier]
    if operators not in (["=="], ["==="]) or "*" in str(requirement.specifier):
        raise UsageError(f"--kiln {text!r} leaves the version open", why="the next release may differ", hint=_HINT)
    return KilnRequirement(line=str(requirement))


def _existing_file_url(text: str) -> str:
    """Return the URL of a file or a folder from its path or URL.

    Raises:
        UsageError: it is not a URL, or does not exist on this computer.
    """
    try:
        parts = urlsplit(text if text.startswith("file:") else Path(text).absolute().as_uri())
    except ValueError as error:
        raise UsageError(f"--kiln {text!r} is not a URL", why=str(error), hint=_HINT) from error
    path = files.path_of_file_url(parts.path).absolute()
    if parts.netloc not in {"", "localhost"} or not path.exists():
        raise UsageError(f"--kiln: {text if parts.netloc else path} does not exist", hint=_HINT)
    return path.as_uri() + (f"#{parts.fragment}" if parts.fragment else "")


def _requirement_of_url(url: str) -> KilnRequirement:
    """Return the requirement of an address, which names a wheel or a commit.

    Raises:
        UsageError: it names a repository without a commit or a tag.
    """
    path = urlsplit(url).path
    if "+" in url.partition("://")[0] and not _COMMIT.fullmatch(path.rpartition("/")[2]):
        hint = _HINT if "@" in path else f"--kiln 'kiln @ {_url_without_password(url)}@COMMIT'"
        raise UsageError("--kiln names no commit of the repository", why="its next commit may differ", hint=hint)
    return KilnRequirement(line=f"{NAME} @ {_url_without_password(url)}")


def requirement_of_running_kiln(*, env: Mapping[str, str]) -> KilnRequirement:
    """Return the requirement of the kiln that runs now, from pip's record of its origin or from its git clone.

    Raises:
        UsageError: its origin is unknown.
    """
    record = _installed_version_and_origin()
    if record is None:
        return _requirement_of_git_clone(env)
    version, origin = record
    if origin is None:
        return KilnRequirement(line=f"{NAME}=={version}")
    return requirement_of_pip_origin(origin)


def requirement_of_pip_origin(origin: Mapping[str, Any]) -> KilnRequirement:
    """Return the requirement of a record of PEP 610."""
    url, folder = str(origin.get("url", "")), origin.get("subdirectory")
    fragment = [f"subdirectory={folder}"] if folder else []
    if vcs := origin.get("vcs_info"):
        tail = f"#{'&'.join(fragment)}" if fragment else ""
        return KilnRequirement(line=f"{NAME} @ {vcs['vcs']}+{_url_without_password(url)}@{vcs['commit_id']}{tail}")
    archive = origin.get("archive_info") or {}
    hashes = archive.get("hashes") or dict([str(archive.get("hash", "")).split("=", 1)] if archive.get("hash") else [])
    fragment = [f"sha256={hashes['sha256']}", *fragment] if "sha256" in hashes else fragment
    tail = f"#{'&'.join(fragment)}" if fragment else ""
    if url.startswith("file:"):
        return _requirement_of_local_file(f"{url}{tail}")
    return KilnRequirement(line=f"{NAME} @ {_url_without_password(url)}{tail}")


def _requirement_of_local_file(url: str) -> KilnRequirement:
    note = "requirements/kiln.txt names a file of this computer; give a URL or a version with --kiln for CI and others"
    return KilnRequirement(line=f"{NAME} @ {url}", note=note)


def _installed_version_and_origin() -> tuple[str, dict[str, Any] | None] | None:
    """Return the version and the origin of the installed kiln; None when pip has not installed the running one."""
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        return None
    if Path(str(installed.locate_file(NAME))).resolve() != Path(__file__).resolve().parents[1]:
        return None
    text = installed.read_text("direct_url.json")
    return installed.version, json.loads(text) if text else None


def _requirement_of_git_clone(env: Mapping[str, str]) -> KilnRequirement:
    """Return the requirement of the commit of the clone that runs, at the repository that it was cloned from."""
    commit, _ = git.checkout_commit(_CLONE, (_CLONE / NAME,), env=env) if (_CLONE / ".git").exists() else ("", "")
    if not commit:
        raise UsageError(
            "the origin of this kiln is unknown",
            why=f"pip has not installed {Path(__file__).parents[1]}, and it is not in a git clone",
            hint=_HINT,
        )
    remote = git.output_or_empty(_CLONE, "remote", "get-url", "origin", env=env).strip()
    if not remote or (url := url_of_git_remote(remote)) is None:
        return _requirement_of_local_file(_CLONE.as_uri())
    dirty = git.is_dirty(commit)
    note = "this clone has changes that are not committed; the feedstock gets its last commit" if dirty else ""
    return KilnRequirement(line=f"{NAME} @ git+{url}@{git.base_commit(commit)}", note=note)


def _url_without_password(url: str) -> str:
    """Return a URL without the password in it; the user of ssh belongs to the address."""
    head, mark, rest = url.partition("://")
    if "ssh" not in head:
        vcs, plus, address = url.rpartition("+") if "+" in head else ("", "", url)
        return f"{vcs}{plus}{channel_url_credentials.url_without_credentials(address)}"
    return f"{head}{mark}" + re.sub(r"^([^/@:]*):[^/@]*@", r"\1@", rest)


def url_of_git_remote(remote: str) -> str | None:
    """Return the URL of a git remote, without credentials; None for a folder."""
    if "://" in remote:
        return None if remote.startswith("file:") else _url_without_password(remote)
    match = _SSH.fullmatch(remote)
    return f"ssh://{match['user'] or ''}{match['host']}/{match['path']}" if match else None
