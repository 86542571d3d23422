"""A package's description in one form for both recipe formats, so that two packages can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.convert.package_tests import PIP_CHECK
from kiln.convert.specs import LOOSE, strict_match_spec
from kiln.matchspec_notation import with_version_wildcard
from kiln.recipe_v1.requirement import canonical_spec

if TYPE_CHECKING:
    from kiln.model.rendered import Pin

Values = Mapping[str, Any]

# Keys that only one of the formats hashes, for all packages alike.
_UNEQUAL = frozenset(
    """python r_base perl lua target_platform build_platform channel_sources MACOSX_DEPLOYMENT_TARGET
    OSX_ARCH""".split()  # noqa: SIM905 - a word list
)
_HASH = re.compile(r"h[0-9a-f]{7}(?![0-9a-f])")
_IMPORT = re.compile(r'python -c "import [\w.]+"')


@dataclass(frozen=True, kw_only=True)
class ComparablePackage:
    """A package: ``values`` by what they are, such as ``requirements/host``, and what went into its hash.

    ``script_keys`` are the keys that its script reads as variables, ``compile_keys`` those that the compile reads.
    ``bound_python`` is set where the bound of a language in ``run`` is conda-build's own.
    """

    name: str
    build_string: str
    values: Values
    hash_input: Mapping[str, str]
    script_keys: tuple[str, ...] = ()
    compile_keys: tuple[str, ...] = ()
    bound_python: bool = False

    @property
    def masked_build_string(self) -> str:
        """The build string without its hash."""
        return _HASH.sub("h#", self.build_string, count=1)

    @property
    def comparable_hash_input(self) -> Mapping[str, str]:
        """The hash input without the entries that the two formats count differently for all packages."""
        return {key: value for key, value in self.hash_input.items() if key not in _UNEQUAL}


def normalized_specs(given: list[str], section: str) -> tuple[str, ...]:
    """Return requirements in one notation."""
    return tuple(normalized_spec(spec, section) for spec in given)


def normalized_spec(spec: str, section: str) -> str:
    """Return a requirement in one notation."""
    words = " ".join(spec.split())
    if section in LOOSE:
        words = with_version_wildcard(words)
    try:
        return canonical_spec(strict_match_spec(words, section))
    except ValueError:
        return words


def pin_as_text(pin: Pin) -> str:
    """Return an open pin as text."""
    kind = "pin_subpackage" if pin.subpackage else "pin_compatible"
    lower, upper = pin.lower or pin.min_pin or "", pin.upper or pin.max_pin or ""
    bounds = "exact" if pin.exact else f"{lower} to {upper}"
    return f"{kind} {pin.name.lower()} {bounds} {pin.build or ''}".rstrip()


def comparable_test_values(
    commands: list[str], requires: Iterable[str], files: Mapping[str, Iterable[str]], downstream: Iterable[str]
) -> dict[str, Any]:
    """Return the values of a package's tests; imports and pip's check are done in any order."""
    free = [line for line in commands if line == PIP_CHECK or _IMPORT.fullmatch(line)]
    return {
        "tests/imports": tuple(sorted(set(free))),
        "tests/commands": tuple(line for line in commands if line not in free),
        "tests/requires": tuple(sorted(set(normalized_specs(list(requires), "test")))),
        **{f"tests/files/{kind}": tuple(sorted(set(names))) for kind, names in files.items()},
        "tests/downstream": tuple(downstream),
    }


def without_default_values(values: Values) -> dict[str, Any]:
    """Return values without those that say what is so anyway."""
    result = {path: value for path, value in values.items() if value not in (None, "", (), False, "false", [], {})}
    result.pop("build/number", None)
    relocation = "build/dynamic_linking/binary_relocation"
    if relocation in values:
        result[relocation] = values[relocation]
    if result.get(relocation) in {True, "true"}:
        del result[relocation]
    return {**result, "build/number": str(values.get("build/number", "0") or "0")}


def comparable_value(value: Any) -> Any:
    """Return a value whose kind does not matter: texts, and tuples of texts."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return tuple(comparable_value(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((str(key), comparable_value(item)) for key, item in value.items()))
    return value if value is None else str(value).strip()
