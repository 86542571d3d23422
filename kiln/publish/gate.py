"""The reasons against a release, all at once, and the inspection of packages that finds them."""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
import posixpath
import re
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from kiln.base import files as base_files
from kiln.base import git
from kiln.base.errors import BrokenPackage, ReleaseRefused
from kiln.base.secret_forms import complete_encoded_forms
from kiln.base.text import first_of
from kiln.conda import package_reader
from kiln.conda.safety import duplicate_paths, is_in_conda_meta, resolve_links
from kiln.conda.specs import conda_build_spec, package_name, strict_rattler_spec
from kiln.publish.model import ContentLeak, PackageContents
from kiln.state.results import GOOD, TestVerdict

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.publish.model import Candidate, Release


LONGEST = 200  # bytes of a path that are shown
SECRET = "keep it out of the installed files, and revoke it where it was valid"  # noqa: S105 - a hint
_END = re.compile(rb"[\x00-\x20\x7f\"'<>|;,)\]}]")
_DIRECT_URL = "pip's record of a local source; built again with this kiln, the package is without it"
_COMPILED = (
    "compile with -ffile-prefix-map=$SRC_DIR=/usr/local/src/conda/$PKG_NAME-$PKG_VERSION in CFLAGS and CXXFLAGS, "
    "as conda-forge's compilers do (--remap-path-prefix for Rust, -trimpath for Go), or strip debug information"
)
_BYTECODE = "compile the module where it is installed: python -m compileall -d site-packages"
_TEXT = "remove the path from the file in the build script; only $PREFIX is replaced by an install"


def _build_path_leak_hint(name: str, start: bytes) -> str:
    """Return how to keep build paths out of a file, which depends on its kind: its name and its first bytes."""
    if name.endswith(".dist-info/direct_url.json"):
        return _DIRECT_URL
    if name.endswith(".pyc"):
        return _BYTECODE
    return _COMPILED if start.startswith((b"\x7fELF", b"!<arch>")) else _TEXT


def _path_at_offset(text: bytes, offset: int) -> str:
    end = _END.search(text, offset, offset + LONGEST)
    path = text[offset : end.start() if end else offset + LONGEST].decode(errors="replace")
    return path if end else f"{path}..."


REHEARSAL = "rehearsal"  # the key in a package's about.json, below extra
CHUNK, OVERLAP = 1 << 22, 1 << 10  # bytes; a pattern matches less than the overlap
BUILD_PATH = "a path of the machine that built it"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForbiddenText:
    """A text that no package may contain: ``needle`` is quick to find, ``pattern`` decides around it."""

    needle: bytes
    pattern: re.Pattern[bytes] | None
    what: str


def forbidden_texts(folders: Sequence[str], tokens: Sequence[str] = ()) -> tuple[ForbiddenText, ...]:
    """Return the texts to search for: secrets of known forms, the build folders, the tokens of this machine."""
    secret_forms = [
        ForbiddenText(needle=row["needle"].encode(), pattern=re.compile(row["pattern"].encode()), what=row["what"])
        for row in base_files.csv_rows(Path(__file__).parent / "secrets.csv")
    ]
    places = [ForbiddenText(needle=f"{folder}/".encode(), pattern=None, what=BUILD_PATH) for folder in folders]
    own_tokens = [
        ForbiddenText(needle=text.encode(), pattern=None, what="a token of this machine")
        for token in tokens
        if token
        for text in dict.fromkeys((token, *complete_encoded_forms(token)))
    ]
    return (*secret_forms, *places, *own_tokens)


def inspect_package(package: Path, forbidden: Sequence[ForbiddenText]) -> PackageContents:
    """Return the metadata of a package, its files, and what is wrong with them."""
    listed = package_reader.read_info_json(package, "paths.json")
    names, prefixes = _listed_paths_and_placeholders(listed)
    entries = (entry for entry in listed.get("paths", ()) if isinstance(entry["_path"], str))
    sizes = {entry["_path"]: entry.get("size_in_bytes") for entry in entries}
    inspection = _PackageInspection(forbidden=forbidden, prefixes=prefixes, sizes=sizes)
    inspection.escapes += [path[: package_reader.LONGEST_PATH] for path in names if _is_outside_prefix(path)]
    inspection.escapes += [f"{path}, twice" for path in duplicate_paths(names, folds_case=False)]
    index, about = (package_reader.read_info_json_object(package, name) for name in ("index.json", "about.json"))
    for key in ("depends", "constrains"):
        specs = index.get(key, [])
        if not isinstance(specs, list) or not all(isinstance(spec, str) for spec in specs):
            raise BrokenPackage(f"{package} has an info/index.json whose {key} is not a list of specs")
    if not isinstance(about.setdefault("extra", {}), dict):
        raise BrokenPackage(f"{package} has an info/about.json whose extra is not a JSON object")
    with package_reader.open_package_members(package) as members:
        for member, content in members:
            if about["extra"].get(REHEARSAL) and not member.name.startswith("info"):
                break  # refused for that alone, and gigabytes large
            inspection.inspect_member(member, content)
    return PackageContents(
        sha256=base_files.sha256(package),
        size=package.stat().st_size,
        index=index,
        about=about,
        paths=tuple(inspection.paths),
        licenses=tuple(inspection.licenses),
        leaks=tuple(inspection.leaks.values()),
        escapes=(*inspection.escapes, *inspection.paths_behind_links()),
        links=tuple(sorted(link for link in inspection.links.items() if not link[0].startswith("info/"))),
    )


@dataclass(slots=True, kw_only=True)
class _PackageInspection:
    forbidden: Sequence[ForbiddenText]
    prefixes: Mapping[str, bytes]
    sizes: Mapping[str, int | None]
    paths: list[str] = field(default_factory=list)
    licenses: list[str] = field(default_factory=list)
    leaks: dict[tuple[str, str], ContentLeak] = field(default_factory=dict)
    escapes: list[str] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)

    def inspect_member(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Inspect one member of the archive."""
        name = posixpath.normpath(member.name)
        is_metadata = name == "info" or name.startswith("info/")
        if _member_leads_out_of_prefix(member):
            self.escapes.append(f"{member.name} -> {member.linkname}" if member.linkname else member.name)
        if member.issym():
            self.links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        if name.startswith("info/licenses/") and member.isreg():
            self.licenses.append(name.removeprefix("info/licenses/"))
        if not is_metadata and not member.isdir():
            self.paths.append(name)
        size = self.sizes.get(name)
        if member.isreg() and size is not None and size != member.size:
            raise BrokenPackage(
                "a package has an invalid paths.json", why=f"{name} has {member.size} bytes, not {size}"
            )
        if content is not None:
            self._search_forbidden_texts(name, content, is_metadata=is_metadata)

    def paths_behind_links(self) -> list[str]:
        """Return the files whose folder is a link of the package: they would be installed where the link leads."""
        return [path for path in self.paths if not self.links.keys().isdisjoint(map(str, PurePosixPath(path).parents))]

    def _search_forbidden_texts(self, name: str, content: IO[bytes], *, is_metadata: bool) -> None:
        """Search a file; the placeholder that installing replaces is not a leak, nor build paths in info/."""
        placeholder = self.prefixes.get(name, b"")
        rest, start, hint = b"", 0, ""
        while chunk := content.read(CHUNK):
            hint = hint or _build_path_leak_hint(name, chunk)
            text = rest + chunk
            installed = text.replace(placeholder, bytes(len(placeholder))) if placeholder else text
            for secret in self.forbidden:
                if is_metadata and secret.what == BUILD_PATH:
                    continue
                if secret.needle in installed and (offset := _forbidden_text_offset(secret, installed)) is not None:
                    path, cure = "", SECRET
                    if secret.what == BUILD_PATH:
                        path, cure = _path_at_offset(installed, offset), hint
                    leak = ContentLeak(file=name, what=secret.what, offset=start + offset, text=path, cure=cure)
                    self.leaks.setdefault((name, secret.what), leak)
            start, rest = start + len(text), text[-max(OVERLAP, len(placeholder)) :]
            start -= len(rest)


def _member_leads_out_of_prefix(member: tarfile.TarInfo) -> bool:
    """Return whether a member, or a link, would be outside of the prefix that a package is installed into."""
    if _is_outside_prefix(member.name) or _has_parent_reference_after_name(member.name):
        return True
    if member.issym():
        return _has_parent_reference_after_name(member.linkname) or _is_outside_prefix(
            posixpath.join(posixpath.dirname(member.name), member.linkname)
        )
    return (
        (member.islnk() and _is_outside_prefix(member.linkname)) or member.ischr() or member.isblk() or member.isfifo()
    )


def _is_outside_prefix(path: str) -> bool:
    return len(path) > package_reader.LONGEST_PATH or resolve_links(path, {}) is None or is_in_conda_meta(path)


def _has_parent_reference_after_name(path: str) -> bool:
    """Return whether a path goes up again after a name, which may be a link to anywhere."""
    parts = PurePosixPath(path).parts
    return any(above != ".." and part == ".." for above, part in itertools.pairwise(parts))


def _forbidden_text_offset(secret: ForbiddenText, text: bytes) -> int | None:
    """Return where a text has a secret; None where only the needle is there."""
    if secret.pattern is None:
        return text.index(secret.needle)
    match = secret.pattern.search(text)
    return match and match.start()


def _listed_paths_and_placeholders(paths: Any) -> tuple[list[str], dict[str, bytes]]:
    """Return the paths that a package lists, which installers follow, and the placeholders that files have."""
    try:
        files = [(str(item["_path"]), item.get("prefix_placeholder")) for item in paths.get("paths", [])]
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenPackage("a package has an invalid paths.json", why=repr(error)) from error
    return [path for path, _ in files], {path: str(prefix).encode() for path, prefix in files if prefix}


# Folders in which packages of many origins have files: headers, and Python's namespaces.
SHARED_FOLDERS = ("include/*", "*/include/*", "*/site-packages/*")

_COMMIT_UNKNOWN = (
    "the commit is unknown that it was built from, so nobody can rebuild it from a checkout; to record it, commit the "
    "feedstock, then run kiln build --all --rebuild"
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
    return (
        *([f"{first_of(unknown, 1)}: {_COMMIT_UNKNOWN}"] if unknown else []),
        *(f"{candidate.path.name}: not tested, it is {cross_compilation_text(candidate)}" for candidate in skipped),
        *(f"{name}: {what}" for name, what, shared in links if not shared),
    )


def _config_refusal_reasons(release: Release) -> Iterator[tuple[RefusalKind, str, str]]:
    if not release.candidates and not release.skipped:
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
    built = {candidate.artifact.channel_path for candidate in release.candidates}
    for config, paths in release.expected.items():
        if release.configs.get(config) in GOOD and config not in release.partial:
            for path in sorted(set(paths) - built):
                name = path.partition("/")[2]
                what = (
                    f"the config renders it, but its last run did not build it (did the recipe change since?): {name}"
                )
                yield RefusalKind.MISSING_PACKAGE, config, what


def _candidate_refusal_reasons(candidate: Candidate, release: Release) -> Iterator[tuple[RefusalKind, str]]:
    contents = candidate.contents
    if contents is None:  # nothing else is known of it
        yield RefusalKind.BROKEN, candidate.broken
        return
    if not any(fnmatch.fnmatchcase(candidate.artifact.name, glob) for glob in release.allowed):
        yield RefusalKind.NOT_ALLOWED, f"this feedstock may only publish {', '.join(release.allowed) or 'nothing'}"
    if contents.about.get("extra", {}).get(REHEARSAL):
        # Nothing else that is said of it would make it a release, and the ledger knows nothing of its tests.
        yield RefusalKind.REHEARSAL, "made of wheels and this machine's programs, not built from this recipe alone"
        return
    if what := _why_untested(candidate, release):
        yield RefusalKind.UNTESTED, what
    if what := _why_held(candidate, release):
        yield RefusalKind.HELD, what
    if not candidate.is_current:
        yield RefusalKind.OUTDATED, "the recipe, conda-forge.yml or its config's file has changed since; build it again"
    commit = _commit(candidate)
    if git.is_dirty(commit) and not release.allow_dirty:
        base = git.base_commit(commit)[:8]
        cure = "commit them and run kiln build --all --rebuild, or --allow-dirty"
        yield RefusalKind.DIRTY, f"built from changes to the commit {base}: {cure}"
    if contents.sha256 != candidate.artifact.sha256:
        yield RefusalKind.CHANGED, "the file is not the one that was tested: its hash differs"
    if not contents.about.get("license"):
        yield RefusalKind.NO_LICENSE, "its metadata has no license (about/license)"
    if not contents.licenses:
        yield RefusalKind.NO_LICENSE, "it has no license text (about/license_file)"
    yield from ((RefusalKind.LEAK, str(leak)) for leak in contents.leaks[:10])
    yield from ((RefusalKind.ESCAPE, f"{member!r} leads out of the prefix") for member in contents.escapes[:10])
    yield from ((RefusalKind.MISMATCH, what) for what in _recipe_mismatches(candidate))


def _why_held(candidate: Candidate, release: Release) -> str:
    """Return in which way the channel has another file of a package's name; empty if it has none, or this one."""
    sha256 = release.held.get(candidate.artifact.channel_path)
    if sha256 in {None, candidate.artifact.sha256}:
        return ""
    if candidate.artifact.channel_path in release.damaged:
        return f"the channel offers it with the hash {sha256[:16]}..., and its file is missing or damaged there"
    return f"the channel has it with the hash {sha256[:16]}..." if sha256 else "it was withdrawn there"


def without_held_packages(release: Release) -> Release:
    """Return a release without the packages of which the channel has another file, or had one.

    One whose file is damaged there stays, and is a reason against the release: nobody could install it.
    """
    damaged = release.damaged
    reasons = [
        (one, "" if one.artifact.channel_path in damaged else _why_held(one, release)) for one in release.candidates
    ]
    skipped = {one.artifact.channel_path for one, why in reasons if why}
    return dataclasses.replace(
        release,
        candidates=tuple(candidate for candidate, why in reasons if not why),
        expected={
            name: tuple(path for path in paths if path not in skipped) for name, paths in release.expected.items()
        },
        skipped=tuple(f"{one.path.name} is left out: {why}" for one, why in reasons if why),
    )


def _commit(candidate: Candidate) -> str:
    """Return the commit in a package's metadata, as `kiln.base.git.checkout_commit` gives it; empty if unknown."""
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
    pins = {(section, position): pin for section, position, pin in output.pins}
    for key, (section, rendered_specs) in sections.items():
        # The bounds of a pin are those of the version that the build has solved: its name must be there.
        specs = [
            pins[section, place].name if (section, place) in pins else spec for place, spec in enumerate(rendered_specs)
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
