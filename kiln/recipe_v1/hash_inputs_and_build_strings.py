"""Hash inputs of a recipe.yaml's packages, and the build strings made of their hashes.

The rules are rattler-build's: the values of the keys that a package uses, its platform, virtual packages that it runs
with, and, for each other output that it pins exactly, that output's version and build string.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.model.rendered import Pin
from kiln.recipe_v1.compiled_expression import compile_template, is_template
from kiln.recipe_v1.filters_and_tests import short_version_without_dots
from kiln.recipe_v1.minijinja_value_operations import printed_text
from kiln.recipe_v1.node_evaluation import compile_scalar, evaluate_scalar
from kiln.recipe_v1.scope import VariantScope
from kiln.yamltext.text_with_typed_value import typed_variant_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.recipe_v1.recipe import PackageAtVariant
    from kiln.recipe_v1.requirement import Requirement
    from kiln.yamltext import PlacedText

# The languages that show in a build string, in this order, and how many parts of their versions.
_LANGUAGES = (("np", ("numpy",), 2), ("py", ("python",), 2), ("pl", ("perl",), 3), ("lua", ("lua",), 2))
_LANGUAGE_R = ("r", ("r", "r_base"), 2)
SECTIONS = ("build", "host", "run", "run_constraints")
_EXPORTS = ("weak", "weak_constraints", "strong", "strong_constraints", "noarch")


@dataclass(frozen=True, kw_only=True)
class BuildIdentity:
    """A package's build string, and what went into its hash, where dashes and dots become underscores."""

    build_string: str
    hash_input: Mapping[str, Any]


class BuildIdentities:
    """The identities of the packages of one recipe; ``pinned`` finds the package that another one pins."""

    def __init__(self, pinned: Callable[[PackageAtVariant, str], PackageAtVariant]) -> None:
        self._pinned = pinned
        self._found: dict[int, BuildIdentity] = {}
        self._open: list[PackageAtVariant] = []

    def identity_of(self, package: PackageAtVariant) -> BuildIdentity:
        """Return the identity of a package.

        Raises:
            KilnError: it pins itself by way of others, or its build string cannot be evaluated.
        """
        result = self._found.get(id(package))
        if result is None:
            if any(package is other for other in self._open):
                names = " -> ".join([*(other.name for other in self._open), package.name])
                raise package.placed_error("outputs pin each other exactly", why=names)
            self._open.append(package)
            try:
                result = self._found[id(package)] = self._computed_identity(package)
            finally:
                self._open.pop()
        return result

    def _computed_identity(self, package: PackageAtVariant) -> BuildIdentity:
        pins = {name: self._version_and_build_of_pin(package, name) for name in exactly_pinned_output_names(package)}
        values = {**_hash_input_values(package), **pins}
        data = {key.replace("-", "_").replace(".", "_"): value for key, value in values.items()}
        written = json.dumps(data, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha1(written.encode(), usedforsecurity=False).hexdigest()[:7]
        return BuildIdentity(
            build_string=_build_string(package, data, digest),
            hash_input={key: values[key] for key in sorted(values)},
        )

    def _version_and_build_of_pin(self, package: PackageAtVariant, name: str) -> str:
        other = self._pinned(package, name)
        return f"{other.version} {self.identity_of(other).build_string}"


def exactly_pinned_output_names(package: PackageAtVariant) -> list[str]:
    """Return the names of the other outputs that a package pins exactly."""
    pins = (
        item
        for item in requirements_and_run_exports(package)
        if isinstance(item, Pin) and item.subpackage and item.exact
    )
    return list(dict.fromkeys(pin.name for pin in pins if pin.name != package.name))


def requirements_and_run_exports(package: PackageAtVariant) -> Iterator[Requirement]:
    """Yield the requirements of a package, and its run exports."""
    setting = package.sections.get("requirements", {})
    for section in SECTIONS:
        yield from setting.get(section, ())
    exports = setting.get("run_exports", {})
    for kind in _EXPORTS if isinstance(exports, dict) else ():
        yield from exports.get(kind, ())
    yield from exports if isinstance(exports, list) else ()


def _hash_input_values(package: PackageAtVariant) -> dict[str, Any]:
    """Return what goes into the hash but for pins: of keys that the context redefines, the variant's own values."""
    variant, target = package.scope.variant, package.scope.target
    values = {key: typed_variant_value(variant[key]) for key in package.hashed if key in variant}
    if "build_platform" in package.hashed:
        values.setdefault("build_platform", package.scope.build)
    values["target_platform"] = "noarch" if package.noarch else target
    for key in package.sections["build"].get("variant", {}).get("ignore_keys", ()):
        values.pop(key, None)
    run = package.sections.get("requirements", {}).get("run", ())
    virtual = {spec.split(" ")[0]: spec for spec in run if isinstance(spec, str) and spec.startswith("__")}
    return values | virtual


def _build_string(package: PackageAtVariant, hash_input: Mapping[str, Any], digest: str) -> str:
    setting: PlacedText | None = package.sections["build"].get("string")
    number = package.sections["build"].get("number", 0)
    if setting is None:
        return f"{_build_string_prefix(package, hash_input)}h{digest}_{number}"
    if not is_template(setting):
        return str(setting)
    scope = VariantScope(hash_input, package.scope.target, package.scope.build)
    scope.context = {**package.scope.context, "hash": digest, "build_number": number}
    return evaluate_scalar(setting, compile_scalar(setting, compile_template), scope, printed_text)


def _build_string_prefix(package: PackageAtVariant, hash_input: Mapping[str, Any]) -> str:
    if package.noarch == "python":
        return "py"
    parts = []
    for prefix, keys, length in (*_LANGUAGES, _LANGUAGE_R):
        values = [hash_input[key] for key in keys if key in hash_input]
        if values:
            parts.append(prefix + short_version_without_dots(printed_text(values[-1]), length))
    return "".join(parts)
