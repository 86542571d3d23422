"""An engine's failure by its messages, and faults of a prefix found before the engine packs it."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kiln.base import files, secret_forms
from kiln.base.errors import BuildFailed, DiskFull, DownloadFailed, HashMismatch, KilnError, SolveFailed, TestsFailed
from kiln.compat import causes
from kiln.feedstock.sources import HASH_HINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kiln.build.steps import BuildStep, CompileStep


ENGINE_FOLDER = Path("output", "bld")
UP_TO_STEP = "../../../.."  # from a folder of sources


def host_prefixes(step_folder: Path) -> tuple[Path, ...]:
    """Return the prefixes of the host, which become packages, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/host_env*"))


def build_prefixes(step_folder: Path) -> tuple[Path, ...]:
    """Return the prefixes of the machine that builds, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/build_env"))


def source_work_folders(step_folder: Path) -> tuple[Path, ...]:
    """Return the folders of the sources, in which scripts run, in a step's folder."""
    return tuple((step_folder / ENGINE_FOLDER).glob("*/work"))


# Each begins an error, by which its kind is known.
SPECIAL_TEXT = "the script left in its prefix what no package can contain: "
LEFT_OUT_TEXT = "rattler-build leaves out "
UNUSABLE_TEXT = "the package would not work: "
SHOWN = 5  # files in a message
LIST = "special-files"  # in a step's folder: the kind and the path of each, ended by null characters
_SPECIAL_KINDS = {"p": "FIFO", "s": "socket", "b": "device", "c": "device"}  # by find's letters
_SPECIAL_TESTS = {"p": stat.S_ISFIFO, "s": stat.S_ISSOCK, "b": stat.S_ISBLK, "c": stat.S_ISCHR}
_META = "conda-meta"
_TAG = "CACHEDIR.TAG"
_MODULES, _BINARIES = (".py", ".pyc"), (".so", ".pyd")
_DIST_INFO, _DIST_METADATA = ".dist-info", "METADATA"


def message_naming_files(kind: str, names: Sequence[str], separator: str = ", ") -> str:
    """Return the error of a kind that names the first files, or faults."""
    more = f"{separator.rstrip(', ')} and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{kind}{separator.join(names[:SHOWN])}{more}"


def refuse_special_files_lines(folder: Path) -> tuple[str, ...]:
    """Return the line that ends a script with special files in its prefix, and lists them in a step's ``folder``."""
    place = shlex.quote(str(folder / LIST))
    kinds = " -o ".join(f"-type {letter}" for letter in _SPECIAL_KINDS)
    find = f"find \"$PREFIX\" \\( {kinds} \\) -printf '%y %P\\0' >{place}"
    return (f"{{ {find} || true; if [ -s {place} ]; then exit 1; fi; }} 2>/dev/null",)


def special_files_that_ended_script(folder: Path) -> tuple[str, ...]:
    """Return the special files for which the line of `refuse_special_files_lines` ended a script."""
    try:
        entries = os.fsdecode((folder / LIST).read_bytes()).split("\0")
    except FileNotFoundError:
        return ()
    return _paths_with_kinds(entry.split(" ", 1) for entry in entries if entry)


def find_special_files(prefixes: Iterable[Path]) -> tuple[str, ...]:
    """Return the special files in prefixes, for a script that has ended itself before the line that looks for them."""
    return _paths_with_kinds(
        (letter, str(path.relative_to(prefix))) for prefix in prefixes for letter, path in _walk_special_files(prefix)
    )


def _paths_with_kinds(entries: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(f"{path} ({_SPECIAL_KINDS[letter]})" for letter, path in entries))


def _walk_special_files(prefix: Path) -> Iterator[tuple[str, Path]]:
    for folder, _, names in files.walk(prefix):
        for path in (Path(folder, name) for name in names):
            mode = path.lstat().st_mode
            yield from ((letter, path) for letter, is_kind in _SPECIAL_TESTS.items() if is_kind(mode))


def files_omitted_by_engine(prefix: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that the engine leaves out of a package, with the reasons; and the tags of cache folders.

    It leaves these out, too, but they have no content of their own. Files of the packages that were installed into the
    prefix before the script ran do not count.
    """
    others = installed_package_files(prefix)
    omissions = [(name, why) for name, why in sorted(_walk_omitted_files(prefix)) if name not in others]
    omitted = tuple(f"{name} ({why})" for name, why in omissions if why != _TAG)
    return omitted, tuple(name for name, why in omissions if why == _TAG)


def _walk_omitted_files(prefix: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in files.walk(prefix):
        place = Path(folder).relative_to(prefix)
        if not place.parts:
            folders[:] = [name for name in folders if name != _META]  # the engine's own records
        for name in names:
            siblings = [Path(name).with_suffix(end) for end in _BINARIES]
            binary = next((other.name for other in siblings if (Path(folder) / other).exists()), "")
            if _META in place.parts:
                yield str(place / name), f"it is in a folder {_META}"
            elif name == _TAG:
                yield str(place / name), _TAG
            elif Path(name).suffix in _MODULES and binary:
                yield str(place / name), f"{binary} is next to it"


def installed_package_files(prefix: Path) -> frozenset[str]:
    """Return the files of the packages in a prefix, by their records."""
    records = (json.loads(file.read_text(encoding="utf-8")) for file in (prefix / _META).glob("*.json"))
    return frozenset(name for record in records for name in record.get("files", ()))


def version_and_link_faults(prefix: Path, *, name: str, version: str, build_folder: Path) -> tuple[str, ...]:
    """Return the faults of the files that a script installed, in the order of their names.

    ``build_folder`` is that of the engine, which is removed after the build. Files of the packages that were
    installed into the prefix before do not count.
    """
    others = installed_package_files(prefix)
    return tuple(
        sorted({*_version_faults(prefix, others, name, version), *_build_link_faults(prefix, others, build_folder)})
    )


def _version_faults(prefix: Path, others: frozenset[str], name: str, version: str) -> Iterator[str]:
    """Yield the record of Python's package of the same name, where it has another version."""
    for folder in prefix.glob(f"lib/python*/site-packages/*{_DIST_INFO}"):
        own = str((folder / _DIST_METADATA).relative_to(prefix))
        stem = folder.name.lower().removesuffix(_DIST_INFO)
        if own in others or not (prefix / own).is_file() or not stem.startswith(f"{name}-"):
            continue
        installed = stem.removeprefix(f"{name}-")
        if "-" not in installed and installed != version:
            yield f"{own} is of version {installed}, the package of version {version}"


def _build_link_faults(prefix: Path, others: frozenset[str], build_folder: Path) -> Iterator[str]:
    """Yield the links to files of the build outside of the prefix."""
    real_prefix, real_folder = Path(os.path.realpath(prefix)), Path(os.path.realpath(build_folder))
    for folder, folders, names in files.walk(prefix):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if not path.is_symlink() or str(path.relative_to(prefix)) in others:
                continue
            real = Path(os.path.realpath(path))
            if real.is_relative_to(real_folder) and not real.is_relative_to(real_prefix):
                place = path.relative_to(prefix)
                yield f"{place} is a link to {real.relative_to(real_folder)} in the build's folder, which is removed"


_LICENSE_LIKE = re.compile(r"(?:licen[cs]e|copying|notice|unlicense)", re.IGNORECASE)
_MISSING = "about/license_file: neither in the sources nor in the recipe: "


def missing_licenses_message(step: BuildStep) -> str:
    """Return the error that names the missing files; empty where each name has a file."""
    value = step.recipe.get("about", {}).get("license_file") or ()
    recipe_folder = (step.recipe_folder,) if step.recipe_folder is not None else ()
    folders = (*source_work_folders(step.folder), *recipe_folder)
    names = (value,) if isinstance(value, str) else value
    missing = tuple(name for name in names if not any(_named_license_exists(folder, name) for folder in folders))
    return message_naming_files(_MISSING, missing) if missing else ""


def _named_license_exists(folder: Path, name: str) -> bool:
    if PurePath(name).is_absolute() or "${{" in name:
        return True  # the engine's expressions, and paths that are not names of the sources
    try:
        return (folder / name).exists() or next(folder.glob(name), None) is not None
    except (ValueError, NotImplementedError):  # not a pattern of Python's
        return True


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
    hint=HASH_HINT,
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
# The messages of `kiln.base.http`, and those among them that another attempt would repeat.
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
    words=re.compile(f"^{LEFT_OUT_TEXT}"),
    error=BuildFailed,
    hint="remove the files in the script (Python imports x.so before x.py), or install them under other names",
)
SPECIAL = FailurePattern(
    words=re.compile(f"^{re.escape(SPECIAL_TEXT)}"),
    error=BuildFailed,
    hint="remove them at the end of the script, and have the program make them when it runs",
)
UNUSABLE = FailurePattern(
    words=re.compile(f"^{UNUSABLE_TEXT}"),
    error=BuildFailed,
    hint="correct the version in the recipe or in the sources, and copy files in place of links",
)
LICENSES = FailurePattern(
    words=re.compile(r"^(?:PyRattlerBuildError: )?No license files were copied"),
    error=BuildFailed,
    hint="put the files that about/license_file names into the recipe's folder, or correct their paths in the source",
)
PATCHES = FailurePattern(
    words=re.compile(r"^(?:PyRattlerBuildError: )?Patch application error"),
    error=BuildFailed,
    hint="make the patch anew against this version's sources, or take it out where upstream has the change",
)
OTHER = FailurePattern(words=re.compile(""), error=BuildFailed)
WITHOUT_LOG = (LEFT_OUT, SPECIAL, UNUSABLE, LICENSES, PATCHES, HASH)  # their messages say all
GAVE_UP = "Retry attempt #2"  # the engine's last retry; its message does not name what could not be resolved


SCRIPT_FAILED = "Script failed to execute"
STATUS = re.compile(r"^Script failed with status (\d+)", re.MULTILINE)
_PREPARED = re.compile(r"^✔ Successfully updated the \w+ environment$", re.MULTILINE)
_HASHES = re.compile(
    r"(?P<kind>sha256|md5) checksum validation failed for \"(?:.*/)?(?:[0-9a-f]{8,64}_)?(?P<file>[^/\"]+)\"\s+"
    r"expected: (?P<wanted>[0-9a-f]+)\s+actual: +(?P<found>[0-9a-f]+)"
)
_FETCHED = re.compile(r"^Failed to fetch from (\S+): (?:sha256|md5) checksum", re.MULTILINE)
_PATCH = re.compile(r"Patch application error: (?:error applying )?(?P<why>.+)")
_APPLIED = re.compile(r"^Applying patch: (?:.*/)?([^/\n]+)$", re.MULTILINE)


def output_of_script(tail: str) -> str:
    """Return the end of an engine's log from the start of the script on, or all of it."""
    return _PREPARED.split(tail)[-1]


def readable_engine_message(reason: str, tail: str) -> str:
    """Return an engine's message without the name of its exception; of a script its exit code and last command."""
    codes = STATUS.findall(tail)
    if SCRIPT_FAILED in reason and codes:
        return f"its script ended with {causes.script_end_in_words(int(codes[-1]), output_of_script(tail))}"
    # of several addresses the reason is that of the last one; an earlier one may have had another file
    if match := _HASHES.search(f"{reason}\n{tail}" if NETWORK.words.search(reason) else reason):
        return f"the {match['kind']} of {match['file']} is {match['found']}, the recipe has {match['wanted']}"
    if match := _PATCH.search(reason):
        names = _APPLIED.findall(tail)
        return f"{names[-1] if names else 'a patch'} does not apply: {match['why']}"
    return reason.removeprefix("PyRattlerBuildError: ")


def classify_failure(reason: str, tail: str) -> FailurePattern:
    """Return the kind of a failure, from an engine's error message and the end of its log."""
    if DISK.words.search(reason) or DISK.words.search(tail):
        return DISK
    failure = next(
        failure_kind
        for failure_kind in (LEFT_OUT, SPECIAL, UNUSABLE, LICENSES, PATCHES, CONTENTS, HASH, NETWORK, PACKAGES, OTHER)
        if failure_kind.words.search(reason)
    )
    if failure is NETWORK and HASH.words.search(tail):
        return HASH  # the message names only the last of several addresses; an earlier one had another file
    if failure is NETWORK and is_permanent_download_failure(f"{reason}\n{tail}"):
        return ABSENT
    return NETWORK if failure is PACKAGES and GAVE_UP in tail else failure


def explanation(kind: FailurePattern, reason: str, tail: str, step: BuildStep | CompileStep) -> str:
    """Return what the message of a failure leaves out, where the log does not help."""
    if kind is PATCHES:
        return "\n".join(reason.splitlines()[1:])
    if kind is HASH:
        fetched = _FETCHED.findall(tail)  # the recipe's address, or a mirror, or a folder of downloads
        return f"it came from {secret_forms.with_masked_credentials(fetched[-1])}" if fetched else ""
    if kind is LICENSES:
        names = {
            path.name for folder in source_work_folders(step.folder) for path in folder.glob("*") if path.is_file()
        }
        found = sorted(name for name in names if _LICENSE_LIKE.match(name))
        return f"the sources have {', '.join(found[:SHOWN]) or 'no file with the name of a license'} at their top"
    return "the files are in the prefix after the script has ended"


def is_permanent_download_failure(messages: str) -> bool:
    """Return whether each failed request among an engine's messages has an answer that another attempt would repeat."""
    requests = [line for line in messages.splitlines() if NETWORK.words.search(line) or _OWN.search(line)]
    return bool(requests) and all(_FINAL.search(line) or _OWN_FINAL.search(line) for line in requests)
