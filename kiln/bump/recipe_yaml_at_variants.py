"""A recipe.yaml at all of its variants: each config's, and those of platforms that no config has."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from kiln.bump.literals import Literal, recipe_yaml_literals, recipe_yaml_version_literals_in_urls
from kiln.bump.meta_yaml_at_variants import configs_to_read_at
from kiln.bump.recipe_views import PackageView, RecipeView, SourceView, Views
from kiln.errors import KilnError
from kiln.recipe_v1 import section_field_evaluators
from kiln.recipe_v1.node_evaluation import RECIPE, is_empty_node, require_mapping
from kiln.recipe_v1.recipe import RecipeV1
from kiln.render.render import build_platform
from kiln.render.v1 import variant_space_of_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.recipe_v1.scope import VariantScope

_LIMIT = 200  # variants that are looked at
_HASHES = ("sha256", "md5")

VariantAndPlatforms = tuple["Mapping[str, Any]", str, str]


class RecipeYamlText:
    """The text of a recipe.yaml, with its variants."""

    file = RECIPE

    def __init__(self, feedstock: Feedstock, text: str) -> None:
        self.text = text
        self.literals = recipe_yaml_literals(text, RECIPE)
        self.fault: KilnError | None = None
        self._variants = tuple(islice(_recipe_variants(feedstock, text), _LIMIT))

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
            return _recipe_view(recipe, recipe.scope_at_variant(variant, target, build))
        except KilnError as error:
            self.fault = self.fault or error
            return None


def _recipe_variants(feedstock: Feedstock, text: str) -> Iterator[VariantAndPlatforms]:
    """Yield the variants of the configs, the first of each before the others, and of other platforms."""
    configs = configs_to_read_at(feedstock, text)
    spaces = [(variant_space_of_config(feedstock, config), config.platform) for config in configs]
    builds = {platform: build_platform(feedstock, platform) for _, platform in spaces}
    for space, platform in spaces:
        yield space.first_variant(), platform, builds[platform]
    for space, platform in spaces:
        for variant in list(space.variants())[1:]:
            yield variant, platform, builds[platform]


def _recipe_view(recipe: RecipeV1, scope: VariantScope) -> RecipeView:
    root = recipe.root
    top = section_field_evaluators.PACKAGE(root.get("recipe") if recipe.has_outputs else root.get("package"), scope)
    number = _build_number(root.get("build"), scope)
    outputs = root["outputs"] if recipe.has_outputs else ()
    packages = [_package_view(entry, top, number, scope) for entry in recipe.entries]
    if not recipe.has_outputs:
        packages = [PackageView(name=top.get("name", ""), version=top.get("version", ""), number=number)]
    version = top.get("version") or next((package.version for package in packages), "")
    nodes = (root.get("source"), *(entry.get("source") for entry in outputs))
    sources = [_source_view(entry) for node in nodes for entry in section_field_evaluators.SOURCE(node, scope)]
    return RecipeView(version=version, packages=tuple(packages), sources=tuple(sources))


def _package_view(
    entry: Mapping[str, Any], top: Mapping[str, Any], number: int | None, scope: VariantScope
) -> PackageView:
    package = section_field_evaluators.PACKAGE(entry["package"], scope)
    own = _build_number(entry.get("build"), scope)
    return PackageView(
        name=package.get("name", ""),
        version=package.get("version") or top.get("version", ""),
        number=number if own is None else own,
    )


def _build_number(build: Any, scope: VariantScope) -> int | None:
    node = require_mapping(build, "build").get("number")
    return None if is_empty_node(node) else section_field_evaluators.evaluate_number(node, scope)


def _source_view(entry: Mapping[str, Any]) -> SourceView:
    revision = next((entry[key] for key in ("rev", "tag", "branch") if entry.get(key)), "")
    return SourceView(
        urls=tuple(entry.get("url", ())),
        hashes=tuple((key, entry[key]) for key in _HASHES if entry.get(key)),
        git=entry.get("git", ""),
        revision=revision,
        commit=entry.get("expected_commit", ""),
    )
