"""Rules for conda-forge.yml, and for feedstocks of conda-forge only."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base import files
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import list_or_empty, mapping_or_empty, nested_value
from kiln.base.yaml import read_text
from kiln.feedstock import settings
from kiln.feedstock.lint import python
from kiln.feedstock.lint.metadata import feedstock_name
from kiln.feedstock.lint.model import SETTINGS, LintedFeedstock, Problem, hint_rule, lint_rule
from kiln.feedstock.lint.reading import outermost_keys_of_file, repeated_keys
from kiln.feedstock.lint.requirements import spec_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.feedstock.settings import SettingFault


_OLD_IMAGES = frozenset({"cos7", "alma8", "ubi8"})
_DEFAULT_IMAGE = "alma9"
_SYSTEMS = frozenset({"linux", "osx", "win"})
_PATHS = ("tools_install_dir", "build_workspace_dir")


def setting_faults(
    subject: LintedFeedstock, *, find: Callable[[Mapping[str, Any]], Iterable[SettingFault]]
) -> Iterator[Problem]:
    """Yield the settings at fault that a function of the schema finds."""
    for fault in find(subject.settings):
        yield Problem(text=fault.text, at=subject.setting_place(*fault.path), cure=fault.cure)


def settings_without_effect(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield unknown settings that conda-smithy's linter ignores, and those that kiln has no use for."""
    yield from setting_faults(subject, find=settings.unknown_settings_smithy_ignores)
    replaced = {fault.path for fault in settings.deprecated_settings(subject.settings)}
    for fault in settings.settings_without_use(subject.settings):
        if fault.path not in replaced:
            yield Problem(text=f"{fault.text}: {fault.cure}", at=subject.setting_place(*fault.path))


def outdated_images(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield images that are older than conda-forge's default."""
    for platform, image in mapping_or_empty(subject.settings.get("os_version")).items():
        if image in _OLD_IMAGES:
            text = f"os_version.{platform} is {image}, older than the default {_DEFAULT_IMAGE}"
            yield Problem(text=text, at=subject.setting_place("os_version", str(platform)))


CONDA_FORGE_YML_RULES = (
    lint_rule(
        "schema",
        partial(setting_faults, find=settings.SchemaCheck().faults),
        "see conda-forge.org/docs/maintainer/conda_forge_yml",
    ),
    hint_rule("schema", partial(setting_faults, find=settings.deprecated_settings), "use its replacement"),
    hint_rule("kiln-settings", settings_without_effect, "remove the setting, unless conda-forge's CI needs it"),
    hint_rule(
        "FC-002", outdated_images, "remove the setting, unless the recipe repackages binaries", skip="hint_os_version"
    ),
)


class ConditionalValue(NamedTuple):
    """A value of a setting with its conditions; None if a condition is missing."""

    number: int
    value: Any
    systems: tuple[str, ...] | None
    platforms: tuple[str, ...] | None
    services: tuple[str, ...] | None

    @property
    def applicable_systems(self) -> frozenset[str]:
        """The systems that the value applies to."""
        systems = frozenset(self.systems or _SYSTEMS)
        if self.platforms is None:
            return systems
        return systems & {platform.split("_")[0] for platform in self.platforms}

    @property
    def condition_combinations(self) -> set[tuple[str, str, str]]:
        """All combinations of the conditions; a missing condition is empty."""
        return set(product(self.systems or ("",), self.platforms or ("",), self.services or ("",)))


def _workflow_settings(subject: LintedFeedstock) -> dict[Any, Any]:
    return mapping_or_empty(subject.settings.get("workflow_settings"))


def _conditional_values(value: Any) -> list[ConditionalValue]:
    if value is None:
        return []
    if not isinstance(value, list):
        return [ConditionalValue(0, value, None, None, None)]
    return [
        ConditionalValue(
            index, item.get("value"), *(_condition_values(item, key) for key in ("os", "platform", "provider"))
        )
        for index, item in enumerate(map(mapping_or_empty, value))
    ]


def _condition_values(item: dict[Any, Any], key: str) -> tuple[str, ...] | None:
    if key not in item:
        return None
    value = item[key]
    return tuple(str(part) for part in (list_or_empty(value) if isinstance(value, list) else [value]))


def _workflow_setting_place(subject: LintedFeedstock, name: str) -> Place:
    return subject.setting_place("workflow_settings", name)


def contradictory_platform_conditions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield values whose systems and platforms contradict each other."""
    for name, value in _workflow_settings(subject).items():
        for entry in _conditional_values(value):
            if entry.platforms is None or entry.systems is None:
                continue
            if {platform.split("_")[0] for platform in entry.platforms} != set(entry.systems):
                text = f"workflow_settings.{name}[{entry.number}]: os and platform contradict each other"
                yield Problem(text=text, at=_workflow_setting_place(subject, name))


def overlapping_conditions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield values of a setting whose conditions overlap."""
    for name, value in _workflow_settings(subject).items():
        entries = _conditional_values(value)
        covered = [(entry.number, condition) for entry in entries for condition in entry.condition_combinations]
        overlaps = set()
        for _, condition in covered:
            wider = set(product(*((part, "") for part in condition)))
            indexes = tuple(sorted(index for index, other in covered if other in wider))
            if len(indexes) > 1:
                overlaps.add(indexes)
        for indexes in sorted(overlaps):
            numbers = ", ".join(str(index) for index in indexes)
            text = f"workflow_settings.{name}: the conditions of the values {numbers} may overlap"
            yield Problem(text=text, at=_workflow_setting_place(subject, name))


def paths_shared_with_windows(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield paths that apply to both Windows and another system."""
    for name in _PATHS:
        for entry in _conditional_values(_workflow_settings(subject).get(name)):
            if "win" in entry.applicable_systems and entry.applicable_systems & {"linux", "osx"}:
                text = f"workflow_settings.{name}[{entry.number}]: one path for Windows and other systems"
                yield Problem(text=text, at=_workflow_setting_place(subject, name))


def ineffective_partition_resizing(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield resize_partitions for more than Windows on GitHub Actions, where alone it has an effect."""
    for entry in _conditional_values(_workflow_settings(subject).get("resize_partitions")):
        if entry.applicable_systems != {"win"} or set(entry.services or ()) != {"github_actions"}:
            text = f"workflow_settings.resize_partitions[{entry.number}] applies to Windows on GitHub Actions only"
            yield Problem(text=text, at=_workflow_setting_place(subject, "resize_partitions"))


WORKFLOW_RULES = (
    lint_rule("CF-009", contradictory_platform_conditions, "name the systems of the platforms, or one of both"),
    lint_rule("CF-010", overlapping_conditions, "make the conditions exclude each other"),
    lint_rule("CF-011", paths_shared_with_windows, "add os: or platform:"),
    lint_rule("CF-012", ineffective_partition_resizing, "add 'os: win' and 'provider: github_actions'"),
)


_WORKFLOW = "conda-build.yml"
_REPLACED = {
    "CONDA_BLD_PATH": "workflow_settings.build_workspace_dir",
    "CONDA_FORGE_DOCKER_RUN_ARGS": "docker.run_args",
    "MINIFORGE_HOME": "workflow_settings.tools_install_dir",
    "SET_PAGEFILE": "workflow_settings.pagefile_size",
}
_REMOTE = lazy_pattern(r'\[remote "(upstream|origin)"\][^\[]*?\n\s*url\s*=\s*(\S+)')
_MAX_CONFIG = 1 << 20  # bytes of .git/config


def no_configs(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a feedstock that builds nothing."""
    if not subject.feedstock.config_names:
        yield Problem(text="no configs, so nothing is built", at=Place(file=".ci_support"))


def empty_variant_file(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a variant file without content."""
    path = subject.feedstock.recipe / "conda_build_config.yaml"
    if path.is_file() and not read_text(path, "recipe/conda_build_config.yaml").strip():
        yield Problem(text="the variant file is empty", at=Place(file="recipe/conda_build_config.yaml"))


def additional_workflows(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield workflows of GitHub Actions other than conda-smithy's."""
    folder = subject.feedstock.root / ".github" / "workflows"
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        if path.name != _WORKFLOW:
            text = f"{path.name} is not the workflow of conda-forge"
            yield Problem(text=text, at=Place(file=f".github/workflows/{path.name}"))


@cache
def _avoided_packages() -> Mapping[str, str]:
    """Return the packages that conda-forge's recipes avoid, each with what to require instead.

    Source: recipe/linter_hints/hints.toml of conda-forge-pinning-feedstock, of August 2026.
    """
    return {row["package"]: row["instead"] for row in files.csv_rows(Path(__file__).with_name("avoided.csv"))}


def avoided_packages(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield requirements of packages that have a better one, or another name."""
    recipe = subject.recipe
    for value in (recipe.section("requirements"), *(output.get("requirements") for output in recipe.outputs)):
        requirements = {"run": value} if isinstance(value, list) else mapping_or_empty(value)
        for section in ("build", "host", "run"):
            for spec in recipe.texts_of_all_branches(requirements.get(section)):
                name = spec.split(" ")[0].strip()
                if instead := _avoided_packages().get(name):
                    text = f"{name} is one of the packages that recipes avoid"
                    yield Problem(text=text, at=recipe.place_of(spec), cure=f"require {instead}")


def overridden_pins(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield requirements whose version overrides that of the variant."""
    recipe = subject.recipe
    pins = {
        key
        for path in sorted(subject.feedstock.config_folder.glob("*.yaml"))
        for key in outermost_keys_of_file(path, f".ci_support/{path.name}")
    }
    for requirements in (recipe.section("requirements"), *(output.get("requirements") for output in recipe.outputs)):
        host = mapping_or_empty(requirements).get("host")
        named: dict[str, list[tuple[str, bool]]] = {}
        for spec in recipe.texts_of_all_branches(host):
            fields = spec_fields(spec.partition("#")[0].strip())
            if fields and fields.name:
                named.setdefault(fields.name, []).append((spec, fields.versioned))
        for name, specs in named.items():
            # A second requirement of the same package may refine the first one.
            if name in pins and len(specs) == 1 and specs[0][1]:
                text = f"{str(specs[0][0])!r} overrides the version of the variant"
                yield Problem(text=text, at=recipe.place_of(specs[0][0]), cure=f"write {name}")


def replaced_azure_variables(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield variables of Azure that settings replace."""
    for system in ("linux", "osx", "win"):
        for name in mapping_or_empty(nested_value(subject.settings, "azure", f"settings_{system}", "variables")):
            if name in _REPLACED:
                at = subject.setting_place("azure", f"settings_{system}", "variables", str(name))
                yield Problem(text=f"the variable {name} is deprecated", at=at, cure=f"use {_REPLACED[name]}")


def repeated_settings(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that conda-forge.yml has twice."""
    path = subject.feedstock.root / SETTINGS
    if path.is_file():
        for key in repeated_keys(read_text(path, SETTINGS), SETTINGS):
            at = Place(file=SETTINGS, line=key.line, column=key.column)
            yield Problem(text=f"{str(key)!r} stands there twice", at=at)


def repeated_recipe_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that a mapping of a recipe.yaml has twice, so that parsers refuse the recipe."""
    recipe = subject.recipe
    for key in recipe.repeated_keys if recipe.version else ():
        yield Problem(text=f"{str(key)!r} stands there twice", at=recipe.place_of(key))


def mismatched_feedstock_name(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a name of the feedstock that differs from the name of its repository."""
    name = feedstock_name(subject)
    if not name:
        return
    owner = mapping_or_empty(subject.settings.get("github")).get("user_or_org", "conda-forge")
    pattern = rf"(?:https?://|git\+ssh://|ssh://|git@)(?:[^@/]*@)?github\.com[:/]/?{re.escape(str(owner))}/([^/]+)-feedstock(?:\.git)?/?"
    match = re.fullmatch(pattern, _git_remote_url(subject))
    if match and match[1] != name:
        text = f"the recipe's feedstock is {name!r}, the repository's {match[1]!r}"
        at = subject.recipe.place_of_key(subject.recipe.section("extra"), "feedstock-name")
        yield Problem(text=text, at=at, cure=f"write feedstock-name: {match[1]} in the extra section")


def _git_remote_url(subject: LintedFeedstock) -> str:
    """Return the URL of the repository's remote upstream, or origin; empty without."""
    try:
        with (subject.feedstock.root / ".git" / "config").open("rb") as file:
            text = file.read(_MAX_CONFIG).decode("utf-8", "replace")
    except OSError:
        return ""
    urls = dict(_REMOTE.findall(text))
    return urls.get("upstream") or urls.get("origin") or ""


CONDA_FORGE_RULES = tuple(
    replace(rule, conda_forge=True)
    for rule in (
        lint_rule("CF-003", no_configs, "run kiln rerender"),
        lint_rule("CF-004", empty_variant_file, "remove the file"),
        lint_rule(
            "CF-005", additional_workflows, "remove the workflow: conda-forge's services are for building packages"
        ),
        hint_rule("CF-002", avoided_packages, "require another package"),
        hint_rule("CF-006", overridden_pins, "require the package without a version, or set it in the variant file"),
        hint_rule("CF-007", replaced_azure_variables, "use the setting"),
        lint_rule("CF-013", mismatched_feedstock_name, "set feedstock-name in the extra section"),
        lint_rule("FC-001", repeated_settings, "keep one of them"),
        lint_rule("R-036", repeated_recipe_keys, "keep one of them"),
        hint_rule("R-037", repeated_recipe_keys, "keep one of them"),
        *python.PYTHON_RULES,
        *python.MACOS_RULES,
        *WORKFLOW_RULES,
    )
)
