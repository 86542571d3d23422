"""What a config requires, and the substitutes: an interpreter, this machine's programs, or wheels."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from kiln.base.errors import RehearsalRefused
from kiln.base.patterns import lazy_pattern
from kiln.build.rehearsal import machine, wheel_choice
from kiln.build.rehearsal.python_package import PACKAGED_PYTHONS
from kiln.build.rehearsal.wheel_choice import RequirementsConflict, WheelResolution
from kiln.build.rehearsal.wheels import LockedWheel, RehearsalPlan, StandIn
from kiln.conda import pypi
from kiln.conda.specs import MatchSpec, package_name, with_version_wildcard

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kiln.feedstock.sources import SourceSearch, UnavailableItem
    from kiln.recipe.rendered import Output, RenderedConfig


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
    found: dict[RequiredPackage, None] = {}

    def add(specs: Iterable[str], section: RequirementSection, output: str, *, exact: bool) -> None:
        for text in specs:
            spec = text if exact else with_version_wildcard(text)
            found[RequiredPackage(name=package_name(spec).lower(), spec=spec, section=section, output=output)] = None

    build, host, run = RequirementSection.BUILD, RequirementSection.HOST, RequirementSection.RUN
    for staging in rendered.stagings:
        for section in (build, host):
            specs = staging.requirements.specs_to_solve(section)
            add(specs, section, rendered.name or staging.name, exact=staging.settings.by_engine)
    for output in outputs:
        for section in (build, host, run):
            exact = output.settings.by_engine or section is run
            add(output.requirements.specs_to_solve(section), section, output.name, exact=exact)
    for name, spec in test_specs:
        add([spec], RequirementSection.TEST, name, exact=True)
    return tuple(entry for entry in found if entry.name not in own and not entry.name.startswith("__"))


_FREE_THREADED = lazy_pattern(r"_cp\d+t$")


def plan_config_rehearsal(
    rendered: RenderedConfig,
    required: tuple[RequiredPackage, ...],
    *,
    search: SubstituteSearch,
    source_search: SourceSearch,
) -> RehearsalPlan:
    """Return the plan of a config's rehearsal; nothing is downloaded."""
    try:
        substitutes = search.find_substitutes(required)
    except RequirementsConflict as error:
        raise RehearsalRefused(
            f"{rendered.config.name} cannot be rehearsed: its requirements contradict each other as pip sees them",
            why=str(error),
            hint="see whether the wheels on pip's index have other requirements than conda-forge's packages",
        ) from error
    sources, missing_sources = source_search.locate_sources(rendered.sources)
    missing = [package for package in substitutes.missing if not package.is_required_by_tests_only]
    if missing or missing_sources:
        raise incomplete_plan_error(rendered.config.name, missing, missing_sources)
    return RehearsalPlan(
        python=search.python,
        dependencies=substitutes.wheels,
        stand_ins=substitutes.stand_ins,
        sources=sources,
        notes=(
            *(
                f"{stand_in.origin} stands in for {stand_in.name} {stand_in.version}"
                for stand_in in substitutes.stand_ins
                if stand_in.differs
            ),
            *substitutes.notes,
            *(f"tested without {package.description}" for package in substitutes.missing),
        ),
    )


def incomplete_plan_error(
    config: str, packages: Iterable[MissingPackage], sources: Iterable[UnavailableItem]
) -> RehearsalRefused:
    """Return the error that lists everything a rehearsal lacks."""
    sources = tuple(sources)
    lines = [package.description for package in packages]
    lines += [f"source {source.name}: {source.reason}" for source in sources]
    hints = dict.fromkeys(source.hint for source in sources)
    programs = any("this machine has" in line for line in lines)
    return RehearsalRefused(
        f"{config} cannot be rehearsed: {len(lines)} requirement{'s' if len(lines) != 1 else ''} cannot be had",
        why="\n       ".join(lines),
        hint="; ".join(hints)
        if hints
        else "install the missing programs on this machine"
        if programs
        else "build it with its channels: kiln build without --rehearse",
    )


def python_version_for_requirements(required: Iterable[RequiredPackage], preferred: Iterable[str]) -> str:
    """Return the Python that satisfies the requirements of an interpreter; empty when there are none.

    The first of ``preferred`` that satisfies them is chosen, else the newest one.
    """
    entries = [entry for entry in required if entry.name == "python"]
    if not entries:
        return ""
    if free_threaded := [entry for entry in entries if _FREE_THREADED.search(entry.spec)]:
        raise RehearsalRefused(
            "a rehearsal has no free-threaded Python",
            why="; ".join(dict.fromkeys(f"{entry.spec} ({entry.section_and_output})" for entry in free_threaded)),
            hint="rehearse another config: kiln matrix lists them",
        )
    constraints = [entry.version_constraint for entry in entries]
    candidates = dict.fromkeys((*preferred, *reversed(PACKAGED_PYTHONS)))
    for python in candidates:
        if python in PACKAGED_PYTHONS and machine.satisfies_constraints(f"{python}.99", constraints):
            return python
    places = "; ".join(dict.fromkeys(f"{entry.spec} ({entry.section_and_output})" for entry in entries))
    raise RehearsalRefused(
        "no Python of a rehearsal satisfies all requirements",
        why=places,
        hint=f"a rehearsal has one Python for all outputs, of {PACKAGED_PYTHONS[0]} to {PACKAGED_PYTHONS[-1]}",
    )


OF_INTERPRETER = frozenset({"python", "python_abi"})
_PROJECT = lazy_pattern(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_NOT_PYTHON = ("lib", "r-", "perl-", "ruby-", "lua-", "cross-")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPackage:
    """A package that cannot be had, with the recipe's requirements of it, if it has some, and the reason."""

    name: str
    required: tuple[RequiredPackage, ...]
    reason: str

    @property
    def is_required_by_tests_only(self) -> bool:
        """True when tests alone require it."""
        return bool(self.required) and all(entry.section is RequirementSection.TEST for entry in self.required)

    @property
    def description(self) -> str:
        """The package, what requires it, and the reason."""
        if not self.required:
            return f"{self.name} (a requirement of wheels): {self.reason}"
        places = ", ".join(dict.fromkeys(entry.section_and_output for entry in self.required))
        return f"{self.required[0].spec} ({places}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitutes:
    """Substitutes of required packages: stand-ins of this machine and wheels, and the packages without one."""

    stand_ins: tuple[StandIn, ...] = ()
    wheels: tuple[LockedWheel, ...] = ()
    missing: tuple[MissingPackage, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubstituteSearch:
    """The search for substitutes: ``python`` is the rehearsal's, empty when the config has none.

    ``own`` are the versions of the config's outputs by their names, ``pinned`` the keys of its variant, ``env`` pip's
    environment, which may have passwords, ``machine_env`` that of this machine's programs, ``glibc`` the version of its
    C library.
    """

    python: str
    own: Mapping[str, str]
    pinned: Collection[str]
    env: Mapping[str, str]
    machine_env: Mapping[str, str]
    glibc: str
    notes: list[str] = field(default_factory=list)

    def find_substitutes(self, required: Iterable[RequiredPackage]) -> Substitutes:
        """Return the substitutes of required packages."""
        by_name: dict[str, list[RequiredPackage]] = {}
        for entry in required:
            if entry.name not in OF_INTERPRETER:
                by_name.setdefault(entry.name, []).append(entry)
        toolchain, programs, python_packages, missing = self._classify_packages(by_name)
        resolution = self._resolve_by_environment(python_packages)
        conda_of = {pypi.pypi_name(name): name for name in python_packages}
        for fault in resolution.unavailable:
            name = conda_of.get(fault.name, fault.name)
            missing.append(MissingPackage(name=name, required=tuple(by_name.get(name, ())), reason=fault.reason))
        aliases = self._alias_packages(by_name.keys() - {entry.name for entry in missing}, resolution.wheels)
        return Substitutes(
            stand_ins=(*machine.toolchain_stand_ins(toolchain, self.machine_env), *programs, *aliases),
            wheels=tuple(wheel for wheel in resolution.wheels if self._duplicated_output(wheel) is None),
            missing=tuple(missing),
            notes=(*self.notes, *self._name_guess_notes(python_packages, {entry.name for entry in missing})),
        )

    def _classify_packages(
        self, by_name: Mapping[str, list[RequiredPackage]]
    ) -> tuple[
        dict[str, list[str]], list[StandIn], dict[str, tuple[RequiredPackage, ...]], list[MissingPackage]
    ]:  # fmt: skip
        """Return the packages of the toolchain, stand-ins of programs, Python packages, and missing packages."""
        toolchain: dict[str, list[str]] = {}
        programs: list[StandIn] = []
        python_packages: dict[str, tuple[RequiredPackage, ...]] = {}
        missing: list[MissingPackage] = []
        for name, entries in sorted(by_name.items()):
            required, reason = tuple(entries), ""
            constraints = [entry.version_constraint for entry in entries]
            if machine.is_toolchain_package(name):
                program = machine.missing_toolchain_program(name, self.machine_env)
                reason = f"this machine has no {program}" if program else ""
                toolchain |= {} if program else {name: constraints}
            elif (row := machine.program_packages().get(name)) is not None:
                stand_in, reason = self._program_stand_in(name, row, constraints)
                programs += [stand_in] if stand_in else []
                if stand_in is None and row.pypi and self.python:
                    python_packages[name], reason = required, ""
            elif reason := self._reason_without_wheels(name):
                pass
            else:
                python_packages[name] = required
            missing += [MissingPackage(name=name, required=required, reason=reason)] if reason else []
        return toolchain, programs, python_packages, missing

    def _program_stand_in(
        self, name: str, row: machine.ProgramPackage, constraints: list[str]
    ) -> tuple[StandIn | None, str]:
        """Return the stand-in of a program's package; else the reason why this machine has none."""
        program = machine.find_program(row.programs[0], self.machine_env)
        if program is None:
            how = f" (cargo install {row.programs[0]})" if row.programs[0].startswith("cargo-") else ""
            return None, f"this machine has no {row.programs[0]}{how}"
        if not machine.satisfies_constraints(program.version, constraints):
            return None, f"this machine has {row.programs[0]} {program.version} only"
        found_programs = machine.program_paths(row.programs, self.machine_env)
        origin = f"{program.path} {program.version}"
        return StandIn(name=name, version=program.version, programs=found_programs, origin=origin), ""

    def _reason_without_wheels(self, name: str) -> str:
        """Return why a package has no wheels; empty for a Python package, or what may be one.

        Other names must not reach pip, which would take a line that begins with a dash as an option.
        """
        if not _PROJECT.fullmatch(name):
            return "it is not the name of a package"
        if pypi.known_pypi_names(name):
            return "" if self.python else "it is a Python package, and no Python was chosen"
        if name.startswith(_NOT_PYTHON):
            return "it is a library of the channel, not a Python package"
        if canonicalize_name(name) in {canonicalize_name(key) for key in self.pinned if key.strip("_.-")}:
            return "it is a library of the channel, which the variant pins"
        return "" if self.python else "it is a package of the channel, and nothing on this machine stands in for it"

    def _resolve_by_environment(self, packages: Mapping[str, tuple[RequiredPackage, ...]]) -> WheelResolution:
        """Return wheels for all packages together; if that is impossible, for each environment on its own."""
        every = [entry for entries in packages.values() for entry in entries]
        try:
            return self._resolve_wheels_together(every)
        except wheel_choice.RequirementsConflict:
            self.notes.append("the requirements contradict each other: each environment gets wheels of its own")
        environments: dict[tuple[bool, str], list[RequiredPackage]] = {}
        for entry in every:
            environments.setdefault(
                (entry.section in {RequirementSection.RUN, RequirementSection.TEST}, entry.output), []
            ).append(entry)
        wheels: dict[LockedWheel, None] = {}
        unavailable: list[UnavailableItem] = []
        for entries in environments.values():
            more = self._resolve_wheels_together(entries)
            wheels |= dict.fromkeys(more.wheels)
            unavailable += [fault for fault in more.unavailable if fault.name not in {old.name for old in unavailable}]
        return WheelResolution(wheels=tuple(wheels), unavailable=tuple(unavailable))

    def _resolve_wheels_together(self, entries: Iterable[RequiredPackage]) -> WheelResolution:
        constraints: dict[str, list[str]] = {}
        for entry in entries:
            constraints.setdefault(entry.name, []).append(entry.version_constraint)
        texts = {pypi.pip_requirement(name, versions) for name, versions in constraints.items()}
        return wheel_choice.resolve_wheels(texts, python=self.python, glibc=self.glibc, env=self.env)

    def _duplicated_output(self, wheel: LockedWheel) -> str | None:
        names = {wheel.name, canonicalize_name(pypi.conda_name(wheel.name))}
        return next((own for own in self.own if canonicalize_name(own) in names), None)

    def _alias_packages(self, required: Collection[str], wheels: Iterable[LockedWheel]) -> list[StandIn]:
        """Return packages that only depend on another one: names of the channel that differ from the wheels'."""
        aliases: dict[tuple[str, str], StandIn] = {}
        for wheel in wheels:
            name, own = pypi.conda_name(wheel.name), self._duplicated_output(wheel)
            version = wheel.version if own is None else self.own[own]
            target = f"{name} =={version}" if own is None else own
            spellings = {entry for entry in required if pypi.pypi_name(entry) == wheel.name}
            for spelling in sorted((spellings if own is None else {name}) - {name if own is None else own}):
                origin = f"the wheel of {wheel.name}" if own is None else f"this config's {own}"
                aliases[spelling, version] = StandIn(name=spelling, version=version, depends=(target,), origin=origin)
        return list(aliases.values())

    def _name_guess_notes(self, packages: Iterable[str], missing: Collection[str]) -> list[str]:
        """Return notes on the names that were mapped without certainty."""
        there = sorted(name for name in packages if name not in missing)
        guessed = [name for name in there if not pypi.known_pypi_names(name)]
        several = {name: names for name in there if len(names := pypi.known_pypi_names(name)) > 1}
        notes = [f"taken from pip's index by their names alone: {', '.join(guessed)}"] if guessed else []
        return notes + [
            f"{name} may be {' or '.join(names)} on pip's index: the first is taken" for name, names in several.items()
        ]
