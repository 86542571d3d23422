"""Rules for conda-forge.yml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.conda_forge_yml import schema
from kiln.lint.model import Problem, hint_rule, lint_rule
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.lint.subject import LintedFeedstock

_OLD_IMAGES = frozenset({"cos7", "alma8", "ubi8"})
_DEFAULT_IMAGE = "alma9"


def invalid_settings(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield unknown settings, and settings with values of another type."""
    for fault in schema.faults(subject.settings):
        yield Problem(text=fault.text, at=subject.settings_at(*fault.path), cure=fault.cure)


def deprecated_settings(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield deprecated settings."""
    for fault in schema.deprecated(subject.settings):
        yield Problem(text=fault.text, at=subject.settings_at(*fault.path), cure=fault.cure)


def settings_without_effect(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield unknown settings that conda-smithy's linter ignores, and those that kiln has no use for."""
    for fault in schema.unknown_settings(subject.settings):
        yield Problem(text=fault.text, at=subject.settings_at(*fault.path), cure=fault.cure)
    replaced = {fault.path for fault in schema.deprecated(subject.settings)}
    for fault in schema.without_use(subject.settings):
        if fault.path not in replaced:
            yield Problem(text=f"{fault.text}: {fault.cure}", at=subject.settings_at(*fault.path))


def old_images(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield images that are older than conda-forge's default."""
    for platform, image in mapping_or_empty(subject.settings.get("os_version")).items():
        if image in _OLD_IMAGES:
            text = f"os_version.{platform} is {image}, older than the default {_DEFAULT_IMAGE}"
            yield Problem(text=text, at=subject.settings_at("os_version", str(platform)))


RULES = (
    lint_rule("schema", invalid_settings, "see conda-forge.org/docs/maintainer/conda_forge_yml"),
    hint_rule("schema", deprecated_settings, "use its replacement"),
    hint_rule("kiln-settings", settings_without_effect, "remove the setting, unless conda-forge's CI needs it"),
    hint_rule(
        "FC-002", old_images, "remove the setting, unless the recipe repackages binaries", skip="hint_os_version"
    ),
)
