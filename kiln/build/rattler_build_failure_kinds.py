"""Classify an engine's failure by its messages: network, disk, unsatisfiable packages, tests, or the build itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kiln.build import unpackable_prefix_files
from kiln.errors import BuildFailed, DiskFull, DownloadFailed, HashMismatch, KilnError, SolveFailed, TestsFailed


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePattern:
    """A kind of failure: the pattern of the engine's messages, the error to raise, and a hint."""

    words: re.Pattern[str]
    error: type[KilnError]
    hint: str = ""


NOT_UNPACKED = "Failed to extract archive"
DISK = FailurePattern(
    words=re.compile(
        r"no space left on device|disk quota exceeded|os error (?:28|122)\b|the disk became full", re.IGNORECASE
    ),
    error=DiskFull,
    hint="free some space and run the same command again; what was finished is kept",
)
HASH = FailurePattern(
    words=re.compile(r"\b(?:sha256|md5) checksum validation failed", re.IGNORECASE),
    error=HashMismatch,
    hint="see that the recipe's hash belongs to this version, and who could have changed the file",
)
# Searched in the engine's own message alone: a script's downloads are part of the build, and may come hours later.
NETWORK = FailurePattern(
    words=re.compile(
        r"error sending request|connection (?:refused|reset|closed)|network is unreachable|dns error|timed? ?out"
        r"|temporary failure in name resolution|failed to (?:fetch|download)|status (?:server|client) error"
        r"|\b(?:429|502|503|504)\b",
        re.IGNORECASE,
    ),
    error=DownloadFailed,
    hint="see that the channels and sources can be reached, then run the same command again",
)
# The server's answer that does not change by asking again; 408, 425 and 429 ask for another attempt.
_FINAL = re.compile(r"status client error \((?!408|425|429)4\d\d\b", re.IGNORECASE)
# The messages of `kiln.source_download`, and those among them that another attempt would repeat.
_OWN = re.compile(r": (?:the server answered \d+|\S+ cannot be reached: .*|no such file|not a regular file)$")
_OWN_FINAL = re.compile(r": (?:the server answered (?!408|425|429)4\d\d|no such file|not a regular file)$")
ABSENT = FailurePattern(
    words=_FINAL,
    error=DownloadFailed,
    hint="the server has no such file, or refuses it: check the address and the version, or name a --mirror",
)
PACKAGES = FailurePattern(
    words=re.compile(r"cannot solve the request|no candidates were found|failed to (?:solve|resolve)", re.IGNORECASE),
    error=SolveFailed,
    hint="see that the channels in channel_sources have what the recipe requires",
)
CONTENTS = FailurePattern(
    words=re.compile(r"failed package content tests", re.IGNORECASE),
    error=TestsFailed,
    hint="compare package_contents in the recipe with the files that the log lists",
)
LEFT_OUT = FailurePattern(
    words=re.compile(f"^{unpackable_prefix_files.LEFT_OUT}"),
    error=BuildFailed,
    hint="remove the files in the script (Python imports x.so before x.py), or install them under other names",
)
SPECIAL = FailurePattern(
    words=re.compile(f"^{re.escape(unpackable_prefix_files.SPECIAL)}"),
    error=BuildFailed,
    hint="remove them at the end of the script, and have the program make them when it runs",
)
UNUSABLE = FailurePattern(
    words=re.compile(f"^{unpackable_prefix_files.UNUSABLE}"),
    error=BuildFailed,
    hint="correct the version in the recipe or in the sources, and copy files in place of links",
)
LICENSES = FailurePattern(
    words=re.compile(r"^(?:PyRattlerBuildError: )?No license files were copied"),
    error=BuildFailed,
    hint="put the files that about/license_file names into the recipe's folder, or correct their paths in the source",
)
OTHER = FailurePattern(words=re.compile(""), error=BuildFailed)
GAVE_UP = "Retry attempt #2"  # the engine's last retry; its message does not name what could not be resolved


SCRIPT_FAILED = "Script failed to execute"
STATUS = re.compile(r"^Script failed with status (\d+)", re.MULTILINE)


def readable_engine_message(reason: str, tail: str) -> str:
    """Return an engine's error message without the name of its exception, and with a script's exit code."""
    codes = STATUS.findall(tail)
    if SCRIPT_FAILED in reason and codes:
        return f"its script ended with exit code {codes[-1]}"
    return reason.removeprefix("PyRattlerBuildError: ")


def classify_failure(reason: str, tail: str) -> FailurePattern:
    """Return the kind of a failure, from an engine's error message and the end of its log."""
    if DISK.words.search(reason) or DISK.words.search(tail):
        return DISK
    failure = next(
        failure_kind
        for failure_kind in (LEFT_OUT, SPECIAL, UNUSABLE, LICENSES, CONTENTS, HASH, NETWORK, PACKAGES, OTHER)
        if failure_kind.words.search(reason)
    )
    if failure is NETWORK and HASH.words.search(tail):
        return HASH  # the message names only the last of several addresses; an earlier one had another file
    if failure is NETWORK and is_permanent_download_failure(f"{reason}\n{tail}"):
        return ABSENT
    return NETWORK if failure is PACKAGES and GAVE_UP in tail else failure


def is_permanent_download_failure(messages: str) -> bool:
    """Return whether each failed request among an engine's messages has an answer that another attempt would repeat."""
    requests = [line for line in messages.splitlines() if NETWORK.words.search(line) or _OWN.search(line)]
    return bool(requests) and all(_FINAL.search(line) or _OWN_FINAL.search(line) for line in requests)
