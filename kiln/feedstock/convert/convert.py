"""Convert a feedstock from meta.yaml to recipe.yaml, with a proof that both render to the same."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from kiln.base import files, limits
from kiln.base.errors import ConversionRefused, KilnError, UnknownConfig, combined_error
from kiln.base.position import Place
from kiln.base.yaml import read_text
from kiln.feedstock import config_file, matrix
from kiln.feedstock.convert.composition import HashKeysToUseOrIgnore
from kiln.feedstock.convert.conditions import IfThenElsePart, SpecConverter
from kiln.feedstock.convert.packages import packages_of_meta_yaml, packages_of_recipe_yaml
from kiln.feedstock.convert.proof import Difference, Proof, compare_matrices, compare_packages
from kiln.feedstock.convert.recipe import RecipeConverter
from kiln.feedstock.convert.sections import FeedstockFacts, SectionConverter
from kiln.feedstock.convert.statements import expand_statements
from kiln.feedstock.convert.tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart, recipe_tree
from kiln.feedstock.lint import check as lint
from kiln.feedstock.lint.model import RECIPE_YAML, LintedRecipe, Severity
from kiln.feedstock.pinning import keys_without_value
from kiln.recipe.feedstock import FORGE, Feedstock, is_v1
from kiln.recipe.render import build_platform, evaluated_recipe
from kiln.recipe.variants.files import Platform, load_variant_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.feedstock.convert.packages import ComparablePackage
    from kiln.recipe.feedstock import BuildConfig


META = "recipe/meta.yaml"
_HINT = "change it in meta.yaml to something that both formats have, and convert again"
SCHEMA = "# yaml-language-server: $schema=https://raw.githubusercontent.com/prefix-dev/recipe-format/main/schema.json"
_TYPED = re.compile(r"[-+.]?\d[\d.eExX_+-]*|true|false|yes|no|on|off|null|~|y|n", re.IGNORECASE)
_WORDS = re.compile(r"\w[\w./-]*(?: [\w./-]+)*", re.ASCII)
_STEP = "  "


def recipe_yaml_text(meta: str, given: FeedstockFacts) -> str:
    """Return the text of the recipe.yaml."""
    lines = expand_statements(meta, given.always, given.values)
    faults = [UnconvertiblePart(number, why) for number, why in lines.faults]
    try:
        tree = recipe_tree(lines)
        constants = {each.name: str(each.value.constant) for each in lines.settings if each.value.is_constant}
        sections = SectionConverter(SpecConverter(given.values, constants, given.run_pins), given)
        recipe = RecipeConverter(lines, tree, sections).converted_recipe()
        faults += sections.faults
    except UnconvertiblePart as refused:
        raise _combined_refusal_error([*faults, refused]) from refused
    if faults:
        raise _combined_refusal_error(faults)
    text = serialize_recipe(recipe)
    lost = [comment for comment in lines.comments.values() if comment not in text]  # whose place has no equivalent
    return serialize_recipe(replace(recipe, below=[*recipe.below, *lost])) if lost else text


def _combined_refusal_error(faults: Iterable[UnconvertiblePart]) -> KilnError:
    error = combined_error(
        ConversionRefused(
            "this cannot be carried over to recipe.yaml",
            at=Place(file=META, line=fault.number, column=1 if fault.number else 0),
            why=str(fault),
            hint=fault.hint,
        )
        for fault in sorted(faults, key=lambda each: each.number)
    )
    error.hint = error.hint or _HINT
    return error


def serialize_recipe(recipe: DictPart) -> str:
    """Return the text of a recipe; a blank line separates its sections."""
    sections = ["\n".join(_key_value_lines(key, value, "")) for key, value in recipe.pairs]
    lines = [*sections, *(["\n".join(recipe.below)] if recipe.below else [])]
    return f"{SCHEMA}\nschema_version: 1\n\n" + "\n\n".join(lines) + "\n"


def _key_value_lines(key: str, value: RecipePart, indent: str) -> Iterator[str]:
    yield from _indented_comments(value.above, indent)
    name = yaml_scalar_text(key, plain=True)
    if isinstance(value, ScalarPart):
        yield from _scalar_lines(f"{indent}{name}:", value, indent)
        return
    behind = f"  {value.behind}" if value.behind else ""
    inner = list(_yaml_lines_of_part(value, indent + _STEP))
    empty = "" if inner else " []" if isinstance(value, ListPart) else " {}"
    yield f"{indent}{name}:{empty}{behind}"
    yield from inner


def _yaml_lines_of_part(value: RecipePart, indent: str) -> Iterator[str]:
    if isinstance(value, DictPart):
        for key, item in value.pairs:
            yield from _key_value_lines(key, item, indent)
    elif isinstance(value, ListPart):
        for item in value.items:
            yield from _list_item_lines(item, indent)


def _list_item_lines(value: RecipePart, indent: str) -> Iterator[str]:
    yield from _indented_comments(value.above, indent)
    if isinstance(value, ScalarPart):
        yield from _scalar_lines(f"{indent}-", value, indent)
    else:
        as_keys = _condition_as_mapping(value) if isinstance(value, IfThenElsePart) else value
        first, *rest = list(_yaml_lines_of_part(as_keys, indent + _STEP)) or [f"{indent}{_STEP}{{}}"]
        while first.lstrip().startswith("#") and rest:  # an item begins with its first key, not with a comment
            yield f"{indent}{first.strip()}"
            first, *rest = rest
        yield f"{indent}- {first.strip()}"
        yield from rest
    yield from _indented_comments(value.below, indent)


def _condition_as_mapping(value: IfThenElsePart) -> DictPart:
    branches: list[tuple[str, RecipePart]] = [
        ("if", ScalarPart(pieces=(value.condition,), behind=value.behind)),
        ("then", ListPart(items=value.then)),
    ]
    return DictPart(pairs=[*branches, *([("else", ListPart(items=value.otherwise))] if value.otherwise else [])])


def _indented_comments(lines: Iterable[str], indent: str) -> Iterator[str]:
    yield from (f"{indent}{line}" for line in lines)


def _scalar_lines(head: str, value: ScalarPart, indent: str) -> Iterator[str]:
    behind = f"  {value.behind}" if value.behind else ""
    setting = value.template_text
    if setting.endswith("\n\n"):  # in a block it would depend on the lines that follow
        yield f"{head} {json.dumps(setting, ensure_ascii=False)}{behind}"
    elif "\n" in setting:
        keep = "" if setting.endswith("\n") else "-"
        first = setting.split("\n", 1)[0]
        hint = str(len(_STEP)) if first.startswith(" ") or not first else ""
        yield f"{head} |{hint}{keep}{behind}"
        yield from (f"{indent}{_STEP}{line}".rstrip() for line in setting.removesuffix("\n").split("\n"))
    elif not value.pieces:
        yield f"{head}{behind}"
    else:
        yield f"{head} {yaml_scalar_text(setting, plain=value.plain)}{behind}"


def yaml_scalar_text(text: str, *, plain: bool) -> str:
    """Return a text as a scalar of YAML; one that was quoted stays text where it could be a number or a truth value."""
    if (plain or not _TYPED.fullmatch(text)) and _is_valid_plain_scalar(text):
        return text
    if "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def _is_valid_plain_scalar(text: str) -> bool:
    if not text or text != text.strip():
        return False
    if len(text) < 100 and _WORDS.fullmatch(text):  # most texts: YAML's parser takes a millisecond for each
        return True
    try:
        for line in (f"- {text}", f"{text}: x"):
            yaml.compose(line, Loader=yaml.SafeLoader)
        node = yaml.compose(f"x: {text}", Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    value = node.value[0][1] if isinstance(node, yaml.MappingNode) else None
    return isinstance(value, yaml.ScalarNode) and value.style is None and value.value == text


_TOOL = re.compile(r"^conda_build_tool\s*:.*$", re.MULTILINE)
_TOOL_LINE = "conda_build_tool: rattler-build"
_VARIANTS = "conda_build_config.yaml"
_AT_ONCE = 24  # configs that are rendered in one process
_ROUNDS = 5  # conversions until the keys of all hashes are settled


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A converted feedstock: the texts of its recipe.yaml and its conda-forge.yml, and the proof."""

    recipe: str
    forge: str
    proof: Proof

    @property
    def blocking_differences(self) -> list[Difference]:
        """The differences that keep a conversion from being written."""
        needed = self.proof.needed
        return [
            *self.proof.differences,
            *(
                Difference(package=name, what=f"hash ({kind})", old=", ".join(sorted(names)), new="", configs=())
                for kind, keys in (("use_keys", needed.use), ("ignore_keys", needed.ignore))
                for name, names in keys.items()
            ),
        ]


def convert(feedstock: Feedstock, pinning: Path | None = None, leave_out: Iterable[str] = ()) -> Conversion:
    """Return the conversion of a feedstock; nothing is written to it.

    The configs are those of .ci_support; with a ``pinning``, those that it expands to, and both recipes have to expand
    to the same ones. ``leave_out`` are keys without equivalent that may be lost, such as ``about/doc_source_url``.

    Raises:
        ConversionRefused: the recipe is recipe.yaml already, or parts of it have no equivalent there.
        UnknownConfig: the feedstock has no configs.
        KilnError: the recipe or a variant file is invalid.
    """
    if is_v1(feedstock) or feedstock.recipe_v1.exists():
        at = Place(file="recipe/recipe.yaml")
        hint = "to convert meta.yaml again, move recipe.yaml to another folder first" if feedstock.meta.exists() else ""
        raise ConversionRefused("the feedstock has a recipe.yaml", at=at, hint=hint or "there is nothing to convert")
    configs = _configs_to_compare(feedstock, pinning)
    old = _packages_by_config(configs, lambda config: packages_of_meta_yaml(feedstock, config))
    meta, forge = read_text(feedstock.meta, META), _conda_forge_yml_with_build_tool(feedstock)
    facts = replace(_feedstock_facts(feedstock, configs, old), leave_out=frozenset(leave_out))
    rounds = 0
    while True:
        rounds += 1
        text = limits.run_bounded(partial(recipe_yaml_text, meta, facts))
        proof = _prove_conversion(feedstock, text, forge, configs, old, pinning)
        if not proof.needed or rounds == _ROUNDS:
            notes = (*proof.notes, *limits.run_bounded(partial(_notes_on_new_lints, feedstock, text)))
            return Conversion(recipe=text, forge=forge, proof=replace(proof, notes=notes))
        facts = replace(facts, hash_keys=facts.hash_keys | proof.needed)


def _notes_on_new_lints(feedstock: Feedstock, text: str) -> list[str]:
    """Return a note about each lint that the recipe.yaml has more often than meta.yaml."""
    try:
        before = lint.check(feedstock)
        after = lint.check(feedstock, LintedRecipe.from_text(text, RECIPE_YAML))
    except KilnError:  # which kiln lint reports
        return []
    lints = [message for message in after if message.severity is Severity.LINT]
    known, found = Counter(message.id for message in before), Counter(message.id for message in lints)
    return [f"a new lint of recipe.yaml is {each.id}: {each.text}" for each in lints if found[each.id] > known[each.id]]


def write_conversion(feedstock: Feedstock, conversion: Conversion) -> None:
    """Write recipe.yaml, then conda-forge.yml, which makes it count; meta.yaml stays."""
    files.safe_path_inside(feedstock.recipe, feedstock.root)
    with files.held_folder_lock(feedstock.root):
        files.write_text(feedstock.recipe_v1, conversion.recipe)
        files.write_text(feedstock.root / FORGE, conversion.forge)


def _packages_by_config(
    configs: Sequence[BuildConfig], facts: Callable[[BuildConfig], list[ComparablePackage]]
) -> dict[str, list[ComparablePackage]]:
    """Return the packages of all configs, some configs at a time within the limits of untrusted input."""
    result: dict[str, list[ComparablePackage]] = {}
    for start in range(0, len(configs), _AT_ONCE):
        part = configs[start : start + _AT_ONCE]
        result |= limits.run_bounded(lambda part=part: {config.name: facts(config) for config in part})  # type: ignore[misc]
    return result


def _configs_to_compare(feedstock: Feedstock, pinning: Path | None) -> Sequence[BuildConfig]:
    if pinning is not None:
        return matrix.configs(feedstock, pinning, {})
    names = feedstock.config_names
    if not names:
        raise UnknownConfig("no configs in .ci_support", hint="kiln rerender writes them, or give a pinning with -e")
    return config_file.read_configs(feedstock, names)


def _conda_forge_yml_with_build_tool(feedstock: Feedstock) -> str:
    """Return conda-forge.yml with the tool that reads recipe.yaml; everything else stays as it is."""
    path = feedstock.root / FORGE
    text = read_text(path, FORGE) if path.is_file() else ""
    if _TOOL.search(text):
        return _TOOL.sub(_TOOL_LINE, text)
    return f"{text.rstrip()}\n{_TOOL_LINE}\n".lstrip()


def _feedstock_facts(
    feedstock: Feedstock, configs: Sequence[BuildConfig], old: Mapping[str, Sequence[ComparablePackage]]
) -> FeedstockFacts:
    top, file_values = limits.run_bounded(lambda: _top_name_and_variant_file_keys(feedstock, configs))
    values: dict[str, set[str]] = {}
    known: list[frozenset[str]] = []
    for config in configs:
        own = {**file_values[config.name], **config.variant}
        known.append(frozenset(own))
        for key, items in own.items():
            values.setdefault(key, set()).update(items)
    return FeedstockFacts(
        always=frozenset.intersection(*known) if known else frozenset(),
        values={key: frozenset(items) for key, items in values.items()},
        files=frozenset(path.name for path in feedstock.recipe.iterdir() if path.is_file()),
        compile_keys=tuple(sorted({key for result in old.values() for item in result for key in item.compile_keys})),
        top_is_package=any(package.name == top for packages in old.values() for package in packages),
        run_pins={name: pins for config in configs for name, pins in config.pin_run_as_build.items()},
    )


def _top_name_and_variant_file_keys(
    feedstock: Feedstock, configs: Sequence[BuildConfig]
) -> tuple[str, dict[str, dict[str, Sequence[str]]]]:
    """Return the name of the recipe's top level, and the keys of each config that only the variant file gives."""
    file_values = {config.name: _variant_file_values(feedstock, config) for config in configs}
    if not configs:
        return "", file_values
    recipe, _ = evaluated_recipe(feedstock, configs[0])
    return recipe.top_level_metadata(recipe.space.first_variant()).name, file_values


def _variant_file_values(feedstock: Feedstock, config: BuildConfig) -> dict[str, Sequence[str]]:
    """Return the keys that the recipe's own variant file gives a config."""
    path = feedstock.recipe / _VARIANTS
    if not path.is_file():
        return {}
    system, _, arch = config.platform.partition("-")
    file = load_variant_file(path, f"recipe/{_VARIANTS}")
    given = file.source_for_platform(Platform(system=system, arch=arch), file.keys).values
    return {key: list(map(str, items)) for key, items in given.items() if isinstance(items, list) and key != "zip_keys"}


def _prove_conversion(
    feedstock: Feedstock,
    text: str,
    forge: str,
    configs: Sequence[BuildConfig],
    old: Mapping[str, Sequence[ComparablePackage]],
    pinning: Path | None,
) -> Proof:
    with tempfile.TemporaryDirectory(prefix="kiln-convert-") as folder:
        candidate = _write_candidate_feedstock(feedstock, Path(folder), text, forge)
        try:
            new = _packages_of_candidate(feedstock, candidate, configs)
            proof = compare_packages(old, new)
            if not proof.holds:
                return proof
            expand = _expansion(feedstock, configs, pinning)
            if expand is None:
                note = "not known which configs kiln rerender will make: kiln convert --check -e PINNING compares them"
                return replace(proof, notes=(*proof.notes, note))
            expanded = expand(candidate)
            if [config.name for config in expanded] == [config.name for config in configs]:
                return proof
            return compare_matrices(proof, new, _packages_of_candidate(feedstock, candidate, expanded))
        except KilnError as error:
            return _failed_rendering_proof(error, configs)


def _expansion(
    feedstock: Feedstock, configs: Sequence[BuildConfig], pinning: Path | None
) -> Callable[[Feedstock], Sequence[BuildConfig]] | None:
    """Return what expands a recipe as a rerender does; None if it would not expand the feedstock to the given configs.

    In the place of a pinning that the feedstock needs, the configs give the values.
    """
    if pinning is not None:
        return lambda candidate: matrix.configs(candidate, pinning, {})
    expand: Callable[[Feedstock], Sequence[BuildConfig]] = matrix.configs
    try:
        if limits.run_bounded(lambda: keys_without_value(feedstock)):
            expand = partial(matrix.configs_with_values_of, given=configs)
        before = expand(feedstock)
    except KilnError:
        return None
    found, given = ([config.platform for config in each] for each in (before, configs))
    return expand if sorted(found) == sorted(given) else None


def _write_candidate_feedstock(feedstock: Feedstock, folder: Path, text: str, forge: str) -> Feedstock:
    """Return a feedstock with the new recipe, and with the variant files of the old one."""
    candidate = Feedstock(root=folder)
    candidate.recipe.mkdir()
    candidate.config_folder.mkdir()
    candidate.recipe_v1.write_text(text, encoding="utf-8")
    (folder / FORGE).write_text(forge, encoding="utf-8")
    if (feedstock.recipe / _VARIANTS).is_file():
        shutil.copyfile(feedstock.recipe / _VARIANTS, candidate.recipe / _VARIANTS)
    migrations = feedstock.config_folder / "migrations"
    if migrations.is_dir():
        shutil.copytree(migrations, candidate.config_folder / "migrations")
    return candidate


def _packages_of_candidate(
    feedstock: Feedstock, candidate: Feedstock, configs: Sequence[BuildConfig]
) -> dict[str, list[ComparablePackage]]:
    """Return the packages of configs, which are read from files, as rattler-build does: numbers are no text then."""
    for config in configs:
        (candidate.config_folder / f"{config.name}.yaml").write_text(
            config_file.config_file_text(config), encoding="utf-8"
        )

    def rendered_packages(config: BuildConfig) -> list[ComparablePackage]:
        as_read = config_file.read_config(candidate, config.name)
        return packages_of_recipe_yaml(candidate, as_read, build_platform(feedstock, config.platform))

    return _packages_by_config(configs, rendered_packages)


def _failed_rendering_proof(error: KilnError, configs: Sequence[BuildConfig]) -> Proof:
    """Return the proof's result for a recipe.yaml that cannot be rendered: something was carried over wrongly."""
    names = tuple(config.name for config in configs)
    why = ": ".join(filter(None, (str(error.at or ""), error.what, error.why)))
    fault = Difference(package="all packages", what="rendering", old="rendered", new=why, configs=names)
    return Proof(configs=len(names), packages=0, equal_hashes=0, differences=(fault,), needed=HashKeysToUseOrIgnore())
