"""The metadata and the files of a package, read once from beginning to end; it is untrusted and never unpacked."""

from __future__ import annotations

import itertools
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from kiln import files
from kiln.conda_package import reader
from kiln.errors import BrokenPackage
from kiln.masking.forms import complete_encoded_forms
from kiln.model.release_packages import ContentLeak, PackageContents
from kiln.package_safety.paths import duplicate_paths, is_in_conda_meta, resolve_links
from kiln.publish import build_path_leak_hints

if TYPE_CHECKING:
    import tarfile
    from collections.abc import Mapping, Sequence

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
        for row in files.csv_rows(Path(__file__).parent / "secrets.csv")
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
    """Return the metadata of a package, its files, and what is wrong with them.

    Raises:
        BrokenPackage: when it is not a package, or damaged.
    """
    listed = reader.read_info_json(package, "paths.json")
    names, prefixes = _listed_paths_and_placeholders(listed)
    sizes = {entry["_path"]: entry.get("size_in_bytes") for entry in listed.get("paths", ())}
    inspection = _PackageInspection(forbidden=forbidden, prefixes=prefixes, sizes=sizes)
    inspection.escapes += [path[: reader.LONGEST_PATH] for path in names if _is_outside_prefix(path)]
    inspection.escapes += [f"{path}, twice" for path in duplicate_paths(names, folds_case=False)]
    about = _read_about_json(package)
    with reader.open_package_members(package) as members:
        for member, content in members:
            if about["extra"].get(REHEARSAL) and not member.name.startswith("info"):
                break  # refused for that alone, and gigabytes large
            inspection.inspect_member(member, content)
    return PackageContents(
        sha256=files.sha256(package),
        size=package.stat().st_size,
        index=_read_index_json(package),
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
        if member_leads_out_of_prefix(member):
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
            hint = hint or build_path_leak_hints.build_path_leak_hint(name, chunk)
            text = rest + chunk
            installed = text.replace(placeholder, bytes(len(placeholder))) if placeholder else text
            for secret in self.forbidden:
                if is_metadata and secret.what == BUILD_PATH:
                    continue
                if secret.needle in installed and (offset := _forbidden_text_offset(secret, installed)) is not None:
                    path, cure = "", build_path_leak_hints.SECRET
                    if secret.what == BUILD_PATH:
                        path, cure = build_path_leak_hints.path_at_offset(installed, offset), hint
                    leak = ContentLeak(file=name, what=secret.what, offset=start + offset, text=path, cure=cure)
                    self.leaks.setdefault((name, secret.what), leak)
            start, rest = start + len(text), text[-max(OVERLAP, len(placeholder)) :]
            start -= len(rest)


def member_leads_out_of_prefix(member: tarfile.TarInfo) -> bool:
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
    return len(path) > reader.LONGEST_PATH or resolve_links(path, {}) is None or is_in_conda_meta(path)


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


def _read_index_json(package: Path) -> dict[str, Any]:
    index = reader.read_info_json_object(package, "index.json")
    for key in ("depends", "constrains"):
        specs = index.get(key, [])
        if not isinstance(specs, list) or not all(isinstance(spec, str) for spec in specs):
            raise BrokenPackage(f"{package} has an info/index.json whose {key} is not a list of specs")
    return index


def _read_about_json(package: Path) -> dict[str, Any]:
    about = reader.read_info_json_object(package, "about.json")
    if not isinstance(about.setdefault("extra", {}), dict):
        raise BrokenPackage(f"{package} has an info/about.json whose extra is not a JSON object")
    return about


def _listed_paths_and_placeholders(paths: Any) -> tuple[list[str], dict[str, bytes]]:
    """Return the paths that a package lists, which installers follow, and the placeholders of the files that have one.

    Raises:
        BrokenPackage: the list is invalid.
    """
    try:
        files = [(str(item["_path"]), item.get("prefix_placeholder")) for item in paths.get("paths", [])]
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenPackage("a package has an invalid paths.json", why=repr(error)) from error
    return [path for path, _ in files], {path: str(prefix).encode() for path, prefix in files if prefix}
