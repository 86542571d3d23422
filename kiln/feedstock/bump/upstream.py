"""The newest version that upstream has released, and the hashes of its sources."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln.base import git, http, process
from kiln.base.errors import DownloadFailed, HashMismatch, MissingTool, RecipeFault, raise_all
from kiln.base.patterns import lazy_pattern
from kiln.conda import pypi
from kiln.conda.pypi import project_of_url
from kiln.conda.specs import Version
from kiln.feedstock.bump.changes import COMMIT, SourceDownload
from kiln.feedstock.bump.literals import Literal, place_of_offset, version_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from kiln.feedstock.bump.changes import BumpPlan
    from kiln.feedstock.bump.literals import SourceView

    Progress = Callable[[int, int | None], None]
    OnFile = Callable[[str], AbstractContextManager[Progress]]


_SECONDS = 180.0
# Archives of a tag, and files of a release, of GitHub, GitLab and Gitea.
_OF_TAG = lazy_pattern(
    r"(?P<repository>https?://[^/]+/[^/]+/[^/]+?)/(?:-/)?"
    r"(?:releases/download/(?P<release>[^/]+)/.+|(?:archive/(?:refs/tags/)?|tarball/)(?P<tag>.+))$"
)
_ENDING = lazy_pattern(r"(?:/[^/]*)?\.(?:tar\.\w+|tgz|zip)$")
_PRERELEASE = lazy_pattern(r"(?<![a-z])(?:a|b|c|rc|alpha|beta|dev|pre|preview|m)\.?\d*(?![a-z])")
_VERSION = r"(\d+(?:[._-]\d\w*)*(?:[._-]?post\d+)?)"
_ENDINGS = (".tar.gz", ".zip", ".tar.bz2", ".tar.xz", ".tgz")
_SLASH = lazy_pattern(r"/(?![^{]*\}\})")  # outside of a template
_VERSION_TEMPLATES = lazy_pattern(r"\$?\{\{[^}]*version.*\}\}")  # from the first to the last one of a file's name
_V = lazy_pattern(r"(?<![a-z$])v?(?=\$?\{\{[^}]*version)")
_RELEASE_FILE = lazy_pattern(r"(?P<repository>https?://[^/]+/.+?)/releases/download/(?P<tag>.+?)/(?P<file>[^/]+)$")
_TAG_ARCHIVE = lazy_pattern(
    r"(?P<repository>https?://[^/]+/.+?)/archive/(?:refs/tags/)?(?P<tag>[^/]+?)(?P<ending>\.tar\.\w+|\.zip)$"
)
_LARGEST_PAGE = 10_000_000  # bytes
_GIT_SECONDS = 120.0
# No questions, and none of git's transports that run other programs.
_SETTINGS = {"GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "LC_ALL": "C"}
_TAG = "refs/tags/"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamVersion:
    """The newest version of a source, by an ``index``, or the ``reason`` why it is unknown.

    ``spelled`` is the version as the index writes it, which may be with other separators.
    """

    source: str
    index: str = ""
    newest: str = ""
    spelled: str = ""
    reason: str = ""

    def is_newer(self, version: str) -> bool:
        """Return whether upstream has a newer version."""
        return bool(self.newest) and Version(self.newest) > Version(version)


def newest_upstream_versions(
    sources: Iterable[SourceView], version: str, folder: Path, *, env: Mapping[str, str]
) -> tuple[UpstreamVersion, ...]:
    """Return the newest version of each source, without pre-releases.

    pip asks the index that it is configured for; git asks repositories. ``env`` is their environment, ``folder`` the
    recipe's, which paths are relative to.
    """
    distinct = {source.display_name: source for source in sources if source.display_name}
    return tuple(_newest_version_of_source(source, version, folder, env) for source in distinct.values())


def _newest_version_of_source(
    source: SourceView, version: str, folder: Path, env: Mapping[str, str]
) -> UpstreamVersion:
    where = " ".join((*source.urls, source.revision))
    if not version_pattern(version).search(where):
        return UpstreamVersion(source=source.display_name, reason=f"it does not depend on the version {version}")
    for url in source.urls:
        if project := project_of_url(url):
            return _newest_version_on_index(source, project, is_wheel=urlsplit(url).path.endswith(".whl"), env=env)
        if tag := repository_and_tag_of_url(url):
            return _newest_version_of_tags(source, *tag, version, folder, env)
    if source.git:
        return _newest_version_of_tags(source, source.git, source.revision, version, folder, env)
    named = [url for url in source.urls if version_pattern(version).search(url)]
    answers = [_newest_version_on_page(source, url, version) for url in named]
    unknown = UpstreamVersion(source=source.display_name, reason="no index has the versions of this kind of source")
    return next((answer for answer in answers if answer.newest), (*answers, unknown)[0])


def _newest_version_on_page(source: SourceView, url: str, version: str) -> UpstreamVersion:
    """Return the newest version by the page of the folder that has the files, or folders, of all versions."""
    parts = urlsplit(url)
    names = unquote(parts.path).split("/")
    at = next((index for index, name in enumerate(names) if version_pattern(version).search(name)), 0)
    page = parts._replace(path="/".join((*parts.path.split("/")[:at], "")), query="", fragment="").geturl()
    index = f"the page {page}"
    try:
        found = _names_on_page(page)
    except http.HttpError as error:
        return UpstreamVersion(source=source.display_name, index=index, reason=f"{page}: {error}")
    return _newest_release(source, index, _versions_in_tags(found, names[at], version))


def _names_on_page(url: str) -> tuple[str, ...]:
    """Return the names of the files and folders that a page links to, or that a folder of this machine has."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        with contextlib.suppress(OSError):
            return tuple(sorted(path.name for path in Path(unquote(parts.path)).iterdir()))
        return ()
    if parts.scheme not in {"http", "https"}:
        raise http.HttpError(f"{parts.scheme or 'a path'} has no page that lists versions")
    with http.send_request(url, headers={"User-Agent": "kiln", **http.request_headers(url)}) as response:
        data = response.read(_LARGEST_PAGE)
    addresses = pypi.link_addresses(data.decode("utf-8", "replace"))
    return tuple(PurePosixPath(unquote(urlsplit(address).path)).name for address in addresses)


_WHEEL_OF_PYTHON = lazy_pattern(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-cp3(?P<minor>\d{1,2})-cp3\d{1,2}-.*linux.*\.whl"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelPythons:
    """The Pythons that a project's newest release on pip's index has wheels for, such as ``3.14``, the oldest first."""

    project: str
    version: str
    pythons: tuple[str, ...]


def pythons_with_wheels(projects: Iterable[str], *, env: Mapping[str, str]) -> WheelPythons | None:
    """Return the Pythons of the first project that has wheels for Linux, without pre-releases; None where none has."""
    indexes = pypi.configured_indexes(env)
    for project, index in itertools.product(projects, indexes):
        with contextlib.suppress(http.HttpError):
            names = [file.name for file in pypi.project_files(project, index)]
            wheels = [match for name in names if (match := _WHEEL_OF_PYTHON.fullmatch(name))]
            releases = [(version, match) for match in wheels if (version := _release_version(match["version"]))]
            if releases:
                newest = max(version for version, _ in releases)
                minors = sorted({int(match["minor"]) for version, match in releases if version == newest})
                pythons = tuple(f"3.{minor}" for minor in minors)
                return WheelPythons(project=project, version=newest.text, pythons=pythons)
    return None


def repository_and_tag_of_url(url: str) -> tuple[str, str] | None:
    """Return the repository and the tag of an archive or of a release's file; None for other URLs."""
    match = _OF_TAG.match(url)
    return (match["repository"], match["release"] or _ENDING.sub("", match["tag"])) if match else None


def _newest_version_on_index(
    source: SourceView, project: str, *, is_wheel: bool, env: Mapping[str, str]
) -> UpstreamVersion:
    index = f"pip's index, project {project}"
    kind = () if is_wheel else ("--no-binary", ":all:")
    words = ("index", "versions", "--no-input", "--disable-pip-version-check", "--ignore-requires-python", *kind)
    result = process.capture((sys.executable, "-m", "pip", *words, "--", project), env=env, timeout=_SECONDS)
    match = re.search(r"^Available versions: (.+)$", result.stdout, re.MULTILINE)
    if match is None:
        lines = [line for line in result.tail.splitlines() if line.startswith("ERROR")] or result.tail.splitlines()
        return UpstreamVersion(source=source.display_name, index=index, reason=(lines or ["pip found no versions"])[-1])
    return _newest_release(source, index, (part.strip() for part in match[1].split(",")))


def _newest_version_of_tags(
    source: SourceView, repository: str, tag: str, version: str, folder: Path, env: Mapping[str, str]
) -> UpstreamVersion:
    index = f"the tags of {repository}"
    try:
        names = list_git_references(repository, ("refs/tags/*",), folder, env=env)
    except (DownloadFailed, MissingTool) as error:
        return UpstreamVersion(source=source.display_name, index=index, reason=error.why or error.what)
    tags = [name.removeprefix("refs/tags/") for name in names]
    return _newest_release(source, index, _versions_in_tags(tags, tag, version))


def _versions_in_tags(tags: Iterable[str], tag: str, version: str) -> Iterator[str]:
    """Yield the versions of tags that are written as the current one's."""
    if span := version_pattern(version).search(tag):
        before, after = tag[: span.start()], tag[span.end() :]
        pattern = re.compile(re.escape(before) + _VERSION + re.escape(after))
        yield from (match[1] for match in map(pattern.fullmatch, tags) if match)


def version_pattern(version: str) -> re.Pattern[str]:
    """Return the pattern of a version, and not of the end of another, as tags and file names may write it."""
    parts = "[._-]".join(map(re.escape, re.split(r"[._-]", version)))
    return re.compile(rf"(?<![0-9])(?<![0-9]\.){parts}(?![0-9])")


def _newest_release(source: SourceView, index: str, versions: Iterable[str]) -> UpstreamVersion:
    releases = [(version, text) for text in versions if (version := _release_version(text)) is not None]
    if not releases:
        return UpstreamVersion(
            source=source.display_name, index=index, reason="it has no release that is named as the recipe's"
        )
    version, spelled = max(releases)
    return UpstreamVersion(source=source.display_name, index=index, newest=version.text, spelled=spelled)


def _release_version(text: str) -> Version | None:
    try:
        return None if _PRERELEASE.search(text.lower()) else Version(re.sub("[_-]", ".", text))
    except ValueError:
        return None


def list_git_references(
    address: str, names: tuple[str, ...], folder: Path, *, env: Mapping[str, str]
) -> dict[str, str]:
    """Return a repository's references with these names, or patterns of names, each with its commit.

    ``folder`` is the recipe's, which a path is relative to; ``env`` is git's environment.
    """
    place = address if ":" in address else str((folder / address).resolve())
    with tempfile.TemporaryDirectory(prefix="kiln-git-") as outside:  # of any repository with settings
        words = ("ls-remote", "--", place, *names)
        result = git.run(Path(outside), *words, env={**env, **_SETTINGS}, timeout=_GIT_SECONDS)
    if not result.ok:
        lines = [line for line in result.tail.splitlines() if line.startswith("fatal:")] or result.tail.splitlines()
        why = (lines or [f"git ended with exit code {result.exit_code}"])[0]
        raise DownloadFailed(f"{address} cannot be reached", why=why, hint="check the repository's address")
    rows = (line.partition("\t") for line in result.stdout.splitlines())
    return {name: commit for commit, _, name in rows}


def new_pinned_commits(
    plan: BumpPlan, folder: Path, *, env: Mapping[str, str]
) -> tuple[dict[Literal, str], tuple[str, ...]]:
    """Return the commits of a new version by their literals, and the names of sources that stay at theirs.

    ``folder`` is the recipe's, which paths are relative to; ``env`` is git's environment.
    """
    values: dict[Literal, str] = {}
    unchanged = []
    for pin in plan.pins:
        commit = _new_pinned_commit(pin, plan, folder, env)
        if commit:
            values |= {literal: commit[: len(literal.text)] for literal, _ in pin.hashes}
        else:
            unchanged.append(pin.display_name)
    if unchanged and not (values or plan.downloads):
        at = place_of_offset(plan.file, plan.text, plan.pins[0].hashes[0][0].start)
        why = f"no tag of version {plan.old} is at the commit {plan.pins[0].source.revision}"
        hint = f"change the revision by hand, or write a tag with {version_expression(plan.file)}"
        raise RecipeFault("no source depends on the version", at=at, why=why, hint=hint)
    return values, tuple(unchanged)


def _new_pinned_commit(pin: SourceDownload, plan: BumpPlan, folder: Path, env: Mapping[str, str]) -> str:
    """Return the commit of the tag that is named like the old version's; empty if no tag of that is at the commit."""
    names = list_git_references(pin.source.git, (f"{_TAG}*",), folder, env=env)
    tags = {name: names.get(f"{name}^{{}}", commit) for name, commit in names.items() if not name.endswith("^{}")}
    for name, commit in tags.items():
        match = version_pattern(plan.old).search(name, len(_TAG))
        if match is None or not commit.startswith(pin.source.revision):
            continue
        separators = set(re.findall("[._-]", match[0])) or {"."}
        new = f"{name[: match.start()]}{plan.new.replace('.', separators.pop())}{name[match.end() :]}"
        if new in tags:
            return tags[new]
        what = f"{pin.source.git} has no tag {new.removeprefix(_TAG)}"
        why = f"the recipe has the commit of {name.removeprefix(_TAG)}"
        raise DownloadFailed(what, why=why, hint="check the version, and upstream's tags")
    return ""


def respelled_addresses(address: str, archives: Iterable[str], version: str) -> Iterator[str]:
    """Yield the addresses, as templates, under which upstream may have released the file of another address.

    ``archives`` are addresses on an index, whose names count: an index has files by their hashes, too. Besides,
    upstreams change the kind of an archive, put a ``v`` before the version or leave it out, and release files, or the
    tag alone.
    """
    start = [match.end() for match in _SLASH.finditer(address)][-1]
    folder, file = address[:start], address[start:]
    written = _VERSION_TEMPLATES.search(file)
    for archive in archives:
        name = PurePosixPath(unquote(urlsplit(archive).path)).name
        if match := version_pattern(version).search(name):
            yield f"{folder}{name[: match.start()]}{written[0] if written else match[0]}{name[match.end() :]}"
            yield f"{folder}{name}"
            yield archive
    others = [address]
    if match := _RELEASE_FILE.match(address):
        others.append(f"{match['repository']}/archive/{match['tag']}.tar.gz")
    elif match := _TAG_ARCHIVE.match(address):
        repository, tag = match["repository"], match["tag"]
        file = f"{_SLASH.split(repository)[-1]}-{_V.sub('', tag)}{match['ending']}"
        others.append(f"{repository}/releases/download/{tag}/{file}")
    for other in others:
        yield other
        yield _V.sub(lambda match: "" if match[0] else "v", other)
        if ending := next((ending for ending in _ENDINGS if other.endswith(ending)), ""):
            yield from (other.removesuffix(ending) + new for new in _ENDINGS if new != ending)


def source_archives_on_package_index(urls: Iterable[str], version: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of a version's source archives on pip's indexes, for the projects of other addresses."""
    projects = tuple(dict.fromkeys(filter(None, map(project_of_url, urls))))
    found = (file for file, _, _ in pypi.files_on_indexes(projects, pypi.configured_indexes(env) if projects else ()))
    pattern = version_pattern(version)
    return tuple(dict.fromkeys(file.url for file in found if pattern.split(file.name)[-1] in _ENDINGS))


def hashes_of_downloads(
    downloads: Iterable[SourceDownload],
    folder: Path,
    *,
    env: Mapping[str, str],
    on_file: OnFile,
    elsewhere: Callable[[SourceDownload], SourceDownload | None] = lambda _: None,
    keep: Path | None = None,
) -> tuple[dict[Literal, str], tuple[str, ...]]:
    """Return the new values of all hashes, and notes.

    ``folder`` is the recipe's, which local paths are relative to; ``on_file`` gets the name of each download, and is a
    context whose value gets its progress; ``elsewhere`` returns where else a file is that its addresses do not have.
    The first file is kept as ``keep``.
    """
    values: dict[Literal, str] = {}
    notes: list[str] = []
    faults: list[DownloadFailed] = []
    downloads = tuple(downloads)
    kept = next((download for download in downloads if download.source.urls), None)
    for download in downloads:
        target = keep if download is kept else None
        try:
            with on_file(download.display_name) as progress:
                hashes, note = _hashes_of_download(download, folder, env, progress, target)
        except DownloadFailed as fault:
            moved = None if "cannot be reached" in fault.why else elsewhere(download)
            if moved is None:
                faults.append(fault)
                continue
            hashes, note = _hashes_of_download(moved, folder, env, lambda _done, _size: None, target)
            note = note or f"{download.display_name} does not exist; the recipe has {moved.display_name} now"
        notes += [note] if note else []
        for literal, algorithm in download.hashes:
            value = hashes[algorithm]
            if values.setdefault(literal, value) != value:
                why = f"{download.display_name} has the {algorithm} {value}, another one has {values[literal]}"
                hint = "give each source its own hash in the recipe"
                raise HashMismatch("different sources share a hash in the recipe", why=why, hint=hint)
    raise_all(_failures_by_reason(faults))
    return values, tuple(notes)


def _failures_by_reason(faults: Iterable[DownloadFailed]) -> list[DownloadFailed]:
    """Return failures with one in the place of those of the same reason, which names their files."""
    groups: dict[tuple[str, str], list[DownloadFailed]] = {}
    for fault in faults:
        groups.setdefault((fault.why, fault.hint), []).append(fault)
    failures = []
    for (why, hint), group in groups.items():
        lines = [why, *(fault.what.removesuffix(" cannot be downloaded") for fault in group)]
        together = DownloadFailed(f"{len(group)} sources cannot be downloaded", why="\n       ".join(lines), hint=hint)
        failures.append(together if len(group) > 1 else group[0])
    return failures


def _hashes_of_download(
    download: SourceDownload, folder: Path, env: Mapping[str, str], progress: Progress, target: Path | None
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of a download by algorithm, and a note."""
    algorithms = tuple(dict.fromkeys(algorithm for _, algorithm in download.hashes))
    if download.source.urls:
        return _hashes_from_first_working_url(download.source.urls, algorithms, folder, env, progress, target)
    if download.source.git:
        return _commit_of_revision(download, folder, env)
    return {}, f"{download.display_name} is not looked up: kiln asks git repositories alone"


def _hashes_from_first_working_url(
    urls: tuple[str, ...],
    algorithms: tuple[str, ...],
    folder: Path,
    env: Mapping[str, str],
    progress: Progress,
    target: Path | None,
) -> tuple[Mapping[str, str], str]:
    """Return the hashes of the first URL that works; of a Python package, pip's index is the last one."""
    reasons = []
    for url in itertools.chain(urls, _urls_on_package_index(urls, env)):
        try:
            hashes = http.fetch_and_hash(url, folder, algorithms=algorithms, progress=progress, target=target)
        except DownloadFailed as fault:
            reasons.append(f"{url}: {fault.why}")
        else:
            notes = [] if algorithms else [f"{url} has no hash in the recipe"]
            notes += [] if url in urls else [f"the hash is that of the file on pip's index: {url}"]
            return hashes, "; ".join([*notes, *(f"not used: {reason}" for reason in reasons)])
    what = f"{urls[0]} cannot be downloaded" if len(urls) == 1 else f"none of {len(urls)} URLs can be downloaded"
    why = reasons[0].removeprefix(f"{urls[0]}: ") if len(urls) == 1 else "\n       ".join(reasons)
    hint = "check the version, and whether upstream has released it there"
    if all("cannot be reached" in reason for reason in reasons):
        hosts = ", ".join(dict.fromkeys(urlsplit(url).hostname or url for url in urls))
        hint = f"run the same command where {hosts} can be reached; behind a proxy set HTTPS_PROXY"
    raise DownloadFailed(what, why=why, hint=hint)


def _urls_on_package_index(urls: tuple[str, ...], env: Mapping[str, str]) -> Iterator[str]:
    """Yield where pip's indexes have the file of a source; an index never has two files of one name."""
    for url in urls:
        project, name = pypi.project_of_url(url), PurePosixPath(unquote(urlsplit(url).path)).name
        found = pypi.files_on_indexes([project], pypi.configured_indexes(env)) if project else ()
        yield from (file.url for file, _, _ in found if file.name == name)


def _commit_of_revision(
    download: SourceDownload, folder: Path, env: Mapping[str, str]
) -> tuple[Mapping[str, str], str]:
    """Return the commit of a repository's tag or branch."""
    tag = f"refs/tags/{download.source.revision}"
    order = (f"{tag}^{{}}", tag, f"refs/heads/{download.source.revision}")  # first the commit of an annotated tag
    try:
        commits = list_git_references(download.source.git, order, folder, env=env)
    except MissingTool as error:
        raise DownloadFailed(f"{download.display_name} cannot be looked up", why=error.what, hint=error.hint) from error
    if commit := next((commits[name] for name in order if name in commits), ""):
        return {"commit": commit}, ""
    if COMMIT.fullmatch(download.source.revision) and not download.hashes:
        return {}, f"{download.display_name}: a commit is not looked up"
    why = "the repository has no such tag or branch"
    raise DownloadFailed(
        f"{download.display_name} does not exist", why=why, hint="check the version, and upstream's tags"
    )
