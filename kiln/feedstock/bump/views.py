"""A recipe at all of its variants: each config's, and those of platforms that no config has."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base.errors import KilnError, RecipeFault
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import mapping_or_empty, mappings_in_list
from kiln.feedstock import config_file
from kiln.feedstock.bump.literals import (
    HASHES,
    Literal,
    PackageView,
    RecipeView,
    SourceView,
    Views,
    hash_values,
    meta_yaml_literals,
    meta_yaml_version_literals_in_urls,
    names_read_by_their_own_statements,
    placeholder_hashes,
    recipe_yaml_literals,
    recipe_yaml_version_literals_in_urls,
    replace_literals,
)
from kiln.feedstock.pinning import KEYWORDS
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.render import build_platform, recipe_of_config
from kiln.recipe.template.expression import ExpressionError, compile_expression
from kiln.recipe.template.selectors import selector_holds
from kiln.recipe.v1 import sections
from kiln.recipe.v1.nodes import RECIPE, is_empty_node, require_mapping
from kiln.recipe.v1.recipe import RecipeV1
from kiln.recipe.v1.rendering import variant_space_of_config
from kiln.recipe.variants.files import as_list
from kiln.recipe.variants.space import Variant

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from kiln.feedstock.bump.literals import RecipeText
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.v0.recipe import Recipe
    from kiln.recipe.v1.scope import VariantScope


FILE = "recipe/meta.yaml"
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64", "win-arm64")
_MOST_META_YAML_VARIANTS = (
    64  # variants of a recipe that are looked at; more differ only in what neither version nor sources say
)
_CONFIGS = 100
_VARIANTS = 8  # variants of one config
_CHOICES = 256  # values that are tried for a selector's names
_OTHERS = ("True", "0", "1000", "other")  # values of a name besides those in the selector
_PYTHONS = ("2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
_RENDERED = 200  # times that a recipe is rendered to find where its conditions hold
_JINJA_CONDITION = lazy_pattern(
    r"\{%[-+]?\s*(?:el)?if\s+(.*?)[-+]?%\}|\bif\s+((?:(?!\bif\b|\}\}).)+?)\s+else\b", re.DOTALL
)
_CONDITION = lazy_pattern(r"^[ \t-]*(?:if|skip):[ \t]*(.+)$", re.MULTILINE)
_CONSTANT = lazy_pattern(r"'([^']*)'|\"([^\"]*)\"|(?<![\w.])(\d+(?:\.\d+)*)(?![\w.])")
_NAME = lazy_pattern(r"(?<![\w.])[^\W\d]\w*(?!\w|\s*\()")
_OF_PYTHON = lazy_pattern(r"py(?:\d+|2k|3k)?")  # conda-build's names in selectors
_RELEVANT = lazy_pattern(r"set\b|url|git_|fn:|version|number|://|" + "|".join(HASHES))

RecipeAtVariant = tuple["Recipe", Variant]


class MetaYamlText:
    """The text of a meta.yaml, with its variants."""

    file = FILE

    def __init__(self, feedstock: Feedstock, text: str) -> None:
        self.text = text
        self.literals = meta_yaml_literals(text)
        self.fault: KilnError | None = None
        self._versioned = ""  # the output that has the recipe's version, if the top has not
        configs = config_file.read_configs(feedstock, feedstock.config_names)
        self._platforms = {config.platform for config in configs} or set(_PLATFORMS)
        self._variants = self._distinct_variants(_meta_yaml_variants(feedstock, text))
        self._variants += self._variants_with_missing_hashes()
        self._versioned = _output_with_version(self.views_at_variants(text), 1)

    def version_literals_in_urls(self, version: str) -> tuple[Literal, ...]:
        """Return where the URLs and revisions of the text write a version out."""
        return meta_yaml_version_literals_in_urls(self.text, version)

    def views_at_variants(self, text: str) -> Views:
        """Return what another text says at each variant; None where it is invalid there."""
        self.fault = None if self._variants else self.fault
        try:
            return tuple(self._view_at_variant(text, recipe, variant) for recipe, variant in self._variants)
        finally:
            for source in {id(recipe.source): recipe.source for recipe, _ in self._variants}.values():
                source.replace_text(self.text)  # renderings of the same process share it

    def _variants_with_missing_hashes(self) -> tuple[RecipeAtVariant, ...]:
        """Return variants that conditions of templates ask for, at which sources are seen that no others have."""
        conditions = [match[1] or match[2] for match in _JINJA_CONDITION.finditer(self.text)]
        candidates = (
            (recipe, Variant(variant.common, {**variant.own, **choice}))
            for choice in _condition_choices(conditions)
            for recipe, variant in self._variants
        )
        return _variants_with_missing_hashes(self, self._variants, candidates, self._view)

    def _view(self, text: str, pair: RecipeAtVariant) -> RecipeView | None:
        fault = self.fault
        view = self._view_at_variant(text, *pair)
        self.fault = fault
        pair[0].source.replace_text(self.text)
        return view

    def _view_at_variant(self, text: str, recipe: Recipe, variant: Variant) -> RecipeView | None:
        try:
            if recipe.source.text.text != text:
                recipe.source.replace_text(text)
            host = recipe.host_subdir(variant)
            view = _with_version_of(_meta_yaml_view(recipe.rendered_values(variant, host)), self._versioned)
            return view if host in self._platforms else _without_sources_to_look_up(view)
        except KilnError as error:
            self.fault = self.fault or error
            return None

    def _distinct_variants(self, pairs: Iterable[RecipeAtVariant]) -> tuple[RecipeAtVariant, ...]:
        """Return the variants at which the text may differ."""
        distinct: dict[tuple[object, ...], RecipeAtVariant] = {}
        for recipe, variant in pairs:
            if len(distinct) == _MOST_META_YAML_VARIANTS:
                break
            try:
                host = recipe.host_subdir(variant)
                names = recipe.namespace(variant, host)
                selected = recipe.source.text.select(names)
                template = recipe.source.compiled_template(selected)
            except KilnError as error:
                self.fault = self.fault or error
                continue
            keys = [variant.get(name) for name in template.asked]
            key = (selected.text, names.cache_key_values(template.asked), *map(repr, keys), host)
            distinct.setdefault(key, (recipe, variant))
        return tuple(distinct.values())


def _condition_choices(conditions: Iterable[str]) -> Iterator[Mapping[str, str]]:
    """Yield values of the names in conditions at which they may hold: the constants in them, and others."""
    choices: dict[tuple[tuple[str, str], ...], None] = {}
    for condition in dict.fromkeys(conditions):
        constants = ["".join(groups) for groups in _CONSTANT.findall(condition)]
        constants += [f"{text}.0" for text in constants if text.isdecimal()]
        names = sorted(set(_NAME.findall(_CONSTANT.sub("", condition))) - set(KEYWORDS))
        values = dict.fromkeys((*constants, *_OTHERS))
        for choice in islice(product(values, repeat=len(names)), _CHOICES):
            choices[tuple(zip(names, choice, strict=True))] = None
    yield from map(dict, choices)


AnyVariant = TypeVar("AnyVariant")


def _variants_with_missing_hashes(
    recipe: RecipeText,
    variants: tuple[AnyVariant, ...],
    candidates: Iterable[AnyVariant],
    view: Callable[[str, AnyVariant], RecipeView | None],
) -> tuple[AnyVariant, ...]:
    """Return the candidates at which sources have hashes that they have at none of the variants."""
    marks = placeholder_hashes(literal for literal in recipe.literals if literal.key in HASHES)
    marked = replace_literals(recipe.text, marks)

    def found_hashes(variant: AnyVariant) -> set[str]:
        seen = view(marked, variant)
        return set() if seen is None else {value for source in seen.sources for value in hash_values(source)}

    missing = set(marks.values()).difference(*map(found_hashes, variants)) if marks else set()
    more = []
    for candidate in islice(candidates, _RENDERED) if missing else ():
        if found := found_hashes(candidate) & missing:
            missing -= found
            more.append(candidate)
        if not missing:
            break
    return tuple(more)


def _meta_yaml_variants(feedstock: Feedstock, text: str) -> Iterator[RecipeAtVariant]:
    """Yield the variants of the configs, of other platforms, and of selectors that hold at none of these."""
    recipes = [recipe_of_config(feedstock, config) for config in configs_to_read_at(feedstock, text)]
    pairs = [(recipe, recipe.space.first_variant()) for recipe in recipes]
    pairs += [(recipe, variant) for recipe in recipes for variant in islice(recipe.space.variants(), 1, _VARIANTS)]
    yield from pairs
    yield from _variants_where_selectors_hold(pairs)


def configs_to_read_at(feedstock: Feedstock, text: str) -> tuple[BuildConfig, ...]:
    """Return a feedstock's configs, and one of each platform.

    Of the configs, those that differ in the platform, or in the values of keys that a recipe's text has as words.
    """
    words = set(re.findall(r"\w+", text)) | {"python"}
    distinct: dict[tuple[object, ...], BuildConfig] = {}
    for config in config_file.read_configs(feedstock, feedstock.config_names):
        key = (config.platform, *((key, values) for key, values in sorted(config.variant.items()) if key in words))
        distinct.setdefault(key, config)
    configs = tuple(islice(distinct.values(), _CONFIGS))
    return (*configs, *(_config_at_platform(platform, configs) for platform in _PLATFORMS))


def _config_at_platform(platform: str, configs: tuple[BuildConfig, ...]) -> BuildConfig:
    """Return a config of a platform: one of the feedstock's in all but the platform."""
    like = min(configs, key=lambda config: _platform_distance(config.platform, platform), default=None)
    variant = {} if like is None else {key: values[:1] for key, values in like.variant.items()}
    name = platform.replace("-", "_")
    return BuildConfig(
        name=name, platform=platform, variant={**variant, "target_platform": (platform,)}, pin_run_as_build={}
    )


def _platform_distance(one: str, other: str) -> int:
    return (one.partition("-")[0] != other.partition("-")[0]) + (one.partition("-")[2] != other.partition("-")[2])


def _variants_where_selectors_hold(pairs: list[RecipeAtVariant]) -> Iterator[RecipeAtVariant]:
    """Yield a variant for each selector of a relevant line that holds at none of the others, where one is found."""
    if not pairs:
        return
    source, (recipe, variant) = pairs[0][0].source, pairs[0]
    lines = [line for line in source.text.lines if line.selector and _RELEVANT.search(line.text)]
    given = recipe.platform.fixed_names(variant, recipe.host_subdir(variant)).keys() | (
        source.set_names - names_read_by_their_own_statements(source.text.text)
    )
    for line in {line.selector: line for line in lines}.values():
        if any(_selector_holds_at_variant(line, *pair) for pair in pairs):
            continue
        choices = list(_candidate_selector_values(line.selector or "", given))
        candidates = (
            (recipe, Variant(variant.common, {**variant.own, **choice}))
            for choice in choices
            for recipe, variant in pairs
        )
        match = next((pair for pair in candidates if _selector_holds_at_variant(line, *pair)), None)
        if match is not None:
            pairs.append(match)
            yield match


def _selector_holds_at_variant(line: Any, recipe: Recipe, variant: Variant) -> bool:
    try:
        return selector_holds(line, recipe.namespace(variant, recipe.host_subdir(variant)), FILE)
    except KilnError:
        return False


def _candidate_selector_values(selector: str, given: Collection[str]) -> Iterator[Mapping[str, str]]:
    """Yield values of a selector's names at which it may hold: those in the same comparison or call, and others.

    Names that are ``given`` have the values of a platform or a template; those of Pythons follow from the version.
    """
    try:
        names = compile_expression(selector).names
        tree = ast.parse(selector.strip(), mode="eval")
    except (ExpressionError, SyntaxError):
        return
    values: dict[str, dict[str, None]] = {name: dict.fromkeys(_OTHERS) for name in sorted(names - set(given))}
    values = {name: found for name, found in values.items() if not _OF_PYTHON.fullmatch(name)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Compare, ast.Call)):
            parts = list(ast.walk(node))
            texts = [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            # A variant's whole number is a number in a selector, which has no methods such as startswith.
            texts += [f"{text}.0" for text in texts if text.isdecimal()]
            for name in (part.id for part in parts if isinstance(part, ast.Name)):
                values.get(name, {}).update(dict.fromkeys(texts))
    if any(map(_OF_PYTHON.fullmatch, names)):
        values["python"] = dict.fromkeys(_PYTHONS)
    for choice in islice(product(*(list(found)[::-1] for found in values.values())), _CHOICES):
        yield dict(zip(values, choice, strict=True))


def _meta_yaml_view(values: Mapping[str, Any]) -> RecipeView:
    package = mapping_or_empty(values.get("package"))
    build = mapping_or_empty(values.get("build"))
    top = PackageView(
        name=str(package.get("name") or ""),
        version=str(package.get("version") or ""),
        number=_meta_yaml_build_number(build.get("number")),
    )
    outputs = mappings_in_list(values.get("outputs"))
    packages = [_meta_yaml_package_view(output, top) for output in outputs]
    entries = [
        entry
        for part in (values, *outputs)
        for entry in mappings_in_list(part.get("source"))
        if all(entry.get(key, True) for key in HASHES)  # without a value, conda-build refuses the source
    ]
    sources = tuple(map(_meta_yaml_source_view, entries))
    return RecipeView(version=top.version, packages=(top, *packages), sources=sources)


def _meta_yaml_package_view(output: Mapping[str, Any], top: PackageView) -> PackageView:
    number = mapping_or_empty(output.get("build")).get("number")
    return PackageView(
        name=str(output.get("name") or ""),
        version=str(output.get("version") or top.version),
        number=top.number if number is None else _meta_yaml_build_number(number),
    )


def _meta_yaml_build_number(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not str(value).isdecimal():
        raise RecipeFault(f"the build number is {str(value)[:40]!r}", at=Place(file=FILE), hint="a whole number")
    return int(value)


def _meta_yaml_source_view(entry: Mapping[str, Any]) -> SourceView:
    keys = ("git_rev", "git_tag", "git_branch", "hg_tag", "svn_rev")
    revision = next((entry[key] for key in keys if entry.get(key)), "")
    return SourceView(
        urls=tuple(str(item) for item in as_list(entry.get("url")) if item),
        hashes=tuple((key, str(entry[key])) for key in HASHES if entry.get(key)),
        git=str(entry.get("git_url") or ""),
        other=str(entry.get("hg_url") or entry.get("svn_url") or ""),
        revision=str(revision),
    )


def _without_sources_to_look_up(view: RecipeView) -> RecipeView:
    """Return what a recipe says on a platform without a config, where upstream need not have files without a hash."""
    return replace(view, sources=tuple(source for source in view.sources if source.hashes or not source.urls))


def _output_with_version(views: Views, first: int) -> str:
    """Return the output that has the version which sources have, if neither they nor an output have the one at the top.

    Recipes of several outputs may have a version such as ``1`` at the top, which stays; folders of URLs have such
    numbers too. Outputs begin at the ``first`` package of a view. Empty where the version at the top is the recipe's.
    """
    view = next((view for view in views if view is not None), None)
    if view is None:
        return ""
    own = {package.version: package.name for package in view.packages[first:]}
    addresses = [text for source in view.sources for text in (*source.urls, source.revision)]
    found = [version for version in own if version and _names_version(" ".join(addresses), version)]
    names = " ".join(text.rpartition("/")[2] for text in addresses)
    stays = view.version in own or _names_version(names, view.version)
    return "" if stays or len(found) != 1 else own[found[0]]


def _with_version_of(view: RecipeView, name: str) -> RecipeView:
    """Return a view with the version of an output; the same view without a name."""
    package = next((package for package in view.packages[::-1] if name and package.name == name), None)
    return view if package is None else replace(view, version=package.version)


def _names_version(text: str, version: str) -> bool:
    return re.search(rf"(?<!\d)(?<!\d\.){re.escape(version)}(?!\.?\d)", text) is not None


_MOST_RECIPE_YAML_VARIANTS = 200  # variants that are looked at
_HASHES = ("sha256", "md5")

VariantAndPlatforms = tuple["Mapping[str, Any]", str, str]


class RecipeYamlText:
    """The text of a recipe.yaml, with its variants."""

    file = RECIPE

    def __init__(self, feedstock: Feedstock, text: str) -> None:
        self.text = text
        self.literals = recipe_yaml_literals(text, RECIPE)
        self.fault: KilnError | None = None
        self._versioned = ""  # the output that has the recipe's version, if the top has not
        configs = config_file.read_configs(feedstock, feedstock.config_names)
        self._platforms = {config.platform for config in configs} or set(_PLATFORMS)
        self._variants = tuple(islice(_recipe_yaml_variants(feedstock, text), _MOST_RECIPE_YAML_VARIANTS))
        conditions = [match[1] for match in _CONDITION.finditer(text)]
        conditions += [match[1] or match[2] for match in _JINJA_CONDITION.finditer(text)]
        candidates = (
            ({**variant, **choice}, target, build)
            for choice in _condition_choices(conditions)
            for variant, target, build in self._variants
        )
        self._variants += _variants_with_missing_hashes(self, self._variants, candidates, self._view)
        self._versioned = _output_with_version(self.views_at_variants(text), 0)

    def _view(self, text: str, variant: VariantAndPlatforms) -> RecipeView | None:
        fault = self.fault
        try:
            return self._view_at_variant(RecipeV1.from_text(text), *variant)
        except KilnError:
            return None
        finally:
            self.fault = fault

    def version_literals_in_urls(self, version: str) -> tuple[Literal, ...]:
        """Return where the URLs and revisions of the text write a version out."""
        return recipe_yaml_version_literals_in_urls(self.text, RECIPE, version)

    def views_at_variants(self, text: str) -> Views:
        """Return what another text says at each variant; None where it is invalid there."""
        self.fault = None
        try:
            recipe = RecipeV1.from_text(text)
        except KilnError as error:
            self.fault = error
            return (None,) * len(self._variants)
        return tuple(self._view_at_variant(recipe, *variant) for variant in self._variants)

    def _view_at_variant(
        self, recipe: RecipeV1, variant: Mapping[str, Any], target: str, build: str
    ) -> RecipeView | None:
        try:
            view = _recipe_yaml_view(recipe, recipe.scope_at_variant(variant, target, build))
            view = _with_version_of(view, self._versioned)
            return view if target in self._platforms else _without_sources_to_look_up(view)
        except KilnError as error:
            self.fault = self.fault or error
            return None


def _recipe_yaml_variants(feedstock: Feedstock, text: str) -> Iterator[VariantAndPlatforms]:
    """Yield the variants of the configs, the first of each before the others, and of other platforms."""
    configs = configs_to_read_at(feedstock, text)
    spaces = [(variant_space_of_config(feedstock, config), config.platform) for config in configs]
    builds = {platform: build_platform(feedstock, platform) for _, platform in spaces}
    for space, platform in spaces:
        yield space.first_variant(), platform, builds[platform]
    for space, platform in spaces:
        for variant in list(space.variants())[1:]:
            yield variant, platform, builds[platform]


def _recipe_yaml_view(recipe: RecipeV1, scope: VariantScope) -> RecipeView:
    root = recipe.root
    top = sections.PACKAGE(root.get("recipe") if recipe.has_outputs else root.get("package"), scope)
    number = _recipe_yaml_build_number(root.get("build"), scope)
    outputs = root["outputs"] if recipe.has_outputs else ()
    packages = [_recipe_yaml_package_view(entry, top, number, scope) for entry in recipe.entries]
    if not recipe.has_outputs:
        packages = [PackageView(name=top.get("name", ""), version=top.get("version", ""), number=number)]
    version = top.get("version") or next((package.version for package in packages), "")
    nodes = (root.get("source"), *(entry.get("source") for entry in outputs))
    sources = [_recipe_yaml_source_view(entry) for node in nodes for entry in sections.SOURCE(node, scope)]
    return RecipeView(version=version, packages=tuple(packages), sources=tuple(sources))


def _recipe_yaml_package_view(
    entry: Mapping[str, Any], top: Mapping[str, Any], number: int | None, scope: VariantScope
) -> PackageView:
    package = sections.PACKAGE(entry["package"], scope)
    own = _recipe_yaml_build_number(entry.get("build"), scope)
    return PackageView(
        name=package.get("name", ""),
        version=package.get("version") or top.get("version", ""),
        number=number if own is None else own,
    )


def _recipe_yaml_build_number(build: Any, scope: VariantScope) -> int | None:
    node = require_mapping(build, "build").get("number")
    return None if is_empty_node(node) else sections.evaluate_number(node, scope)


def _recipe_yaml_source_view(entry: Mapping[str, Any]) -> SourceView:
    revision = next((entry[key] for key in ("rev", "tag", "branch") if entry.get(key)), "")
    return SourceView(
        urls=tuple(entry.get("url", ())),
        hashes=tuple((key, entry[key]) for key in _HASHES if entry.get(key)),
        git=entry.get("git", ""),
        revision=revision,
        commit=entry.get("expected_commit", ""),
    )
