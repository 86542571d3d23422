"""The variant keys that a text uses, line by line, and the regions of a recipe's text that are searched for them.

The tests are conda-build's (conda_build/variants.py): a key counts as used where a selector names it, where a Jinja
expression or statement does, where it is a requirement without a version, or through ``compiler()`` and similar.
conda-build searches the text, not the parsed values; the regions are its boundaries (conda_build/metadata.py). Any
other boundary would change hashes, so they are exactly the same here.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from kiln.errors import MalformedYaml
from kiln.lazy_pattern import lazy_pattern
from kiln.template.selectors import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Check that a line is not longer than in any real recipe.

    Raises:
        MalformedYaml: the line is too long.
    """
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
