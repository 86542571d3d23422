"""The values of known keys that rattler-build does not honor."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.serialization import mappings_in_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

KeyPath = tuple[str, ...]

SCRIPTS = (".sh", ".py")  # scripts of outputs that run without a script_interpreter
_PACKAGES = frozenset({"conda", "conda_v2"})
FURTHER_HASHES = ("sha1", "sha224", "sha384", "sha512")  # which the engine does not verify
CONTENT_HASHES = ("content_sha256", "content_sha384", "content_sha512")
_FILE_HASHES = ("md5", "sha256", *FURTHER_HASHES)  # of what is downloaded: conda-build reads no others of them
REVISIONS = ("git_rev", "git_tag", "git_branch")


def unsupported_values(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each key whose value is not honored, and the reason."""
    sources = mappings_in_list(values.get("source"))
    for number, entry in enumerate(sources):
        yield from _unsupported_source_values(entry)
        yield from _conflicts_between_sources(entry, sources[:number], sources[number + 1 :])
    for build in mappings_in_list(values.get("build")):
        yield from _unsupported_build_values(build, values.get("requirements"), ("build",))
    for output in mappings_in_list(values.get("outputs")):
        yield from _unsupported_output_values(output)
        for build in mappings_in_list(output.get("build")):
            yield from _unsupported_build_values(build, output.get("requirements"), ("outputs", "build"))


def _unsupported_source_values(entry: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    hashes = (*(_FILE_HASHES if "url" in entry or "fn" in entry else ()), *CONTENT_HASHES)
    if empty := next((key for key in hashes if key in entry and entry[key] in (None, "")), None):
        yield ("source", empty), "conda-build refuses a hash without a value"
    if "path_via_symlink" in entry:
        folder = _source_folder_parts(entry) if entry.get("folder") else ()
        if not folder:
            yield ("source", "path_via_symlink"), "conda-build refuses it without a folder"
        elif folder[0] in {"..", "/", "//"}:
            yield ("source", "folder"), "the link would be outside of the work folder"
        elif entry.get("patches"):
            yield ("source", "patches"), "they would change the files that the link leads to"
    revisions = [key for key in REVISIONS if key in entry]
    if len(revisions) > 1:
        yield ("source", revisions[1]), f"conda-build refuses several of {', '.join(REVISIONS)}"


def _conflicts_between_sources(
    entry: Mapping[str, Any], before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys of a source that another one makes impossible to honor."""
    content = next((key for key in CONTENT_HASHES if entry.get(key)), None)
    if content and any(_is_in_folder_of(entry, other) for other in before):
        yield ("source", content), "the hash would include files of an earlier source in the same folder"
    if "path_via_symlink" in entry and any(_is_in_folder_of(entry, other) for other in (*before, *after)):
        yield ("source", "path_via_symlink"), "another source is in the same folder, and would change what it leads to"


def _is_in_folder_of(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether another source goes into the folder of a source, or below it."""
    folder = _source_folder_parts(entry)
    return _source_folder_parts(other)[: len(folder)] == folder


def _source_folder_parts(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(str(entry.get("folder") or "."))).parts


def _unsupported_build_values(
    build: Mapping[str, Any], requirements: Any, path: KeyPath
) -> Iterator[tuple[KeyPath, str]]:
    if build.get("overlinking_ignore_patterns") and build.get("error_overlinking"):
        yield (*path, "overlinking_ignore_patterns"), "rattler-build checks all files when overlinking is an error"

    if "activate_in_script" in build and str(build["activate_in_script"]).lower() in {"false", "no", "off"}:
        yield (*path, "activate_in_script"), "rattler-build always activates the environments of a script"

    both = isinstance(requirements, dict) and requirements.get("build") and requirements.get("host")
    if both and str(build.get("merge_build_host", "")).lower() in {"true", "yes", "on"}:
        yield (*path, "merge_build_host"), "with requirements in host, rattler-build drops run exports of build"


def _unsupported_output_values(output: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    kind = output.get("type")
    if kind is not None and str(kind) not in _PACKAGES:
        yield ("outputs", "type"), f"kiln makes conda packages, and none of the type {kind}"
    script = output.get("script")
    if isinstance(script, str) and script and not output.get("script_interpreter") and not script.endswith(SCRIPTS):
        yield ("outputs", "script"), f"conda-build runs {script} with a script_interpreter alone"
