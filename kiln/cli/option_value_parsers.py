"""Conversion of the values of command-line options; an invalid value raises UsageError."""

from __future__ import annotations

import re
from collections import namedtuple
from pathlib import Path

from kiln.errors import UsageError
from kiln.lazy_pattern import lazy_pattern

SIZE = lazy_pattern(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
TIME = lazy_pattern(r"(?=\d)(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?", re.IGNORECASE)
ACTIONS = lazy_pattern(r"(\d+) ?actions?")
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``16GB``, ``500 MB`` or ``2GiB``."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"invalid size {text!r}", hint="--memory 16GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].lower()])


def parse_minutes_as_seconds(text: str) -> float:
    """Return the seconds of a number of minutes."""
    try:
        return 60 * float(text)
    except ValueError as error:
        raise UsageError(f"invalid number of minutes {text!r}", hint="--stall 20") from error


def parse_folder_path(text: str) -> Path:
    """Return the absolute path of a folder that may be made later.

    Raises:
        UsageError: when it is something else than a folder.
    """
    path = Path(text).absolute()
    if not text or (path.exists() and not path.is_dir()):
        raise UsageError(f"not a folder: {text!r}", hint="--compile-cache FOLDER")
    return path


def parse_existing_folder(text: str, hint: str = "--distdir FOLDER, with the files that Bazel would download") -> Path:
    """Return the absolute path of an existing folder; builds run in other folders."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise UsageError(f"folder not found: {text}", hint=hint)
    return path


def parse_remote_cache_url(url: str) -> str | None:
    """Return the URL of a remote cache, None if empty; an error omits it, for it may contain a password."""
    if url and not re.match(r"(?:https?|grpcs?)://[^/\s]+\S*$", url):
        raise UsageError("invalid URL of a remote cache", hint="--remote-cache https://HOST/PATH, or grpcs://")
    return url or None


def parse_remote_executor_url(url: str) -> str | None:
    """Return the URL of a remote executor, None if empty; an error omits it, for it may contain a password."""
    if url and not re.match(r"grpcs?://[^/\s?#]+(?:/[\w.~/-]*)?$", url, re.ASCII):
        raise UsageError("invalid URL of a remote executor", hint="--remote-executor grpcs://HOST:PORT/INSTANCE")
    return url or None


def parse_positive_number(text: str) -> int:
    """Return a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"invalid number {text!r}", hint="--remote-jobs 64")
    return int(text)


def parse_credentials_folder(text: str) -> Path:
    """Return the absolute path of a folder of credentials."""
    return parse_existing_folder(text, hint="--remote-credentials FOLDER, with headers or client.pem")


def parse_credentials_setting(text: str) -> Path | str | None:
    """Return the value of BAZEL_REMOTE_CREDENTIALS: a folder, or what a fleet has made of one; None if empty."""
    from kiln.store import executor_credentials_encoding

    if not text:
        return None
    return text if executor_credentials_encoding.is_encoded_credentials(text) else parse_credentials_folder(text)


def parse_mirror_url(url: str) -> str | None:
    """Return the URL of a mirror, None if empty; one with a password is refused: logs and job files would show it."""
    if url and not re.match(r"https?://[^/\s@]+(?:/\S*)?$", url):
        raise UsageError("invalid URL of a mirror", hint="--mirror https://HOST/PATH, without a user or password")
    return url or None


def parse_channel(name: str) -> str:
    """Return a channel as solvers take it: an existing folder as a URL, anything else unchanged."""
    path = Path(name)
    if not name.strip() or (name.startswith(("/", ".")) and not path.is_dir()):
        raise UsageError(f"channel not found: {name!r}", hint="a folder, a URL, or a name such as conda-forge")
    return path.resolve().as_uri() if path.is_dir() else name


# A limit of a build: in seconds from now on, or of finished actions of Bazel. The annotations of a NamedTuple would
# be compiled at the start of every command that has options: that takes longer than all options.
Budget = namedtuple("Budget", ("seconds", "actions"), defaults=(None, None))


def parse_budget(text: str) -> Budget:
    """Return the limit of a build such as ``5h30m``, ``90m``, ``45s`` or ``500 actions``."""
    plain = text.replace(" ", "")
    if match := ACTIONS.fullmatch(text.strip()):
        limit = Budget(actions=int(match[1]))
    else:
        match = TIME.fullmatch(plain)
        hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0, 0, 0)
        limit = Budget(seconds=3600 * hours + 60 * minutes + seconds)
    if not limit.seconds and not limit.actions:
        raise UsageError(f"invalid budget {text!r}", hint="--budget 5h30m, --budget 90m, or --budget '500 actions'")
    return limit
