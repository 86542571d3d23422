"""The reasons against a release, all at once, as a pure function, and the error that has them.

The kinds are those of docs/how-to/publish.md, where each has a row; the packages that a feedstock may publish follow
conda-forge's output validation.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from kiln import git
from kiln.errors import ReleaseRefused
from kiln.matchspec_notation import conda_build_spec, package_name, strict_rattler_spec
from kiln.model.build_results import TestVerdict
from kiln.model.run import GOOD
from kiln.publish.package_inspection import REHEARSAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.model.release_packages import Candidate, Release

# Folders in which packages of many origins have files: headers, and Python's namespaces.
SHARED_FOLDERS = ("include/*", "*/include/*", "*/site-packages/*")

_COMMIT_UNKNOWN = (
    "the commit is unknown that it was built from, so nobody can rebuild it from a checkout; to record it, commit the "
    "feedstock, then run kiln build --rebuild"
)


class RefusalKind(str, Enum):
    """The kinds of reasons."""

    EMPTY = "nothing to publish"
    MISSING_CONFIG = "missing config"
    FAILED_CONFIG = "failed config"
    MISSING_PACKAGE = "missing package"
    BROKEN = "broken"
    CHANGED = "changed"
    UNTESTED = "untested"
    REHEARSAL = "rehearsal"
    MISMATCH = "mismatch"
    OUTDATED = "outdated"
    DIRTY = "dirty"
    NOT_ALLOWED = "not allowed"
    HELD = "held"
    LEAK = "leak"
    ESCAPE = "escape"
    NO_LICENSE = "no license"
    SAME_PATH = "same path"
    FOLDER_LINK = "link to a folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalReason:
    """One reason against a release: its subject (a config, a package file), and what is wrong with it."""

    kind: RefusalKind
    about: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.about}: {self.what}" if self.about else f"{self.kind.value}: {self.what}"


def refusal_reasons(release: Release) -> tuple[RefusalReason, ...]:
    """Return all reasons against a release; none when it may be published."""
    reasons = [*_config_refusal_reasons(release), *_missing_package_refusal_reasons(release)]
    for candidate in release.candidates:
        name = candidate.artifact.path.name
        reasons += [(kind, name, what) for kind, what in _candidate_refusal_reasons(candidate, release)]
    links = _links_to_folders(release.candidates)
    reasons += [(RefusalKind.FOLDER_LINK, name, what) for name, what, shared in links if shared]
    reasons += _clobbered_path_reasons(release.candidates)
    return tuple(RefusalReason(kind=kind, about=about, what=what) for kind, about, what in reasons)


def require_releasable(release: Release) -> None:
    """Raise ReleaseRefused, with every reason, for packages that are not a release."""
    all_reasons = refusal_reasons(release)
    if all_reasons:
        raise ReleaseRefused(
            f"this is not a release, for {len(all_reasons)} reason{'s' if len(all_reasons) > 1 else ''}",
            why="".join(f"\n    {reason}" for reason in all_reasons).strip(),
            hint="correct each of them; kiln publish --check --to CHANNEL checks again, and publishes nothing",
        )


def nonblocking_notes(release: Release) -> tuple[str, ...]:
    """Return remarks on a release that do not prevent it.

    A link to a folder is common where only one package has files (``lib64``, a folder with a version in its name).
    """
    links = _links_to_folders(release.candidates)
    skipped = [candidate for candidate in release.candidates if _may_be_published_untested(candidate, release)]
    commits = [(candidate.path.name, _commit(candidate)) for candidate in release.candidates]
    unknown = [name for name, commit in commits if not git.COMMIT.fullmatch(commit)]
    more = f" and {len(unknown) - 1} more" if unknown[1:] else ""
    return (
        *([f"{unknown[0]}{more}: {_COMMIT_UNKNOWN}"] if unknown else []),
        *(f"{candidate.path.name}: not tested, it is {cross_compilation_text(candidate)}" for candidate in skipped),
        *(f"{name}: {what}" for name, what, shared in links if not shared),
    )


def _config_refusal_reasons(release: Release) -> Iterator[tuple[RefusalKind, str, str]]:
    if not release.candidates:
        yield RefusalKind.EMPTY, "", "no config of the matrix has built a package"
    for config in sorted(release.partial - release.configs.keys()):
        yield RefusalKind.MISSING_CONFIG, config, "--partial names it, but the matrix has no such config"
    for config, state in release.configs.items():
        if state in GOOD or config in release.partial:
            continue
        if state is None:
            yield RefusalKind.MISSING_CONFIG, config, "it was never built"
        else:
            yield RefusalKind.FAILED_CONFIG, config, f"after its last run its state is {state.value!r}"


def _missing_package_refusal_reasons(release: Release) -> Iterator[tuple[RefusalKind, str, str]]:
    """Yield the packages that a finished config renders and has not built: the recipe may have changed since."""
    built = {f"{candidate.artifact.subdir}/{candidate.artifact.path.name}" for candidate in release.candidates}
    for config, paths in release.expected.items():
        if release.configs.get(config) in GOOD and config not in release.partial:
            for path in sorted(set(paths) - built):
                name = path.partition("/")[2]
                what = (
                    f"the config renders it, but its last run did not build it (did the recipe change since?): {name}"
                )
                yield RefusalKind.MISSING_PACKAGE, config, what


def _candidate_refusal_reasons(candidate: Candidate, release: Release) -> Iterator[tuple[RefusalKind, str]]:
    if not any(fnmatch.fnmatchcase(candidate.artifact.name, glob) for glob in release.allowed):
        yield RefusalKind.NOT_ALLOWED, f"this feedstock may only publish {', '.join(release.allowed) or 'nothing'}"
    if what := _why_untested(candidate, release):
        yield RefusalKind.UNTESTED, what
    sha256 = release.held.get(f"{candidate.artifact.subdir}/{candidate.artifact.path.name}")
    if sha256 not in {None, candidate.artifact.sha256}:
        held = f"the channel has it with the hash {sha256[:16]}..." if sha256 else "it was withdrawn there"
        yield RefusalKind.HELD, held
    if not candidate.is_current:
        yield RefusalKind.OUTDATED, "the recipe, conda-forge.yml or its config's file has changed since; build it again"
    commit = _commit(candidate)
    if git.is_dirty(commit) and not release.allow_dirty:
        base = git.base_commit(commit)[:8]
        what = f"built from changes to the commit {base}: commit them and run kiln build --rebuild, or --allow-dirty"
        yield RefusalKind.DIRTY, what
    yield from _contents_refusal_reasons(candidate)


def _commit(candidate: Candidate) -> str:
    """Return the commit in a package's metadata, as `kiln.git.checkout_commit` gives it; empty if unknown."""
    commit = candidate.contents.about.get("extra", {}).get("sha") if candidate.contents else None
    return commit if isinstance(commit, str) else ""


def _why_untested(candidate: Candidate, release: Release) -> str:
    """Return why a package counts as untested; empty when its tests passed, or may be skipped."""
    if candidate.verdict is TestVerdict.PASSED or _may_be_published_untested(candidate, release):
        return ""
    if candidate.verdict is TestVerdict.FAILED:
        return "its tests failed"
    if candidate.verdict is TestVerdict.SKIPPED and candidate.built_on:
        subdir = candidate.artifact.subdir
        return (
            f"its tests were skipped: it is {cross_compilation_text(candidate)}; --allow-untested {subdir} accepts that"
        )
    return "its tests have not run"


def _may_be_published_untested(candidate: Candidate, release: Release) -> bool:
    """Return whether a cross-compiled package may be published without tests."""
    skipped = candidate.verdict is TestVerdict.SKIPPED and bool(candidate.built_on)
    return skipped and candidate.artifact.subdir in release.untested


def cross_compilation_text(candidate: Candidate) -> str:
    """Return how a package was cross-compiled, in words; empty for a native build."""
    return f"cross-compiled for {candidate.artifact.subdir} on {candidate.built_on}" if candidate.built_on else ""


def _contents_refusal_reasons(candidate: Candidate) -> Iterator[tuple[RefusalKind, str]]:
    contents = candidate.contents
    if contents is None:
        yield RefusalKind.BROKEN, candidate.broken
        return
    if contents.sha256 != candidate.artifact.sha256:
        yield RefusalKind.CHANGED, "the file is not the one that was tested: its hash differs"
    if contents.about.get("extra", {}).get(REHEARSAL):
        yield RefusalKind.REHEARSAL, "its compiled files are upstream's, not built from this recipe"
    if not contents.about.get("license"):
        yield RefusalKind.NO_LICENSE, "its metadata has no license (about/license)"
    if not contents.licenses:
        yield RefusalKind.NO_LICENSE, "it has no license text (about/license_file)"
    for leak in contents.leaks[:10]:
        yield RefusalKind.LEAK, str(leak)
    for member in contents.escapes[:10]:
        yield RefusalKind.ESCAPE, f"{member!r} leads out of the prefix"
    yield from ((RefusalKind.MISMATCH, what) for what in _recipe_mismatches(candidate))


def _recipe_mismatches(candidate: Candidate) -> Iterator[str]:
    """Yield the differences between a package's metadata and its rendered config.

    With requirements for building, an engine adds their run exports, so then a package may require more.
    """
    output, contents = candidate.output, candidate.contents
    assert contents is not None, "the caller has checked"
    if output is None:
        yield "no output of its config renders it (did the recipe change since?)"
        return
    index = contents.index
    rendered = {"name": output.name, "version": output.version, "build": output.build_string, "subdir": output.subdir}
    for key, value in rendered.items():
        if index.get(key) != value:
            yield f"its {key} is {index.get(key)!r}, the config renders {value!r}"
    sections = {
        "depends": ("run", output.requirements.run),
        "constrains": ("run_constrained", output.requirements.run_constrained),
    }
    pins = {(field, position): pin for field, position, pin in output.pins}
    for key, (field, rendered_specs) in sections.items():
        # The bounds of a pin are those of the version that the build has solved: its name must be there.
        specs = [
            pins[field, place].name if (field, place) in pins else spec for place, spec in enumerate(rendered_specs)
        ]
        yield from _dependency_spec_mismatches(key, specs, index.get(key, ()), exactly=candidate.needs_nothing_else)


def _dependency_spec_mismatches(
    key: str, rendered: Iterable[str], packaged: Iterable[str], *, exactly: bool
) -> Iterator[str]:
    actual = {_normalized_spec(spec) for spec in packaged}
    expected = {_normalized_spec(spec) for spec in rendered}
    names = {package_name(spec) for spec in actual}
    for spec in sorted(expected - actual):
        # The engine completes a bare name: it adds the bounds of the version that it has installed.
        if " " in spec or package_name(spec) not in names:
            yield f"{key} lacks {spec!r}"
    if exactly:
        yield from (f"{key} has {spec!r}, which the config does not render" for spec in sorted(actual - expected))


def _normalized_spec(spec: str) -> str:
    return " ".join(conda_build_spec(strict_rattler_spec(spec)).split())


def _clobbered_path_reasons(candidates: Iterable[Candidate]) -> Iterator[tuple[RefusalKind, str, str]]:
    """Yield the files that several packages of one config would install: they may be installed together."""
    by_config: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        for config in candidate.configs:
            by_config.setdefault(config, []).append(candidate)
    for config, members in by_config.items():
        owners: dict[str, set[str]] = {}
        for candidate in members:
            for path in candidate.contents.paths if candidate.contents else ():
                owners.setdefault(path, set()).add(candidate.artifact.name)
        shared = [(path, names) for path, names in sorted(owners.items()) if len(names) > 1]
        for path, names in shared[:10]:
            yield RefusalKind.SAME_PATH, config, f"{path} is in {' and '.join(sorted(names))}"


def _links_to_folders(candidates: Iterable[Candidate]) -> list[tuple[str, str, bool]]:
    """Return each link to a folder of any of the packages: package, text, and whether others may have files there.

    Installed together with a package that has files in a folder of the link's name, one replaces the other or gets its
    files; and conda leaves the link behind when it removes the package.
    """
    packages = [(candidate.artifact.path.name, candidate.contents) for candidate in candidates if candidate.contents]
    folders = {
        str(parent) for _, contents in packages for path in contents.paths for parent in PurePosixPath(path).parents
    }
    return [
        (
            name,
            f"{link} leads to the folder {destination}",
            any(fnmatch.fnmatchcase(link, pattern) for pattern in SHARED_FOLDERS),
        )
        for name, contents in packages
        for link, destination in contents.links
        if destination in folders
    ]
