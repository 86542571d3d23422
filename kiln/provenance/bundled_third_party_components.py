"""The components that a package bundles: named by its license files, with versions from its source's files for Bazel.

License files of Bazel's rules begin each text with ``BEGIN LICENSE FOR external/NAME/LICENSE``, TensorFlow's list of
third parties with ``== NAME``. A repository that Bazel's files declare without such a text may be a tool of the build
or replaced by a package of the host environment: it is declared, and not known to be bundled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.bazel.declared_repositories import CENTRAL_REGISTRY
from kiln.bazel.declaring_file_search import is_declaration_file_path
from kiln.provenance.resolved_package_reader import format_purl

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.model.provenance import ExternalRepository
    from kiln.provenance.license_files import LicenseFile

MOST_COMPONENTS = 2000
_BEGIN = re.compile(r"^BEGIN LICENSE FOR (\S{1,500})[ \t]*$", re.MULTILINE)
_TITLE = re.compile(r"^-{40,200}\n== ([A-Za-z0-9][\w .+&/-]{0,80})$", re.MULTILINE)
_REPOSITORY = re.compile(r"(?:^|/)(?:external|third_party)/@?([\w.-]+)(?:[~+]([\w.+-]*))?")
_PREFIX = re.compile(r"^(?:(?:com|org|net|io)_)(?:google_|googlesource_code_|github_(?!$)[a-z0-9]+_)?")
_SUFFIX = re.compile(r"(?:_(?:archive|git|lib|source|repo)|_v\d+)$")
_GIT_REFERENCE = re.compile(
    r"/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)/(?:-/)?"
    r"(?:archive/(?:refs/(?:tags|heads)/)?(?P<archive>[^/?#]+?)(?:/[^/?#]+)?"
    r"|releases/download/(?P<release>[^/?#]+)/[^/?#]+|(?:tar\.gz|zip)/(?P<tarball>[^/?#]+))"
)
_GIT = re.compile(r"/(?P<owner>[\w.-]+)/(?P<name>[\w.-]+?)(?:\.git)?/?")
_ENDING = re.compile(r"\.(?:tar\.\w+|tgz|tbz2|txz|zip|jar|whl)$")
_VERSION = re.compile(r"[-_]v?(\d+(?:[._]\w+)*(?:[-+]\w+)*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledComponent:
    """A component by its name, with what is known of it; ``evidence`` are the license files that name it, or none."""

    name: str
    version: str = ""
    purl: str = ""
    url: str = ""
    sha256: str = ""
    evidence: tuple[str, ...] = field(default=())

    @property
    def reason_for_listing(self) -> str:
        """The reason why it is listed."""
        if self.evidence:
            return f"bundled, as named in {', '.join(self.evidence)}"
        return "declared for Bazel in the source; it is not known to be in the package"


def bazel_files_in_packed_recipe(info: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return Bazel's files of sources in the recipe, which a package carries with it."""
    return {
        name: data
        for name, data in info.items()
        if name.startswith("recipe/") and is_declaration_file_path(name.removeprefix("recipe/"))
    }


def bundled_and_declared_components(
    licenses: Iterable[LicenseFile], repositories: Sequence[ExternalRepository]
) -> tuple[BundledComponent, ...]:
    """Return what license files name, then the other repositories that the source declares."""
    evidence: dict[str, list[str]] = {}
    titles: dict[str, tuple[str, str]] = {}
    for file in licenses:
        for name, version in _names_in_license_text(file.text):
            key = _normalized_project_name(name)
            titles.setdefault(key, (name, version))
            if file.path not in evidence.setdefault(key, []):
                evidence[key].append(file.path)
    by_key: dict[str, ExternalRepository] = {}
    for names in (lambda item: item.name, lambda item: item.alias, lambda item: _git_project_name(item.url)):
        for repository in repositories:
            by_key.setdefault(_normalized_project_name(names(repository)), repository)
    named = [(by_key.get(key), name, version, tuple(evidence[key])) for key, (name, version) in titles.items()]
    used = {repository for repository, *_ in named if repository is not None}
    components = [
        _component_of_repository(repository, evidence=files)
        if repository is not None
        else BundledComponent(
            name=name, version=version, purl=format_purl("generic", name, version=version), evidence=files
        )
        for repository, name, version, files in named
    ]
    declared = [_component_of_repository(repository) for repository in repositories if repository not in used]
    return tuple(dict.fromkeys([*components, *declared]))[:MOST_COMPONENTS]


def _names_in_license_text(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names in a license file, with the version of a module where its folder has one."""
    for match in _BEGIN.finditer(text):
        if folder := _REPOSITORY.search(match[1]):
            yield folder[1], folder[2] or ""
    for match in _TITLE.finditer(text):
        yield match[1].strip(), ""


def _normalized_project_name(name: str) -> str:
    """Return a name without what Bazel's repositories add to a project's name."""
    plain = _SUFFIX.sub("", _PREFIX.sub("", name.lower().replace("-", "_").replace(" ", "_")))
    return re.sub(r"[^a-z0-9]", "", plain) or name


def _component_of_repository(repository: ExternalRepository, *, evidence: tuple[str, ...] = ()) -> BundledComponent:
    version = _repository_version(repository)
    return BundledComponent(
        name=_git_project_name(repository.url) or repository.name,
        version=version,
        purl=_repository_purl(repository, version),
        url=repository.url or _bazel_module_source_url(repository),
        sha256=repository.sha256,
        evidence=evidence,
    )


def _bazel_module_source_url(repository: ExternalRepository) -> str:
    """Return the file of a registry that has a module's address and hash (https://bazel.build/external/registry)."""
    if not repository.registry or not repository.version:
        return ""
    return f"{repository.registry}/modules/{repository.name}/{repository.version}/source.json"


def _git_owner_name_and_revision(url: str) -> tuple[str, str, str]:
    path = urlsplit(url).path
    match = _GIT_REFERENCE.fullmatch(path)
    if match is None:
        plain = _GIT.fullmatch(path)
        return (plain["owner"], plain["name"], "") if plain else ("", "", "")
    revision = match["archive"] or match["release"] or match["tarball"]
    return match["owner"], match["name"], _ENDING.sub("", revision)


def _git_project_name(url: str) -> str:
    """Return a project's name at a Git host; empty for other addresses."""
    return _git_owner_name_and_revision(url)[1] if urlsplit(url).hostname in {"github.com", "gitlab.com"} else ""


def _repository_version(repository: ExternalRepository) -> str:
    """Return the version of a repository: a module's, a Git revision, or the number in a file's name."""
    if revision := repository.version or _git_owner_name_and_revision(repository.url)[2]:
        return re.sub(r"^v(?=\d)", "", revision)
    match = _VERSION.search(_ENDING.sub("", urlsplit(repository.url).path.rsplit("/", 1)[-1]))
    return match[1] if match else ""


def _repository_purl(repository: ExternalRepository, version: str) -> str:
    """Return a package URL (https://github.com/package-url/purl-spec, types bazel, github and generic)."""
    if repository.registry:
        registry = "" if repository.registry == CENTRAL_REGISTRY else repository.registry
        return format_purl("bazel", repository.name.lower(), version=version, repository_url=registry)
    owner, name, revision = _git_owner_name_and_revision(repository.url)
    if owner and urlsplit(repository.url).hostname == "github.com":
        return format_purl("github", owner.lower(), name.lower(), version=repository.version or revision)
    checksum = f"sha256:{repository.sha256}" if repository.sha256 else ""
    return format_purl("generic", repository.name, version=version, checksum=checksum, download_url=repository.url)
