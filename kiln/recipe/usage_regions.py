"""The regions of a recipe's text: its requirements, its outputs, each output's block.

conda-build searches the text, not the parsed values, for the variant keys that an output uses; these are its region
boundaries (conda_build/metadata.py). Any other boundary would change hashes, so they are exactly the same here.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

from kiln.lazy_pattern import lazy_pattern

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


class Region:
    """A text and its regions."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def outputs(self) -> str:
        """The ``outputs:`` section."""
        return _first(_OUTPUTS, self.text)

    @cached_property
    def blocks(self) -> tuple[str, ...]:
        """Each output's part of the ``outputs:`` section."""
        return tuple(_BLOCK.findall(self.outputs))

    @cached_property
    def without_outputs(self) -> str:
        """The text with the ``outputs:`` section taken out."""
        outputs = self.outputs.strip()
        return self.text.replace(outputs, "") if outputs else self.text

    @cached_property
    def requirements(self) -> str:
        """The first ``requirements:`` anywhere, up to the next section or output."""
        match = _REQUIREMENTS.search(self.text)
        return match.group() if match else ""

    @cached_property
    def identity(self) -> str:
        """The text before the requirements: the ``package`` and ``build`` sections, or an output's whole block."""
        return _first(_IDENTITY, self.text)

    @cached_property
    def is_top(self) -> bool:
        """True when the text has a ``package`` section, as an output's block has not."""
        return "package:" in self.text

    @cached_property
    def own_requirements(self) -> str:
        """The ``requirements:`` section of the recipe's top, or of an output's block."""
        return _first(_TOP_REQUIREMENTS if self.is_top else _OUTPUT_REQUIREMENTS, self.text)

    @cached_property
    def pins_subpackage(self) -> bool:
        """True when the requirements use ``pin_subpackage``."""
        return bool(_SUBPACKAGE.search(self.own_requirements))

    @cached_property
    def wants_hash(self) -> bool:
        """True when the recipe's build string contains the hash (``PKG_HASH``)."""
        return "string:" in self.identity and bool(_HASH.search(self.identity))

    @cached_property
    def numpy_in_name(self) -> bool:
        """True when numpy's version is part of the build string (``numpy x.x``)."""
        return bool(_NUMPY_XX.search(self.own_requirements))

    @cached_property
    def numpy_hidden(self) -> bool:
        """True when numpy's version is not hashed, because a pin or the build string covers it."""
        if self.numpy_in_name:
            return True
        places = _NUMPY_PLACES.search(self.own_requirements)
        return bool(_NUMPY_PIN.search(self.own_requirements)) and places is not None and places[1].count("x") == 2


def _first(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


@lru_cache(maxsize=512)
def region(text: str) -> Region:
    """Return the region of a text, cached by text."""
    return Region(text)
