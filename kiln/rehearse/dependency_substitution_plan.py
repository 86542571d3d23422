"""The plan of a rehearsal that compiles: everything that the recipe requires is found first, or the plan is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RehearsalRefused
from kiln.lazy_pattern import lazy_pattern
from kiln.rehearse import machine_programs
from kiln.rehearse.plan_types import RehearsalPlan, UnavailableItem
from kiln.rehearse.python_package_from_interpreter import PACKAGED_PYTHONS
from kiln.rehearse.wheel_choice_by_pip import RequirementsConflict

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.rendered import RenderedConfig
    from kiln.rehearse.required_package_substitutes import MissingPackage, SubstituteSearch
    from kiln.rehearse.required_packages import RequiredPackage
    from kiln.rehearse.source_archive_search_and_download import SourceSearch

_FREE_THREADED = lazy_pattern(r"_cp\d+t$")


def plan_config_rehearsal(
    rendered: RenderedConfig,
    required: tuple[RequiredPackage, ...],
    *,
    search: SubstituteSearch,
    source_search: SourceSearch,
) -> RehearsalPlan:
    """Return the plan of a config's rehearsal; nothing is downloaded.

    Raises:
        KilnError: RehearsalRefused with all packages and sources that cannot be had, DownloadFailed when pip cannot
            reach its index.
    """
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
    lines = [package.description for package in packages]
    lines += [f"source {source.name}: {source.reason}" for source in sources]
    hint = "put missing sources into a folder and name it with --distdir, or name a --mirror"
    programs = any("this machine has" in line for line in lines)
    return RehearsalRefused(
        f"{config} cannot be rehearsed: {len(lines)} requirement{'s' if len(lines) != 1 else ''} cannot be had",
        why="\n       ".join(lines),
        hint=hint
        if any(line.startswith("source ") for line in lines)
        else "install the missing programs on this machine"
        if programs
        else "build it with its channels: kiln build without --rehearse",
    )


def python_version_for_requirements(required: Iterable[RequiredPackage], preferred: Iterable[str]) -> str:
    """Return the Python that satisfies the requirements of an interpreter; empty when there are none.

    The first of ``preferred`` that satisfies them is chosen, else the newest one.

    Raises:
        RehearsalRefused: no Python satisfies them, or only a free-threaded one does.
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
        if python in PACKAGED_PYTHONS and machine_programs.satisfies_constraints(f"{python}.99", constraints):
            return python
    places = "; ".join(dict.fromkeys(f"{entry.spec} ({entry.section_and_output})" for entry in entries))
    raise RehearsalRefused(
        "no Python of a rehearsal satisfies all requirements",
        why=places,
        hint=f"a rehearsal has one Python for all outputs, of {PACKAGED_PYTHONS[0]} to {PACKAGED_PYTHONS[-1]}",
    )
