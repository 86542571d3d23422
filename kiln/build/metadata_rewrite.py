"""Give a package the metadata that conda-build writes and rattler-build does not, or writes differently."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kiln.build import collected_info_files, recipe_files_in_info, solved_pins
from kiln.build.depends_simplified import simplified_depends
from kiln.build.metadata_edit_plan import LISTS
from kiln.build.paths_json_edits import corrected_paths_json, legacy_file_lists, path_entry
from kiln.conda_package import reader, rewriter
from kiln.conda_package.reader import InfoFile
from kiln.matchspec_notation import conda_build_spec
from kiln.serialization import iso_timestamp, mapping_or_empty
from kiln.zstd import FAST

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.model.rendered import Pin

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

    ``edits`` are those of `kiln.build.metadata_edit_plan`. ``pins``, by field of the output, get the
    bounds of the versions that the engine has solved. ``epoch`` is the timestamp to record, in
    seconds; without it, the engine's own clock stays. The same build on another machine with the same timestamp gives
    the same bytes. ``level`` is zstd's, for a package that gets a timestamp.
    """
    old = reader.read_info_files(package)
    new = MetadataRewriter(old=old, fields=index, edits=edits or {}, pins=pins, epoch=epoch).rewritten_info_files()
    added = {name: file for name, file in new.items() if name not in old}

    def replacement_content(name: str, _: bytes) -> bytes | None:
        return new[name].data if name in new else None

    rewriter.rewrite_info(package, target, replacement_content, added=added, mtime=epoch, level=level)


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
        result |= collected_info_files.collect_info_files(self.edits.get("files", ()))
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
        if solved_pins.RENDERED in old:
            changes[solved_pins.RENDERED] = _recipe_without_machine_facts(old[solved_pins.RENDERED], self.epoch)
        return changes

    def _conda_build_layout_files(self) -> dict[str, bytes]:
        """Return the files of conda-build's layout that follow from those of the engine."""
        edits = self.edits
        files = legacy_file_lists(self._paths_json)
        if not edits.get("without_recipe"):
            text = recipe_files_in_info.rendered_meta_yaml(
                edits["sections"],
                resolved=self._solved_packages,
                index=self._index_json,
                run_exports=self._run_exports_json,
            )
            files[f"recipe/{recipe_files_in_info.META}"] = text.encode()
        return {**files, **({"link.json": _json_bytes(edits["link"])} if "link" in edits else {})}

    @cached_property
    def _solved_packages(self) -> dict[str, list[tuple[str, str, str]]]:
        return solved_pins.packages_in_rendered_recipe(self.old.get(solved_pins.RENDERED, b""))

    def _specs_with_solved_pins(self, field: str, texts: Iterable[str]) -> list[str]:
        own = [pin for name, pin in self.pins if name == field]
        solved = solved_pins.pinnable_packages(self._solved_packages) if own else {}
        return solved_pins.replace_pin_placeholders([conda_build_spec(text) for text in texts], own, solved)

    @cached_property
    def _index_json(self) -> dict[str, Any]:
        timestamp = {} if self.epoch is None else {"timestamp": 1000 * self.epoch}
        fields = self._parsed_engine_json("index.json") | dict(self.fields) | timestamp
        fields |= {
            key: self._specs_with_solved_pins(field, fields.get(key, [])) for field, key in solved_pins.SECTIONS.items()
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
        channels = [
            url.rstrip("/") for url in about.get("channels", ()) if not url.startswith(recipe_files_in_info.LOCAL)
        ]
        lists: dict[str, list[str]] = {key: [] for key in LISTS} if "sections" in self.edits else {}
        engine = _ENGINE.search(self.old.get(solved_pins.RENDERED, b""))
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
    fields = {**index, **{key: sorted(index[key]) for key in solved_pins.SECTIONS.values() if key in index}}
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
