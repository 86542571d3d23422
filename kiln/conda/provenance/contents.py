"""What a package carries: license files, bundled components, and the packages it was solved with."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from kiln.base.errors import KilnError
from kiln.base.files import read_chunks
from kiln.base.serialization import list_or_empty, mapping_or_empty, nested_value
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.conda import package_reader
from kiln.conda.provenance.bazel_repositories import CENTRAL_REGISTRY, is_declaration_file_path
from kiln.conda.provenance.records import ResolvedPackage
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.conda.provenance.records import ExternalRepository


LONGEST_TEXT = 1 << 20  # bytes of a text; a longer one is named by its hash alone
LONGEST_TEXTS = 1 << 23  # bytes of all texts of a package
MOST_FILES = 1000
_LONGEST_NAME = 255  # characters, NAME_MAX of linux/limits.h
_METADATA = "info/licenses/"
_FOLDERS = re.compile(r"(?:^|/)(?:[^/]+\.dist-info/licenses|share/licenses)/")
_NAMES = re.compile(
    r"(?:[\w.-]*[._-])?(?:LICEN[CS]ES?|COPYING|NOTICES?|THIRD[_-]?PARTY[\w-]*)(?:[._-][\w.-]*)?", re.IGNORECASE
)
_NO_TEXT = re.compile(r"\.(?:py|pyc|pyi|h|hh|hpp|c|cc|cpp|js|css|so|json|xml|bzl|BUILD)$")
_OF_OTHERS = re.compile(r"NOTICE|THIRD[_-]?PARTY|AUTHORS|PATENTS", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_OPERATORS = re.compile(r"\s+(?:AND|OR)\s+|[()]")
REFERENCE = "LicenseRef-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseFile:
    """A license file by its path in the package; ``text`` is empty for one that is too long.

    ``expression`` is the package's license where this file is its only text; empty where nothing says it.
    """

    path: str
    sha1: str
    sha256: str
    text: str
    expression: str = ""

    @property
    def licenses(self) -> tuple[str, ...]:
        """The licenses in the file: those of the expression, or a reference to this text."""
        named = tuple(dict.fromkeys(part.strip() for part in _OPERATORS.split(self.expression) if part.strip()))
        return named or (self.license_ref,)

    @property
    def license_ref(self) -> str:
        """The name of this text as a license, the same in all packages that carry it."""
        return f"{REFERENCE}text-{self.sha256[:16]}"

    @property
    def text_or_location(self) -> str:
        """The text, or where it is when it is too long."""
        return self.text or f"The text is in the file {self.path} of the package, which has the SHA-256 {self.sha256}."


def package_license_files(package: Path, info: Mapping[str, bytes], *, expression: str) -> tuple[LicenseFile, ...]:
    """Return the license files of a package, given the files below its ``info/`` and its license expression.

    The payload is read only where the list of its files has license files.

    Raises:
        BrokenPackage: when the file is not a .conda package.
    """
    texts = _LicenseFileReader()
    names = [name for name in sorted(info) if f"info/{name}".startswith(_METADATA)]
    files = [texts.read_license_file(f"info/{name}", [info[name]]) for name in names[:MOST_FILES]]
    expected = set(_listed_license_paths(info))
    if expected:
        with package_reader.open_package_members(package) as members:
            for member, content in members:
                path = posixpath.normpath(member.name)
                if content is not None and path in expected and not path.startswith("info/"):
                    expected.remove(path)
                    files.append(texts.read_license_file(path, read_chunks(content)))
                if not expected:
                    break
    return _with_declared_license(files, expression)


def is_license_file(path: str) -> bool:
    """Return whether a path in a prefix is that of a license text, by its folder or its name."""
    name = posixpath.basename(path)
    named = len(name) <= _LONGEST_NAME and _NAMES.fullmatch(name) and not _NO_TEXT.search(name)
    return bool(named or _FOLDERS.search(path))


def _listed_license_paths(info: Mapping[str, bytes]) -> list[str]:
    """Return the paths of license files in the list of a package's files."""
    try:
        value = package_reader.parse_strict_json(info.get("paths.json", b"{}"))
    except ValueError:
        return []
    paths = [item.get("_path") for item in list_or_empty(nested_value(value, "paths")) if isinstance(item, dict)]
    return sorted(path for path in paths if isinstance(path, str) and is_license_file(path))[:MOST_FILES]


class _LicenseFileReader:
    """A reader of texts within a limit for all of them."""

    def __init__(self) -> None:
        self.remaining = LONGEST_TEXTS

    def read_license_file(self, path: str, parts: Iterable[bytes]) -> LicenseFile:
        """Return a license file, with its text within the limits; SPDX 2.3 requires the SHA-1."""
        sha1, sha256, data, size = hashlib.sha1(usedforsecurity=False), hashlib.sha256(), bytearray(), 0
        limit = min(LONGEST_TEXT, self.remaining)
        for chunk in parts:
            sha1.update(chunk)
            sha256.update(chunk)
            size += len(chunk)
            data += chunk[: max(0, limit + 1 - len(data))]
        text = bytes(data) if size <= limit else b""
        self.remaining -= len(text)
        plain = _CONTROL.sub("\ufffd", text.decode("utf-8-sig", errors="replace").replace("\r\n", "\n"))
        return LicenseFile(path=path, sha1=sha1.hexdigest(), sha256=sha256.hexdigest(), text=plain)


def _with_declared_license(files: Sequence[LicenseFile], expression: str) -> tuple[LicenseFile, ...]:
    """Return the files with the package's license where its metadata have one text that is not about others."""
    own = {
        file.sha256
        for file in files
        if file.path.startswith(_METADATA) and not _OF_OTHERS.search(posixpath.basename(file.path))
    }
    if len(own) != 1 or not expression:
        return tuple(files)
    return tuple(replace(file, expression=expression) if file.sha256 in own else file for file in files)


SCOPES = ("build", "host")  # the environments of tools, and of what is compiled and linked against
RENDERED, RENDERED_V1 = "recipe/meta.yaml", "recipe/rendered_recipe.yaml"
_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PLAIN = re.compile(r"[A-Za-z0-9_.!+-]*")
_KNOWN_HOSTS = ("https://conda.anaconda.org/", "https://repo.anaconda.com/pkgs/")
LONGEST = 1000  # characters of a text
_UNQUOTED = {"checksum": ":"}  # in the values of qualifiers
_EXACT = re.compile(r"([a-z0-9_][a-z0-9_.-]*) ([0-9][A-Za-z0-9_.!+]*) ([A-Za-z0-9_.+]+)")


def build_and_host_packages(info: Mapping[str, bytes]) -> tuple[ResolvedPackage, ...]:
    """Return the packages of both environments, from the files below ``info/`` of a package."""
    if RENDERED_V1 in info:
        recipe = _load_rendered_recipe(info[RENDERED_V1])
        packages = [
            package_from_record(scope, record)
            for scope in SCOPES
            for record in list_or_empty(nested_value(recipe, "finalized_dependencies", scope, "resolved"))
            if isinstance(record, dict)
        ]
    else:  # a rendered meta.yaml, which has names, versions and build strings
        recipe, packages = _load_rendered_recipe(info.get(RENDERED, b"")), []
        for scope in SCOPES:
            for spec in list_or_empty(nested_value(recipe, "requirements", scope)):
                name, version, build = [*str(spec).split(), "", "", ""][:3]
                packages.append(ResolvedPackage(scope=scope, name=name, version=version, build=build))
    return tuple(dict.fromkeys(package for package in packages if _NAME.fullmatch(package.name) and package.version))


def parse_exact_spec(spec: str) -> tuple[str, str] | None:
    """Return version and build string of a spec that only one build satisfies."""
    match = _EXACT.fullmatch(spec)
    return (match[2], match[3]) if match else None


def conda_purl(name: str, version: str = "", **qualifiers: str) -> str:
    """Return the package URL of a conda package."""
    return _format_purl("conda", name, version=version, **qualifiers)


def _format_purl(purl_type: str, *names: str, version: str = "", **qualifiers: str) -> str:
    """Return a package URL (https://github.com/package-url/purl-spec) with the qualifiers that are not empty."""
    parts = [f"pkg:{purl_type}", *(quote(name, safe="") for name in names)]
    more = [f"{key}={quote(value, safe=_UNQUOTED.get(key, ''))}" for key, value in sorted(qualifiers.items()) if value]
    return "/".join(parts) + (f"@{quote(version, safe='')}" if version else "") + (f"?{'&'.join(more)}" if more else "")


def transitive_run_dependencies(records: Iterable[Mapping[str, Any]], name: str) -> tuple[ResolvedPackage, ...]:
    """Return the run dependencies of a package in an environment: what it requires, directly or not.

    ``records`` are those of all packages there, in the fields of an index with their addresses.
    """
    by_name = {str(record["name"]): record for record in records}
    pending, reached = [name], {name}
    while pending:
        record = by_name.get(pending.pop(), {})
        names = {package_name(str(spec)) for spec in record.get("depends") or ()} & by_name.keys() - reached
        pending += names
        reached |= names
    return tuple(package_from_record("run", by_name[one]) for one in sorted(reached - {name}) if one in by_name)


def is_valid_package(package: ResolvedPackage) -> bool:
    """Return whether a package is one that this module returns; what a build reports may be forged."""
    texts = (package.version, package.build, package.subdir)
    return (
        len(package.name) <= LONGEST
        and _NAME.fullmatch(package.name) is not None
        and bool(package.version)
        and all(len(text) <= LONGEST and _PLAIN.fullmatch(text) for text in texts)
        and (not package.sha256 or _SHA256.fullmatch(package.sha256) is not None)
        and all(not url or _is_url_without_credentials(url) for url in (package.url, package.channel))
    )


def environment_description(package: ResolvedPackage) -> str:
    """Return in words where a package was installed: for the build, or as a run dependency, which elsewhere differs."""
    if package.scope == "run":
        return "as tested: a run dependency that the solver chose for the package's tests"
    return f"in the {package.scope} environment"


def package_purl(package: ResolvedPackage) -> str:
    """Return the package URL of a resolved package, with its channel: a name at anaconda.org, else an address."""
    channel = package.channel
    for start in _KNOWN_HOSTS:
        channel = channel.removeprefix(start)
    names = {"build": package.build, "subdir": package.subdir, "channel": channel}
    return conda_purl(package.name, package.version, **names)


def _is_url_without_credentials(url: str) -> bool:
    return (
        len(url) <= LONGEST
        and url.isprintable()
        and url.startswith(("https://", "http://"))
        and "@" not in url
        and "/t/" not in url
    )


def package_from_record(scope: str, record: Mapping[str, Any]) -> ResolvedPackage:
    """Return a package by its record: rattler-build's, an index's, or that of an installed package."""
    texts = {key: str(record.get(key) or "") for key in ("name", "version", "build", "subdir", "url", "sha256")}
    url = texts["url"] if _is_url_without_credentials(texts["url"]) else ""
    sha256 = texts["sha256"] if _SHA256.fullmatch(texts["sha256"]) else ""
    channel, _, subdir = url.rpartition("/")[0].rpartition("/")
    channel = channel if subdir == texts["subdir"] else ""
    return ResolvedPackage(scope=scope, **{**texts, "url": url, "sha256": sha256}, channel=channel)


def _load_rendered_recipe(data: bytes) -> Mapping[str, Any]:
    """Return a rendered recipe; empty for a text that is none."""
    try:
        return mapping_or_empty(parse_document(data.decode(), RENDERED_V1, ScalarInterpretation.WORDS).value)
    except (KilnError, UnicodeDecodeError):
        return {}


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
            name=name, version=version, purl=_format_purl("generic", name, version=version), evidence=files
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
    url = repository.url
    if not url and repository.registry and repository.version:
        # The file with a module's address and hash (https://bazel.build/external/registry).
        url = f"{repository.registry}/modules/{repository.name}/{repository.version}/source.json"
    return BundledComponent(
        name=_git_project_name(repository.url) or repository.name,
        version=version,
        purl=_repository_purl(repository, version),
        url=url,
        sha256=repository.sha256,
        evidence=evidence,
    )


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
        return _format_purl("bazel", repository.name.lower(), version=version, repository_url=registry)
    owner, name, revision = _git_owner_name_and_revision(repository.url)
    if owner and urlsplit(repository.url).hostname == "github.com":
        return _format_purl("github", owner.lower(), name.lower(), version=repository.version or revision)
    checksum = f"sha256:{repository.sha256}" if repository.sha256 else ""
    return _format_purl("generic", repository.name, version=version, checksum=checksum, download_url=repository.url)
