"""conda-forge's global pinning, fetched as a package, and the keys that need it."""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jinja2
from jinja2 import nodes

from kiln.base import files as base_files
from kiln.base.errors import DownloadFailed, KilnError, PinningNeeded, SolveFailed, did_you_mean
from kiln.base.limits import errors
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.yaml import Document, ScalarInterpretation, parse_document, read_text
from kiln.feedstock import job_settings
from kiln.feedstock.collapse import ALWAYS, PYTHON_MIN
from kiln.feedstock.settings import read_document
from kiln.recipe.feedstock import is_v1
from kiln.recipe.v0.evaluation import GIT_NAME
from kiln.recipe.v0.metadata import BuildScripts
from kiln.recipe.v0.recipe import BUILT_IN
from kiln.recipe.v0.used_keys import UsedKeySearch
from kiln.recipe.variants.files import Platform, as_list, load_variant_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


PACKAGE = "conda-forge-pinning"
NO_CHANNEL = "none"
VERSION = lazy_pattern(r"\d{4}(\.\d{1,2}){2,5}")  # the time at which a pinning was made
FRESH = 3600  # seconds for which the newest version is not asked for again
_FILE = "conda_build_config.yaml"
_NEWEST = "newest.json"
_WAIT = 300.0  # seconds for another process that fetches the same version


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """A fetched pinning: its version, and its variant file."""

    version: str
    file: Path


def newest_pinning(folder: Path, channel: str) -> Pinning:
    """Return the newest pinning in a channel; within an hour the channel is not asked again.

    Raises:
        PinningNeeded: the channel cannot be reached, or has none; it names the newest one that was fetched before.
    """
    home = _channel_folder(folder, channel)
    version = _version_checked_recently(home / _NEWEST)
    if version and (home / version / _FILE).is_file():
        return Pinning(version=version, file=home / version / _FILE)
    pinning = _fetch_or_raise_unavailable(home, channel, PACKAGE, f"the newest {PACKAGE}")
    base_files.write_text(home / _NEWEST, json.dumps({"version": pinning.version}))
    return pinning


def pinning_of_version(folder: Path, channel: str, version: str) -> Pinning:
    """Return a version of the pinning; one that was fetched before needs no network.

    Raises:
        PinningNeeded: the channel cannot be reached, or does not have it.
    """
    home = _channel_folder(folder, channel)
    if (home / version / _FILE).is_file():
        return Pinning(version=version, file=home / version / _FILE)
    return _fetch_or_raise_unavailable(home, channel, f"{PACKAGE} =={version}", f"{PACKAGE} {version}")


def version_of_pinning_file(file: Path) -> str:
    """Return the version of the installed or unpacked package that has a variant file; empty where none is recorded."""
    folder = file.parent
    for record in (*folder.glob(f"conda-meta/{PACKAGE}-*.json"), folder / "info" / "index.json"):
        try:
            content = json.loads(record.read_bytes())
            name, version = content["name"], content["version"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name == PACKAGE and isinstance(version, str) and VERSION.fullmatch(version):
            return version
    return ""


def _channel_folder(folder: Path, channel: str) -> Path:
    """Return the folder of a channel's pinnings, whose name contains nothing of the channel's URL."""
    return folder / hashlib.sha256(channel.encode()).hexdigest()[:12]


def _version_checked_recently(path: Path) -> str:
    """Return the version that was the newest less than an hour ago, empty when it has to be asked for."""
    try:
        age = time.time() - path.stat().st_mtime
        version = json.loads(path.read_bytes())["version"] if 0 <= age < FRESH else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return version if isinstance(version, str) and VERSION.fullmatch(version) else ""


def _fetch_or_raise_unavailable(home: Path, channel: str, spec: str, title: str) -> Pinning:
    try:
        return _fetch_pinning(home, channel, spec)
    except (DownloadFailed, SolveFailed) as error:
        versions = sorted(
            (path.parent.name for path in home.glob(f"*/{_FILE}") if VERSION.fullmatch(path.parent.name)),
            key=lambda version: tuple(map(int, version.split("."))),
        )
        earlier = f"-e {versions[-1]}, which was fetched before; or " if versions else ""
        why = "; ".join(filter(None, (error.what, *error.why.splitlines())))
        hint = f"{earlier}-e PINNING/{_FILE}"
        raise PinningNeeded(f"cannot fetch {title} from {channel}", why=why, hint=hint) from error


def _fetch_pinning(home: Path, channel: str, spec: str) -> Pinning:
    from kiln.conda import solve

    records = solve.solve([channel], [spec], virtual_packages={})
    version = next(str(record.version) for record in records if record.name.normalized == PACKAGE)
    if not VERSION.fullmatch(version):
        raise PinningNeeded(f"{PACKAGE} in {channel} has the version {version}", hint="-e FILE")
    prefix = home / version
    if not (prefix / _FILE).is_file():
        solve.install_atomically(records, prefix, replaced=solve.folder_identity(prefix), wait=_WAIT)
    if not (prefix / _FILE).is_file():
        raise PinningNeeded(f"{PACKAGE} {version} has no {_FILE}", hint="-e FILE")
    return Pinning(version=version, file=prefix / _FILE)


RECIPE = "recipe/meta.yaml"
SYSTEMS = ("linux", "osx", "win")
HINT = "kiln rerender -e PINNING/conda_build_config.yaml, such as the file in the package conda-forge-pinning"
VALIDATION_KEY, CHANNEL_KEYS = "conda_forge_output_validation", ("channel_sources", "channel_targets")
INCLUDES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
KEYWORDS = ("if", "else", "and", "or", "not", "in", "is", "true", "false", "none", "True", "False", "None")
_QUOTED = lazy_pattern(r"'[^'\\]*'|\"[^\"\\]*\"")
_NAME = lazy_pattern(r"(?<![\w.|])(?<!\| )[^\W\d]\w*\b(?!\s*=(?!=))")  # no attribute, filter or argument's name
_SET_NAME = lazy_pattern(r"\{%-?\s*set\s+(\w+)\s*=")
_STDLIB = lazy_pattern(r"\bstdlib\([\"'](\w+)[\"']\)")
_OTHER_OUTPUT = lazy_pattern(r"\{%[-+]?\s*print\b|\bstdlib\s+\(")
GUARDS = {"default", "d", "defined", "undefined"}  # Jinja's filters and tests for names without a value


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyWithoutValue:
    """A key without a value; ``held`` are its values in .ci_support today."""

    key: str
    at: Place
    held: tuple[str, ...] = ()


def missing_values_error(needs: Sequence[KeyWithoutValue], *, why: str = "", hint: str = HINT) -> PinningNeeded:
    """Return the error for keys without a value, which lists each with the place of its use."""
    keys = f"{len(needs)} keys have" if len(needs) > 1 else f"{needs[0].key} has"
    others = []
    for need in needs:
        held = f"; .ci_support holds {', '.join(need.held[:4])}{', ...' if len(need.held) > 4 else ''}"
        others.append(PinningNeeded(f"{need.key} has no value{held if need.held else ''}", at=need.at))
    return PinningNeeded(f"{keys} no value without a pinning", why=why, hint=hint, others=tuple(others))


def keys_without_value(feedstock: Feedstock) -> tuple[KeyWithoutValue, ...]:
    """Return the keys that the recipe uses, or .ci_support holds today, without a value in the feedstock."""
    defined = _defined_keys(feedstock)
    if is_v1(feedstock):
        return _keys_without_value_v1(feedstock, defined)
    text = read_text(feedstock.meta, RECIPE)
    existing = _undefined_keys_in_ci_support(feedstock, defined)
    errors.record_place(RECIPE)
    existing_needs = _keys_needed_by_ci_support(existing, feedstock.recipe, text)
    needs = {
        need.key: need
        for need in (
            *_keys_needed_by_templates(feedstock, text, defined),
            *_keys_needed_by_output_validation(feedstock, defined),
            *existing_needs,
        )
    }
    return tuple(needs[key] for key in sorted(needs))


def _keys_without_value_v1(feedstock: Feedstock, defined: frozenset[str]) -> tuple[KeyWithoutValue, ...]:
    """Return the same for a recipe.yaml, whose names need no search in a text."""
    from kiln.recipe.v1.recipe import RecipeV1, mentioned_variant_keys, required_variant_keys
    from kiln.recipe.v1.variants import VariantFileV1

    recipe = RecipeV1.read(feedstock.recipe_v1)
    variants = feedstock.recipe / "variants.yaml"
    defined |= VariantFileV1(variants, "recipe/variants.yaml").keys if variants.is_file() else frozenset()
    existing = _undefined_keys_in_ci_support(feedstock, defined)
    used = mentioned_variant_keys(recipe)
    needs = {
        key: KeyWithoutValue(key=key, at=at) for key, at in required_variant_keys(recipe).items() if key not in defined
    }
    needs |= {need.key: need for need in _keys_needed_by_output_validation(feedstock, defined)}
    for key, (values, at) in existing.items():
        if key in ALWAYS or key in used:
            needs[key] = KeyWithoutValue(key=key, at=used.get(key, at), held=values)
    return tuple(needs[key] for key in sorted(needs))


def _defined_keys(feedstock: Feedstock) -> frozenset[str]:
    """Return the keys that the feedstock's own files define on any platform, and those that rerender derives."""
    variant_path = feedstock.recipe / "conda_build_config.yaml"
    paths = [variant_path, *sorted((feedstock.config_folder / "migrations").glob("*.yaml"))]
    files = (load_variant_file(path, feedstock.name_of(path)) for path in paths if path.is_file())
    keys = frozenset[str]().union(*(file.keys for file in files))
    return keys | {"MACOSX_DEPLOYMENT_TARGET", "MACOSX_SDK_VERSION"} if "c_stdlib_version" in keys else keys


def _undefined_keys_in_ci_support(
    feedstock: Feedstock, defined: frozenset[str]
) -> dict[str, tuple[tuple[str, ...], Place]]:
    """Return the values of each key in .ci_support that has no default, and the place of its first occurrence."""
    values_by_key: dict[str, tuple[tuple[str, ...], Place]] = {}
    for path in sorted(feedstock.config_folder.glob("*.yaml")):
        document = _ci_support_document_or_empty(path)
        for key in document.value:
            values, at = values_by_key.get(key, ((), document.place_of_key(key)))
            more = tuple(str(value) for value in as_list(document.value[key]))
            values_by_key[key] = (tuple(dict.fromkeys((*values, *more))), at)
    return {
        key: (values, at) for key, (values, at) in values_by_key.items() if not _needs_no_pinning(key, values, defined)
    }


def _ci_support_document_or_empty(path: Path) -> Document:
    """Return a file of .ci_support; empty where it cannot be read, because rerender writes it again."""
    name = f".ci_support/{path.name}"
    try:
        document = parse_document(read_text(path, name), name, ScalarInterpretation.TEXT)
    except KilnError:
        return Document(file=name, value={})
    return document if isinstance(document.value, dict) else Document(file=name, value={})


def _needs_no_pinning(key: str, values: Sequence[str], defined: frozenset[str]) -> bool:
    """Return whether a key's values need no pinning: the feedstock defines them, or conda-build or conda-smithy."""
    if key in defined or key in {"zip_keys", "pin_run_as_build", "target_platform", "docker_image"}:
        return True
    defaults = [Platform(system=system, arch="64").default_variant().get(key) for system in SYSTEMS]
    return bool(values) and set(values) <= {str(default) for default in defaults if default is not None}


def _keys_needed_by_ci_support(
    existing: Mapping[str, tuple[tuple[str, ...], Place]], recipe: Path, text: str
) -> Iterator[KeyWithoutValue]:
    """Yield the needs of keys in .ci_support: of settings that each file has, and of keys that are still used."""
    usage = UsedKeySearch(existing)
    used = usage.keys_in_selectors(text) | usage.keys_outside_selectors(text) | _keys_used_in_scripts(existing, recipe)
    if any(PYTHON_MIN.match(line) for line in text.splitlines()):
        used |= existing.keys() & {"python_min"}
    for key, (values, at) in existing.items():
        if key in ALWAYS or key in used:
            yield KeyWithoutValue(key=key, at=_place_of_key(text, key) or at, held=values)


def _keys_used_in_scripts(keys: Iterable[str], recipe: Path) -> frozenset[str]:
    scripts = BuildScripts(recipe, frozenset(keys))
    script_names = sorted(path.name for pattern in ("*.sh", "*.bat") for path in recipe.glob(pattern))
    return frozenset[str]().union(*map(scripts.keys_used_by_script, script_names))


def _place_of_key(text: str, key: str, first: int = 1) -> Place | None:
    """Return the place where a recipe names a key, from some line on."""
    spelt = re.compile(rf"(?<![\w-]){'[-_]'.join(map(re.escape, key.split('_')))}(?![\w-])")
    for number, line in enumerate(text.splitlines()[first - 1 :], first):
        if match := spelt.search(line):
            return Place(file=RECIPE, line=number, column=match.start() + 1)
    return None


def _keys_needed_by_output_validation(feedstock: Feedstock, defined: frozenset[str]) -> Iterator[KeyWithoutValue]:
    """Yield the needs of conda-forge's output validation, whose channels a pinning defines."""
    document = read_document(feedstock.conda_forge_yml)
    if document.value.get(VALIDATION_KEY) is True:
        yield from (
            KeyWithoutValue(key=key, at=document.place_of_key(VALIDATION_KEY))
            for key in CHANNEL_KEYS
            if key not in defined
        )


def _keys_needed_by_templates(feedstock: Feedstock, text: str, defined: frozenset[str]) -> Iterator[KeyWithoutValue]:
    """Yield the needs of a recipe's templates: names that are written out, and standard libraries."""
    always = _names_defined_without_variant_file(feedstock)
    errors.record_place(RECIPE)
    if has_only_known_names(text, always, defined):
        return
    try:
        tree = jinja2.Environment(autoescape=False).parse(text)  # noqa: S701 - it renders nothing
    except (jinja2.TemplateSyntaxError, RecursionError):
        return  # rendering reports what is wrong, and where
    harmless = _names_set_or_guarded(tree)
    known = defined | always | harmless
    if any(tree.find_all(INCLUDES)):
        return  # included files may set any name
    names = (name for output in tree.find_all(nodes.Output) for name in output.find_all(nodes.Name))
    for name in names:
        if name.name not in known and not did_you_mean(name.name, harmless):  # rendering reports a misspelled one
            at = _place_of_key(text, name.name, name.lineno) or Place(file=RECIPE, line=name.lineno)
            yield KeyWithoutValue(key=name.name, at=at)
    for call in tree.find_all(nodes.Call):
        if (key := _stdlib_key_of_call(call)) and key not in defined:
            at = _place_of_key(text, "stdlib", call.lineno) or Place(file=RECIPE, line=call.lineno)
            yield KeyWithoutValue(key=key, at=at)


def has_only_known_names(text: str, always: frozenset[str], defined: frozenset[str]) -> bool:
    """Return whether a recipe's templates certainly need no key, without parsing them, which takes much longer.

    All words of an expression count that may be names, and whatever these patterns cannot read is left to Jinja.
    """
    known = always.union(defined, KEYWORDS, _SET_NAME.findall(text))
    stdlibs = [match[1] for match in _STDLIB.finditer(text)]
    if len(stdlibs) != text.count("stdlib(") or not {f"{language}_stdlib" for language in stdlibs} <= defined:
        return False
    expressions = [after.partition("}}") for after in text.split("{{")[1:]]
    return all(
        end and not any(mark in words for mark in "\"'{\\") and known.issuperset(_NAME.findall(words))
        for words, end in ((_QUOTED.sub("", expression), end) for expression, end, _ in expressions)
    ) and not _OTHER_OUTPUT.search(text)


def _names_defined_without_variant_file(feedstock: Feedstock) -> frozenset[str]:
    environ = job_settings.read_matrix_settings(feedstock.conda_forge_yml).environ
    platforms = [Platform(system=system, arch="64", environ=environ) for system in SYSTEMS]
    defaults = (platform.default_variant().keys() for platform in platforms)
    return frozenset(BUILT_IN).union(*defaults, platforms[0].fixed_names({}, platforms[0].subdir))


def _stdlib_key_of_call(call: nodes.Call) -> str:
    """Return the key of the standard library in a call, for which conda-build has no default; empty for other calls."""
    named = isinstance(call.node, nodes.Name) and call.node.name == "stdlib" and call.args
    language = call.args[0] if named else None
    return f"{language.value}_stdlib" if isinstance(language, nodes.Const) else ""


def _names_set_or_guarded(tree: nodes.Template) -> set[str]:
    """Return the names that a template sets, gives a default, or only tests."""
    set_names = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load" or GIT_NAME.fullmatch(name.name)}
    set_names |= {macro.name for macro in tree.find_all(nodes.Macro)}
    guards = (node.node for node in tree.find_all((nodes.Filter, nodes.Test)) if node.name in GUARDS)
    tests = (node.test for node in tree.find_all(nodes.CondExpr))
    compared = (name for test in tests for name in (test, *test.find_all(nodes.Name)))
    return set_names | {node.name for node in (*guards, *compared) if isinstance(node, nodes.Name)}
