"""Files of projects as pip's indexes have them, and names and requirements converted between PyPI and conda."""

from __future__ import annotations

import ast
import contextlib
import itertools
import json
import re
import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from kiln.base import files, http, process
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from packaging.requirements import Requirement


ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_SECONDS = 60.0
_LARGEST = 100_000_000  # bytes of an answer
# The layouts of an index: by project, and by the hash of the file.
_BY_PROJECT = lazy_pattern(r"/packages/[^/]+/[^/]/(?P<name>[^/]+)/[^/]+$")
_BY_HASH = lazy_pattern(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/(?P<file>[^/]+)$")
_SETTING = lazy_pattern(r"^(?P<place>[^.]+)\.(?P<key>[\w-]+)=(?P<value>.+)$", re.MULTILINE)
_SHA256 = lazy_pattern(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file of a project on an index; ``size`` is 0 where the index does not have it."""

    name: str
    url: str
    sha256: str
    size: int = 0


def configured_indexes(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the indexes that pip is configured for, the main one first, without their credentials, which are kept.

    ``env`` is pip's environment.
    """
    from pip._internal.models.index import PyPI  # pip lists no default

    words = ("config", "list", "--disable-pip-version-check")
    result = process.capture((sys.executable, "-m", "pip", *words), env=env, timeout=_SECONDS)
    main, extra = PyPI.simple_url, ""
    for match in _SETTING.finditer(result.stdout):  # pip lists the settings with the highest precedence last
        if match["place"] in {"global", "install", ":env:"} and match["key"] in {"index-url", "extra-index-url"}:
            value = _unquoted_setting(match["value"])
            main, extra = (value, extra) if match["key"] == "index-url" else (main, value)
    return http.register_credentials(url.rstrip("/") for url in (main, *extra.split()))


def _unquoted_setting(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text


def project_of_url(url: str) -> str:
    """Return the project of a file on a Python package index; empty for other addresses."""
    path = unquote(urlsplit(url).path)
    if match := _BY_PROJECT.search(path):
        return match["name"]
    match = _BY_HASH.search(path)
    return re.split(r"-v?\d", match["file"], maxsplit=1)[0] if match else ""


def project_files(project: str, index: str) -> Iterator[IndexFile]:
    """Yield the files of a project that have a SHA-256.

    Raises:
        HttpError: when the index does not answer, or has no such project.
    """
    url = f"{index}/{canonicalize_name(project)}/"
    data, is_json = _fetch_project_page(url)
    yield from _files_from_json(data, url) if is_json else _files_from_html(data, url)


def files_on_indexes(projects: Iterable[str], indexes: Iterable[str]) -> Iterator[tuple[IndexFile, str, str]]:
    """Yield the files of projects, each with its project and its index, from the indexes that answer."""
    for index, project in itertools.product(indexes, projects):
        with contextlib.suppress(http.HttpError):
            yield from [(file, project, index) for file in project_files(project, index)]


def _fetch_project_page(url: str) -> tuple[bytes, bool]:
    parts = urlsplit(url)
    if parts.scheme == "file":
        try:
            return (Path(unquote(parts.path)) / "index.html").read_bytes(), False
        except OSError as error:
            raise http.HttpError(str(error)) from error
    headers = {"Accept": ACCEPT, "User-Agent": "kiln", **http.request_headers(url)}
    with http.send_request(url, headers=headers) as response:
        data = response.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise http.HttpError(f"the answer has more than {_LARGEST:,} bytes")
        return data, "json" in response.headers.get("Content-Type", "")


def _files_from_json(data: bytes, base: str) -> Iterator[IndexFile]:
    try:
        content: Any = json.loads(data)
        for entry in content["files"]:
            if sha256 := entry["hashes"].get("sha256"):
                size = entry.get("size")
                yield IndexFile(
                    name=str(entry["filename"]),
                    url=urljoin(base, str(entry["url"])),
                    sha256=str(sha256),
                    size=size if isinstance(size, int) else 0,
                )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise http.HttpError(f"the answer is not an index's: {error}") from error


def _files_from_html(data: bytes, base: str) -> Iterator[IndexFile]:
    for address in link_addresses(data.decode("utf-8", "replace")):
        parts = urlsplit(urljoin(base, address))
        if match := _SHA256.fullmatch(parts.fragment):
            url = parts._replace(fragment="").geturl()
            yield IndexFile(name=unquote(Path(parts.path).name), url=url, sha256=match[1])


def link_addresses(page: str) -> list[str]:
    """Return the addresses of all links of a web page, as they are written."""
    links = _LinkCollector()
    links.feed(page)
    return links.addresses


class _LinkCollector(HTMLParser):
    """The addresses of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address of a link."""
        self.addresses += [value for name, value in attrs if tag == "a" and name == "href" and value]


NAMES = Path(__file__).with_name("names.csv")
_STARRED = lazy_pattern(r"\.\*$")
_CLAUSE = lazy_pattern(r"(==|!=|<=|>=|~=|<|>|=)?\s*(\S+)")


class WheelLayout(Enum):
    """The install location of a wheel's files: site-packages, or the prefix's lib, bin and include."""

    PYTHON = "python"
    LIBRARIES = "libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMapping:
    """A row of names.csv; ``source`` is the origin of the conda name.

    ``exported_by`` is the package whose ``run_exports`` add this one: itself, its ``-dev`` package or none.
    """

    conda: str
    layout: WheelLayout = WheelLayout.PYTHON
    exported_by: str = ""
    source: str = ""


@cache
def names_table_digest() -> str:
    """Return a hash of names.csv, so that a change of names makes new packages."""
    return files.sha256(NAMES)


@cache
def name_mappings() -> Mapping[str, NameMapping]:
    """Return the rows of names.csv by normalized PyPI name."""
    return {
        row["pypi"]: NameMapping(
            conda=row["conda"], layout=WheelLayout(row["layout"]), exported_by=row["exported_by"], source=row["source"]
        )
        for row in files.csv_rows(NAMES)
    }


def abi_spec(python: str) -> str:
    """Return the match spec of the ABI of a Python, ``3.11``: ``python_abi 3.11.* *_cp311``."""
    return f"python_abi {python}.* *_cp{python.replace('.', '')}"


def name_mapping(pypi: str) -> NameMapping:
    """Return the row of a PyPI package; without one, the package keeps its normalized name and has no run_exports."""
    name = canonicalize_name(pypi)
    return name_mappings().get(name) or NameMapping(conda=name)


def conda_name(pypi: str) -> str:
    """Return the conda name of a PyPI package, by default its normalized name."""
    return name_mapping(pypi).conda


def requirements_missing_in_wheel(pypi: str, python: str) -> tuple[str, ...]:
    """Return the PyPI projects that a conda package requires and its wheel does not, for a Python, ``3.11``.

    conda-forge/pip-feedstock: until Python 3.12, pip brings setuptools and wheel, and many recipes rely on that.
    """
    minor = int(python.partition(".")[2])
    return ("setuptools", "wheel") if canonicalize_name(pypi) == "pip" and minor <= 12 else ()


def run_exports_missing_in_wheel(pypi: str, version: Version) -> tuple[str, ...]:
    """Return the run exports of a Python package on conda-forge, of which its wheel knows nothing.

    conda-forge/numpy-feedstock: what is compiled with NumPy 2 runs with the oldest supported release, and below 3.
    """
    return ("numpy >=1.23,<3",) if canonicalize_name(pypi) == "numpy" and version >= Version("2") else ()


def conda_requirements(requirements: Iterable[Requirement], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the distinct match specs of the requirements that apply in a marker environment, sorted.

    Extras are dropped, the wheel's and those of the required packages, because conda has none.
    """
    environment = {**environment, "extra": ""}
    specs = {
        conda_spec(requirement)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    return tuple(sorted(specs))


def conda_spec(requirement: Requirement) -> str:
    """Return a requirement as a match spec: ``typing-extensions~=4.12`` is ``typing_extensions >=4.12,4.*``."""
    versions = [conda_constraint(specifier) for specifier in requirement.specifier]
    return " ".join([conda_name(requirement.name), ",".join(sorted(versions))]).rstrip()


def conda_constraint(specifier: Specifier) -> str:
    """Return a PEP 440 version specifier in conda's syntax.

    There are three relevant differences: conda has no ``===``; a plain ``==1.2.*`` is written ``1.2.*``; and ``<2``
    admits ``2.0rc1`` unless written as ``<2a0``. ``~=`` is written out, which every conda client understands. One
    difference remains: ``>1.2`` admits ``1.2.post1``, which pip does not.
    """
    operator, version = specifier.operator, specifier.version
    if operator == "~=":
        parsed = Version(version)
        epoch = f"{parsed.epoch}!" if parsed.epoch else ""
        return f">={parsed},{epoch}{'.'.join(map(str, parsed.release[:-1]))}.*"
    if operator == "==" and version.endswith(".*"):
        return version
    if operator in {"==", "==="}:
        return f"=={_normalized_version(version)}"
    if operator == "<":
        bound = Version(version)
        if not (bound.is_prerelease or bound.is_postrelease or bound.local is not None):
            return f"<{bound}a0"
    return f"{operator}{_normalized_version(version)}"


def _normalized_version(version: str) -> str:
    """Return a version in PEP 440's normal form, with its asterisk; an invalid version is unchanged."""
    if _STARRED.search(version):
        return f"{Version(_STARRED.sub('', version))}.*"
    try:
        return str(Version(version))
    except ValueError:
        return version


@cache
def known_pypi_names(conda: str) -> tuple[str, ...]:
    """Return the PyPI projects that names.csv has for a conda package, the preferred one first; others are guesses."""
    rows = name_mappings().items()
    return tuple(pypi for pypi, row in rows if row.conda == conda and row.layout is WheelLayout.PYTHON)


def pypi_name(conda: str) -> str:
    """Return the PyPI project of a conda package, by default the one of the same name."""
    return next(iter(known_pypi_names(conda)), canonicalize_name(conda))


def pip_requirement(conda: str, constraints: Iterable[str]) -> str:
    """Return the requirement of a conda package with these version constraints for pip.

    A constraint that PEP 440 cannot express, such as one with ``|``, is omitted: the solver of packages applies it.
    """
    clauses = {clause for constraint in constraints for clause in pip_specifiers(constraint)}
    return f"{pypi_name(conda)}{','.join(sorted(clauses))}"


def pip_specifiers(constraint: str) -> tuple[str, ...]:
    """Return the PEP 440 specifiers of a version constraint in conda's notation, in which ``1.2`` is exact."""
    if not constraint or "|" in constraint or "(" in constraint:
        return ()
    clauses = [_pip_specifier(*match.groups()) for part in constraint.split(",") if (match := _CLAUSE.fullmatch(part))]
    return tuple(clause for clause in clauses if clause and _is_valid_specifier(clause))


def _pip_specifier(sign: str | None, version: str) -> str:
    starred, bare = version.endswith("*"), version.removesuffix("*").removesuffix(".")
    if not bare:
        return ""
    if sign in {None, "", "=", "=="}:
        return f"=={bare}.*" if starred or sign == "=" else f"=={bare}"
    return f"{sign}{bare}.*" if starred and sign == "!=" else f"{sign}{bare}"


def _is_valid_specifier(clause: str) -> bool:
    try:
        SpecifierSet(clause)
    except InvalidSpecifier:
        return False
    return True
