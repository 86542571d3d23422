"""Results that a script may have forged or filled with secrets: checked before they count."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import stat
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, get_args, get_origin

from kiln.base import errors
from kiln.base import files as base_files
from kiln.base.errors import BuildFailed, KilnError, SecretInPackage
from kiln.base.masked_stream import CHUNK, SecretSearch, secret_variables
from kiln.base.serialization import type_hints
from kiln.base.system import files as system_files
from kiln.base.text import first_of
from kiln.conda import package_reader
from kiln.state.ledger.json_columns import KINDS
from kiln.state.results import PackageReport, Progress, StepReport, TestReport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


SHOWN = 5  # files in a message


def require_no_secrets(package: Path, variables: Mapping[str, str]) -> None:
    """Search every file of a package for the values of variables, in each form in which they may be written.

    Raises:
        SecretInPackage: with variables and files, without values.
    """
    search = SecretSearch.for_secrets(secret_variables(variables))
    if not search.masks:
        return
    files_by_variable: dict[str, list[str]] = {}
    with package_reader.open_package_members(package) as members:
        for member, content in members:
            if content is not None:
                for name in search.names_of_secrets_in(base_files.read_chunks(content, CHUNK)):
                    files_by_variable.setdefault(name, []).append(member.name)
    if files_by_variable:
        raise _leaked_secret_error(package, files_by_variable)


def _leaked_secret_error(package: Path, files_by_variable: Mapping[str, list[str]]) -> SecretInPackage:
    places = "; ".join(f"{name} in {first_of(files, SHOWN)}" for name, files in sorted(files_by_variable.items()))
    return SecretInPackage(
        f"{package.name} contains the value of {places}",
        why="the caller passed it to the package's script, and everyone who installs the package could read it",
        hint="keep it out of the installed files; write a value that is not secret into the recipe",
    )


LARGEST_RESULT = 1 << 26  # bytes
LARGEST_NUMBER = 1e15
_BENEATH = os.O_RDONLY | system_files.NO_LINK


def is_printable_number(value: object) -> bool:
    """Return whether a value is a printable number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


def is_error_name(value: object) -> bool:
    """Return whether a value names one of kiln's errors."""
    kind = getattr(errors, value, None) if isinstance(value, str) else None
    return isinstance(kind, type) and issubclass(kind, KilnError) and kind is not KilnError


# Shapes of JSON values: a type, a function of a value, a list of one shape, a tuple of alternatives, or a mapping by
# its keys.
NULL = type(None)
SCALARS = {str: str, Path: str, bool: bool, int: is_printable_number, float: is_printable_number, NULL: NULL}


def json_shape_of_type(kind: Any) -> Any:
    """Return the shape of the JSON values of a type; a record's have all of its fields."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = type_hints(kind, KINDS)
        return {field.name: json_shape_of_type(hints[field.name]) for field in dataclasses.fields(kind)}
    if get_origin(kind) is tuple:
        return [json_shape_of_type(get_args(kind)[0])]
    if alternatives := get_args(kind):
        return tuple(map(json_shape_of_type, alternatives))
    if issubclass(kind, Enum):
        return [item.value for item in kind].__contains__
    return SCALARS[kind]


STEP = json_shape_of_type(StepReport)
TESTS = {**json_shape_of_type(TestReport), "log": NULL}  # the log is written outside of the build
PACKAGE = {**json_shape_of_type(PackageReport), "tests": TESTS}
ERROR = {"type": is_error_name, "what": str, "why": str, "hint": str}
MESSAGES = {
    "step": {"kind": str, "title": str},
    "expected": {"kind": str, "steps": is_printable_number},
    "done": {"kind": str, **STEP},
    "progress": {"kind": str, **json_shape_of_type(Progress)},
}
BUILT = {
    "packages": [PACKAGE],
    "steps": [STEP],
    "outdated": bool,
    "error": (ERROR, {**ERROR, "step": str}, NULL),
}
PLACES = dict.fromkeys(("work", "script", "environment", "host", "build", "name", "sources"), str)
RESULT = (BUILT, {**BUILT, "debug": PLACES})


def conforms_to_shape(value: object, shape: Any) -> bool:
    """Return whether a JSON value has a shape."""
    if isinstance(shape, tuple):
        return any(conforms_to_shape(value, alternative) for alternative in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(conforms_to_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        same = isinstance(value, dict) and value.keys() == shape.keys()
        return same and all(conforms_to_shape(value[key], item_shape) for key, item_shape in shape.items())  # type: ignore[index]
    return isinstance(value, shape) if isinstance(shape, type) else bool(shape(value))


def is_valid_message(message: Mapping[str, Any]) -> bool:
    """Return whether a message is valid for a build process, and not reserved for the config's process."""
    return isinstance(message["kind"], str) and conforms_to_shape(message, MESSAGES.get(message["kind"], ()))


def open_file_beneath(folder: Path, path: str) -> IO[bytes]:
    """Open a regular file below a folder for reading; no link in its path is followed."""
    try:
        descriptor = _open_without_links(folder, PurePosixPath(path))
    except OSError as error:
        raise BuildFailed(f"file not found in {folder}: {path!r}", why=error.strerror or "") from error
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise BuildFailed(f"the build left {path!r} in {folder}, which is not a regular file")


def _open_without_links(folder: Path, path: PurePosixPath) -> int:
    if path.is_absolute() or not path.parts or ".." in path.parts:
        raise OSError(errno.EINVAL, "not a path inside the folder")
    *parents, name = path.parts
    with contextlib.ExitStack() as stack:
        place = os.open(folder, _BENEATH | system_files.FOLDER)
        stack.callback(os.close, place)
        for parent in parents:
            place = os.open(parent, _BENEATH | system_files.FOLDER, dir_fd=place)
            stack.callback(os.close, place)
        return os.open(name, _BENEATH, dir_fd=place)


def read_build_result(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the result of the build process; None when it wrote none.

    Raises:
        BuildFailed: when it does not have the shape of a result.
    """
    if not os.path.lexists(folder / name):
        return None
    with open_file_beneath(folder, name) as file:
        data = file.read(LARGEST_RESULT)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not conforms_to_shape(value, RESULT):
        raise BuildFailed(
            f"invalid result of the build: {folder / name}",
            hint="a script of the recipe must have written it; read the recipe before it is built again",
        )
    document: dict[str, Any] = value
    return document


def accept_built_packages(
    reports: Sequence[Mapping[str, Any]], folder: Path, *, expected: Callable[[str], bool], into: Path | None
) -> list[tuple[Path, dict[str, Any]]]:
    """Return the packages of a build, with their reports: copied ``into`` a folder, or in place.

    Their names (``SUBDIR/FILE``) are ``expected`` and match their metadata, and their hashes are the reported ones.

    Raises:
        BuildFailed: when one is not.
        BrokenPackage: when one cannot be read.
        DiskFull: when the disk has no space for the copies.
    """
    if into is not None:
        base_files.remove(into)
    return [(_accept_package(report["artifact"], folder, expected, into), dict(report)) for report in reports]


def _accept_package(
    artifact: Mapping[str, Any], folder: Path, expected: Callable[[str], bool], into: Path | None
) -> Path:
    path = artifact["path"]
    place = f"{artifact['subdir']}/{PurePosixPath(path).name}"
    if ".." in PurePosixPath(place).parts or not expected(place):
        raise BuildFailed(f"the build left {place}, which is not a package of this recipe")
    file = folder / path if into is None else into / place
    with open_file_beneath(folder, path) as source:
        sha256 = _copy_and_hash(source, None if into is None else file)
    if sha256 != artifact["sha256"]:
        raise BuildFailed(f"{place} is not the package that was built and tested", why="its hash is another")
    if file.suffix == ".conda":
        _require_matching_metadata(file)
    return file


def _copy_and_hash(source: IO[bytes], target: Path | None) -> str:
    """Copy a file while it is read, where there is a target, and return its hash."""
    if target is None:
        return base_files.open_file_sha256(source)
    digest = hashlib.sha256()
    with base_files.full_disk_as_kiln_error(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as sink:
            for chunk in base_files.read_chunks(source):
                digest.update(chunk)
                sink.write(chunk)
    return digest.hexdigest()


def _require_matching_metadata(package: Path) -> None:
    """Refuse a package whose metadata names another file than its own."""
    index = package_reader.read_info_json(package, "index.json")
    parts = [str(index.get(key)) for key in ("name", "version", "build")] if isinstance(index, dict) else []
    if f"{'-'.join(parts)}.conda" != package.name:
        raise BuildFailed(f"the metadata of {package.name} names {'-'.join(parts)}")
