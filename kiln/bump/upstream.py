"""The newest version that upstream has released, as a Python package index or a repository's tags have it.

Tags and branches of a git repository are asked for without a copy of it. They show the commit of a new version, too,
for sources at a commit.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln import git, process_runner
from kiln.bump.literals import Literal, place_of_offset
from kiln.errors import DownloadFailed, MissingTool, RecipeFault
from kiln.lazy_pattern import lazy_pattern
from kiln.rehearse.pip_index_client import project_of_url
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.bump.plan import BumpPlan
    from kiln.bump.recipe_views import SourceView
    from kiln.bump.source_hash_literals import SourceDownload

_SECONDS = 180.0
# Archives of a tag, and files of a release, of GitHub, GitLab and Gitea.
_OF_TAG = lazy_pattern(
    r"(?P<repository>https?://[^/]+/[^/]+/[^/]+?)/(?:-/)?"
    r"(?:releases/download/(?P<release>[^/]+)/.+|(?:archive/(?:refs/tags/)?|tarball/)(?P<tag>.+))$"
)
_ENDING = lazy_pattern(r"(?:/[^/]*)?\.(?:tar\.\w+|tgz|zip)$")
_PRERELEASE = lazy_pattern(r"(?<![a-z])(?:a|b|c|rc|alpha|beta|dev|pre|preview|m)\.?\d*(?![a-z])")
_VERSION = r"(\d+(?:[._-]\d\w*)*(?:[._-]?post\d+)?)"
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
    return UpstreamVersion(source=source.display_name, reason="no index has the versions of this kind of source")


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
    result = process_runner.capture((sys.executable, "-m", "pip", *words, "--", project), env=env, timeout=_SECONDS)
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
    """Return the pattern of a version as tags and file names may write it, with other separators."""
    parts = "[._-]".join(map(re.escape, re.split(r"[._-]", version)))
    return re.compile(rf"(?<![0-9]){parts}(?![0-9])")


def _newest_release(source: SourceView, index: str, versions: Iterable[str]) -> UpstreamVersion:
    releases = [(version, text) for text in versions if (version := _release_version(text)) is not None]
    if not releases:
        return UpstreamVersion(
            source=source.display_name, index=index, reason="it has no release that is named as the recipe's"
        )
    version, spelled = max(releases)
    return UpstreamVersion(source=source.display_name, index=index, newest=version.text, spelled=spelled)


def _release_version(text: str) -> Version | None:
    """Return a version, None for a pre-release."""
    try:
        return None if _PRERELEASE.search(text.lower()) else Version(re.sub("[_-]", ".", text))
    except ValueError:
        return None


def list_git_references(
    address: str, names: tuple[str, ...], folder: Path, *, env: Mapping[str, str]
) -> dict[str, str]:
    """Return a repository's references with these names, or patterns of names, each with its commit.

    ``folder`` is the recipe's, which a path is relative to; ``env`` is git's environment.

    Raises:
        MissingTool: git is missing.
        DownloadFailed: the repository cannot be reached.
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

    Raises:
        MissingTool: git is missing.
        DownloadFailed: a repository cannot be reached, or has no tag of the new version.
        RecipeFault: there is no other source, and no tag of the old version is at the commit.
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
        hint = "change the revision by hand, or write a tag with {{ version }}"
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
