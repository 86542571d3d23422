"""The config of a rehearsal and its inputs: wheels, and an interpreter of this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln.base import limits
from kiln.base.errors import UnknownConfig, UnsupportedPython, UsageError
from kiln.base.serialization import to_json
from kiln.base.text import first_of
from kiln.build.job.job import python_versions_of_config
from kiln.build.rehearsal import python_search, wheel_download
from kiln.build.rehearsal.python_package import PACKAGED_PYTHONS
from kiln.build.rehearsal.python_search import DEFAULT_CHANNEL, NO_CHANNEL, PythonRequest
from kiln.build.rehearsal.wheel_download import PYTHONS
from kiln.build.test.specs import specs_required_by_test
from kiln.feedstock import config_file
from kiln.recipe import pins, render
from kiln.recipe.variants.files import cuda_version_of_config
from kiln.state.store.compile_cache import json_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from kiln.build.job.job import HostMachine
    from kiln.build.rehearsal.python_search import Interpreter
    from kiln.build.rehearsal.wheels import RehearsalPlan
    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig


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
        from kiln.build.rehearsal import substitutes  # a plan from locks needs none of these
        from kiln.build.rehearsal.substitutes import (
            OF_INTERPRETER,
            SubstituteSearch,
            outputs_for_python,
            required_packages,
        )
        from kiln.feedstock.sources import SourceSearch

        rendered = limits.run_bounded(lambda: pins.close_static_pins(render.render(self.feedstock, config)))
        if wheel_download.has_upstream_wheel(output.name for output in rendered.outputs):
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
        return substitutes.plan_config_rehearsal(
            rendered,
            required,
            search=SubstituteSearch(
                python=substitutes.python_version_for_requirements(required, preferred),
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
        """Return the calling Python's version, then that of the newest one on this machine."""
        if self.machine.insists:
            return (named_python_version(self.machine),)
        pythons = []
        with contextlib.suppress(UnsupportedPython):
            pythons.append(
                python_search.probe_interpreter(self.machine.python, env=self.machine.environment).minor_version
            )
        newest = python_search.first_available_interpreter(env=self.machine.environment)
        return (*pythons, *([] if newest is None else [newest.minor_version]))


def upstream_wheel_plan(config: BuildConfig) -> RehearsalPlan:
    """Return the plan of a config's rehearsal with upstream's wheel."""
    return wheel_download.plan_from_locks(
        python=single_python_version(config), cuda=cuda_version_of_config(config), subdir=config.platform
    )


def named_python_version(machine: HostMachine) -> str:
    """Return the minor version of the Python that the user has named."""
    return python_search.probe_interpreter(
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
    """Return the minor version of Python that a config is for, ``3.11``."""
    versions = python_versions_of_config(config)
    if len(versions) != 1:
        raise UsageError(
            f"{config.name} cannot be rehearsed", why=f"it has {len(versions)} Pythons, a rehearsal is for one"
        )
    return next(iter(versions))


PlanOf: TypeAlias = "Callable[[BuildConfig], RehearsalPlan]"

# Of the x86-64 psABI: what upstream's wheels come nearest to; they have AVX besides (.bazelrc, avx_linux).
WHEEL_LEVEL = "2"
_NAMED = 6  # configs that a message names; it counts the rest

SYSTEM = Path("/usr")  # an interpreter below it cannot be mounted in a container, which has its own
# Bytes of disk for each byte of a wheel, as measured: fetched, converted and unpacked; and, while a package is made of
# upstream's wheel, unpacked, staged and packed.
WHEEL_DISK, BUILD_DISK = 4, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalInputs:
    """A rehearsal's wheels and interpreter; ``interpreter`` is None when this machine lacks the config's Python."""

    wheels: RehearsalPlan
    interpreter: Interpreter | None

    @property
    def inputs_digest(self) -> str:
        """A hash of the inputs of a rehearsal's packages other than the recipe."""
        stand_ins = [to_json(self.wheels.stand_ins)] if self.wheels.stand_ins else []
        return json_digest([[wheel.sha256 for wheel in self.wheels.wheels], self._interpreter_identity(), *stand_ins])

    @property
    def mountable_python_folder(self) -> Path | None:
        """The folder of the interpreter, if it can be mounted in a container; None for the system's own."""
        if self.interpreter is None or self.interpreter.base_prefix.is_relative_to(SYSTEM):
            return None
        return self.interpreter.base_prefix

    def job_fields(self) -> dict[str, Any]:
        """Return the fields of a config's job for its plan and its interpreter."""
        python = None if self.interpreter is None else str(self.interpreter.executable)
        home = self.mountable_python_folder and str(self.mountable_python_folder)
        return {"python": python, "python_home": home, "rehearsal_plan": to_json(self.wheels)}

    def _interpreter_identity(self) -> list[object]:
        if self.interpreter is None:
            return []
        status = self.interpreter.executable.stat()
        return [str(self.interpreter.executable), self.interpreter.version, status.st_size, status.st_mtime_ns]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPythons:
    """The Pythons of a run's rehearsals: this machine's, and fetched ones in ``folder``.

    A missing one is fetched from ``channel``, or by uv, unless ``fetch`` is False; ``show`` gets a line for each
    attempt.
    """

    machine: HostMachine
    folder: Path
    channel: str = DEFAULT_CHANNEL
    fetch: bool = True
    show: Callable[[str], None] = lambda _: None

    def find_on_machine(self, python: str) -> Interpreter | None:
        """Return a present interpreter of a minor version, the machine's own before a fetched one; None without any."""
        with contextlib.suppress(UnsupportedPython):
            return self._find_interpreter(python)
        return None

    def find_or_fetch(self, python: str) -> Interpreter:
        """Return an interpreter of a minor version, fetched if this machine lacks it."""
        try:
            return self._find_interpreter(python)
        except UnsupportedPython as refusal:
            request = PythonRequest(python=python, folder=self.folder, channel=self.channel, refusal=refusal.why)
        return python_search.fetch_python(request, env=self.machine.environment, say=self.show)

    def _find_interpreter(self, python: str) -> Interpreter:
        last = python_search.fetched_pythons(python, self.folder)
        return python_search.find_interpreter(
            python, first=(self.machine.python,), last=last, env=self.machine.environment
        )


def require_rehearsal_inputs(
    configs: Iterable[BuildConfig], pythons: RehearsalPythons, *, on_host: bool, plan_of: PlanOf = upstream_wheel_plan
) -> tuple[dict[str, RehearsalInputs], tuple[str, ...]]:
    """Return the inputs of each config's rehearsal, and notes; at least one config can be rehearsed here.

    On the host, a missing Python is fetched; in a container it may be the image's own.

    Raises:
        UnsupportedPython: when no config can be rehearsed on the host, since its Python is missing, or with the Python
            that the user has named.
        KilnError: UsageError for a config of several Pythons, UnsupportedPython and VariantFault without wheels.
    """
    plans = {config.name: plan_of(config) for config in configs}
    required = {plan.packaged_python for plan in plans.values()} - {""}
    _require_named_python(pythons.machine, required)
    present = {python: pythons.find_on_machine(python) for python in required}
    absent = sorted(python for python in required if present[python] is None) if on_host else []
    fetch = pythons.fetch or pythons.channel == NO_CHANNEL  # it refuses, in a dry run, too
    fetched, failures = _fetch_interpreters(absent, pythons) if fetch else ({}, {})
    if failures and len(failures) == len({plan.packaged_python for plan in plans.values()}):
        raise failures[max(failures)]
    inputs = {
        name: RehearsalInputs(
            wheels=plan, interpreter=present.get(plan.packaged_python) or fetched.get(plan.packaged_python)
        )
        for name, plan in plans.items()
    }
    missing = (
        f"Python {python} not found on this machine: it would be fetched from {pythons.channel}, or by uv"
        for python in ([] if fetch else absent)
    )
    failed = tuple(f"{failure.what}: {failure.hint}" for failure in failures.values())
    notes = dict.fromkeys(note for plan in plans.values() for note in plan.notes)
    return inputs, (*notes, *_interpreter_notes(inputs, pythons.machine), *missing, *failed)


def _require_named_python(machine: HostMachine, required: Collection[str]) -> None:
    """Raise UnsupportedPython when the user has named a Python that no config is rehearsed with."""
    if not (machine.insists and required):
        return
    named = named_python_version(machine)
    if named not in required:
        raise UnsupportedPython(
            f"{machine.python} cannot be used for this rehearsal",
            why=f"it is Python {named}, the rehearsal requires Python {', '.join(sorted(required))}",
            hint="name another with --python, or a config of this Python (kiln matrix lists them)",
        )


def _fetch_interpreters(
    absent: Iterable[str], pythons: RehearsalPythons
) -> tuple[dict[str, Interpreter], dict[str, UnsupportedPython]]:
    """Fetch missing interpreters; return the fetched ones, and the errors of the others."""
    interpreters, failures = {}, {}
    for python in absent:
        try:
            interpreters[python] = pythons.find_or_fetch(python)
        except UnsupportedPython as failure:
            failures[python] = failure
    return interpreters, failures


def _interpreter_notes(inputs: Mapping[str, RehearsalInputs], machine: HostMachine) -> Iterator[str]:
    """Yield a note for each interpreter other than the calling one."""
    interpreters = (rehearsal.interpreter for rehearsal in inputs.values() if rehearsal.interpreter)
    calling = machine.python.resolve()
    for executable, version in {each.executable: each.version for each in interpreters}.items():
        if executable != calling:
            yield f"rehearsing with Python {version}, {executable}"


def rehearsal_disk_bytes(missing: int, upstream: int, *, jobs: int) -> int:
    """Return the bytes of disk that rehearsals take: for missing wheels, and for each job while it runs.

    ``upstream`` is the size of the wheel that packages are made of.
    """
    return WHEEL_DISK * missing + jobs * BUILD_DISK * upstream


def missing_wheels_size(inputs: Mapping[str, RehearsalInputs], store: Path) -> int:
    """Return the bytes of all wheels that are missing in ``store``, each counted once."""
    from kiln.build.rehearsal import wheel_download

    plans = [rehearsal.wheels.wheels for rehearsal in inputs.values()]
    return sum(
        {wheel.file: wheel.size for wheels in plans for wheel in wheel_download.missing_wheels(wheels, store)}.values()
    )


def cpu_config_for_machine(feedstock: Feedstock, machine: HostMachine, names: Iterable[str] | None = None) -> str:
    """Return the name of the CPU config for the machine's Python, or for the newest one with wheels.

    ``names`` are the configs to choose from, by default all.

    Raises:
        UnsupportedPython: when the user has named a Python that cannot be used.
        UnknownConfig: the config does not exist.
    """
    try:
        return cpu_config_for_python(
            feedstock, python_search.probe_interpreter(machine.python, env=machine.environment).minor_version, names
        ).name
    except UnsupportedPython:
        if machine.insists:
            raise
    newest = python_search.first_available_interpreter(env=machine.environment)
    return cpu_config_for_python(feedstock, PYTHONS[-1] if newest is None else newest.minor_version, names).name


def cpu_config_for_python(feedstock: Feedstock, python: str, names: Iterable[str] | None = None) -> BuildConfig:
    """Return the one config of a Python that has no CUDA, of ``names`` or of all.

    Raises:
        UnknownConfig: when the matrix has none, or several.
    """
    stems = feedstock.config_names if names is None else tuple(names)
    configs = config_file.read_configs(feedstock, stems)
    matching = [
        config
        for config in configs
        if cuda_version_of_config(config) is None and python in python_versions_of_config(config)
    ]
    if len(matching) > 1:  # the usual build rather than the free-threaded one, and upstream's level of the processor
        matching = [config for config in matching if not all(value.endswith("t") for value in config.variant["python"])]
        matching = [
            config for config in matching if WHEEL_LEVEL in config.variant.get("microarch_level", ())
        ] or matching
    if len(matching) != 1:
        listing = ", ".join(config.name for config in matching) or "none"
        others = [config.name for config in matching] or stems
        raise UnknownConfig(
            f"no single CPU config of {feedstock.root} for Python {python}: {listing}",
            hint=f"kiln build --rehearse CONFIG, one of {first_of(others, _NAMED)}",
        )
    return matching[0]
