"""Rules of the linter, their problems and messages, and the feedstock that they check."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from kiln.base.errors import FeedstockNotFound, MalformedYaml, RecipeFault, TemplateFault, UnsafeTemplate
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import list_or_empty, mapping_or_empty, mappings_in_list
from kiln.base.yaml import PlacedText, place_of_key_path, read_text
from kiln.feedstock.lint import reading
from kiln.feedstock.lint.reading import (
    branch_items,
    branch_texts,
    first_placed_text,
    key_with_place,
    outermost_keys_of_file,
    read_values,
    repeated_keys,
    texts_in_list,
)
from kiln.recipe.template.selectors import SelectableText, SelectedText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock


class Severity(str, Enum):
    """The severity of a rule: a lint fails the command, a hint does not."""

    LINT = "lint"
    HINT = "hint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A violation of a rule: its description, its place, and the cure, where it differs from the rule's."""

    text: str
    at: Place
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of conda-smithy's linter, with its id there.

    ``check`` yields the problems of a feedstock. ``fixable`` rules have a function in `kiln.feedstock.lint.fixes`.
    Rules for ``conda_forge`` apply only to feedstocks of that organization, rules for ``others`` to all but those.
    ``skip`` is the name under ``linter: skip:`` in conda-forge.yml that turns the rule off.
    """

    id: str
    check: Callable[[LintedFeedstock], Iterable[Problem]]
    cure: str
    _: KW_ONLY
    severity: Severity
    fixable: bool = False
    conda_forge: bool = False
    others: bool = False
    skip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LintMessage:
    """A message of the linter."""

    id: str
    severity: Severity
    text: str
    at: Place
    cure: str
    fixable: bool


# Called with the id, the check and the cure; a violated lint fails the command, a hint is only reported.
lint_rule = partial(Rule, severity=Severity.LINT)
hint_rule = partial(Rule, severity=Severity.HINT)


META, RECIPE_YAML = "recipe/meta.yaml", "recipe/recipe.yaml"
SETTINGS = "conda-forge.yml"
VARIANT_FILES = ("conda_build_config.yaml", "variants.yaml")
_JINJA = lazy_pattern(r"\{\{|\{%")
_BRANCH = lazy_pattern(r"\{%-?\s*(?:if|for)\b")


@dataclass(frozen=True, kw_only=True)
class LintedRecipe:
    """A recipe without a variant: its text, and its values as conda-smithy's linter sees them.

    Line breaks of ``text`` are those of Unix. ``root`` has all branches and all selected lines of the recipe.
    ``version`` is 0 for meta.yaml, 1 for recipe.yaml.
    """

    file: str
    version: int
    text: str
    root: Mapping[str, Any]

    @classmethod
    def from_text(cls, text: str, file: str) -> LintedRecipe:
        """Read the text of a recipe.

        Raises:
            KilnError: the recipe cannot be rendered or parsed, or is not a mapping.
        """
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        version = 0 if file == META else 1
        if version == 0:
            rendered = _rendered_meta_yaml(text, file)
            root = read_values(rendered.text, file, rendered.line_in_file)
        else:
            root = read_values(text, file)
        if not isinstance(root, dict):
            raise RecipeFault("a recipe is a mapping of sections", at=Place(file=file))
        return cls(file=file, version=version, text=text, root=root)

    # -- places ---------------------------------------------------------------------------------------------

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.split("\n")

    def place_of(self, node: Any = None) -> Place:
        """Return the place of a text, or of the beginning of a list or mapping; without one, the file."""
        placed = first_placed_text(node)
        if placed is None:
            return Place(file=self.file)
        # Columns in the rendered text are not those of the file where Jinja changed the line.
        line = self.lines[placed.line - 1] if 0 < placed.line <= len(self.lines) else ""
        return self.place_of_line(placed.line, 0 if self.version == 0 and _JINJA.search(line) else placed.column)

    def place_of_line(self, line: int, column: int = 0) -> Place:
        """Return the place of a line."""
        return Place(file=self.file, line=line, column=column)

    def place_of_key(self, values: Mapping[Any, Any], *names: str) -> Place:
        """Return the place of the first of these keys that the mapping has; else where the section begins."""
        for name in names:
            if name in values:
                return self.place_of(key_with_place(dict(values), name))
        return Place(file=self.file) if values is self.root else self.place_of(values)

    def place_in_section(self, section: str, *names: str) -> Place:
        """Return the place of the first of these keys in a section; else that of the section, or of the file."""
        values = self.section(section)
        return self.place_of_key(values, *names) if values else self.place_of_key(self.root, section)

    @cached_property
    def repeated_keys(self) -> tuple[PlacedText, ...]:
        """The keys that are twice in their mapping for every variant; in a meta.yaml, selectors may exclude them."""
        if self.version:
            return repeated_keys(self.text, self.file)
        if _BRANCH.search(self.text):
            return ()
        rendered, lines = _rendered_meta_yaml(self.text, self.file), SelectableText(self.text, self.file)
        keys = repeated_keys(rendered.text, self.file, rendered.line_in_file)
        return tuple(key for key in keys if not lines.is_key_under_selector(str(key)))

    # -- sections -------------------------------------------------------------------------------------------

    def section(self, name: str) -> dict[Any, Any]:
        """Return an outermost section that is a mapping; empty if it is missing or something else."""
        return mapping_or_empty(self.root.get(name))

    @cached_property
    def sources(self) -> list[dict[Any, Any]]:
        """The sources; for recipe.yaml also those of outputs and of all branches."""
        source = self.root.get("source")
        if self.version == 0:
            return mappings_in_list(source)
        holders = (self.root, self.section("cache"), *map(mapping_or_empty, branch_items(self.root.get("outputs"))))
        return [
            entry
            for holder in holders
            if holder.get("source") is not None
            for entry in branch_items(holder["source"])
            if isinstance(entry, dict)
        ]

    @cached_property
    def outputs(self) -> list[dict[Any, Any]]:
        """The entries of the list of outputs; of recipe.yaml only unconditional ones."""
        return [output for output in list_or_empty(self.root.get("outputs")) if isinstance(output, dict)]

    @cached_property
    def top_level_requirements(self) -> dict[str, Any]:
        """The outermost requirements; for recipe.yaml with the items of all branches, and exports as mappings."""
        section = self.section("requirements")
        return section if self.version == 0 else requirements_of_all_branches(section)

    def texts_of_all_branches(self, value: Any) -> list[str]:
        """Return the texts in a list, in a recipe.yaml those of all branches of its conditions."""
        return branch_texts(value) if self.version else texts_in_list(value)

    def top_level_requirements_of_kind(self, name: str) -> list[str]:
        """Return the outermost requirements of one kind, such as ``host``."""
        return texts_in_list(self.top_level_requirements.get(name))

    @property
    def noarch(self) -> Any:
        """The value of ``build/noarch``, None if it is missing."""
        return self.section("build").get("noarch")

    # -- values of recipe.yaml with its context ------------------------------------------------------------------

    @cached_property
    def renderer(self) -> reading.RecipeYamlRenderer:
        """The renderer of a recipe.yaml's expressions."""
        return reading.RecipeYamlRenderer(self.section("context"), self.file)

    @cached_property
    def package_name(self) -> tuple[str, Any]:
        """The package's name, and the key or value that shows where it stands; empty if it is missing."""
        text, node = self._package_field("name")
        return (text or "").strip(), node

    @cached_property
    def package_version(self) -> tuple[str | None, Any]:
        """The package's version, None if it is missing, and the key that shows where it stands."""
        text, node = self._package_field("version")
        return text.strip() if text and self.version else text, node

    def _package_field(self, key: str) -> tuple[str | None, Any]:
        for holder in (self.section("package"), self.section("recipe") if self.version else {}):
            value = holder.get(key)
            if value is not None:
                text = self.renderer.render_text(value) if self.version and isinstance(value, str) else value
                return str(text), key_with_place(holder, key)
        return None, self.section("package") or self.section("recipe")


def _rendered_meta_yaml(text: str, file: str) -> SelectedText:
    """Return a meta.yaml without Jinja."""
    try:
        return reading.render_meta_yaml(text, file)
    except (TemplateFault, UnsafeTemplate) as error:
        hint = (
            error.hint or "recipes are linted without a variant, by conda-smithy too; kiln render shows them with one"
        )
        raise type(error)(error.what, at=error.at, why=error.why, hint=hint) from error


def requirements_of_all_branches(section: Mapping[Any, Any]) -> dict[str, Any]:
    """Return requirements of a recipe.yaml with the items of all branches; exports are mappings of lists."""
    flat: dict[str, Any] = {}
    for name, value in section.items():
        kinds = {"weak": value} if name == "run_exports" and isinstance(value, list) else value
        if isinstance(kinds, dict):
            flat[name] = {kind: specs for kind, setting in kinds.items() if (specs := branch_texts(setting))}
        else:
            flat[name] = branch_texts(kinds)
    return flat


@dataclass(frozen=True, kw_only=True)
class LintedFeedstock:
    """A feedstock: its recipe, its settings in conda-forge.yml, and where its files are."""

    feedstock: Feedstock
    recipe: LintedRecipe
    settings: Mapping[str, Any]

    @cached_property
    def skipped_rules(self) -> frozenset[str]:
        """The names of the rules that the settings turn off, and the ids of those that ``kiln: lint_skip`` lists."""
        named = texts_in_list(mapping_or_empty(self.settings.get("linter")).get("skip"))
        return frozenset((*named, *texts_in_list(mapping_or_empty(self.settings.get("kiln")).get("lint_skip"))))

    @property
    def has_several_noarch_platforms(self) -> bool:
        """True if noarch packages are built on several platforms and so may have platform selectors."""
        platforms = self.settings.get("noarch_platforms")
        # conda-smithy takes the length of a text too, so any one platform counts as several.
        return isinstance(platforms, (list, str)) and len(platforms) > 1

    def variant_file(self, name: str) -> Path | None:
        """Return the variant file of this name in the recipe's folder or its parent, if there is one."""
        paths = (self.feedstock.recipe / name, self.feedstock.root / name)
        return next((path for path in paths if path.is_file()), None)

    def setting_place(self, *names: str) -> Place:
        """Return the place of a setting, given by the keys that lead to it."""
        return place_of_key_path(self.settings, SETTINGS, *names)

    def variant_keys(self) -> set[str]:
        """Return the outermost keys of conda_build_config.yaml."""
        path = self.variant_file(VARIANT_FILES[0])
        if path is None:
            return set()
        return outermost_keys_of_file(path, path.name)


def recipe_files(feedstock: Feedstock) -> list[str]:
    """Return the names of the recipe files that the feedstock has; the first one counts.

    Raises:
        FeedstockNotFound: none exists.
    """
    files = [name for name in (RECIPE_YAML, META) if (feedstock.root / name).is_file()]
    if not files:
        raise FeedstockNotFound("not a feedstock", at=Place(file=str(feedstock.root)))
    return files


def read_settings(feedstock: Feedstock) -> Mapping[str, Any]:
    """Return the settings in conda-forge.yml; empty without the file."""
    path = next((path for path in (feedstock.recipe / SETTINGS, feedstock.root / SETTINGS) if path.is_file()), None)
    if path is None:
        return {}
    values = read_values(read_text(path, SETTINGS), SETTINGS)
    if values is not None and not isinstance(values, dict):
        raise MalformedYaml("conda-forge.yml is a mapping of settings", at=Place(file=SETTINGS))
    return values or {}
