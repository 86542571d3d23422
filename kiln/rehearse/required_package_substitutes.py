"""The substitutes for a config's required packages: an interpreter, this machine's programs, or wheels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from kiln.lazy_pattern import lazy_pattern
from kiln.rehearse import machine_compilers, machine_programs, pypi_conda_conversion, wheel_choice_by_pip
from kiln.rehearse.plan_types import LockedWheel, StandIn, UnavailableItem
from kiln.rehearse.required_packages import RequiredPackage, RequirementSection
from kiln.rehearse.wheel_choice_by_pip import WheelResolution

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping


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
        """Return the substitutes of required packages.

        Raises:
            RequirementsConflict: the requirements of one environment contradict each other.
            KilnError: DownloadFailed when pip cannot reach its index.
        """
        by_name: dict[str, list[RequiredPackage]] = {}
        for entry in required:
            if entry.name not in OF_INTERPRETER:
                by_name.setdefault(entry.name, []).append(entry)
        toolchain, programs, python_packages, missing = self._classify_packages(by_name)
        resolution = self._resolve_by_environment(python_packages)
        conda_of = {pypi_conda_conversion.pypi_name(name): name for name in python_packages}
        for fault in resolution.unavailable:
            name = conda_of.get(fault.name, fault.name)
            missing.append(MissingPackage(name=name, required=tuple(by_name.get(name, ())), reason=fault.reason))
        aliases = self._alias_packages(by_name.keys() - {entry.name for entry in missing}, resolution.wheels)
        return Substitutes(
            stand_ins=(*machine_compilers.toolchain_stand_ins(toolchain, self.machine_env), *programs, *aliases),
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
            if machine_compilers.is_toolchain_package(name):
                program = machine_compilers.missing_toolchain_program(name, self.machine_env)
                reason = f"this machine has no {program}" if program else ""
                toolchain |= {} if program else {name: constraints}
            elif (row := machine_programs.program_packages().get(name)) is not None:
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
        self, name: str, row: machine_programs.ProgramPackage, constraints: list[str]
    ) -> tuple[StandIn | None, str]:
        """Return the stand-in of a program's package; else the reason why this machine has none."""
        program = machine_programs.find_program(row.programs[0], self.machine_env)
        if program is None:
            return None, f"this machine has no {row.programs[0]}"
        if not machine_programs.satisfies_constraints(program.version, constraints):
            return None, f"this machine has {row.programs[0]} {program.version} only"
        found_programs = machine_programs.program_paths(row.programs, self.machine_env)
        origin = f"{program.path} {program.version}"
        return StandIn(name=name, version=program.version, programs=found_programs, origin=origin), ""

    def _reason_without_wheels(self, name: str) -> str:
        """Return why a package has no wheels; empty for a Python package, or what may be one.

        Other names must not reach pip, which would take a line that begins with a dash as an option.
        """
        if not _PROJECT.fullmatch(name):
            return "it is not the name of a package"
        if pypi_conda_conversion.known_pypi_names(name):
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
        except wheel_choice_by_pip.RequirementsConflict:
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
        texts = {pypi_conda_conversion.pip_requirement(name, versions) for name, versions in constraints.items()}
        return wheel_choice_by_pip.resolve_wheels(texts, python=self.python, glibc=self.glibc, env=self.env)

    def _duplicated_output(self, wheel: LockedWheel) -> str | None:
        names = {wheel.name, canonicalize_name(pypi_conda_conversion.conda_name(wheel.name))}
        return next((own for own in self.own if canonicalize_name(own) in names), None)

    def _alias_packages(self, required: Collection[str], wheels: Iterable[LockedWheel]) -> list[StandIn]:
        """Return packages that only depend on another one: names of the channel that differ from the wheels'."""
        aliases: dict[tuple[str, str], StandIn] = {}
        for wheel in wheels:
            name, own = pypi_conda_conversion.conda_name(wheel.name), self._duplicated_output(wheel)
            version = wheel.version if own is None else self.own[own]
            target = f"{name} =={version}" if own is None else own
            spellings = {entry for entry in required if pypi_conda_conversion.pypi_name(entry) == wheel.name}
            for spelling in sorted((spellings if own is None else {name}) - {name if own is None else own}):
                origin = f"the wheel of {wheel.name}" if own is None else f"this config's {own}"
                aliases[spelling, version] = StandIn(name=spelling, version=version, depends=(target,), origin=origin)
        return list(aliases.values())

    def _name_guess_notes(self, packages: Iterable[str], missing: Collection[str]) -> list[str]:
        """Return notes on the names that were mapped without certainty."""
        there = sorted(name for name in packages if name not in missing)
        guessed = [name for name in there if not pypi_conda_conversion.known_pypi_names(name)]
        several = {name: names for name in there if len(names := pypi_conda_conversion.known_pypi_names(name)) > 1}
        notes = [f"taken from pip's index by their names alone: {', '.join(guessed)}"] if guessed else []
        return notes + [
            f"{name} may be {' or '.join(names)} on pip's index: the first is taken" for name, names in several.items()
        ]
