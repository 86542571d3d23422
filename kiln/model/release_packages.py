"""The packages of a release, with their own metadata and those of their configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.build_results import Artifact, TestVerdict
    from kiln.model.rendered import Output
    from kiln.model.run import ConfigState


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentLeak:
    """Content that a package's file must not hold: what it is, its first byte, and how to keep it out.

    ``text`` is empty for secrets.
    """

    file: str
    what: str
    offset: int
    text: str = ""
    cure: str = ""

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{self.file} contains {self.what} at byte {self.offset:,}{text}{cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageContents:
    """The contents of a package file: ``paths`` are the files that it installs, ``licenses`` its license texts.

    ``leaks`` are files with content that they must not hold, ``escapes`` paths and links that lead out of a prefix.
    ``links`` are its symbolic links, each with its target.
    """

    sha256: str
    size: int
    index: Mapping[str, Any]
    about: Mapping[str, Any]
    paths: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    leaks: tuple[ContentLeak, ...] = ()
    escapes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A package that configs built, with the report of the first of them.

    ``contents`` is None when the file cannot be read, ``broken`` says why; ``built_on`` is the platform that it was
    cross-compiled on, empty for a native build; ``output`` is its config's current render,
    and with ``needs_nothing_else`` no package can have added to its requirements. ``is_current`` when it was built
    from the feedstock's files as they are now.
    """

    path: Path
    configs: tuple[str, ...]
    artifact: Artifact
    verdict: TestVerdict
    contents: PackageContents | None
    broken: str = ""
    built_on: str = ""
    output: Output | None = None
    needs_nothing_else: bool = False
    is_current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The packages of a run that are to be published.

    ``configs`` are all configs of the matrix with their states, None for one that was never built; ``partial``
    are those that may be missing. ``expected`` are the paths in the channel that each config renders. ``allowed`` are
    globs over package names, ``held`` the hashes of the files in the channel, by their paths. ``untested`` are
    platforms whose cross-compiled packages may be published without tests. With ``allow_dirty``, packages may be built
    from a checkout with changes.
    """

    configs: Mapping[str, ConfigState | None]
    expected: Mapping[str, tuple[str, ...]]
    candidates: tuple[Candidate, ...]
    partial: frozenset[str] = frozenset()
    allowed: tuple[str, ...]
    held: Mapping[str, str] = field(default_factory=dict)
    untested: frozenset[str] = frozenset()
    allow_dirty: bool = False
