"""One package's metadata at one variant: its values, those of its outputs, hash and build string."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base.errors import MalformedYaml, RecipeFault
from kiln.base.patterns import lazy_pattern
from kiln.base.yaml import read_text
from kiln.recipe.v0.used_keys import (
    RecipeTextRegions,
    keys_in_batch_script,
    keys_in_shell_script,
    requirement_texts,
    requirements_by_section,
    spec_package_name,
    specs_without_package,
    text_regions,
    with_variant_versions,
)
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.base.position import Place
    from kiln.recipe.template.names import Namespace
    from kiln.recipe.v0.evaluation import RecipeTemplate
    from kiln.recipe.v0.used_keys import UsedKeySearch
    from kiln.recipe.variants.files import Platform
    from kiln.recipe.variants.space import Variant


Values = dict[str, "Any"]


def output_entries_with_values(top: Metadata) -> list[tuple[Values, Values]]:
    """Return every output entry with the values of its package, in the recipe's order."""
    values: Values = dict(top.values)
    entries = [dict(entry) for entry in top.recipe.output_entries(top.values)]
    if not entries:
        entries = [{"name": top.name}]
    elif not any(entry.get("name", "") == top.name for entry in entries) and _needs_metapackage(top, entries):
        entries.append({"name": top.name})
    for entry in entries:
        _require_mapping(
            entry.get("test")
        )  # conda-build takes that of its own name from the recipe's top, whatever this is
        if entry.get("name") == top.name and top.package_text().has_package_section:
            _merge_with_top(values, entry)
    pairs = []
    for entry in entries:
        _insert_variant_versions(top, values, entry)
        pairs.append((entry, _output_values(top, values, entry)))
    return pairs


def output_names_and_types(top: Metadata, entries: list[Values]) -> list[tuple[str, str | None]]:
    """Return each entry's name and type, which identify its block of text."""
    return [(str(entry.get("name", top.name)), output_type(entry)) for entry in entries]


def output_type(entry: Mapping[str, Any]) -> str | None:
    """Return an output's package type, such as ``wheel``; None without ``type``."""
    value = entry.get("type")
    return None if value is None else str(value)


def _needs_metapackage(top: Metadata, entries: list[Values]) -> bool:
    """Return whether the recipe's top is itself a package, because its requirements name an output."""
    names = {str(entry["name"]) for entry in entries if entry.get("name")}
    if any(spec.strip() and spec.split()[0] in names for spec in top.requirements_of_section("run")):
        return True
    return top.selected_text.pins_subpackage


def _merge_with_top(values: Values, entry: Values) -> None:
    """Merge the recipe's top and the output of its name; the output's values take precedence, in both."""
    for section in ("requirements", "build", "about"):
        value = entry.get(section)
        section_values = requirements_by_section(value) if section == "requirements" else _require_mapping(value)
        inherited = _require_mapping(values.get(section))
        merged = {**section_values, **{key: value for key, value in inherited.items() if key not in section_values}}
        entry[section] = values[section] = merged


def _require_mapping(value: Any) -> Mapping[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise RecipeFault(
        f"a section is {str(value)[:40]!r}, which is not a mapping", hint="write keys below it, one a line"
    )


def _insert_variant_versions(top: Metadata, values: Values, entry: Values) -> None:
    if not entry.get("requirements"):
        return
    shared = values.get("requirements") is entry["requirements"]
    entry["requirements"] = with_variant_versions(requirements_by_section(entry["requirements"]), top.variant)
    if shared:
        values["requirements"] = entry["requirements"]


def _output_values(top: Metadata, values: Values, entry: Values) -> Values:
    """Return the values of an output's package."""
    if entry.get("name") == top.name:
        return dict(values)
    output_values = dict(values)
    output_values["package"] = {
        **_require_mapping(values.get("package")),
        "name": entry.get("name", top.name),
        "version": entry.get("version") or top.version,
    }
    output_values["requirements"] = _output_requirements(entry)
    output_values["build"] = _output_build_section(top, values, entry)
    output_values["test"] = _output_test_section(values, entry)
    if "about" in entry:
        output_values["about"] = entry["about"]
    return output_values


def _output_requirements(entry: Values) -> dict[str, list[str]]:
    """Return an output's own requirements, without the output itself."""
    specs_by_section = {}
    for section, specs in requirements_by_section(entry.get("requirements") or {}).items():
        may_contain_itself = section in {"build", "host", "run"} and "name" in entry
        remaining = specs_without_package(specs, str(entry["name"])) if may_contain_itself else specs
        if remaining or section not in {"build", "host", "run", "run_constrained"}:
            specs_by_section[section] = remaining
    return specs_by_section


def _output_build_section(top: Metadata, values: Values, entry: Values) -> Values:
    """Return an output's ``build`` section; without one, the recipe's minus the keys of a single package."""
    inherited = dict(_require_mapping(values.get("build")))
    if "build" in entry:
        section = dict(_require_mapping(entry["build"]))
        section.setdefault("number", entry.get("number", inherited.get("number") or top.build_number))
        return section
    for key in ("entry_points", "run_exports", "script"):
        inherited.pop(key, None)
        if key in entry:
            inherited[key] = entry[key]
    inherited["noarch"] = entry.get("noarch", False)
    inherited["noarch_python"] = entry.get("noarch_python", False)
    given = {key: entry[key] for key in ("number", "string") if key in entry}
    kept = ("run_exports", "track_features", "features", "python_version_independent")
    inherited.update(given | {key: entry[key] for key in kept if entry.get(key)})
    return inherited


def _output_test_section(values: Values, entry: Values) -> Any:
    """Return an output's ``test`` section; without one, the recipe's minus its commands and imports."""
    if "test" in entry:
        return entry["test"]
    return {
        key: value for key, value in _require_mapping(values.get("test")).items() if key not in {"commands", "imports"}
    }


_NEVER_HASHED = ("python", "r_base", "perl", "lua")
_BOOLEANS = dict.fromkeys(("y", "on", "true", "yes"), True) | dict.fromkeys(("n", "no", "false", "off"), False)
_HASH = lazy_pattern(r"h[0-9a-f]{7}")
# The languages in a build string: prefix, package names, number of version components.
LANGUAGES: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("np", ("numpy",), 2),
    ("py", ("python",), 2),
    ("pl", ("perl",), 3),
    ("lua", ("lua",), 2),
    ("r", ("r", "r-base"), 2),
    ("mro", ("mro-base",), 3),
    ("mro", ("mro-base_impl",), 3),
)


class RecipeOfPackage(Protocol):
    """What a package needs of its recipe."""

    source: RecipeTemplate
    platform: Platform
    usage: UsedKeySearch
    scripts: BuildScripts

    def place_of_section(self, section: str = "") -> Place:
        """Return the place where a section of the recipe begins."""

    def cached_used_keys(
        self, variant: Variant, query: tuple[object, ...], find: Callable[[], frozenset[str]]
    ) -> frozenset[str]:
        """Return the cached used keys of a package at a variant."""

    def namespace(self, variant: Variant, host_subdir: str) -> Namespace:
        """Return the names in selectors and templates."""

    def text_after_selectors(self, names: Namespace | None) -> str:
        """Return the recipe's text with selectors applied to some names, or unselected for None."""

    @staticmethod
    def output_entries(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the entries of the ``outputs`` section."""


class Metadata:
    """A package of a recipe; ``parent`` is the recipe's name when the package is one of its outputs.

    ``listed`` holds the name and type of every entry of the recipe's ``outputs`` at this variant, which identify the
    output's block of text. ``values`` are never changed.
    """

    def __init__(
        self,
        recipe: RecipeOfPackage,
        variant: Variant,
        values: Mapping[str, Any],
        *,
        host_subdir: str,
        parent: str | None = None,
        kind: str | None = None,
        listed: Sequence[tuple[str, str | None]] | None = None,
    ) -> None:
        self.recipe = recipe
        self.variant = variant
        self.values = values
        self.host_subdir = host_subdir
        self.parent = parent
        self.kind = kind
        self.listed = list(listed or ())

    # -- values ------------------------------------------------------------------------------------------------

    def section_value(self, section: str, key: str, default: Any = None) -> Any:
        """Return a value of a section, or the default when it is missing or empty."""
        mapping = self.values.get(section)
        value = mapping.get(key) if isinstance(mapping, dict) else None
        if isinstance(value, str) and value.lower() in _BOOLEANS:
            return _BOOLEANS[value.lower()]
        return default if value is None else value

    @cached_property
    def output_entry(self) -> Mapping[str, Any]:
        """The package's entry in ``outputs``; empty without one."""
        entries = self.recipe.output_entries(self.values)
        return next((entry for entry in entries if entry.get("name") == self.name), {})

    # A recipe is also evaluated before its variant is known, so no value is judged here: see `kiln.recipe.v0.validity`.

    @cached_property
    def name(self) -> str:
        """The package's name."""
        return str(self.section_value("package", "name", ""))

    @cached_property
    def version(self) -> str:
        """The package's version."""
        package = self.values.get("package") or {}
        # conda-build converts any value to text, an empty one too.
        return str(package.get("version", "")) if isinstance(package, dict) else ""

    @cached_property
    def build_number(self) -> int:
        """The build number; 0 by default, and for what is no whole number."""
        try:
            return int(self.section_value("build", "number") or 0)
        except (TypeError, ValueError):
            return 0

    @property
    def noarch(self) -> Any:
        """``python``, ``generic``, or something false."""
        return self.section_value("build", "noarch", "")

    @property
    def sets_build_noarch_python(self) -> bool:
        """True when the legacy setting ``noarch_python`` is set."""
        return bool(self.section_value("build", "noarch_python", default=False))

    @property
    def skip(self) -> bool:
        """True when the recipe skips this package at this variant."""
        return bool(self.section_value("build", "skip", default=False))

    @cached_property
    def requirements(self) -> dict[str, list[str]]:
        """The requirements by section."""
        return requirements_by_section(self.values.get("requirements") or {})

    @property
    def is_output(self) -> bool:
        """True when the package is an output with a name other than the recipe's."""
        return bool(self.parent) and self.parent != self.name

    def place_of_section(self, section: str) -> Place:
        """Return the place of the package's section: in an output, that of all outputs."""
        return self.recipe.place_of_section("outputs" if self.is_output else section)

    def requirements_of_section(self, section: str) -> list[str]:
        """Return the requirements of a section; for the recipe itself, also those of the output of the same name."""
        specs = list(self.requirements.get(section, ()))
        if self.is_output:
            return specs
        names = {spec.split()[0] for spec in specs if spec.strip()}
        for output in self.recipe.output_entries(self.values):
            if output.get("name") == self.name:
                extra = requirements_by_section(output.get("requirements") or {}).get(section, [])
                return [*specs, *(spec for spec in extra if spec.strip() and spec.split()[0] not in names)]
        return specs

    # -- text --------------------------------------------------------------------------------------------------

    @cached_property
    def selected_text(self) -> RecipeTextRegions:
        """The recipe's text with selectors applied at this variant."""
        names = self.recipe.namespace(self.variant, self.host_subdir)
        return text_regions(self.recipe.text_after_selectors(names))

    def _recipe_text(self, *, selected: bool) -> RecipeTextRegions:
        return self.selected_text if selected else text_regions(self.recipe.text_after_selectors(None))

    def _output_text_block(self, *, selected: bool) -> str:
        """Return the output's own block of the recipe's text."""
        blocks = self._recipe_text(selected=selected).output_blocks
        listed = self.listed or [(self.name, self.kind)]
        if (self.name, self.kind) not in listed:
            return self.name
        index = listed.index((self.name, self.kind))
        return blocks[index] if index < len(blocks) else ""

    def package_text(self) -> RecipeTextRegions:
        """Return the text of this package: the whole recipe, or an output's block."""
        return (
            text_regions(self._output_text_block(selected=True).rstrip())
            if self.is_output
            else self._recipe_text(selected=True)
        )

    def _text_searched_for_keys(self, *, top: bool, selected: bool) -> str:
        if self.is_output and not top:
            return self._output_text_block(selected=selected)
        return self._recipe_text(selected=selected).text_without_outputs + self._output_text_block(selected=selected)

    # -- used keys ---------------------------------------------------------------------------------------------

    def used_keys(self, *, top: bool = False, everywhere: bool = False) -> frozenset[str]:
        """Return the variant keys that the package uses.

        ``top`` adds the recipe's top; ``everywhere`` searches all of the recipe's text.
        """
        return self.recipe.cached_used_keys(
            self.variant, (self.name, top, everywhere), lambda: self.find_used_keys(top=top, everywhere=everywhere)
        )

    def find_used_keys(self, *, top: bool = False, everywhere: bool = False) -> frozenset[str]:
        """Return the same as ``used_keys``, without the cache."""
        used = set(self._keys_used_in_recipe(top=top, everywhere=everywhere) | self._keys_used_in_scripts())
        if "target_platform" in self.variant and not self.noarch:
            used.add("target_platform")
        if "channel_targets" in self.variant:
            used.add("channel_targets")
        ignored, forced = (
            requirement_texts(self.section_value("build", key), f"build/{key}")
            for key in ("force_ignore_keys", "force_use_keys")
        )
        return frozenset((used - set(ignored)) | set(forced))

    def _keys_used_in_recipe(self, *, top: bool, everywhere: bool) -> frozenset[str]:
        usage = self.recipe.usage
        if everywhere:
            full_text, selected_text = (self._recipe_text(selected=selected).text for selected in (False, True))
            return usage.keys_outside_selectors(selected_text) | usage.keys_in_selectors(full_text)
        full_text, selected_text = (
            self._text_searched_for_keys(top=top, selected=selected) for selected in (False, True)
        )
        used = usage.keys_outside_selectors(selected_text) | usage.keys_in_selectors(full_text)
        required = usage.keys_outside_selectors(text_regions(selected_text).first_requirements_section)
        return (used - required) | self._without_run_only_keys(required)

    def _without_run_only_keys(self, required: frozenset[str]) -> frozenset[str]:
        """Return the keys without those in ``run`` alone, or in ``build`` alone where ``build`` is to be ignored."""
        build, host = (
            {words[0].replace("-", "_") for spec in self.requirements.get(s, ()) if (words := spec.split())}
            for s in ("build", "host")
        )
        run = set(self.requirements.get("run", ()))
        ignored = set(as_list(self.variant.get("ignore_build_only_deps")))
        return frozenset(
            key
            for key in required
            if key in host or (key in build if key in run else key not in build or key not in ignored)
        )

    def _keys_used_in_scripts(self) -> frozenset[str]:
        if self.package_text().has_package_section:
            return self.recipe.scripts.keys_used_by_recipe_script(self.recipe.platform.system)
        script = self.output_entry.get("script")
        return self.recipe.scripts.keys_used_by_script(script) if script and isinstance(script, str) else frozenset()

    # -- identity ----------------------------------------------------------------------------------------------

    @cached_property
    def hash_input(self) -> dict[str, Any]:
        """The hash input: the values of the used keys, and virtual packages of ``run``."""
        used = self.used_keys()
        ignored = [*_NEVER_HASHED, *as_list(self.variant.get("ignore_version"))]
        if "numpy" in used and self.package_text().is_numpy_unhashed:
            ignored.append("numpy")
        pattern = re.compile("|".join(rf"{key}[\s$]?.*" for key in ignored))
        hashed_keys = [
            key for key in used if key in self.variant and (not pattern.match(key) or " " in self.variant[key])
        ]
        contents = {} if hashed_keys == ["target_platform"] else {key: self.variant[key] for key in sorted(hashed_keys)}
        virtual = {spec.split(" ")[0]: spec for spec in self.requirements.get("run", ()) if spec.startswith("__")}
        return {**contents, **virtual}

    @cached_property
    def hash(self) -> str:
        """The hash in the form of build strings; empty without hash input."""
        if not self.hash_input:
            return ""
        text = json.dumps(self.hash_input, sort_keys=True)
        return f"h{hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()}"[:8]

    @cached_property
    def build_string(self) -> str:
        """The build string: the recipe's own, or languages, hash and build number."""
        template = self.section_value("build", "string")
        if template and not self.package_text().has_hash_in_build_string:
            return str(template)
        text = str(template) if template else self._default_build_string()
        if _HASH.search(text):
            return _HASH.sub(self.hash, text)
        first, *rest = text.rsplit("_", 1)
        head = "_".join(filter(None, (self.hash, first))) if _is_number(first) else first + self.hash
        return "_".join([head, *rest])

    def _default_build_string(self) -> str:
        section = "host" if self.requirements_of_section("host") or "host" in self.requirements else "build"
        pinned = list(self.requirements.get(section, ()))
        pinned_names = {spec_package_name(spec) for spec in pinned}
        run_names = {spec_package_name(spec) for spec in self.requirements.get("run", ())}
        parts: list[str] = []
        for prefix, packages, places in LANGUAGES:
            for package in packages:
                if package in run_names & pinned_names and (
                    package != "numpy" or self.package_text().has_numpy_in_build_string
                ):
                    omits_version = self.noarch == package or (self.sets_build_noarch_python and package == "python")
                    part = prefix if omits_version else self._language_with_version(prefix, packages, places, pinned)
                    if part not in parts:
                        parts.append(part)
        features = [str(feature) for feature in as_list(self.section_value("build", "features"))]
        text = "".join([*parts, "_"]) if parts else ""
        return f"{text}{'_'.join(features) + '_' if features else ''}{self.build_number}"

    def _language_with_version(self, prefix: str, packages: Sequence[str], places: int, pinned: Sequence[str]) -> str:
        names = (*packages, *(name.replace("-", "_") for name in packages if "-" in name))
        versions = (_pinned_version(pinned, name) or self.variant.get(name.replace("-", "_"), "") for name in names)
        return prefix + "".join(next(filter(None, versions), "").split(".")[:places])

    @cached_property
    def dist_before_hash(self) -> str:
        """Name, version and build string without its hash, by which conda-build distinguishes jobs."""
        template = self.section_value("build", "string")
        return f"{self.name}-{self.version}-{template or self._default_build_string()}"

    @property
    def dist(self) -> str:
        """Name, version and build string, joined by hyphens."""
        return f"{self.name}-{self.version}-{self.build_string}"


def _pinned_version(specs: Sequence[str], package: str) -> str:
    version = ""
    for spec in specs:
        words = spec.split()
        if len(words) > 1 and words[0] == package:
            version = words[1]
    return version


def _is_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


class BuildScripts:
    """The build scripts of a recipe, and the variant keys that they use."""

    def __init__(self, folder: Path, keys: frozenset[str]) -> None:
        self._folder = folder
        self._keys = keys
        self._used: dict[str, frozenset[str]] = {}

    def keys_used_by_recipe_script(self, system: str) -> frozenset[str]:
        """Return the keys that the recipe's own build script uses."""
        used = self.keys_used_by_script("build.sh")
        return used | self.keys_used_by_script("bld.bat") if system == "win" else used

    def keys_used_by_script(self, name: str) -> frozenset[str]:
        """Return the keys that a script uses; empty if it does not exist or is neither shell nor batch."""
        used = self._used.get(name)
        if used is None:
            searches: dict[str, Callable[..., frozenset[str]]] = {
                ".sh": keys_in_shell_script,
                ".bat": keys_in_batch_script,
            }
            search = searches.get(name[name.rfind(".") :])
            used = self._used[name] = search(self._keys, script_text(self._folder, name)) if search else frozenset()
        return used


def script_text(folder: Path, name: str) -> str:
    """Return the text of a script in a recipe's folder; empty if it is outside of it, missing, or not text."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
        return ""
    try:
        return read_text(path, f"recipe/{name}")
    except MalformedYaml:  # neither text nor of a size to be read
        return ""
