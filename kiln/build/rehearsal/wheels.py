"""The plan of a config's rehearsal, and the reading of wheels, which may be broken or hostile."""

from __future__ import annotations

import configparser
import zipfile
from collections.abc import Mapping  # noqa: TC003 - for the reader of JSON values, which looks annotations up
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, NoReturn

from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, NormalizedName, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from kiln.base.errors import BrokenPackage
from kiln.conda.package_writer import SUBDIR
from kiln.feedstock.sources import SourceFile  # noqa: TC001 - for the reader of JSON values, which looks annotations up

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """One exact wheel: ``name`` is its normalized PyPI name, ``size`` counts bytes, 0 where unknown."""

    name: str
    version: str
    file: str
    size: int
    sha256: str
    pythons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A package made from this machine, in the place of the channel's package of the same name.

    ``programs`` are the machine's programs by their names in ``bin``, ``libraries`` its shared libraries by their names
    in ``lib``, ``activation`` the lines of its activation script. ``strong_exports`` are its run exports. ``origin`` is
    what it was made from; ``differs`` is set when that does not have the required version.
    """

    name: str
    version: str
    programs: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    activation: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    strong_exports: tuple[str, ...] = ()
    origin: str = ""
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPlan:
    """The contents of a config's rehearsal in place of a channel; ``python`` is empty when the config needs none.

    ``subdir`` is the config's platform. ``upstream`` is the wheel that replaces the compile, None for a rehearsal that
    compiles. ``dependencies`` are wheels that become packages. ``notes`` are for the user.
    """

    python: str
    cuda: str | None = None
    subdir: str = SUBDIR
    upstream: LockedWheel | None = None
    dependencies: tuple[LockedWheel, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def packaged_python(self) -> str:
        """The Python of this machine that becomes a package; empty for another platform."""
        return self.python if self.subdir == SUBDIR else ""

    @property
    def summary(self) -> tuple[tuple[str, str], ...]:
        """The contents by their origins: a title, and names with versions."""
        wheels = (f"{wheel.name} {wheel.version}" for wheel in self.dependencies)
        stand_ins = (f"{package.name} {package.version}" for package in self.stand_ins)
        parts = (
            (
                "python",
                self.python if self.packaged_python == self.python else f"{self.python}, a package without files",
            ),
            ("compile", f"{self.upstream.file}, in its place" if self.upstream else ""),
            ("wheels", ", ".join(wheels)),
            ("this machine", ", ".join(stand_ins)),
            ("sources", ", ".join(f"{source.name} ({source.origin})" for source in self.sources)),
        )
        return tuple((title, text) for title, text in parts if text)

    @property
    def wheels(self) -> tuple[LockedWheel, ...]:
        """All wheels, upstream's first."""
        return (*([self.upstream] if self.upstream else []), *self.dependencies)


_SYMLINK = 0o120000
_KIND = 0o170000
_MAX_METADATA = 16 << 20  # bytes; the longest in use are far below one million
_GROUPS = ("console_scripts", "gui_scripts")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPoint:
    """A console script: ``module`` is imported and its ``attribute``, dots allowed, is called."""

    script: str
    module: str
    attribute: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelMember:
    """One file of a wheel: ``path`` is relative, normal and stays inside."""

    path: str
    size: int
    executable: bool


class Wheel:
    """An open wheel whose members all have harmless names and types."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self._archive = archive
        self._infos = {info.filename: info for info in archive.infolist() if not info.is_dir()}
        self.members = tuple(self._checked_member(info) for info in archive.infolist() if not info.is_dir())
        self.name, self.version, self.platforms = self._parse_file_name()
        self.dist_info = self._find_dist_info()
        self.metadata = self._parse_metadata()
        self.requirements = tuple(self._parse_requirement(text) for text in self.metadata.get("requires_dist", ()))
        self.entry_points = tuple(self._parse_entry_points())
        self._require_wheel_version()

    def read_member(self, path: str) -> bytes:
        """Return a member's content; raises BrokenPackage when it is damaged or too long for memory."""
        if self._infos[path].file_size > _MAX_METADATA:
            self._raise_broken_wheel(f"{path} is {self._infos[path].file_size} bytes long")
        return self._archive.read(path)

    def open_member(self, path: str) -> IO[bytes]:
        """Open a member for reading."""
        return self._archive.open(path)

    def _checked_member(self, info: zipfile.ZipInfo) -> WheelMember:
        pure = PurePosixPath(info.filename)
        mode = info.external_attr >> 16
        if pure.is_absolute() or ".." in pure.parts or str(pure) != info.filename or "\\" in info.filename:
            self._raise_broken_wheel(f"it has a member {info.filename!r}, which does not stay inside")
        if mode & _KIND == _SYMLINK:
            self._raise_broken_wheel(f"its member {info.filename!r} is a symbolic link, which wheels cannot hold")
        if any(ord(letter) < 32 for letter in info.filename):
            self._raise_broken_wheel(f"it has a member {info.filename!r}, whose name holds control characters")
        return WheelMember(path=info.filename, size=info.file_size, executable=bool(mode & 0o111))

    def _parse_file_name(self) -> tuple[NormalizedName, Version, frozenset[str]]:
        if len(self._infos) != len(self.members):
            self._raise_broken_wheel("it has two members of one name")
        try:
            name, version, _, tags = parse_wheel_filename(self.path.name)
        except InvalidWheelFilename as error:
            self._raise_broken_wheel(str(error))
        return name, version, frozenset(tag.platform for tag in tags)

    def _find_dist_info(self) -> str:
        """Return the wheel's top-level ``.dist-info`` folder; vendored packages have theirs in subfolders."""
        folders = {member.path.split("/")[0] for member in self.members if "/" in member.path}
        dist_infos = sorted(folder for folder in folders if folder.endswith(".dist-info"))
        if len(dist_infos) != 1:
            self._raise_broken_wheel(f"it has {len(dist_infos)} folders *.dist-info, not one")
        return dist_infos[0]

    def _parse_metadata(self) -> RawMetadata:
        raw, _ = parse_email(self._read_required_file("METADATA"))
        name, version = raw.get("name"), raw.get("version")
        if not name or not version:
            self._raise_broken_wheel("its METADATA has no Name or no Version")
        try:
            agrees = canonicalize_name(name) == self.name and Version(version) == self.version
        except InvalidVersion as error:
            self._raise_broken_wheel(f"its METADATA has no valid version: {error}")
        if not agrees:
            self._raise_broken_wheel(f"its METADATA is that of {name} {version}")
        return raw

    def _parse_requirement(self, text: str) -> Requirement:
        try:
            requirement = Requirement(text)
        except InvalidRequirement as error:
            self._raise_broken_wheel(f"its METADATA has the requirement {text!r}: {error}")
        if requirement.url:
            self._raise_broken_wheel(f"it requires {requirement.name} from a URL, which a conda package cannot")
        return requirement

    def _parse_entry_points(self) -> Iterator[EntryPoint]:
        path = f"{self.dist_info}/entry_points.txt"
        if path not in self._infos:
            return
        parser = configparser.RawConfigParser(delimiters=("=",), strict=False)
        parser.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
        try:
            parser.read_string(self.read_member(path).decode())
        except (configparser.Error, UnicodeDecodeError) as error:
            self._raise_broken_wheel(f"its entry_points.txt is malformed: {error}")
        for group in _GROUPS:
            for script, reference in parser.items(group) if parser.has_section(group) else ():
                yield self._parse_entry_point(script, reference)

    def _parse_entry_point(self, script: str, reference: str) -> EntryPoint:
        module, _, attribute = (part.strip() for part in reference.partition("[")[0].partition(":"))
        names = [*module.split("."), *attribute.split(".")]
        if not all(name.isidentifier() for name in names) or "/" in script or script in {"", ".", ".."}:
            self._raise_broken_wheel(f"its entry point {script!r} = {reference!r} is malformed")
        return EntryPoint(script=script, module=module, attribute=attribute)

    def _require_wheel_version(self) -> None:
        fields = HeaderParser().parsestr(self._read_required_file("WHEEL").decode("utf-8", "replace"))
        version = fields.get("Wheel-Version", "")
        if version.partition(".")[0] != "1":
            self._raise_broken_wheel(f"its Wheel-Version is {version!r}; only 1.x is known")

    def _read_required_file(self, file: str) -> bytes:
        path = f"{self.dist_info}/{file}"
        if path not in self._infos:
            self._raise_broken_wheel(f"it has no {file}")
        return self.read_member(path)

    def _raise_broken_wheel(self, why: str) -> NoReturn:
        raise broken_wheel_error(self.path, why)


def broken_wheel_error(path: Path, why: str) -> BrokenPackage:
    """Return the error for a wheel that cannot be used."""
    return BrokenPackage(f"the wheel {path.name} cannot be turned into a package", why=why)


@contextmanager
def open_wheel(path: Path) -> Iterator[Wheel]:
    """Open a wheel; raises BrokenPackage, then or during reads, when the wheel is invalid or harmful."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield Wheel(path, archive)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError, EOFError) as error:
        raise broken_wheel_error(path, f"it is damaged: {error}") from error


def license_files(wheel: Wheel) -> Mapping[str, str]:
    """Return the license texts of a wheel: each one's name below ``info/licenses``, and its member."""
    inside = {member.path.removeprefix(f"{wheel.dist_info}/"): member.path for member in wheel.members}
    named = {"licen", "copying", "notice", "authors"}
    return {
        path.removeprefix("licenses/"): member
        for path, member in inside.items()
        if member != path and (path.startswith("licenses/") or any(path.lower().startswith(word) for word in named))
    }
