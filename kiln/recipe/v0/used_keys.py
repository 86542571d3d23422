"""The variant keys and requirements that a recipe's text uses, and values that rattler-build ignores."""

from __future__ import annotations

import posixpath
import re
from functools import cached_property, lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base.errors import MalformedYaml, RecipeFault
from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import mappings_in_list
from kiln.conda.specs import with_version_wildcard
from kiln.recipe.template.selectors import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_XX = lazy_pattern(r"([0-9a-zA-Z\.\-\_]+)\s+x\.x")
_NAME = lazy_pattern(r"[^\s=<>!~\[(]+")
SECTIONS = ("build", "host", "run", "run_constrained")


def spec_package_name(spec: str) -> str:
    """Return the package name of a spec, without its channel."""
    text = spec.strip().rpartition("::")[2]
    match = _NAME.match(text)
    return match.group().lower() if match else ""


def requirement_texts(value: Any, where: str) -> list[str]:
    """Return a section's requirements as texts."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    for item in items:
        if isinstance(item, (dict, list)):
            what = f"{where} holds a {'mapping' if isinstance(item, dict) else 'list'} instead of text"
            raise RecipeFault(what, why=f"it is {str(item)[:80]}", hint="quote it if it is text")
    return [str(item) for item in items if item is not None]


def requirements_by_section(value: Any) -> dict[str, list[str]]:
    """Return the requirements by section; a bare list counts as both ``host`` and ``run``."""
    if isinstance(value, dict):
        return {str(section): _specs_of_section(str(section), specs) for section, specs in value.items()}
    specs = requirement_texts(value, "requirements")
    return {"host": list(specs), "run": list(specs)} if specs else {}


def _specs_of_section(section: str, value: Any) -> list[str]:
    # conda-build ignores unknown sections, whatever their values.
    if section in SECTIONS:
        return requirement_texts(value, f"requirements/{section}")
    return [str(item) for item in (value if isinstance(value, list) else [value]) if item is not None]


def with_variant_versions(requirements: Mapping[str, list[str]], variant: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the requirements with the variant's versions after bare names.

    In ``run``, only a name that is bare in ``build`` or ``host`` gets one. ``name x.x`` takes the variant's version.
    """
    sections_by_name = {section: list(specs) for section, specs in requirements.items()}
    for section in ("build", "host", "run"):
        bare = {*sections_by_name.get("build", ()), *sections_by_name.get("host", ())}
        specs = [_spec_with_variant_version(spec, variant, section, bare) for spec in sections_by_name.get(section, ())]
        if specs:
            sections_by_name[section] = specs
    return sections_by_name


def _spec_with_variant_version(spec: str, variant: Mapping[str, Any], section: str, bare: set[str]) -> str:
    name = spec.strip()
    key = name.replace("-", "_")
    if key in variant and spec.startswith(name) and (section != "run" or name in bare):
        value = variant[key]
        if not isinstance(value, dict):
            return with_version_wildcard(f"{name} {value if isinstance(value, str) else next(iter(value), '')}")
    if xx := _XX.match(spec):
        version = variant.get(xx[1])
        if version is None:
            raise RecipeFault(f"{spec!r} needs a version from the variant, which has none", hint=f"give {xx[1]}")
        return with_version_wildcard(f"{xx[1]} {version}")
    return spec


def specs_without_package(specs: Iterable[str], name: str) -> list[str]:
    """Return the specs that are not of a package."""
    return [spec for spec in specs if not (spec.startswith(name) and spec[len(name) : len(name) + 1].strip() == "")]


KeyPath = tuple[str, ...]

SCRIPTS = (".sh", ".py")  # scripts of outputs that run without a script_interpreter
_PACKAGES = frozenset({"conda", "conda_v2"})
FURTHER_HASHES = ("sha1", "sha224", "sha384", "sha512")  # which the engine does not verify
CONTENT_HASHES = ("content_sha256", "content_sha384", "content_sha512")
_FILE_HASHES = ("md5", "sha256", *FURTHER_HASHES)  # of what is downloaded: conda-build reads no others of them
REVISIONS = ("git_rev", "git_tag", "git_branch")


def unsupported_values(values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """Yield the path of each key whose value is not honored, and the reason."""
    sources = mappings_in_list(values.get("source"))
    for number, entry in enumerate(sources):
        yield from _unsupported_source_values(entry)
        yield from _conflicts_between_sources(entry, sources[:number], sources[number + 1 :])
    for build in mappings_in_list(values.get("build")):
        yield from _unsupported_build_values(build, values.get("requirements"), ("build",))
    for output in mappings_in_list(values.get("outputs")):
        yield from _unsupported_output_values(output)
        for build in mappings_in_list(output.get("build")):
            yield from _unsupported_build_values(build, output.get("requirements"), ("outputs", "build"))


def _unsupported_source_values(entry: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    hashes = (*(_FILE_HASHES if "url" in entry or "fn" in entry else ()), *CONTENT_HASHES)
    if empty := next((key for key in hashes if key in entry and entry[key] in (None, "")), None):
        yield ("source", empty), "conda-build refuses a hash without a value"
    if "path_via_symlink" in entry:
        folder = _source_folder_parts(entry) if entry.get("folder") else ()
        if not folder:
            yield ("source", "path_via_symlink"), "conda-build refuses it without a folder"
        elif folder[0] in {"..", "/", "//"}:
            yield ("source", "folder"), "the link would be outside of the work folder"
        elif entry.get("patches"):
            yield ("source", "patches"), "they would change the files that the link leads to"
    revisions = [key for key in REVISIONS if key in entry]
    if len(revisions) > 1:
        yield ("source", revisions[1]), f"conda-build refuses several of {', '.join(REVISIONS)}"


def _conflicts_between_sources(
    entry: Mapping[str, Any], before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys of a source that another one makes impossible to honor."""
    content = next((key for key in CONTENT_HASHES if entry.get(key)), None)
    if content and any(_is_in_folder_of(entry, other) for other in before):
        yield ("source", content), "the hash would include files of an earlier source in the same folder"
    if "path_via_symlink" in entry and any(_is_in_folder_of(entry, other) for other in (*before, *after)):
        yield ("source", "path_via_symlink"), "another source is in the same folder, and would change what it leads to"


def _is_in_folder_of(entry: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether another source goes into the folder of a source, or below it."""
    folder = _source_folder_parts(entry)
    return _source_folder_parts(other)[: len(folder)] == folder


def _source_folder_parts(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return PurePosixPath(posixpath.normpath(str(entry.get("folder") or "."))).parts


def _unsupported_build_values(
    build: Mapping[str, Any], requirements: Any, path: KeyPath
) -> Iterator[tuple[KeyPath, str]]:
    if build.get("overlinking_ignore_patterns") and build.get("error_overlinking"):
        yield (*path, "overlinking_ignore_patterns"), "rattler-build checks all files when overlinking is an error"

    if "activate_in_script" in build and str(build["activate_in_script"]).lower() in {"false", "no", "off"}:
        yield (*path, "activate_in_script"), "rattler-build always activates the environments of a script"

    both = isinstance(requirements, dict) and requirements.get("build") and requirements.get("host")
    if both and str(build.get("merge_build_host", "")).lower() in {"true", "yes", "on"}:
        yield (*path, "merge_build_host"), "with requirements in host, rattler-build drops run exports of build"


def _unsupported_output_values(output: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    kind = output.get("type")
    if kind is not None and str(kind) not in _PACKAGES:
        yield ("outputs", "type"), f"kiln makes conda packages, and none of the type {kind}"
    script = output.get("script")
    if isinstance(script, str) and script and not output.get("script_interpreter") and not script.endswith(SCRIPTS):
        yield ("outputs", "script"), f"conda-build runs {script} with a script_interpreter alone"


_TOOL = lazy_pattern(r"(.*?)_(compiler|stdlib)(_version)?$")
_MAX_LENGTH = 10_000
_MAX_STATEMENT_LENGTH = 4_000
_SYSROOT = "CONDA_BUILD_SYSROOT"

Used = frozenset[str]
_FLAGS = re.MULTILINE | re.DOTALL
_BLOCK = lazy_pattern(r"^\ +-\ +(?:name|type):.+?(?=^\w|\Z|^\ +-\ +(?:name|type))", _FLAGS)
_OUTPUTS = lazy_pattern(r"(^outputs:.*?)(?=^test:|^extra:|^about:|\Z)", _FLAGS)
_IDENTITY = lazy_pattern(r"(^.*?)(?=^requirements:|^test:|^extra:|^about:|^outputs:|\Z)", _FLAGS)
_TOP_REQUIREMENTS = lazy_pattern(r"(^requirements:.*?)(?=^test:|^extra:|^about:|^outputs:|\Z)", _FLAGS)
_OUTPUT_REQUIREMENTS = lazy_pattern(
    r"(^\s*requirements:.*?)(?=^\s*test:|^\s*extra:|^\s*about:|^\s*-\s+name:|^outputs:|\Z)", _FLAGS
)
_REQUIREMENTS = lazy_pattern(r"requirements:.+?(?=^\w|\Z|^\s+-\s(?=name|type))", _FLAGS)
_NUMPY_XX = lazy_pattern(r"(numpy\s*x\.x)|pin_compatible\([\'\"]numpy.*max_pin=[\'\"]x\.x[\'\"]")
_NUMPY_PIN = lazy_pattern(r"pin_\w+\([\'\"]numpy[\'\"]")
_NUMPY_PLACES = lazy_pattern(r"pin_\w+\([\'\"]numpy[\'\"].*((?<=x_pin=[\'\"])[x\.]*(?=[\'\"]))")
_HASH = lazy_pattern(r"h\{\{\s*PKG_HASH\s*\}\}")
_SUBPACKAGE = lazy_pattern(r"{{\s*pin_subpackage\(.*\)\s*}}")


@lru_cache(maxsize=4096)
def _pattern_of_key_in_selector(key: str) -> re.Pattern[str]:
    tests = [rf"^[^#\[]*?\#?\s\[[^\]]*?(?<![_\w\d]){re.escape(key)}[=\s<>!\]]"]
    if key.startswith("cdt_") and not _TOOL.match(key):
        tests.append(r"\{{\s*cdt\(")
    return re.compile("|".join(tests))


@lru_cache(maxsize=4096)
def _pattern_of_key_outside_selectors(key: str) -> re.Pattern[str]:
    name = re.escape(key)
    spelt = "[-_]".join(map(re.escape, key.split("_")))
    bare = rf"(?<![a-zA-Z_0-9]){name}(?![a-zA-Z_0-9])"
    tests = [
        rf"\{{\s*(?:pin_[a-z]+\(\s*?['\"])?{name}(?:[^_0-9a-zA-Z].*?)?\}}\}}",
        rf"^\s+\-\s+{spelt}\s*(?:\s[\[#]|$)",
        rf"(?:^|[^\{{])\{{%\s*(?:el)?if\s*.*{name}\s*(?:[^%]*?)?%\}}",
        rf"(?:^|[^\{{])\{{%\s*for\s*.*\s*in\s*{name}(?![a-zA-Z_0-9])(?:[^%]*?)?%\}}",
        rf"(?:^|[^\{{])\{{%\s*set\s*.*\s*=\s*.*{bare}(?:[^%]*?)?%\}}",
    ]
    if tool := _TOOL.match(key):
        tests.append(rf"\{{\s*{tool[2]}\([\'\"]{re.escape(tool[1])}[\"\'][^\{{]*?\}}")
    elif key.startswith("cdt_"):
        tests.append(r"\{{\s*cdt\(")
    return re.compile("|".join(tests))


class UsedKeySearch:
    """The use of a set of keys, cached by line."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(sorted(keys))
        self._tools = tuple((key, tool[1]) for key in self._keys if (tool := _TOOL.match(key)))
        self._cdt = tuple(key for key in self._keys if key.startswith("cdt_"))
        self._sysroot = _SYSROOT in self._keys
        self._in_line: tuple[BoundedDict[str, Used], BoundedDict[str, Used]] = (BoundedDict(16384), BoundedDict(16384))
        self._in_text: tuple[BoundedDict[str, Used], BoundedDict[str, Used]] = (BoundedDict(1024), BoundedDict(1024))

    def keys_in_selectors(self, text: str) -> Used:
        """Return the keys that the selectors of a text use."""
        return self._used_keys_in_text(text, 0)

    def keys_outside_selectors(self, text: str) -> Used:
        """Return the keys that a text uses outside selectors."""
        return self._used_keys_in_text(text, 1)

    def _used_keys_in_text(self, text: str, kind: int) -> Used:
        memory = self._in_text[kind]
        keys = memory.get(text)
        if keys is None:
            used: set[str] = set()
            for line in text.splitlines():
                used |= self._used_keys_in_line(line, kind)
            if self._sysroot and used & {"c_stdlib", "c_compiler", "cxx_compiler"}:
                used.add(_SYSROOT)
            keys = memory[text] = frozenset(used)
        return keys

    def _used_keys_in_line(self, line: str, kind: int) -> Used:
        memory = self._in_line[kind]
        keys = memory.get(line)
        if keys is None:
            check_line_length(line)
            pattern = _pattern_of_key_outside_selectors if kind else _pattern_of_key_in_selector
            candidates = self._candidate_keys(line, kind)
            keys = memory[line] = frozenset(key for key in candidates if pattern(key).search(line))
        return keys

    def _candidate_keys(self, line: str, kind: int) -> list[str]:
        """Return the keys that a line may use, by a search without regular expressions."""
        cdt = self._cdt if "cdt(" in line else ()
        if not kind and "[" not in line:
            return list(cdt)
        if kind and "{" not in line and not line.lstrip().startswith("-"):
            return []
        flat = line.replace("-", "_")
        candidates = [key for key in self._keys if key in flat]
        if kind and ("compiler(" in line or "stdlib(" in line):
            candidates.extend(key for key, language in self._tools if language in line)
        return [*candidates, *cdt]


def check_line_length(line: str) -> None:
    """Check that a line is not longer than in any real recipe."""
    if len(line) > (_MAX_STATEMENT_LENGTH if "{%" in line else _MAX_LENGTH):
        raise MalformedYaml(f"a line of {len(line):,} characters", hint="break the line, or move the text into a file")


def keys_in_shell_script(keys: Iterable[str], text: str) -> Used:
    """Return the keys that a shell script uses as variables."""
    return frozenset(key for key in keys if key in text and _shell_variable_pattern(key).search(text))


@lru_cache(maxsize=4096)
def _shell_variable_pattern(key: str) -> re.Pattern[str]:
    # Only the first dollar sign of a line counts in conda-build's test.
    return re.compile(rf"^[^$\n]*\$\{{?\s*{re.escape(key)}\s*[\s|\}}]", re.MULTILINE)


def keys_in_batch_script(keys: Iterable[str], text: str) -> Used:
    """Return the keys that a Windows batch script uses as variables."""
    return frozenset(key for key in keys if f"%{key}%" in text)


class RecipeTextRegions:
    """A text and its regions."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def outputs_section(self) -> str:
        """The ``outputs:`` section."""
        return _first_regex_group(_OUTPUTS, self.text)

    @cached_property
    def output_blocks(self) -> tuple[str, ...]:
        """Each output's part of the ``outputs:`` section."""
        return tuple(_BLOCK.findall(self.outputs_section))

    @cached_property
    def text_without_outputs(self) -> str:
        """The text with the ``outputs:`` section taken out."""
        outputs = self.outputs_section.strip()
        return self.text.replace(outputs, "") if outputs else self.text

    @cached_property
    def first_requirements_section(self) -> str:
        """The first ``requirements:`` anywhere, up to the next section or output."""
        match = _REQUIREMENTS.search(self.text)
        return match.group() if match else ""

    @cached_property
    def text_before_requirements(self) -> str:
        """The text before the requirements: the ``package`` and ``build`` sections, or an output's whole block."""
        return _first_regex_group(_IDENTITY, self.text)

    @cached_property
    def has_package_section(self) -> bool:
        """True when the text has a ``package`` section, as an output's block has not."""
        return "package:" in self.text

    @cached_property
    def requirements_section(self) -> str:
        """The ``requirements:`` section of the recipe's top, or of an output's block."""
        return _first_regex_group(_TOP_REQUIREMENTS if self.has_package_section else _OUTPUT_REQUIREMENTS, self.text)

    @cached_property
    def pins_subpackage(self) -> bool:
        """True when the requirements use ``pin_subpackage``."""
        return bool(_SUBPACKAGE.search(self.requirements_section))

    @cached_property
    def has_hash_in_build_string(self) -> bool:
        """True when the recipe's build string contains the hash (``PKG_HASH``)."""
        return "string:" in self.text_before_requirements and bool(_HASH.search(self.text_before_requirements))

    @cached_property
    def has_numpy_in_build_string(self) -> bool:
        """True when numpy's version is part of the build string (``numpy x.x``)."""
        return bool(_NUMPY_XX.search(self.requirements_section))

    @cached_property
    def is_numpy_unhashed(self) -> bool:
        """True when numpy's version is not hashed, because a pin or the build string covers it."""
        if self.has_numpy_in_build_string:
            return True
        places = _NUMPY_PLACES.search(self.requirements_section)
        return bool(_NUMPY_PIN.search(self.requirements_section)) and places is not None and places[1].count("x") == 2


def _first_regex_group(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


@lru_cache(maxsize=512)
def text_regions(text: str) -> RecipeTextRegions:
    """Return the regions of a text, cached by text."""
    return RecipeTextRegions(text)
