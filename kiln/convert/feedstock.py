"""Convert a feedstock: its recipe, its conda-forge.yml, and the proof that all of its configs stay what they are."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import expand, files, limits
from kiln.convert.comparable_packages_v0 import packages_of_meta_yaml
from kiln.convert.comparable_packages_v1 import packages_of_recipe_yaml
from kiln.convert.meta_yaml_to_recipe_yaml import META, recipe_yaml_text
from kiln.convert.proof import Difference, HashKeysToUseOrIgnore, Proof, compare_matrices, compare_packages
from kiln.convert.sections import FeedstockFacts
from kiln.errors import ConversionRefused, KilnError, UnknownConfig
from kiln.model.feedstock import Feedstock
from kiln.model.source_position import Place
from kiln.recipe_v1.format_detection import FORGE, is_v1
from kiln.render.render import build_platform, evaluated_recipe
from kiln.variants.files import load_variant_file
from kiln.variants.platform_properties import Platform
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.convert.comparable_package import ComparablePackage
    from kiln.model.matrix_config import BuildConfig

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
            return Conversion(recipe=text, forge=forge, proof=proof)
        facts = replace(facts, hash_keys=facts.hash_keys | proof.needed)


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
        return expand.configs(feedstock, pinning, {})
    names = feedstock.config_names
    if not names:
        raise UnknownConfig("no configs in .ci_support", hint="kiln rerender writes them, or give a pinning with -e")
    return expand.read_configs(feedstock, names)


def _conda_forge_yml_with_build_tool(feedstock: Feedstock) -> str:
    """Return conda-forge.yml with the tool that reads recipe.yaml; everything else stays as it is."""
    path = feedstock.root / FORGE
    text = read_text(path, FORGE) if path.is_file() else ""
    if _TOOL.search(text):
        return _TOOL.sub(_TOOL_LINE, text)
    return f"{text.rstrip()}\n{_TOOL_LINE}\n".lstrip()


# What the conversion has to know


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


# The proof


def _prove_conversion(
    feedstock: Feedstock,
    text: str,
    forge: str,
    configs: Sequence[BuildConfig],
    old: Mapping[str, Sequence[ComparablePackage]],
    pinning: Path | None,
) -> Proof:
    with tempfile.TemporaryDirectory(prefix="kiln-convert-") as folder:
        candidate = _write_candidate_feedstock(feedstock, Path(folder), text, forge, configs)
        try:
            new = _packages_by_config(
                configs,
                lambda config: _rendered_packages(feedstock, candidate, expand.read_config(candidate, config.name)),
            )
            proof = compare_packages(old, new)
            if pinning is None:
                return proof
            expanded = expand.configs(candidate, pinning, {})
            if [config.name for config in expanded] == [config.name for config in configs]:
                return proof
            own = _packages_by_config(expanded, lambda config: _rendered_packages(feedstock, candidate, config))
            return compare_matrices(proof, (configs, old), (expanded, own))
        except KilnError as error:
            return _failed_rendering_proof(error, configs)


def _write_candidate_feedstock(
    feedstock: Feedstock, folder: Path, text: str, forge: str, configs: Sequence[BuildConfig]
) -> Feedstock:
    """Return a feedstock with the new recipe, and with the variant files and the configs of the old one."""
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
    for config in configs:
        (candidate.config_folder / f"{config.name}.yaml").write_text(expand.config_file_text(config), encoding="utf-8")
    return candidate


def _rendered_packages(feedstock: Feedstock, candidate: Feedstock, config: BuildConfig) -> list[ComparablePackage]:
    return packages_of_recipe_yaml(candidate, config, build_platform(feedstock, config.platform))


def _failed_rendering_proof(error: KilnError, configs: Sequence[BuildConfig]) -> Proof:
    """Return the proof's result for a recipe.yaml that cannot be rendered: something was carried over wrongly."""
    names = tuple(config.name for config in configs)
    why = ": ".join(filter(None, (str(error.at or ""), error.what, error.why)))
    fault = Difference(package="all packages", what="rendering", old="rendered", new=why, configs=names)
    return Proof(configs=len(names), packages=0, equal_hashes=0, differences=(fault,), needed=HashKeysToUseOrIgnore())
