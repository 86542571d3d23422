"""The external repositories that a source declares for Bazel, found and read within limits."""

from __future__ import annotations

import ast
import base64
import json
import os
import posixpath
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.base.system.files import open_regular_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.conda.provenance.records import ExternalRepository


LARGEST_FILE = 1 << 18  # bytes; the largest of TensorFlow has 49 KB
LARGEST_LOCK = 1 << 24
LARGEST_ALL = 1 << 20  # bytes of all files other than lock files
MOST_FILES = 500
LONGEST_TEXT = 1000  # characters of a name, a version or an address
LOCK = "MODULE.bazel.lock"
_FILES = re.compile(r"(?:.*/)?(?:MODULE\.bazel(?:\.lock)?|WORKSPACE(?:\.bazel|\.bzlmod)?|workspace\d?\.bzl)")
MOST_ENTRIES = 500_000  # of all folders; TensorFlow's sources have 40,000
DEEPEST = 10  # TensorFlow's deepest file is in third_party/xla/third_party/tsl/third_party/py/ml_dtypes
LARGEST_LOCKS = 2 * LARGEST_LOCK  # bytes of all lock files
_OUTPUT_BASE = "execroot"  # a folder in Bazel's output base, which has the sources of other projects
_LEFT_OUT = frozenset({".git", ".hg", ".svn", "node_modules"})


def is_declaration_file_path(path: str) -> bool:
    """Return whether a path of a source is that of a file that can declare external repositories."""
    return len(path) <= LONGEST_TEXT and _FILES.fullmatch(path) is not None


def read_declaring_files(folder: Path) -> dict[str, bytes]:
    """Return the files that can declare external repositories, by their paths below a folder, the nearest first."""
    files: dict[str, bytes] = {}
    left = {True: LARGEST_LOCKS, False: LARGEST_ALL}
    for path in _declaring_paths(folder):
        is_lock = posixpath.basename(path) == LOCK
        largest = LARGEST_LOCK if is_lock else LARGEST_FILE
        data = _bounded_content(folder, path, min(largest, left[is_lock]))
        if data is not None:
            left[is_lock] -= len(data)
            files[path] = data
    return files


def _declaring_paths(folder: Path) -> list[str]:
    """Return the paths of files that can declare repositories, the nearest folders first, then by name."""
    paths: list[str] = []
    level, entries_left = [""], MOST_ENTRIES
    for _ in range(DEEPEST):
        below = []
        for place in level:
            entries, entries_left = _bounded_folder_entries(folder / place, entries_left)
            names = {entry.name for entry in entries}
            if _OUTPUT_BASE in names:
                continue
            for entry in sorted(entries, key=lambda entry: entry.name):
                path = posixpath.join(place, entry.name)
                if entry.is_dir(follow_symlinks=False):
                    below += [path] if entry.name not in _LEFT_OUT else []
                elif entry.is_file(follow_symlinks=False) and is_declaration_file_path(path):
                    paths.append(path)
            if len(paths) > MOST_FILES or entries_left <= 0:
                return paths[:MOST_FILES]
        level = below
    return paths


def _bounded_folder_entries(folder: Path, most: int) -> tuple[list[os.DirEntry[str]], int]:
    """Return the entries of a folder, at most as many as are left, and how many are left then."""
    entries: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as scan:
            for entry in scan:
                if len(entries) >= most:
                    break
                entries.append(entry)
    except OSError:  # not readable, or removed meanwhile
        pass
    return entries, most - len(entries)


def _bounded_content(folder: Path, path: str, largest: int) -> bytes | None:
    """Return the content of a regular file, None for one that is larger or cannot be read."""
    try:
        with os.fdopen(open_regular_file(folder / path), "rb") as file:
            data = file.read(largest + 1)
    except (OSError, ValueError):
        return None
    return data if len(data) <= largest else None


MOST_REPOSITORIES = 5000
_SELECTED = re.compile(r"(https?://[^?#]+?)/modules/([\w.+-]+)/([\w.+-]+)/source\.json")
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_NAME = re.compile(r"[A-Za-z0-9][\w.+~-]*")
_ADDRESS = re.compile(r"https?://[A-Za-z0-9._-]+(?::\d+)?/[A-Za-z0-9._~!$&'()*+,;=:/%-]+")  # no password, no query
_OVERRIDES = frozenset({"archive_override", "git_override"})
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MIRRORS = ("storage.googleapis.com", "mirror.bazel.build", "mirror.tensorflow.org")
CENTRAL_REGISTRY = "https://bcr.bazel.build"


def external_repositories(files: Mapping[str, bytes]) -> tuple[ExternalRepository, ...]:
    """Return what the files of a source declare, given by their paths: of each name the first, from the top folder on.

    A lock file's modules replace those of other files.

    Call it under the limits of `kiln.base.limits`. Files that are too large or not readable declare nothing.
    """
    from kiln.conda.provenance.records import ExternalRepository

    locked: dict[str, ExternalRepository] = {}
    declared: dict[str, ExternalRepository] = {}
    aliases: dict[str, str] = {}
    remaining = LARGEST_ALL
    for path in sorted(filter(is_declaration_file_path, files), key=lambda path: (path.count("/"), path))[:MOST_FILES]:
        if posixpath.basename(path) == LOCK:
            for module in _locked_modules(files[path]):
                locked.setdefault(module.name, module)
            continue
        remaining -= len(files[path])
        for repository in _declared_repositories(files[path]) if remaining >= 0 else ():
            aliases.setdefault(repository.name, repository.alias)
            declared.setdefault(repository.name, repository)
    modules = [
        ExternalRepository(
            name=item.name, alias=aliases.get(item.name, ""), version=item.version, registry=item.registry
        )
        for item in locked.values()
    ]
    others = [item for item in declared.values() if item.name not in locked]
    return tuple([*modules, *others][:MOST_REPOSITORIES])


def _locked_modules(data: bytes) -> Iterator[ExternalRepository]:
    """Yield the modules of a lock file that Bazel selected: it reads ``source.json`` of no others."""
    from kiln.conda.provenance.records import ExternalRepository

    try:
        value = json.loads(data) if len(data) <= LARGEST_LOCK else None
    except (ValueError, RecursionError):
        return
    hashes = value.get("registryFileHashes") if isinstance(value, dict) else None
    for address in hashes if isinstance(hashes, dict) else ():
        if len(address) <= LONGEST_TEXT and (match := _SELECTED.fullmatch(address)):
            yield ExternalRepository(name=match[2], version=match[3], registry=match[1])


def _declared_repositories(data: bytes) -> list[ExternalRepository]:
    """Return the repositories that calls of a file in Starlark declare; its syntax is a part of Python's."""
    if len(data) > LARGEST_FILE:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            calls = list(_starlark_calls(ast.parse(data)))
        return [*_declared_archives(calls), *_declared_modules(calls)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two for code that is nested too deeply
        return []


def _declared_archives(calls: Iterable[_StarlarkCall]) -> Iterator[ExternalRepository]:
    from kiln.conda.provenance.records import ExternalRepository

    for call in calls:
        if call.fields.keys() & {"url", "urls", "remote"} and call.rule not in _OVERRIDES:
            archive = call.archive_fields()
            name = call.argument_text("name") or _repository_name_of_url(archive.get("url", ""))
            if _NAME.fullmatch(name) and archive.get("url"):
                yield ExternalRepository(name=name, **archive)


def _declared_modules(calls: Iterable[_StarlarkCall]) -> Iterator[ExternalRepository]:
    from kiln.conda.provenance.records import ExternalRepository

    modules: dict[str, dict[str, str]] = {}
    overrides: dict[str, dict[str, str]] = {}
    for call in calls:
        if call.rule == "bazel_dep":
            modules[call.argument_text("name")] = {
                "version": call.argument_text("version"),
                "alias": call.argument_text("repo_name"),
            }
        elif call.rule == "single_version_override" and call.argument_text("version"):
            overrides[call.argument_text("module_name")] = {"version": call.argument_text("version")}
        elif call.rule in _OVERRIDES:
            overrides[call.argument_text("module_name")] = call.archive_fields()
    for name, texts in modules.items():
        fields = {**texts, **overrides.get(name, {})}
        registry = {} if fields.get("url") else {"registry": CENTRAL_REGISTRY}
        if _NAME.fullmatch(name) and (fields["version"] or fields.get("url")):
            yield ExternalRepository(name=name, **fields, **registry)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StarlarkCall:
    """A call with its keyword arguments, and the texts that are assigned to names where it is."""

    rule: str
    fields: Mapping[str, ast.expr]
    names: Mapping[str, str]

    def argument_text(self, key: str) -> str:
        """Return the text of an argument."""
        return _literal_text(self.fields.get(key), self.names)

    def archive_fields(self) -> dict[str, str]:
        """Return address, hash and revision of an archive or a Git repository."""
        texts = [text for key in ("url", "urls", "remote") for text in _literal_texts(self.fields.get(key), self.names)]
        remote = [text for text in texts if _ADDRESS.fullmatch(text)]
        own = [text for text in remote if urlsplit(text).hostname not in _MIRRORS]
        revision = self.argument_text("commit") or self.argument_text("tag")
        sha256 = self.argument_text("sha256") or _sha256_of_integrity(self.argument_text("integrity"))
        return {
            **({"url": (own or remote)[0]} if remote else {}),
            **({"sha256": sha256} if _SHA256.fullmatch(sha256) else {}),
            **({"version": revision} if revision else {}),
        }


def _starlark_calls(tree: ast.AST) -> Iterator[_StarlarkCall]:
    """Yield the calls of a file, with the texts that are assigned to names in the same scope."""
    pending: list[tuple[ast.AST, dict[str, str]]] = [(tree, {})]
    while pending:
        scope, outer = pending.pop()
        names, calls, nodes = dict(outer), [], list(ast.iter_child_nodes(scope))[::-1]
        while nodes:
            node = nodes.pop()
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                pending.append((node, names))
                continue
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                names[node.targets[0].id] = _literal_text(node.value, names)
            if isinstance(node, ast.Call):
                calls.append(node)
            nodes.extend(list(ast.iter_child_nodes(node))[::-1])
        for call in calls:
            rule = call.func.id if isinstance(call.func, ast.Name) else ""
            yield _StarlarkCall(
                rule=rule, fields={item.arg: item.value for item in call.keywords if item.arg}, names=names
            )


def _sha256_of_integrity(integrity: str) -> str:
    """Return the hash in a text of Subresource Integrity, ``sha256-BASE64``, in hexadecimal; empty for others."""
    kind, _, digest = integrity.partition("-")
    try:
        return base64.b64decode(digest, validate=True).hex() if kind == "sha256" else ""
    except ValueError:
        return ""


def is_valid_repository(repository: ExternalRepository) -> bool:
    """Return whether a repository is one that this module returns; what a build reports may be forged."""
    texts = (repository.version, repository.alias)
    return (
        len(repository.name) <= LONGEST_TEXT
        and _NAME.fullmatch(repository.name) is not None
        and all(len(text) <= LONGEST_TEXT and text.isprintable() for text in texts)
        and (not repository.sha256 or _SHA256.fullmatch(repository.sha256) is not None)
        and all(
            not url or (len(url) <= LONGEST_TEXT and _ADDRESS.fullmatch(f"{url}{end}") is not None)
            for url, end in ((repository.url, ""), (repository.registry, "/-"))
        )
    )


def _repository_name_of_url(url: str) -> str:
    """Return the repository's name in an address of a Git host, for a call whose name is not known."""
    parts = urlsplit(url).path.split("/")
    return parts[2].removesuffix(".git") if len(parts) > 2 else ""


def _literal_texts(node: Any, names: Mapping[str, str]) -> list[str]:
    """Return the texts of a list, of a function's arguments, or of one text."""
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Call(func=ast.Name(), args=items):
            texts = [text for item in items[:20] for text in _literal_texts(item, names)]
        case _:
            texts = [_literal_text(node, names)]
    return [text for text in texts if text][:20]


def _literal_text(node: Any, names: Mapping[str, str]) -> str:
    """Return the value of an expression that is a text, formatted or not; empty when it is not known."""
    text = ""
    match node:
        case ast.Constant(value=str(text)):
            pass
        case ast.Name(id=name):
            text = names.get(name, "")
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            first, second = _literal_text(left, names), _literal_text(right, names)
            text = first + second if first and second else ""
        case ast.BinOp(op=ast.Mod(), left=left, right=right):
            text = _percent_formatted_text(
                _literal_text(left, names), right.elts if isinstance(right, ast.Tuple) else [right], names
            )
        case ast.Call(func=ast.Attribute(value=value, attr="format"), args=args, keywords=keywords):
            given = {item.arg: _literal_text(item.value, names) for item in keywords if item.arg}
            given |= {str(number): _literal_text(item, names) for number, item in enumerate(args)}
            given[""] = given.get("0", "") if len(args) == 1 else ""
            pattern = _literal_text(value, names)
            known = all(given.get(name) for name in _PLACEHOLDER.findall(pattern))
            text = _PLACEHOLDER.sub(lambda match: given[match[1]], pattern) if known else ""
    return text if len(text) <= LONGEST_TEXT and text.isprintable() else ""


def _percent_formatted_text(pattern: str, items: list[ast.expr], names: Mapping[str, str]) -> str:
    parts, values = pattern.split("%s"), [_literal_text(item, names) for item in items]
    if len(parts) != len(values) + 1 or not all(values) or "%" in "".join(parts):
        return ""
    return parts[0] + "".join(value + part for value, part in zip(values, parts[1:], strict=True))
