"""The packages of a recipe over all variants, hash inputs and build strings, and variants.yaml."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.errors import MalformedYaml, RecipeFault, SelectorFault, VariantFault
from kiln.base.patterns import invalid_name_reason
from kiln.base.position import Place
from kiln.base.yaml import (
    Document,
    PlacedText,
    ScalarInterpretation,
    TypedText,
    parse_document,
    read_text,
    scalar_value,
    typed_variant_value,
)
from kiln.recipe.rendered import Pin, Source, hash_key
from kiln.recipe.template.expression import ExpressionError, MissingName, evaluate_expression
from kiln.recipe.template.names import Namespace
from kiln.recipe.v1 import nodes
from kiln.recipe.v1.expressions import compile_template, is_template
from kiln.recipe.v1.nodes import RECIPE, compile_scalar, evaluate_scalar
from kiln.recipe.v1.scope import VariantScope
from kiln.recipe.v1.values import printed_text, short_version_without_dots
from kiln.recipe.variants.files import VariantSource, check_variant_source, without_empty_values, zip_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kiln.recipe.v1.recipe import PackageAtVariant, RecipeV1
    from kiln.recipe.v1.sections import Requirement
    from kiln.recipe.variants.files import Platform
    from kiln.recipe.variants.space import Space

    KeysOfPackage = Callable[[PackageAtVariant], frozenset[str]]


class VariantFileV1:
    """A variants.yaml on disk; each platform sees its own part of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._document = parse_document(read_text(path, name), name, ScalarInterpretation.PLACED)
        if nodes.is_empty_node(self._document.value):
            self._document = Document(file=name, value={})
        if not isinstance(self._document.value, dict):
            raise MalformedYaml("a variant file is a mapping of keys to values", at=self._document.place_of_key())

    @property
    def keys(self) -> frozenset[str]:
        """Every key that the file defines on any platform."""
        return frozenset(map(str, self._document.value))

    def source_for_platform(self, platform: Platform, known: frozenset[str]) -> VariantSource:
        """The file as a platform sees it.

        Raises:
            KilnError: the file is malformed or contradicts itself.
        """
        names = Namespace(platform.fixed_names({}, platform.subdir), {}, known)
        values = {str(key): self._value_of_key(str(key), node, names) for key, node in self._document.value.items()}
        source = VariantSource(name=self.name, values=without_empty_values(values), document=self._document)
        check_variant_source(source)
        return source

    def _value_of_key(self, key: str, node: Any, names: Namespace) -> Any:
        if key == "zip_keys":
            return self._zip_key_groups(node, names)
        if key == "pin_run_as_build":
            return _plain_value_of_node(node)
        if isinstance(node, dict):
            what = f"the values of {key} are not a list"
            raise VariantFault(what, at=self._node_place(node), hint="write each on a line of its own, after '- '")
        return [self._typed_value(key, item) for item in self._resolved_items(node, names)]

    def _zip_key_groups(self, node: Any, names: Namespace) -> list[list[str]]:
        groups = [_plain_value_of_node(item) for item in self._resolved_items(node, names)]
        try:
            return [list(group) for group in zip_groups(groups)]
        except ValueError as error:
            raise VariantFault("malformed zip_keys", at=self._node_place(node), why=str(error)) from error

    def _typed_value(self, key: str, item: Any) -> str:
        if not isinstance(item, PlacedText):
            raise VariantFault(f"{key} has a value that is neither text nor number", at=self._node_place(item))
        value = scalar_value(item)
        return TypedText(value) if isinstance(value, int) else str(item)

    def _resolved_items(self, node: Any, names: Namespace) -> Iterator[Any]:
        for item in nodes.node_as_list(node):
            if isinstance(item, dict) and "if" in item:
                branch = "then" if self._condition_holds(item["if"], names) else "else"
                yield from self._resolved_items(item.get(branch), names)
            elif not nodes.is_empty_node(item):
                yield item

    def _condition_holds(self, condition: Any, names: Namespace) -> bool:
        """Return whether a condition holds: an expression of Python over platforms' names, as conda-smithy reads it."""
        if not isinstance(condition, PlacedText):
            raise VariantFault("a condition is text", at=self._node_place(condition))
        try:
            return bool(evaluate_expression(str(condition), names.lookup))
        except ExpressionError as error:
            why = f"{error} has no value here" if isinstance(error, MissingName) else str(error)
            raise SelectorFault(
                f"the condition {str(condition)!r} cannot be evaluated", at=self._node_place(condition), why=why
            ) from error

    def _node_place(self, node: Any) -> Place:
        at = nodes.node_place(node)
        return Place(file=self.name, line=at.line, column=at.column)


def _plain_value_of_node(node: Any) -> Any:
    if isinstance(node, dict):
        return {str(key): _plain_value_of_node(value) for key, value in node.items()}
    return [_plain_value_of_node(item) for item in node] if isinstance(node, list) else str(node)


# The languages that show in a build string, in this order, and how many parts of their versions.
_LANGUAGES = (("np", ("numpy",), 2), ("py", ("python",), 2), ("pl", ("perl",), 3), ("lua", ("lua",), 2))
_LANGUAGE_R = ("r", ("r", "r_base"), 2)
SECTIONS = ("build", "host", "run", "run_constraints")
_EXPORTS = ("weak", "weak_constraints", "strong", "strong_constraints", "noarch")


@dataclass(frozen=True, kw_only=True)
class BuildIdentity:
    """A package's build string, and what went into its hash, where `hash_key` gives the keys."""

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
        values = _hash_input_values(package)
        for name in exactly_pinned_output_names(package):
            other = self._pinned(package, name)
            values[name] = f"{other.version} {self.identity_of(other).build_string}"
        data = {hash_key(key): value for key, value in values.items()}
        written = json.dumps(data, sort_keys=True, ensure_ascii=False)
        digest = hashlib.sha1(written.encode(), usedforsecurity=False).hexdigest()[:7]
        return BuildIdentity(
            build_string=_build_string(package, data, digest), hash_input={key: values[key] for key in sorted(values)}
        )


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


_MOST = 20_000  # evaluations of one platform


class RecipePackages:
    """The packages of a recipe over the variants of a space; ``words`` is as in the scope."""

    def __init__(self, recipe: RecipeV1, space: Space, target: str, build: str, *, words: bool = False) -> None:
        self._recipe = recipe
        self._space = space
        self._platforms = (target, build)
        self._words = words
        self._evaluated: dict[tuple[int, tuple[Any, ...]], PackageAtVariant] = {}
        self._loops = sorted(space.varying_keys)
        self._remaining_evaluations = _MOST

    def packages(self, keys_of: KeysOfPackage | None = None) -> Iterator[PackageAtVariant]:
        """Yield every package that is not skipped, in the recipe's order, for all values of the keys of ``keys_of``.

        By default these are the keys that it depends on, by way of what it pins exactly, too.

        Raises:
            KilnError: the recipe is at fault.
        """
        for index in range(self._recipe.package_count):
            yield from self._packages_divided_by_keys(index, self._space, keys_of or self._keys_package_depends_on)

    def pinned_package(self, by: PackageAtVariant, name: str) -> PackageAtVariant:
        """Return the package of a name that belongs to the same variant as another one.

        Raises:
            RecipeFault: none exists.
        """
        indexes = range(self._recipe.package_count)
        for index in indexes:
            result = self._cached_package(index, by.scope.variant)
            if result.name.lower() == name and not result.skip:
                return result
        every = (
            other
            for index in indexes
            for other in self._packages_divided_by_keys(index, self._space, _read_and_hashed_keys)
        )
        if others := [other for other in every if other.name.lower() == name]:
            here = by.scope.variant  # the most similar variant counts
            return max(others, key=lambda other: sum(here.get(k) == other.scope.variant.get(k) for k in self._loops))
        raise by.placed_error(f"{by.name} pins {name!r} with pin_subpackage, but the config has no such output")

    def _cached_package(self, index: int, variant: Mapping[str, Any]) -> PackageAtVariant:
        """Return a package at a variant, evaluated once."""
        key = (index, tuple(variant.get(loop) for loop in self._loops))
        result = self._evaluated.get(key)
        if result is None:
            self._remaining_evaluations -= 1
            if self._remaining_evaluations < 0:
                why = f"the packages differ at more than {_MOST:,} combinations of keys"
                hint = "zip keys that belong together with zip_keys"
                raise RecipeFault("the matrix explodes", at=Place(file=RECIPE), why=why, hint=hint)
            scope = self._recipe.scope_at_variant(variant, *self._platforms, words=self._words)
            result = self._evaluated[key] = self._recipe.package_at_variant(index, scope)
        return result

    def _packages_divided_by_keys(self, index: int, space: Space, keys_of: KeysOfPackage) -> Iterator[PackageAtVariant]:
        package = self._cached_package(index, space.first_variant())
        key = min(keys_of(package) & space.varying_keys, default=None)
        if key is not None:
            dimension = space.dimension(key)
            for value in dimension.values(key) if dimension else ():
                yield from self._packages_divided_by_keys(index, space.where(key, [value]), keys_of)
        elif not package.skip:
            yield package

    def _keys_package_depends_on(self, package: PackageAtVariant) -> frozenset[str]:
        """Return the keys that a package depends on, by way of what it pins exactly, too."""
        keys: set[str] = set()
        names, todo = {package.name.lower()}, [package]
        while todo:
            item = todo.pop()
            keys |= _read_and_hashed_keys(item)
            for name in () if item.skip else exactly_pinned_output_names(item):
                if name not in names:
                    names.add(name)
                    todo.append(self.pinned_package(item, name))
        return frozenset(keys)


def require_valid_names(package: PackageAtVariant, identity: BuildIdentity) -> None:
    """Refuse names that are not conda's, or that lead out of a folder: they become parts of paths."""
    if package.staging and (why := invalid_name_reason(package.staging.name, "package name")):
        raise package.placed_error(f"the name {package.staging.name[:80]!r} of the staging output is invalid", why)
    given = {"package name": package.name.lower(), "version": package.version, "build string": identity.build_string}
    for kind, text in given.items():
        if why := invalid_name_reason(text, kind):
            raise package.placed_error(f"invalid {kind} {text[:80]!r}", why)
    for sections in (package.sections, package.staging.sections if package.staging else {}):
        for entry in sections.get("source", ()):
            Source(file_name=entry.get("file_name"), folder=entry.get("target_directory"))


def packages_with_variant_subspaces(
    recipe: RecipeV1, space: Space, target: str, *, noarch: bool = True
) -> Iterator[tuple[Space, PackageAtVariant]]:
    """Yield every package with the part of the space that it is for; skipped ones, and unwanted noarch, are left out.

    The platform builds for itself here, as it does when conda-smithy asks rattler-build for the keys, which also
    refuses what it cannot render.

    Raises:
        KilnError: the recipe is at fault.
    """
    packages = RecipePackages(recipe, space, target, target, words=True)
    identities = BuildIdentities(packages.pinned_package)
    for package in packages.packages(lambda item: item.used | item.scope.reads):
        if package.noarch and not noarch:
            continue
        require_valid_names(package, identities.identity_of(package))
        part = space
        for key in sorted(package.used & space.varying_keys):
            part = part.where(key, [package.scope.variant[key]])
        yield part, package


def _read_and_hashed_keys(package: PackageAtVariant) -> frozenset[str]:
    return package.hashed | package.scope.reads
