"""The metadata that conda-build writes and rattler-build does not, or writes differently."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kiln.base.errors import BuildFailed
from kiln.base.serialization import iso_timestamp, mapping_or_empty
from kiln.base.zstd import FAST
from kiln.build.engine import dependencies, info_files
from kiln.build.engine.dependencies import simplified_depends
from kiln.conda import package_reader, package_writer
from kiln.conda.package_reader import InfoFile
from kiln.conda.specs import conda_build_spec
from kiln.recipe.rendered import hash_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.recipe.rendered import Output, Pin


_PREFIX = ("file_mode", "prefix_placeholder")


def corrected_paths_json(
    paths: Mapping[str, Any], no_link: Iterable[str], prefix_files: Mapping[str, Iterable[str]]
) -> dict[str, Any]:
    """Return paths.json with the files that are never linked, and without a prefix in files where it is not replaced.

    ``no_link`` are globs; ``prefix_files`` are globs of the only files of a mode, ``text`` or ``binary``, in which the
    prefix is replaced (record_prefix_files in conda_build/build.py).
    """
    unlinked, only = tuple(no_link), {mode: tuple(globs) for mode, globs in prefix_files.items()}
    entries = [dict(entry) for entry in paths.get("paths", ())]
    for mode, globs in only.items():
        _require_files_with_prefix(entries, mode, globs)
    for entry in entries:
        if _matches_any_glob(entry["_path"], unlinked):
            entry["no_link"] = True
        listed = only.get(entry.get("file_mode", ""))
        if listed is not None and not _matches_any_glob(entry["_path"], listed):
            for key in _PREFIX:
                entry.pop(key, None)
    return {**paths, "paths": entries}


def path_entry(path: str, data: bytes) -> dict[str, Any]:
    """Return the entry of a file in paths.json."""
    digest = hashlib.sha256(data).hexdigest()
    return {"_path": path, "path_type": "hardlink", "sha256": digest, "size_in_bytes": len(data)}


def _require_files_with_prefix(entries: Iterable[Mapping[str, Any]], mode: str, globs: Iterable[str]) -> None:
    with_prefix = [entry["_path"] for entry in entries if entry.get("file_mode") == mode]
    for glob in globs:
        if not any(fnmatch.fnmatchcase(path, glob) for path in with_prefix):
            key = "has_prefix_files" if mode == "text" else "binary_has_prefix_files"
            raise BuildFailed(
                f"build/{key} names {glob}, and no such file of the package has the prefix",
                hint="correct the name, or leave the list out: files with the prefix are found without it",
            )


def legacy_file_lists(paths: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the lists of files that clients read before paths.json, by their names below ``info/``."""
    entries = sorted(paths.get("paths", ()), key=lambda entry: str(entry["_path"]))
    with_prefix = [entry for entry in entries if entry.get("prefix_placeholder")]
    lists = {
        "files": [entry["_path"] for entry in entries],
        "has_prefix": [f"{entry['prefix_placeholder']} {entry['file_mode']} {entry['_path']}" for entry in with_prefix],
        "no_link": [entry["_path"] for entry in entries if entry.get("no_link")],
    }
    return {
        name: "".join(f"{line}\n" for line in lines).encode()
        for name, lines in lists.items()
        if lines or name == "files"
    }


def _matches_any_glob(path: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, glob) for glob in globs)


# The keys of ``about`` that are lists in about.json, whatever the recipe has, by FIELDS in conda_build/metadata.py.
LISTS = ("identifiers", "keywords", "tags")
# Facts about a build, which a recipe cannot state: its commit, its repository and the run of its CI.
_OF_THE_BUILD = frozenset({"flow_run_id", "remote_url", "sha"})
_NOT_METADATA = ("recipe_log_file",)  # conda-build has no such field, and reads it nevertheless


def about_and_hash_edits(output: Output) -> dict[str, Any]:
    """Return what a package's metadata needs besides the engine's.

    ``about`` and ``extra`` are added to about.json, without what a recipe says of its own build; ``hash_input`` are the
    values whose hash the build string has,
    ``no_link`` are globs of files that are never linked, and
    ``without_recipe`` is true when the package must not contain its recipe.
    """
    setting = {} if output.settings.by_engine else output.about
    about = {key: value for key, value in setting.items() if value and key not in _NOT_METADATA}
    edits = {
        "about": {key: _about_json_value(key, value) for key, value in about.items()},
        "extra": {key: value for key, value in output.extra.items() if key not in _OF_THE_BUILD},
        "no_link": list(output.settings.no_link),
        "without_recipe": not output.settings.include_recipe,
    }
    used = dict(output.used)
    if output.settings.by_engine:
        used = {hash_key(key): used[key] for key in used}
    return {"hash_input": used, **{key: value for key, value in edits.items() if value}}


def recipe_and_test_edits(output: Output, recipe_folder: Path, *, sources: Path, about: Path) -> dict[str, Any]:
    """Return the changes that give a package its recipe and its tests, in conda-build's layout.

    ``files`` are the planned files of ``info``, ``sections`` those of the rendered recipe; ``link`` is the content of
    link.json, and ``prefix_files`` the globs of the only files in which the prefix is replaced. ``sources`` is the
    folder of the source files that tests use, ``about`` that of the files that ``about`` names. Packages of a
    recipe.yaml keep the engine's layout, with the recipe as it is in the feedstock.
    """
    if output.settings.by_engine:
        return {"files": info_files.recipe_yaml_file_entries(output, recipe_folder)}
    recipe = info_files.recipe_file_entries(output, recipe_folder) if output.settings.include_recipe else []
    edits = {
        "files": [
            *recipe,
            {"to": ".", "tree": str(about), "patterns": ["*"]},  # see `readme_and_messages_in_info`
            *info_files.test_file_entries(output, recipe_folder, sources),
        ],
        "link": {"noarch": {"type": output.noarch}, "package_metadata_version": 1}
        if output.noarch == "generic"
        else {},
        "prefix_files": _prefix_replacement_globs(output),
    }
    return {
        "sections": info_files.evaluated_recipe_sections(output),
        **{key: value for key, value in edits.items() if value},
    }


def _prefix_replacement_globs(output: Output) -> dict[str, list[str]]:
    """Return the globs of the only text files, and of the only binaries, in which the prefix is replaced.

    As in conda-build, a list of binaries ends the detection of others, unless the recipe asks for it.
    """
    prefix = output.settings.prefix
    detected = output.sections.get("build", {}).get("detect_binary_files_with_prefix") is not None
    binary = () if detected and output.detect_binary_files_with_prefix else prefix.binary
    lists = {"text": prefix.text, "binary": binary}
    return {mode: list(globs) for mode, globs in lists.items() if globs}


def _about_json_value(key: str, value: str | tuple[str, ...]) -> str | list[str]:
    if isinstance(value, str):
        return [value] if key in LISTS else value
    return list(value)


ENGINE = "rattler_build_version"  # the key in about.json
# Entries with the kernel and the processor of the build machine, which make no difference to the package's files.
_MACHINE = re.compile(rb"^ *- __(?:linux|archspec)=.*\n", re.MULTILINE)
# The feedstock's folder, by that of the build; and the folder that has its place in conda-forge's containers.
_FEEDSTOCK = re.compile(rb"^ *build_dir: ['\"]?(/.+)/build_artifacts/", re.MULTILINE)
_FEEDSTOCK_INSIDE = b"/home/conda/feedstock_root"
_PLACEHOLDER = re.compile(rb"^( *host_prefix: )(/.*?/host_env)(?:_placehold)+\w*$", re.MULTILINE)
_PREFIX_LENGTH = 255  # bytes of the engine's host prefix, whatever its folder
_TIMESTAMP = re.compile(rb"^( *timestamp: ).*$", re.MULTILINE)
_ENGINE = re.compile(rb"^  rattler-build: (\S+)$", re.MULTILINE)
# The folders in which the engine packs a recipe and its tests, where conda-build has its own.
_ENGINES_OWN = ("recipe/", "tests/")


def rewrite_package_metadata(
    package: Path,
    target: Path,
    *,
    index: Mapping[str, Any],
    edits: Mapping[str, Any] | None = None,
    pins: tuple[tuple[str, Pin], ...] = (),
    epoch: int | None = None,
    level: int = FAST,
) -> None:
    """Write ``package`` to ``target`` with ``index`` merged into its index.json and specs in conda-build's form.

    ``edits`` are those of `kiln.build.engine.metadata`. ``pins``, by field of the output, get the
    bounds of the versions that the engine has solved. ``epoch`` is the timestamp to record, in
    seconds; without it, the engine's own clock stays. The same build on another machine with the same timestamp gives
    the same bytes. ``level`` is zstd's, for a package that gets a timestamp.
    """
    old = package_reader.read_info_files(package)
    new = MetadataRewriter(old=old, fields=index, edits=edits or {}, pins=pins, epoch=epoch).rewritten_info_files()
    added = {name: file for name, file in new.items() if name not in old}

    def replacement_content(name: str, _: bytes) -> bytes | None:
        return new[name].data if name in new else None

    package_writer.rewrite_info(package, target, replacement_content, added=added, mtime=epoch, level=level)


@dataclass(frozen=True, kw_only=True)
class MetadataRewriter:
    """Rewrites a package's metadata: ``old`` are the engine's files, the others those of `rewrite_package_metadata`."""

    old: Mapping[str, bytes]
    fields: Mapping[str, Any]
    edits: Mapping[str, Any]
    pins: tuple[tuple[str, Pin], ...]
    epoch: int | None

    def rewritten_info_files(self) -> dict[str, InfoFile]:
        """Return the files of ``info`` by their names; those of the engine without a counterpart are left out."""
        conda_builds = "sections" in self.edits
        left_out = _ENGINES_OWN if conda_builds else ("recipe/",) if self.edits.get("without_recipe") else ()
        result = {name: InfoFile(data=data) for name, data in self.old.items() if not name.startswith(left_out)}
        for name, data in self._edited_engine_files().items():
            if name in result:
                result[name] = InfoFile(data=data)
        result |= info_files.collect_info_files(self.edits.get("files", ()))
        if conda_builds:
            result |= {name: InfoFile(data=data) for name, data in self._conda_build_layout_files().items()}
        return result

    def _edited_engine_files(self) -> dict[str, bytes]:
        edits, old = self.edits, self.old
        changes = {
            "about.json": _json_bytes(self._about_json()),
            "index.json": _json_bytes(self._index_json),
            "run_exports.json": _json_bytes(self._run_exports_json),
        }
        if "hash_input" in edits:
            changes["hash_input.json"] = _json_bytes(edits["hash_input"])
        if "paths.json" in old:
            changes["paths.json"] = _json_bytes(self._paths_json)
        if dependencies.RENDERED in old:
            changes[dependencies.RENDERED] = _recipe_without_machine_facts(old[dependencies.RENDERED], self.epoch)
        return changes

    def _conda_build_layout_files(self) -> dict[str, bytes]:
        """Return the files of conda-build's layout that follow from those of the engine."""
        edits = self.edits
        files = legacy_file_lists(self._paths_json)
        if not edits.get("without_recipe"):
            text = info_files.rendered_meta_yaml(
                edits["sections"],
                resolved=self._solved_packages,
                index=self._index_json,
                run_exports=self._run_exports_json,
            )
            files[f"recipe/{info_files.META}"] = text.encode()
        return {**files, **({"link.json": _json_bytes(edits["link"])} if "link" in edits else {})}

    @cached_property
    def _solved_packages(self) -> dict[str, list[tuple[str, str, str]]]:
        return dependencies.packages_in_rendered_recipe(self.old.get(dependencies.RENDERED, b""))

    def _specs_with_solved_pins(self, field: str, texts: Iterable[str]) -> list[str]:
        own = [pin for name, pin in self.pins if name == field]
        solved = dependencies.pinnable_packages(self._solved_packages) if own else {}
        return dependencies.replace_pin_placeholders([conda_build_spec(text) for text in texts], own, solved)

    @cached_property
    def _index_json(self) -> dict[str, Any]:
        timestamp = {} if self.epoch is None else {"timestamp": 1000 * self.epoch}
        fields = self._parsed_engine_json("index.json") | dict(self.fields) | timestamp
        fields |= {
            key: self._specs_with_solved_pins(field, fields.get(key, []))
            for field, key in dependencies.SECTIONS.items()
        }
        return _index_json_as_conda_build(fields) if "sections" in self.edits else fields

    @cached_property
    def _run_exports_json(self) -> dict[str, list[str]]:
        exports = self._parsed_engine_json("run_exports.json")
        return {kind: self._specs_with_solved_pins(f"run_exports/{kind}", texts) for kind, texts in exports.items()}

    @cached_property
    def _paths_json(self) -> dict[str, Any]:
        paths = self._parsed_engine_json("paths.json")
        if "sections" in self.edits:  # conda-build installs what a script puts into the prefix's folder info
            named = (name for name in self.edits.get("installed_info", ()) if name in self.old)
            paths |= {
                "paths": [*paths.get("paths", ()), *(path_entry(f"info/{name}", self.old[name]) for name in named)]
            }
        return corrected_paths_json(paths, self.edits.get("no_link", ()), self.edits.get("prefix_files", {}))

    def _about_json(self) -> dict[str, Any]:
        """Return about.json with the recipe's own values; the engine's ``extra`` counts before the recipe's.

        Channels in folders are left out: they name places on the machine that built the package.
        """
        about = self._parsed_engine_json("about.json")
        extra = {**self.edits.get("extra", {}), **about.get("extra", {})}
        channels = [url.rstrip("/") for url in about.get("channels", ()) if not url.startswith(info_files.LOCAL)]
        lists: dict[str, list[str]] = {key: [] for key in LISTS} if "sections" in self.edits else {}
        engine = _ENGINE.search(self.old.get(dependencies.RENDERED, b""))
        return {
            **lists,
            **about,
            **({"channels": channels} if "channels" in about else {}),
            **({ENGINE: engine[1].decode()} if engine else {}),
            **self.edits.get("about", {}),
            **({"extra": extra} if extra else {}),
        }

    def _parsed_engine_json(self, name: str) -> dict[str, Any]:
        return mapping_or_empty(json.loads(self.old.get(name, b"{}")))


def _index_json_as_conda_build(index: Mapping[str, Any]) -> dict[str, Any]:
    """Return an index.json with sorted requirements, as conda-build's; a package for all platforms names none."""
    fields = {**index, **{key: sorted(index[key]) for key in dependencies.SECTIONS.values() if key in index}}
    fields["depends"] = simplified_depends(fields.get("depends", ()))
    if not fields.get("constrains"):
        fields.pop("constrains", None)
    return {"arch": None, "platform": None, **fields} if fields.get("subdir") == "noarch" else fields


def _recipe_without_machine_facts(data: bytes, epoch: int | None) -> bytes:
    """Return the engine's rendered recipe without what it says of the machine: kernel, folders, and time."""
    recipe = _MACHINE.sub(b"", data)
    if feedstock := _FEEDSTOCK.search(recipe):
        folder = re.compile(rb"(?<![\w.-])" + re.escape(feedstock[1]) + rb"(?=/)")
        recipe = folder.sub(_FEEDSTOCK_INSIDE, recipe)
        recipe = _PLACEHOLDER.sub(lambda line: line[1] + _prefix_with_placeholder(line[2]), recipe)
    if epoch is None:
        return recipe
    return _TIMESTAMP.sub(rb"\g<1>" + iso_timestamp(epoch).encode(), recipe)


def _prefix_with_placeholder(prefix: bytes) -> bytes:
    """Return a prefix with the placeholder that the engine appends in this folder."""
    return prefix + (b"_placehold" * _PREFIX_LENGTH)[: max(0, _PREFIX_LENGTH - len(prefix))]


def _json_bytes(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
