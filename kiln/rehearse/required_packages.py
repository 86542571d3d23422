"""The packages that a config requires from a channel, with the outputs and the sections that require them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kiln.matchspec_notation import MatchSpec, package_name, with_version_wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.model.rendered import Output, RenderedConfig


class RequirementSection(str, Enum):
    """A section of requirements, in the order in which a build solves them."""

    BUILD = "build"
    HOST = "host"
    RUN = "run"
    TEST = "test"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredPackage:
    """A requirement of one section of an output, or of a build step that outputs share; ``name`` is the package's."""

    name: str
    spec: str
    section: RequirementSection
    output: str

    @property
    def version_constraint(self) -> str:
        """The version constraint in conda's notation; empty without one."""
        try:
            return MatchSpec.parse(self.spec).version
        except ValueError:
            return ""

    @property
    def section_and_output(self) -> str:
        """The section and the output, for messages: ``host of keras``."""
        return f"{self.section.value} of {self.output}"


def outputs_for_python(rendered: RenderedConfig, python: str) -> tuple[Output, ...]:
    """Return the outputs of a config without those for other Pythons than ``python``, ``3.11``."""
    versions = ((output, output.variant.get("python", "")) for output in rendered.outputs)
    return tuple(output for output, version in versions if not version or f"{version}.".startswith(f"{python}."))


def required_packages(
    rendered: RenderedConfig, *, test_specs: Iterable[tuple[str, str]] = ()
) -> tuple[RequiredPackage, ...]:
    """Return what a config's outputs require, except virtual packages and each other.

    ``test_specs`` are further requirements of tests, each with the name of its output.
    """
    outputs = [output for output in rendered.outputs if not output.skip]
    own = {output.name for output in outputs}
    of_tests = (
        package
        for output, spec in test_specs
        for package in _required_packages_of_specs([spec], RequirementSection.TEST, output, exact=True)
    )
    distinct = dict.fromkeys((*_packages_of_stagings(rendered), *_packages_of_outputs(outputs), *of_tests))
    return tuple(entry for entry in distinct if entry.name not in own and not entry.name.startswith("__"))


def _packages_of_stagings(rendered: RenderedConfig) -> Iterator[RequiredPackage]:
    for staging in rendered.stagings:
        for section in (RequirementSection.BUILD, RequirementSection.HOST):
            specs = staging.requirements.specs_to_solve(section)
            yield from _required_packages_of_specs(
                specs, section, rendered.name or staging.name, exact=staging.settings.by_engine
            )


def _packages_of_outputs(outputs: Iterable[Output]) -> Iterator[RequiredPackage]:
    for output in outputs:
        for section in (RequirementSection.BUILD, RequirementSection.HOST, RequirementSection.RUN):
            exact = output.settings.by_engine or section is RequirementSection.RUN
            yield from _required_packages_of_specs(
                output.requirements.specs_to_solve(section), section, output.name, exact=exact
            )


def _required_packages_of_specs(
    specs: Iterable[str], section: RequirementSection, output: str, *, exact: bool
) -> Iterator[RequiredPackage]:
    for text in specs:
        spec = text if exact else with_version_wildcard(text)
        yield RequiredPackage(name=package_name(spec).lower(), spec=spec, section=section, output=output)
