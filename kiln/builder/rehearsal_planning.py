"""Plan the rehearsal of a config: upstream's wheel where kiln has a lock of it, else all that a build requires."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import limits, render
from kiln.errors import UnsupportedPython, UsageError
from kiln.job.required_channels_and_network import python_versions_of_config
from kiln.package_test.specs_and_script import specs_required_by_test
from kiln.rehearse import usable_python_search, wheel_locks
from kiln.rehearse.python_package_from_interpreter import PACKAGED_PYTHONS
from kiln.variants.cuda_version import cuda_version_of_config

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.job.host_environment_and_python import HostMachine
    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.model.rendered import RenderedConfig
    from kiln.rehearse.plan_types import RehearsalPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPlanner:
    """Plans the rehearsals of a feedstock's configs, on the host unless ``on_host`` is False.

    ``store`` has the sources of earlier rehearsals, ``folder`` the user's downloads; ``mirror`` is a further address of
    sources. ``env`` is pip's environment.
    """

    feedstock: Feedstock
    machine: HostMachine
    store: Path
    folder: Path | None
    mirror: str | None
    on_host: bool
    env: Mapping[str, str]

    def plan(self, config: BuildConfig) -> RehearsalPlan:
        """Return the plan of a config's rehearsal; nothing is downloaded.

        Raises:
            KilnError: UsageError in a container, RehearsalRefused with all that cannot be had, UnsupportedPython and
                VariantFault without locked wheels.
        """
        from kiln.rehearse import dependency_substitution_plan  # a plan from locks needs none of these
        from kiln.rehearse.required_package_substitutes import OF_INTERPRETER, SubstituteSearch
        from kiln.rehearse.required_packages import outputs_for_python, required_packages
        from kiln.rehearse.source_archive_search_and_download import SourceSearch

        rendered = limits.run_bounded(lambda: render.close_static_pins(render.render(self.feedstock, config)))
        if wheel_locks.has_upstream_wheel(output.name for output in rendered.outputs):
            return upstream_wheel_plan(config)
        if not self.on_host:
            raise UsageError(
                f"{config.name} cannot be rehearsed in a container",
                why="its compilers and programs are those of this machine",
                hint="remove --container, or use --container none",
            )
        preferred = self._preferred_pythons()
        if pythons := python_versions_of_config(config):
            preferred = (_preferred_or_newest_python(pythons, preferred), *preferred)
            rendered = dataclasses.replace(rendered, outputs=outputs_for_python(rendered, preferred[0]))
        required = required_packages(rendered, test_specs=required_specs_of_tests(rendered))
        projects = dict.fromkeys((rendered.name, *(output.name for output in rendered.outputs)))
        return dependency_substitution_plan.plan_config_rehearsal(
            rendered,
            required,
            search=SubstituteSearch(
                python=dependency_substitution_plan.python_version_for_requirements(required, preferred),
                own={output.name: output.version for output in rendered.outputs if not output.skip},
                pinned=rendered.config.variant.keys() - OF_INTERPRETER,
                env=self.env,
                machine_env=self.machine.environment,
                glibc=platform.libc_ver()[1],
            ),
            source_search=SourceSearch(
                store=self.store, folder=self.folder, mirror=self.mirror, projects=tuple(projects), env=self.env
            ),
        )

    def _preferred_pythons(self) -> tuple[str, ...]:
        """Return the calling Python's version, then that of the newest one on this machine.

        Raises:
            UnsupportedPython: when the user has named a Python that cannot be used.
        """
        if self.machine.insists:
            return (named_python_version(self.machine),)
        pythons = []
        with contextlib.suppress(UnsupportedPython):
            pythons.append(
                usable_python_search.probe_interpreter(self.machine.python, env=self.machine.environment).minor_version
            )
        newest = usable_python_search.first_available_interpreter(env=self.machine.environment)
        return (*pythons, *([] if newest is None else [newest.minor_version]))


def upstream_wheel_plan(config: BuildConfig) -> RehearsalPlan:
    """Return the plan of a config's rehearsal with upstream's wheel."""
    return wheel_locks.plan_from_locks(python=single_python_version(config), cuda=cuda_version_of_config(config))


def named_python_version(machine: HostMachine) -> str:
    """Return the minor version of the Python that the user has named.

    Raises:
        UnsupportedPython: when it cannot be used.
    """
    return usable_python_search.probe_interpreter(
        machine.python, env=machine.environment, pythons=PACKAGED_PYTHONS
    ).minor_version


def _preferred_or_newest_python(pythons: Collection[str], preferred: Iterable[str]) -> str:
    """Return the Python of a config's variant to rehearse: the preferred one of several, else the newest."""
    newest = max(pythons, key=lambda python: [int(part) for part in python.split(".")])
    return next((python for python in preferred if python in pythons), newest)


def required_specs_of_tests(rendered: RenderedConfig) -> Iterator[tuple[str, str]]:
    """Yield the requirements of the tests of each output that is not skipped, with its name."""
    for output in rendered.outputs:
        for test in output.tests if not output.skip else ():
            for spec in (*specs_required_by_test(test), *test.requires_build):
                yield output.name, spec


def single_python_version(config: BuildConfig) -> str:
    """Return the minor version of Python that a config is for, ``3.11``.

    Raises:
        UsageError: when it has several, or none.
    """
    versions = python_versions_of_config(config)
    if len(versions) != 1:
        raise UsageError(
            f"{config.name} cannot be rehearsed", why=f"it has {len(versions)} Pythons, a rehearsal is for one"
        )
    return next(iter(versions))
