"""What made an engine fail, as far as its words tell: the network, the disk, the packages asked for, or the build."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kiln.errors import BuildFailed, DiskFull, DownloadFailed, HashMismatch, KilnError, SolveFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of failure: the engine's words for it, the error that tells it, what to try."""

    words: re.Pattern[str]
    error: type[KilnError]
    hint: str = ""


DISK = Kind(
    words=re.compile(
        r"no space left on device|disk quota exceeded|os error (?:28|122)\b|the disk became full", re.IGNORECASE
    ),
    error=DiskFull,
    hint="free some room and run the same command again; what was finished is kept",
)
HASH = Kind(
    words=re.compile(r"\b(?:sha256|md5) checksum validation failed", re.IGNORECASE),
    error=HashMismatch,
    hint="see that the recipe's hash belongs to this version, and who could have changed the file",
)
# In the engine's own message alone: a script's own downloads are its own affair, and hours may lie before them.
NETWORK = Kind(
    words=re.compile(
        r"error sending request|connection (?:refused|reset|closed)|network is unreachable|dns error|timed? ?out"
        r"|temporary failure in name resolution|failed to (?:fetch|download)|status (?:server|client) error"
        r"|\b(?:429|502|503|504)\b",
        re.IGNORECASE,
    ),
    error=DownloadFailed,
    hint="see that the channels and sources can be reached, then run the same command again",
)
PACKAGES = Kind(
    words=re.compile(r"cannot solve the request|no candidates were found|failed to (?:solve|resolve)", re.IGNORECASE),
    error=SolveFailed,
    hint="see that the channels in channel_sources have what the recipe requires",
)
OTHER = Kind(words=re.compile(""), error=BuildFailed)
GAVE_UP = "Retry attempt #2"  # the engine's last one; of what it failed to resolve then, its message tells no more


SCRIPT_FAILED = "Script failed to execute"
STATUS = re.compile(r"^Script failed with status (\d+)", re.MULTILINE)


def in_words(reason: str, tail: str) -> str:
    """Return an engine's error message without the name of its exception, and with the exit code of a script."""
    codes = STATUS.findall(tail)
    if SCRIPT_FAILED in reason and codes:
        return f"its script ended with exit code {codes[-1]}"
    return reason.removeprefix("PyRattlerBuildError: ")


def kind(reason: str, tail: str) -> Kind:
    """Return what an engine's error message, and the end of its log, tell of a failure."""
    if DISK.words.search(reason) or DISK.words.search(tail):
        return DISK
    found = next(each for each in (HASH, NETWORK, PACKAGES, OTHER) if each.words.search(reason))
    if found is NETWORK and HASH.words.search(tail):
        return HASH  # of several places the last one is told of, but one had another file
    return NETWORK if found is PACKAGES and GAVE_UP in tail else found
