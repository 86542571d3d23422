"""Variant files read and merged, for a target platform, and the CUDA version of a config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from kiln.base.errors import MalformedYaml, VariantFault, did_you_mean, raise_all
from kiln.base.patterns import HIDDEN, PLATFORMS, is_subdir, lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import mapping_or_empty
from kiln.base.system.files import file_content_stamp
from kiln.base.yaml import Document, ScalarInterpretation, parse_document, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.conda.solve import VirtualPackages
    from kiln.recipe.feedstock import BuildConfig
    from kiln.recipe.template.names import RestrictedOs


ANY_GPU = "999.0"  # newer than any, so that no lower bound excludes it


def cuda_version_of_config(config: BuildConfig) -> str | None:
    """Return the CUDA version of a config, such as ``12.9``, or None."""
    version = config.variant.get("cuda_compiler_version", ("None",))[0]
    return None if version == "None" else version


_LEVEL = "microarch_level"  # conda-forge's key of the level of x86-64 that a config is compiled for


def compile_group(config: BuildConfig) -> str:
    """Return the group that shares a config's compile: ``cpu``, or ``cuda12.9``, with any platform but linux-64.

    Of several levels of processors each is compiled for itself: ``cuda12.9_v3``.
    """
    cuda = cuda_version_of_config(config)
    level = "".join(f"_v{value}" for value in config.variant.get(_LEVEL, ())[:1] if value.isdecimal())
    group = ("cpu" if cuda is None else f"cuda{cuda}") + level
    return group if config.platform == "linux-64" else f"{group}-{config.platform}"


def cuda_arch_of_config(config: BuildConfig) -> str:
    """Return the compute capability that tests of a CUDA config count on where there is no GPU.

    Source: conda-forge-ci-setup, which exports CONDA_OVERRIDE_CUDA_ARCH so.
    """
    return config.variant.get("cuda_arch_version", (ANY_GPU,))[0]


def virtual_packages_with_cuda(virtual_packages: VirtualPackages, config: BuildConfig) -> VirtualPackages:
    """Return a machine's virtual packages, for a CUDA config with ``__cuda`` and ``__cuda_arch`` even without a GPU."""
    cuda = cuda_version_of_config(config)
    if cuda is None:
        return virtual_packages
    return {"__cuda": (cuda, "0"), "__cuda_arch": (cuda_arch_of_config(config), "0"), **virtual_packages}


# conda-build's defaults for keys that no variant file sets (conda_build/variants.py).
_LANGUAGE_VERSIONS = {"python": "3.11", "numpy": "1.23", "perl": "5.26.2", "lua": "5"}
_COMPILERS = {
    "linux": {"c": "gcc", "cxx": "gxx", "fortran": "gfortran"},
    "osx": {"c": "clang", "cxx": "clangxx", "fortran": "gfortran"},
    "win": {"c": "vs2017", "cxx": "vs2017", "fortran": "gfortran"},
}
EXTEND_KEYS = ("pin_run_as_build", "ignore_version", "ignore_build_only_deps", "extend_keys")


@dataclass(frozen=True, kw_only=True)
class Platform:
    """A platform such as ``linux`` with an architecture such as ``64``.

    ``build`` is the subdir of the build machine when the recipe is cross-compiled.
    """

    system: str
    arch: str
    environ: Mapping[str, str] = field(default_factory=dict)
    build: str = ""
    _names_cache: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict, init=False, compare=False)

    @property
    def subdir(self) -> str:
        """The channel folder, such as ``linux-64``."""
        return f"{self.system}-{self.arch}"

    @property
    def compilers(self) -> Mapping[str, str]:
        """The build machine's compilers by language; empty for systems other than Linux, macOS and Windows."""
        return _COMPILERS.get((self.build or self.system).partition("-")[0], {})

    @cached_property
    def os(self) -> RestrictedOs:
        """The ``os`` that selectors and templates see."""
        from kiln.recipe.template.names import RestrictedOs

        return RestrictedOs(self.environ)

    def fixed_names(self, variant: Mapping[str, Any], host_subdir: str) -> dict[str, Any]:
        """Return the names that do not come from the variant itself."""
        from kiln.recipe.template.names import language_version_names, platform_names

        versions = [str(variant.get(key) or default) for key, default in _LANGUAGE_VERSIONS.items()]
        key = (*versions, host_subdir)
        names: dict[str, Any] | None = self._names_cache.get(key)
        if names is None:
            names = self._names_cache[key] = {
                **platform_names(host_subdir),
                "os": self.os,
                "environ": self.os.environ,
                **language_version_names(*versions),
                "build_platform": self.build or self.subdir,
                **self.environ,
            }
        return names

    def default_variant(self) -> dict[str, Any]:
        """Return conda-build's default variant."""
        compilers = {f"{language}_compiler": package for language, package in self.compilers.items()}
        windows = {"vc": "14"} if self.system == "win" else {}
        return {
            **_LANGUAGE_VERSIONS,
            "r_base": "3.5",
            "cpu_optimization_target": "nocona",
            "pin_run_as_build": {
                "python": {"min_pin": "x.x", "max_pin": "x.x"},
                "r-base": {"min_pin": "x.x", "max_pin": "x.x"},
            },
            "ignore_version": [],
            "ignore_build_only_deps": ["python", "numpy"],
            "extend_keys": list(EXTEND_KEYS),
            "cran_mirror": "https://cran.r-project.org",
            "target_platform": self.subdir,
            **compilers,
            **windows,
        }


_KEY = lazy_pattern(r"^([A-Za-z_]\w*)\s*:", re.MULTILINE)
_PIN = lazy_pattern(r"x(?:\.x)*")  # of pin_run_as_build: the places of both bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSource:
    """The values of one variant file on one platform: each key's value, or list of values, or settings.

    ``origins`` are the sources of combined values, which have no file; the last has precedence.
    """

    name: str
    values: dict[str, Any]
    document: Document | None = None
    origins: tuple[VariantSource, ...] = ()

    def place_of_key(self, key: str) -> Place | None:
        """Return the place of a key in its file; None for values that come from no file."""
        if self.document:
            return self.document.place_of_key(key)
        return next((source.place_of_key(key) for source in reversed(self.origins) if key in source.values), None)


class VariantFile:
    """A variant file on disk, of which each platform sees the lines that its selectors keep."""

    def __init__(self, path: Path, name: str) -> None:
        from kiln.recipe.template.selectors import SelectableText

        self.path = path
        self.name = name
        self._text = SelectableText(read_text(path, name), name)
        self._parsed: dict[str, Document] = {}
        self._refuse_lists_read_as_selectors()

    def _refuse_lists_read_as_selectors(self) -> None:
        """Raise for ``key: [a, b]`` at a line's end, which conda-build reads as a selector and so drops the values."""
        for line in self._text.lines:
            if line.selector and not line.commented and line.text.endswith((":", "-")):
                raise VariantFault(
                    f"the list [{line.selector}] reads as a selector",
                    at=Place(file=self.name, line=line.number, column=line.column - 1),
                    why="conda-build takes a bracket at the end of a line for a selector and would drop these values",
                    hint="write each value on a line of its own, after '- '",
                )

    @property
    def keys(self) -> frozenset[str]:
        """Every key that the file defines on any platform."""
        return frozenset(_KEY.findall(self._text.text))

    def values_ignoring_selectors(self) -> dict[str, Any]:
        """Return the file's values without regard to selectors, for keys that hold on every platform."""
        lines = "".join(f"{line.text}\n" for line in self._text.lines)
        return mapping_or_empty(
            parse_document(lines, self.name, ScalarInterpretation.TEXT, may_repeat=lambda _: True).value
        )

    def source_for_platform(self, platform: Platform, known: frozenset[str]) -> VariantSource:
        """Return the file's values on a platform.

        Raises:
            KilnError: the file is malformed or contradicts itself.
        """
        document = self.document_for_platform(platform, known)
        source = VariantSource(name=self.name, values=without_empty_values(document.value), document=document)
        check_variant_source(source)
        return source

    def document_for_platform(self, platform: Platform, known: frozenset[str]) -> Document:
        """Return the file's own values, empty ones included."""
        from kiln.recipe.template.names import Namespace

        selected = self._text.select(Namespace(platform.fixed_names({}, platform.subdir), {}, known))
        document = self._parsed.get(selected.text)
        if document is None:
            document = parse_document(
                selected.text,
                self.name,
                ScalarInterpretation.TEXT,
                selected.line_in_file,
                self._text.is_key_under_selector,
            )
            if document.value is None or document.value == "":
                document = Document(file=self.name, value={})
            if not isinstance(document.value, dict):
                raise MalformedYaml("a variant file is a mapping of keys to values", at=document.place_of_key())
            self._parsed[selected.text] = document
        return document


@lru_cache(maxsize=256)
def _cached_variant_file(path: Path, name: str, _stamp: tuple[int, ...]) -> VariantFile:
    return VariantFile(path, name)


def load_variant_file(path: Path, name: str) -> VariantFile:
    """Return the variant file at a path, cached until the file changes."""
    try:
        stamp = file_content_stamp(path)
    except OSError as error:
        raise VariantFault(f"cannot read {name}", why=error.strerror or str(error)) from error
    return _cached_variant_file(path, name, stamp)


def without_empty_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without keys that are empty, nested mappings likewise."""
    nonempty = {}
    for key, item in values.items():
        value = without_empty_values(item) if isinstance(item, dict) else item
        if value in ([], "", None, {}) or (key in {"final", "noarch_python", "zip_keys"} and not value):
            continue
        nonempty[key] = value
    if "zip_keys" in nonempty and not any(nonempty["zip_keys"]):
        del nonempty["zip_keys"]
    return nonempty


def zip_groups(value: Any) -> list[tuple[str, ...]]:
    """Return the groups of ``zip_keys``, which may be one list of keys or a list of such lists.

    Raises:
        ValueError: it is neither of these.
    """
    if not value:
        return []
    if isinstance(value, (list, tuple)):
        if all(isinstance(key, str) for key in value):
            return [tuple(value)]
        if all(isinstance(group, (list, tuple)) and all(isinstance(key, str) for key in group) for group in value):
            return [tuple(group) for group in value]
    raise ValueError("zip_keys is a list of keys, or a list of lists of keys")


def as_list(value: Any) -> list[Any]:
    """Return a value as a list: itself, its items, or empty for None."""
    if value is None:
        return []
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    return [value]


def check_variant_source(source: VariantSource) -> None:
    """Check a source against the rules for variant files; all faults are raised at once.

    Raises:
        VariantFault: a value with parts of its own, a key with a dash, malformed ``zip_keys``, zipped keys without
            values, in two groups, or of different lengths.
    """
    try:
        groups = zip_groups(source.values.get("zip_keys"))
    except ValueError as error:
        raise VariantFault("malformed zip_keys", at=source.place_of_key("zip_keys"), why=str(error)) from error
    raise_all([*_value_faults(source), *_zip_faults(source, groups)])


def _value_faults(source: VariantSource) -> Iterator[VariantFault]:
    place = source.place_of_key
    for key, value in source.values.items():  # keys and values become parts of names
        texts = [str(key), *map(str, () if isinstance(value, dict) else as_list(value))]
        if HIDDEN.search(" ".join(texts)):
            what = f"{str(key)!r} has a control character or one that reorders text"
            why = ", ".join(repr(text) for text in texts if HIDDEN.search(text))[:200]
            yield VariantFault(what, at=place(key), why=why, hint="remove the character")
    for value in as_list(source.values.get("target_platform")):
        if not is_subdir(str(value)):
            what = f"target_platform is {str(value)!r}, which is not a subdir of conda's"
            hint = did_you_mean(str(value), PLATFORMS) or f"one of {', '.join(sorted(PLATFORMS))}"
            why = "packages for it are in a channel folder of that name"
            yield VariantFault(what, at=place("target_platform"), why=why, hint=hint)
    for key, value in source.values.items():
        if isinstance(value, list) and key != "zip_keys" and any(isinstance(item, (dict, list)) for item in value):
            what = f"{key} has a value that is neither text nor number"
            yield VariantFault(what, at=place(key), why=str(value)[:80])
    pins = source.values.get("pin_run_as_build") or {}
    if not isinstance(pins, dict) or not all(
        isinstance(pin, dict) or _PIN.fullmatch(str(pin)) for pin in pins.values()
    ):
        what = "pin_run_as_build is not a mapping of packages to their pins"
        hint = "python: {min_pin: x.x, max_pin: x.x}, or python: x.x"
        yield VariantFault(what, at=place("pin_run_as_build"), hint=hint)
    for key in source.values:
        if "-" in str(key):
            yield VariantFault(f"the key {key!r} has a dash", at=place(key), hint=f"write {key.replace('-', '_')!r}")


def _zip_faults(source: VariantSource, groups: list[tuple[str, ...]]) -> Iterator[VariantFault]:
    at = source.place_of_key("zip_keys")
    for key in (key for group in groups for key in group if key not in source.values):
        yield VariantFault(f"the zipped key {key!r} has no values in {source.name}", at=at)
    distinct = [key for group in {frozenset(group) for group in groups} for key in group]
    for key in sorted({key for key in distinct if distinct.count(key) > 1}):
        yield VariantFault(f"the key {key!r} is in more than one group of zip_keys", at=at)
    for group in groups:
        lengths = {key: len(as_list(source.values[key])) for key in group if key in source.values}
        if len(set(lengths.values())) > 1:
            usual = max(lengths.values(), key=list(lengths.values()).count)
            odd = next(key for key, count in lengths.items() if count != usual)
            yield VariantFault(
                "zipped keys have different numbers of values",
                at=source.place_of_key(odd),
                why=", ".join(f"{key} has {count}" for key, count in lengths.items()),
                hint="give every key of the group the same number of values",
            )


Spec = dict[str, "Any"]


def setting_keys(spec: Spec) -> frozenset[str]:
    """Return the keys that carry settings instead of variants."""
    return frozenset({*EXTEND_KEYS, "zip_keys", *as_list(spec.get("extend_keys"))})


def combine_sources(sources: Sequence[VariantSource]) -> Spec:
    """Return the specification that sources combine to; the last source has precedence.

    Lists of settings (``extend_keys``) are united and mappings updated; a zipped key is replaced only together with
    its whole group, or where the lengths agree. The rules are conda-build's (conda_build/variants.py).

    Raises:
        VariantFault: a source replaces a zipped key in a way that leaves its group ambiguous.
    """
    extended = {*EXTEND_KEYS, *(key for source in sources for key in as_list(source.values.get("extend_keys")))}
    zipped = (group for source in sources for group in zip_groups(source.values.get("zip_keys")) if group)
    groups = list(dict.fromkeys(zipped))
    spec: Spec = {"zip_keys": [list(group) for group in groups]} if groups else {}
    for source in sources:
        for key, value in source.values.items():
            if key == "zip_keys":
                continue
            if key in extended:
                _extend_setting(spec, key, value)
            elif isinstance(value, dict):
                spec[key] = dict(value)
            else:
                _replace_values_of_key(spec, source, key, value, groups)
    return spec


def _extend_setting(spec: Spec, key: str, value: Any) -> None:
    if isinstance(value, dict):
        before = spec.get(key)
        spec[key] = {**before, **value} if isinstance(before, dict) else dict(value)
    else:
        spec[key] = list(dict.fromkeys([*as_list(spec.get(key)), *as_list(value)]))


def _replace_values_of_key(
    spec: Spec, source: VariantSource, key: str, value: Any, groups: list[tuple[str, ...]]
) -> None:
    group = next((group for group in groups if key in group), (key,))
    if all(member in source.values for member in group):
        _replace_zip_group(spec, source, key, value, group)
    elif key in spec:
        _replace_zipped_key(spec, source, key, value, group)


def _replace_zip_group(spec: Spec, source: VariantSource, key: str, value: Any, group: tuple[str, ...]) -> None:
    for member in group:
        values = as_list(source.values[member])
        if len(values) != len(as_list(value)):
            raise VariantFault(
                "zipped keys have different numbers of values",
                at=source.place_of_key(member),
                why=f"{key} has {len(as_list(value))}, {member} has {len(values)}",
                hint="give every key of the group the same number of values",
            )
        spec[member] = values


def _replace_zipped_key(spec: Spec, source: VariantSource, key: str, value: Any, group: tuple[str, ...]) -> None:
    length = len(as_list(value))
    others = [values[member] for values in (source.values, spec) for member in group if member in values]
    if all(len(as_list(other)) == length for other in others):
        spec[key] = as_list(value) if isinstance(value, list) else value
    unknown = [item for item in as_list(value) if item not in spec[key]]
    if unknown:
        absent = [member for member in group if member not in source.values]
        raise VariantFault(
            f"{key} is zipped, and {', '.join(map(repr, unknown))} leaves its group ambiguous",
            at=source.place_of_key(key),
            why=f"the group's other keys ({', '.join(absent)}) are missing, and its present values are {spec[key]}",
            hint=f"give all of {', '.join(group)}, each with {length} value{'s' if length > 1 else ''}",
        )
