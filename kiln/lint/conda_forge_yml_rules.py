"""Rules for conda-forge.yml, and for its workflow_settings: values for systems, platforms and CI services."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.conda_forge_yml import schema
from kiln.lint.located_yaml import list_or_empty
from kiln.lint.rule_model import Problem, hint_rule, lint_rule
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.conda_forge_yml.schema import SettingFault
    from kiln.lint.linted_feedstock import LintedFeedstock
    from kiln.model.source_position import Place

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
    yield from setting_faults(subject, find=schema.unknown_settings_smithy_ignores)
    replaced = {fault.path for fault in schema.deprecated_settings(subject.settings)}
    for fault in schema.settings_without_use(subject.settings):
        if fault.path not in replaced:
            yield Problem(text=f"{fault.text}: {fault.cure}", at=subject.setting_place(*fault.path))


def outdated_images(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield images that are older than conda-forge's default."""
    for platform, image in mapping_or_empty(subject.settings.get("os_version")).items():
        if image in _OLD_IMAGES:
            text = f"os_version.{platform} is {image}, older than the default {_DEFAULT_IMAGE}"
            yield Problem(text=text, at=subject.setting_place("os_version", str(platform)))


RULES = (
    lint_rule(
        "schema",
        partial(setting_faults, find=schema.SchemaCheck().faults),
        "see conda-forge.org/docs/maintainer/conda_forge_yml",
    ),
    hint_rule("schema", partial(setting_faults, find=schema.deprecated_settings), "use its replacement"),
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
