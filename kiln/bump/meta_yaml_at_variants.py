"""A meta.yaml at all of its variants: each config's, and those of platforms and selectors that no config has."""

from __future__ import annotations

import ast
import re
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from kiln import expand
from kiln.bump.literals import HASHES, Literal, meta_yaml_literals, meta_yaml_version_literals_in_urls
from kiln.bump.recipe_views import PackageView, RecipeView, SourceView, Views
from kiln.errors import KilnError, RecipeFault
from kiln.lazy_pattern import lazy_pattern
from kiln.model.matrix_config import BuildConfig
from kiln.model.source_position import Place
from kiln.render.render import recipe_of_config
from kiln.serialization import mapping_or_empty, mappings_in_list
from kiln.template.python_expression import ExpressionError, compile_expression
from kiln.template.selectors import selector_holds
from kiln.variants.files import as_list
from kiln.variants.space import Variant

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.recipe.recipe import Recipe

FILE = "recipe/meta.yaml"
_PLATFORMS = ("linux-64", "linux-aarch64", "linux-ppc64le", "osx-64", "osx-arm64", "win-64", "win-arm64")
_LIMIT = 64  # variants of a recipe that are looked at; more differ only in what neither version nor sources say
_CONFIGS = 100
_VARIANTS = 8  # variants of one config
_CHOICES = 64  # values that are tried for a selector's names
_OTHERS = ("True", "0", "1000")  # values of a name besides those that a selector compares it with
_USUAL = {"py": ("27", "36", "37", "38", "39", "310", "311", "312", "313", "314")}
_RELEVANT = lazy_pattern(r"set\b|url|git_|fn:|version|number|://|" + "|".join(HASHES))

RecipeAtVariant = tuple["Recipe", Variant]


class MetaYamlText:
    """The text of a meta.yaml, with its variants."""

    file = FILE

    def __init__(self, feedstock: Feedstock, text: str) -> None:
        self.text = text
        self.literals = meta_yaml_literals(text)
        self.fault: KilnError | None = None
        self._variants = self._distinct_variants(_recipe_variants(feedstock, text))

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

    def _view_at_variant(self, text: str, recipe: Recipe, variant: Variant) -> RecipeView | None:
        try:
            if recipe.source.text.text != text:
                recipe.source.replace_text(text)
            return _recipe_view(recipe.rendered_values(variant, recipe.host_subdir(variant)))
        except KilnError as error:
            self.fault = self.fault or error
            return None

    def _distinct_variants(self, pairs: Iterable[RecipeAtVariant]) -> tuple[RecipeAtVariant, ...]:
        """Return the variants at which the text may differ."""
        distinct: dict[tuple[object, ...], RecipeAtVariant] = {}
        for recipe, variant in pairs:
            if len(distinct) == _LIMIT:
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


def _recipe_variants(feedstock: Feedstock, text: str) -> Iterator[RecipeAtVariant]:
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
    for config in expand.read_configs(feedstock, feedstock.config_names):
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
    lines = [line for line in pairs[0][0].source.text.lines if line.selector and _RELEVANT.search(line.text)]
    for line in {line.selector: line for line in lines}.values():
        if any(_selector_holds_at_variant(line, *pair) for pair in pairs):
            continue
        choices = list(_candidate_selector_values(line.selector or ""))
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


def _candidate_selector_values(selector: str) -> Iterator[Mapping[str, str]]:
    """Yield values of a selector's names at which it may hold: those that it compares them with, and others."""
    try:
        names = sorted(compile_expression(selector).names)
        tree = ast.parse(selector.strip(), mode="eval")
    except (ExpressionError, SyntaxError):
        return
    values: dict[str, dict[str, None]] = {name: dict.fromkeys(_USUAL.get(name, _OTHERS)) for name in names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Name) and node.left.id in values:
            constants = [
                part for other in node.comparators for part in ast.walk(other) if isinstance(part, ast.Constant)
            ]
            values[node.left.id].update({str(constant.value): None for constant in constants})
    for choice in islice(product(*(reversed(values[name]) for name in names)), _CHOICES):
        values_of = dict(zip(names, choice, strict=True))
        if "py" in values_of:
            values_of["python"] = f"{values_of['py'][:1]}.{values_of['py'][1:]}"
        yield values_of


# Values


def _recipe_view(values: Mapping[str, Any]) -> RecipeView:
    package = mapping_or_empty(values.get("package"))
    build = mapping_or_empty(values.get("build"))
    version = str(package.get("version") or "")
    top = PackageView(name=str(package.get("name") or ""), version=version, number=_build_number(build.get("number")))
    outputs = mappings_in_list(values.get("outputs"))
    packages = [_package_view(output, top) for output in outputs]
    entries = [entry for part in (values, *outputs) for entry in mappings_in_list(part.get("source"))]
    return RecipeView(version=version, packages=(top, *packages), sources=tuple(map(_source_view, entries)))


def _package_view(output: Mapping[str, Any], top: PackageView) -> PackageView:
    number = mapping_or_empty(output.get("build")).get("number")
    return PackageView(
        name=str(output.get("name") or ""),
        version=str(output.get("version") or top.version),
        number=top.number if number is None else _build_number(number),
    )


def _build_number(value: Any) -> int | None:
    if value is None or value == "":
        return None
    if not str(value).isdecimal():
        raise RecipeFault(f"the build number is {str(value)[:40]!r}", at=Place(file=FILE), hint="a whole number")
    return int(value)


def _source_view(entry: Mapping[str, Any]) -> SourceView:
    keys = ("git_rev", "git_tag", "git_branch", "hg_tag", "svn_rev")
    revision = next((entry[key] for key in keys if entry.get(key)), "")
    return SourceView(
        urls=tuple(str(item) for item in as_list(entry.get("url")) if item),
        hashes=tuple((key, str(entry[key])) for key in HASHES if entry.get(key)),
        git=str(entry.get("git_url") or ""),
        other=str(entry.get("hg_url") or entry.get("svn_url") or ""),
        revision=str(revision),
    )
