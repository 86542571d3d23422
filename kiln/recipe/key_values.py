"""The values of known keys that rattler-build does not honor."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

KeyPath = tuple[str, ...]

# conda-build's decompressible_exts (conda_build/utils.py): the ending of a file's name decides whether it is unpacked.
ARCHIVES = (
    *(".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.lzma", ".tar.xz", ".tar.z", ".tar.zst"),
    *(".tgz", ".whl", ".zip", ".rpm", ".deb"),
)
_UNPACKED = (".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".zip")  # by rattler-build
SCRIPTS = (".sh", ".py")  # scripts of outputs that run without a script_interpreter
_PACKAGES = frozenset({"conda", "conda_v2"})
_REVISIONS = ("git_rev", "git_tag", "git_branch")


def is_archive(name: str) -> bool:
    """Return whether conda-build unpacks a file of this name."""
    return name.lower().endswith(ARCHIVES)


def is_wheel(name: str) -> bool:
    """Return whether a file is a wheel, which conda-build copies and unpacks."""
    return name.lower().endswith(".whl")


def file_of(url: str) -> str:
    """Return the name of the file at an address."""
    return PurePosixPath(urlsplit(url).path).name


def unsupported_values(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each key whose value is not honored, and the reason."""
    for entry in _mappings(values.get("source")):
        yield from _source(entry)
    for build in _mappings(values.get("build")):
        yield from _build(build, ("build",))
        yield from _merged(build, values.get("requirements"), ("build",))
    for output in _mappings(values.get("outputs")):
        yield from _output(output)
        for build in _mappings(output.get("build")):
            yield from _build(build, ("outputs", "build"))
            yield from _merged(build, output.get("requirements"), ("outputs", "build"))


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in (value if isinstance(value, list) else [value]) if isinstance(entry, dict)]


def _source(entry: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    urls = [str(url) for url in as_list(entry.get("url")) if url]
    name = str(entry.get("fn") or (file_of(urls[0]) if urls else ""))
    if is_wheel(name):
        if entry.get("patches"):
            yield ("source", "patches"), "kiln unpacks a wheel after rattler-build has applied the patches"
    elif urls and is_archive(name) and not all(file_of(url).lower().endswith(_UNPACKED) for url in urls):
        key = "fn" if entry.get("fn") else "url"
        yield ("source", key), f"conda-build unpacks {name}, and rattler-build only what has such a name at its address"
    revisions = [key for key in _REVISIONS if key in entry]
    if len(revisions) > 1:
        yield ("source", revisions[1]), f"conda-build refuses several of {', '.join(_REVISIONS)}"


def _build(build: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    if build.get("overlinking_ignore_patterns") and build.get("error_overlinking"):
        yield (*path, "overlinking_ignore_patterns"), "rattler-build checks all files when overlinking is an error"

    if "activate_in_script" in build and str(build["activate_in_script"]).lower() in {"false", "no", "off"}:
        yield (*path, "activate_in_script"), "rattler-build always activates the environments of a script"


def _merged(build: Mapping[str, Any], requirements: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    both = isinstance(requirements, dict) and requirements.get("build") and requirements.get("host")
    if both and str(build.get("merge_build_host", "")).lower() in {"true", "yes", "on"}:
        yield (*path, "merge_build_host"), "beside requirements in host, rattler-build drops what those of build export"


def _output(output: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    kind = output.get("type")
    if kind is not None and str(kind) not in _PACKAGES:
        yield ("outputs", "type"), f"kiln makes conda packages, and none of the type {kind}"
    script = output.get("script")
    if isinstance(script, str) and script and not output.get("script_interpreter") and not script.endswith(SCRIPTS):
        yield ("outputs", "script"), f"conda-build runs {script} with a script_interpreter alone"
