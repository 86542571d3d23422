"""The file of a config in .ci_support: the text of a config, and the config of a file."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import yaml

from kiln.base import limits
from kiln.base.errors import MalformedYaml, UnknownConfig, VariantFault, did_you_mean
from kiln.base.patterns import PLATFORMS, is_config_name, lazy_pattern
from kiln.base.position import Place
from kiln.base.system.files import file_content_stamp
from kiln.base.text import count_text
from kiln.base.yaml import (
    Document,
    PlacedText,
    ScalarInterpretation,
    TypedText,
    parse_document,
    read_text,
    scalar_value,
)
from kiln.recipe.feedstock import FORGE, BuildConfig, is_v1
from kiln.recipe.variants.files import VariantSource, as_list, check_variant_source, zip_groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from yaml import Node

    from kiln.recipe.feedstock import Feedstock


class _CiSupportDumper(yaml.SafeDumper):
    """A dumper that keeps the order of nested mappings, writes true and false unquoted, and repeats equal values."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the library's name
        return True


def _represent_text(dumper: yaml.SafeDumper, data: str) -> Node:
    # Variant files hold text only; conda-smithy writes these two words as the booleans that they were.
    if data in {"true", "false"}:
        return dumper.represent_bool(data == "true")
    return dumper.represent_str(data)


_CiSupportDumper.add_representer(str, _represent_text)
_CiSupportDumper.add_representer(TypedText, lambda dumper, data: dumper.represent_data(data.typed))
_CiSupportDumper.add_representer(dict, lambda dumper, data: dumper.represent_dict(data.items()))


def ci_support_text(data: Mapping[str, Any]) -> str:
    """Return the text of a mapping with sorted outermost keys; values are text, tuples, or mappings in their order."""
    return "".join(_entry_text(key, pickle.dumps(data[key])) for key in sorted(data))


@lru_cache(maxsize=4096)
def _entry_text(key: str, pickled: bytes) -> str:
    """Return the text of one key; its value is pickled to be remembered by, since 1 and true are equal."""
    value = pickle.loads(pickled)  # noqa: S301 - pickled here
    return str(yaml.dump({key: value}, Dumper=_CiSupportDumper, default_flow_style=False))


_NAMED = 3  # configs that a hint names
_PLATFORM = lazy_pattern(r"(linux|osx|win|freebsd|emscripten|wasi|zos)_([a-z0-9]+)_")
SETTINGS = {"zip_keys", "pin_run_as_build"}
# Configs by all that their reading depends on: what a fork has read is not known to the next one.
_READ: dict[tuple[object, ...], BuildConfig] = {}
MOST_KEPT = 10_000


def config_file_text(config: BuildConfig) -> str:
    """Return the text of a config's file, byte for byte as conda-smithy writes it."""
    return ci_support_text({**config.variant, **config.settings})


def read_config(feedstock: Feedstock, config: str) -> BuildConfig:
    """Return the config of the file ``.ci_support/CONFIG.yaml``.

    Raises:
        UnknownConfig: the file does not exist.
        KilnError: the file is malformed.
    """
    return read_configs(feedstock, (config,))[0]


def read_configs(feedstock: Feedstock, configs: Iterable[str]) -> tuple[BuildConfig, ...]:
    """Return the configs of several files; raises what ``read_config`` raises."""
    paths = [_config_file_path(feedstock, config) for config in configs]
    format_stamps = tuple(map(_content_stamp_or_empty, (feedstock.root / FORGE, feedstock.meta, feedstock.recipe_v1)))
    keys = {path: (path, _content_stamp_or_empty(path), format_stamps) for path in paths}
    unread = [path for path, key in keys.items() if key not in _READ]
    if unread:
        read_now = limits.run_bounded(lambda: [_read_config_file(path, typed=is_v1(feedstock)) for path in unread])
        if len(_READ) > MOST_KEPT:
            _READ.clear()
        _READ.update((keys[path], config) for path, config in zip(unread, read_now, strict=True))
    return tuple(_READ[keys[path]] for path in paths)


def _config_file_path(feedstock: Feedstock, config: str) -> Path:
    name = config.removesuffix(".yaml").removeprefix(".ci_support/")
    path = feedstock.config_folder / f"{name}.yaml"
    if "/" in name or not path.is_file():
        names = feedstock.config_names
        near = _similar_names_hint(name, names) or ("kiln matrix lists them" if names else "kiln rerender writes them")
        count = count_text(len(names), "config")
        raise UnknownConfig(f"no such config: {name!r}", why=f".ci_support holds {count}", hint=near)
    return path


def _similar_names_hint(name: str, names: Sequence[str]) -> str:
    """Return a hint with the configs that begin with a name, or have its words on its platform, or else are like it."""
    match = _PLATFORM.match(f"{name}_")
    platform = match[0] if match else ""
    of_platform = [each for each in names if each.startswith(platform)] or names
    words = name.removeprefix(platform)
    fitting = [each for each in names if each.startswith(name)] or [
        each for each in of_platform if words and words in each
    ]
    if not fitting:
        return did_you_mean(name, of_platform)
    more = f" (and {len(fitting) - _NAMED} more)" if len(fitting) > _NAMED else ""
    return f"did you mean {' or '.join(map(repr, fitting[:_NAMED]))}?{more}"


def _content_stamp_or_empty(path: Path) -> tuple[int, ...]:
    try:
        return file_content_stamp(path)
    except OSError:
        return ()


def _read_config_file(path: Path, *, typed: bool) -> BuildConfig:
    name, place_name = path.stem, f".ci_support/{path.name}"
    if not is_config_name(name):
        why = "files and folders of its build have this name"
        hint = "kiln rerender writes files with valid names"
        raise VariantFault(f"{name!r} cannot be the name of a config", at=Place(file=place_name), why=why, hint=hint)
    document = parse_document(
        read_text(path, place_name), place_name, ScalarInterpretation.PLACED if typed else ScalarInterpretation.TEXT
    )
    if typed:
        document = replace(document, value=_typed_values(document.value))
    if not isinstance(document.value, dict):
        raise MalformedYaml("a config's file is a mapping of keys to lists", at=document.place_of_key())
    check_variant_source(VariantSource(name=place_name, values=document.value, document=document))
    data = document.value
    values = {key: _values_of_key(key, value, document) for key, value in data.items() if key not in SETTINGS}
    config = config_of_values(name, _subdir_of_name(name), values, data)
    if config.platform not in PLATFORMS:
        known = sorted(PLATFORMS)
        hint = did_you_mean(config.platform, known) or "linux-64"
        at = document.place_of_key("target_platform")
        raise VariantFault(f"target_platform: no such platform: {config.platform[:80]!r}", at=at, hint=hint)
    return config


def config_of_values(
    name: str, subdir: str, variant: Mapping[str, tuple[str, ...]], settings: Mapping[str, Any]
) -> BuildConfig:
    """Return the config of a variant and settings; it is for ``subdir`` where the variant has no target platform."""
    return BuildConfig(
        name=name,
        platform=variant.get("target_platform", (subdir,))[0],
        variant=variant,
        zip_keys=tuple(zip_groups(settings.get("zip_keys"))),
        pin_run_as_build=settings.get("pin_run_as_build") or {},
        image=variant.get("docker_image", (None,))[0],
    )


def _values_of_key(key: str, value: Any, document: Document) -> tuple[str, ...]:
    items = tuple(as_list(value))
    if not items or any(not isinstance(item, str) for item in items):
        raise VariantFault(f"{key} is not a list of values", at=document.place_of_key(key))
    return items


def _typed_values(value: Any) -> Any:
    """Return the values of a file; numbers and truth values stay distinct from text, as in recipe.yaml."""
    if isinstance(value, dict):
        return {
            str(key): _typed_values(item) if isinstance(item, (dict, list)) else str(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_typed_values(item) for item in value]
    result = scalar_value(value) if isinstance(value, PlacedText) else value
    return TypedText(result) if isinstance(result, int) else str(value)


def _subdir_of_name(name: str) -> str:
    match = _PLATFORM.match(f"{name}_")
    subdir = f"{match[1]}-{match[2]}" if match else ""
    return subdir if subdir in PLATFORMS else "linux-64"
