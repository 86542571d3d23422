"""Refuse feedstocks that cannot be built, before anything is spent on them, and list all that is refused."""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kiln.base import limits
from kiln.base.errors import (
    IncompatibleVersions,
    KilnError,
    MalformedYaml,
    RecipeFault,
    UnsafeTemplate,
    UsageError,
    did_you_mean,
    raise_all,
)
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.base.serialization import nested_value
from kiln.base.text import first_of
from kiln.base.yaml import PlacedText
from kiln.build.engine import patches
from kiln.build.engine import recipe as engine_recipe
from kiln.build.engine.scripts import COMMANDS
from kiln.build.job.job import channel_sources
from kiln.compat.combination import Combination, DoctorResult, Finding, Verdict
from kiln.conda.specs import package_name
from kiln.feedstock import config_file, job_settings, matrix, pinning
from kiln.feedstock.rerender import planned_workflow
from kiln.recipe import pins, render
from kiln.recipe.feedstock import is_v1
from kiln.recipe.rendered import OWN_ENGINE
from kiln.recipe.v1.expressions import is_template
from kiln.recipe.v1.nodes import node_error, node_place
from kiln.recipe.v1.recipe import RecipeV1
from kiln.recipe.v1.unknown_keys import items_of_all_branches
from kiln.recipe.variants.files import cuda_version_of_config

if TYPE_CHECKING:
    import configparser
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
    from re import Pattern

    from kiln.recipe.feedstock import BuildConfig, Feedstock
    from kiln.recipe.rendered import RenderedConfig
    from kiln.recipe.template.names import Doubts

Result = TypeVar("Result")
_SCRIPT_NAME = lazy_pattern(r"[\w.-]+\.sh")
_FIRST_LINE = 4096  # bytes at most


def check_keys_and_find_stagings(feedstock: Feedstock) -> dict[str, Place]:
    """Return the places of a recipe.yaml's staging outputs, by name; refuse the recipe if no build honors its keys."""
    if not is_v1(feedstock):
        return {}
    recipe = RecipeV1.read(feedstock.recipe_v1)
    raise_all(_unsupported_key_errors(recipe.root))
    entries = recipe.root.get("outputs", ())
    named = [entry["staging"].get("name") for entry in entries if isinstance(entry.get("staging"), dict)]
    return {str(name): node_place(name) for name in named}


def _unsupported_key_errors(root: Any) -> Iterator[RecipeFault]:
    for entry in (root, *items_of_all_branches(root.get("outputs"))):
        if isinstance(entry, dict):
            yield from _script_errors(nested_value(entry, "build", "script"))
            for test in items_of_all_branches(entry.get("tests")):
                script = nested_value(test, "script")
                yield from _script_errors(script)
                for key in script if isinstance(script, dict) else ():
                    if key == "secrets":
                        yield node_error(
                            key,
                            "secrets of a test's script are not supported",
                            why="tests run again wherever the package is tested, without the variables of its build",
                            hint="remove them, or test with what a build script has written into the package",
                        )


def _script_errors(script: Any) -> Iterator[RecipeFault]:
    interpreter = nested_value(script, "interpreter")
    if isinstance(interpreter, PlacedText) and not is_template(interpreter) and interpreter not in COMMANDS:
        known = ", ".join(sorted(COMMANDS))
        yield node_error(
            interpreter,
            f"scripts for the interpreter {str(interpreter)!r} are not supported",
            hint=did_you_mean(str(interpreter), COMMANDS) or f"one of {known}",
        )


Check = Callable[[], object]


def checks_of_files(
    feedstock: Feedstock, configs: Iterable[BuildConfig], *, own_engine: bool = True, rehearsal: bool = False
) -> Iterator[Check]:
    """Yield the checks of a plan that need no rendering; each raises what it refuses."""
    yield lambda: check_keys_and_find_stagings(feedstock)
    if not own_engine:
        yield lambda: job_settings.conda_settings(feedstock.conda_forge_yml)
        return
    yield lambda: job_settings.package_settings(feedstock.conda_forge_yml)
    if not rehearsal:
        yield lambda: job_settings.require_supported_priority(feedstock.conda_forge_yml, map(channel_sources, configs))


def checks_of_renderings(
    feedstock: Feedstock, renderings: Sequence[RenderedConfig], *, own_engine: bool = True
) -> Iterator[Check]:
    """Yield the checks of a plan that need its renderings; each raises what it refuses."""
    sources = dict.fromkeys(patch for rendered in renderings for item in rendered.sources for patch in item.patches)
    yield lambda: pins.require_pins_of_outputs(feedstock, renderings)
    yield lambda: require_independent_stagings(renderings, check_keys_and_find_stagings(feedstock))
    yield lambda: require_compatible_versions(feedstock, renderings)
    yield lambda: patches.require_safe_patches(feedstock.recipe / patch for patch in sources)
    yield lambda: render.require_supported_keys(renderings, own_engine=own_engine)
    yield lambda: require_possible_hashes(feedstock, renderings)
    if own_engine:
        yield lambda: require_recipe_files(feedstock, renderings)
        yield lambda: _refuse_overlinking_patterns(feedstock, renderings)


def _refuse_overlinking_patterns(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Refuse patterns of files that may be overlinked where conda-forge.yml makes overlinking an error.

    The recipe's own ``error_overlinking`` is among the keys, and takes precedence.
    """
    if not job_settings.package_settings(feedstock.conda_forge_yml).error_overlinking:
        return
    for rendered in renderings:
        for output in rendered.outputs:
            linking = output.settings.linking
            if linking.overlinking_ignored and linking.error_overlinking is None and not output.skip:
                raise RecipeFault(
                    f"{output.name}: the engine rattler-build has no build/overlinking_ignore_patterns where "
                    "overlinking is an error",
                    at=Place(file=rendered.file),
                    why="conda-forge.yml has conda_build: error_overlinking: true, and the engine checks all files",
                    hint="set build/error_overlinking in the recipe, remove one of the two, or --engine conda-build",
                )


class _Survey:
    """What a feedstock's commands refuse and warn of: each stage is tried, whatever an earlier one refused."""

    def __init__(self) -> None:
        self.refused: list[KilnError] = []
        self.doubts: Doubts = {}

    def attempt(self, stage: Callable[[], Result]) -> Result | None:
        """Return the result of a stage, each under the limits of its own process; None if it is refused."""
        try:
            return limits.run_bounded(stage)
        except KilnError as error:
            self.refused += (error, *error.others)
            return None

    def attempt_each(self, stages: Sequence[Callable[[], Result]]) -> list[Result]:
        """Return the results of the stages that are not refused; what some have read serves those in their process."""
        found: list[Result | None] = []
        for start in range(0, len(stages), _AT_ONCE):
            part = stages[start : start + _AT_ONCE]
            try:
                tried, refused = limits.run_bounded(partial(_try_each, part))
            except UnsafeTemplate:  # each may be within the limits, but not all together
                found += map(self.attempt, part)
            else:
                found += tried
                self.refused += refused
        return [result for result in found if result is not None]


_AT_ONCE = 12  # stages in one process


def _try_each(stages: Iterable[Callable[[], Result]]) -> tuple[list[Result | None], list[KilnError]]:
    survey = _Survey()
    return [survey.attempt(stage) for stage in stages], survey.refused


def faults_and_warnings(feedstock: Feedstock) -> tuple[tuple[KilnError, ...], tuple[KilnError, ...]]:
    """Return what a rerender, a rendering and a plan of a feedstock refuse, and what they warn of, each once.

    Without the pinning that a feedstock needs, only what no pinning can cure counts. Its configs are those in
    .ci_support or, without any, those that it expands to.
    """
    survey = _Survey()
    expanded, complete = _expand(feedstock, survey)
    names = feedstock.config_names
    configs = survey.attempt_each([partial(config_file.read_config, feedstock, name) for name in names])
    configs = configs if names else list(expanded)
    if names:
        survey.attempt(lambda: planned_workflow(feedstock, configs))
    for check in checks_of_files(feedstock, configs):
        survey.attempt(check)
    renderings = survey.attempt_each([partial(render.render, feedstock, config) for config in configs])
    errors = render.key_fault_errors(renderings)
    needed = {fault for rendered in renderings if _is_built(rendered) for fault in rendered.key_faults}
    unneeded = {fault: error for fault, error in errors.items() if fault.known and fault not in needed}
    for check in checks_of_renderings(feedstock, renderings):
        survey.attempt(check)
    if not complete:  # what only a value is to blame for that is not the pinning's does not count
        survey.refused = [
            error for error in survey.refused if _VERSION not in str(error) and (names or isinstance(error, _INCURABLE))
        ]
    hints = {(error.at, error.what, error.why) for error in unneeded.values()}
    survey.refused = [error for error in survey.refused if (error.at, error.what, error.why) not in hints]
    warnings = [*survey.doubts.values(), *(warning for rendered in renderings for warning in rendered.warnings)]
    warnings += unneeded.values()
    refused, warned = ({str(error): error for error in errors}.values() for errors in (survey.refused, warnings))
    return tuple(refused), tuple(warned)


def _is_built(rendered: RenderedConfig) -> bool:
    """Return whether kiln builds a config on any machine, so that it matters what its engine does not have."""
    return rendered.config.platform.startswith("linux-")


def _expand(feedstock: Feedstock, survey: _Survey) -> tuple[tuple[BuildConfig, ...], bool]:
    """Return the configs that a feedstock expands to, and whether all keys have values of their own.

    A key that only a pinning has gets a value that is like a version.
    """
    own = survey.attempt(lambda: job_settings.exclusive_config_file(feedstock))
    needs = () if own else survey.attempt(lambda: pinning.keys_without_value(feedstock)) or ()
    with tempfile.TemporaryDirectory(prefix="kiln-pinning-") as folder:
        if needs:
            own = Path(folder, "conda_build_config.yaml")
            values = ((need.key, _PLACEHOLDERS.get(need.key, _VERSION)) for need in needs)
            own.write_text("".join(f"{key}:\n  - '{value}'\n" for key, value in values), encoding="utf-8")
        try:
            return matrix.configs(feedstock, own, {} if needs else survey.doubts), not needs
        except KilnError as error:
            survey.refused += (error, *error.others) if not needs or isinstance(error, _INCURABLE) else ()
            return (), not needs


# What a variant key has in the place of a pinning's value: a version that no recipe has, or what is not a version.
_VERSION = "98.7.6"
_PLACEHOLDERS = {"channel_sources": "conda-forge", "channel_targets": "conda-forge main"}
_INCURABLE = (MalformedYaml, UnsafeTemplate, RecipeFault)  # by a pinning
_PASSES = lazy_pattern(r"\b(?:script_env|secrets)\b")
LATE = "${{"  # of folders that only the build knows


def require_engine_of_recipe(feedstock: Feedstock, engine: str) -> None:
    """Refuse an engine that cannot read the recipe."""
    if engine != OWN_ENGINE and is_v1(feedstock):
        raise UsageError(
            f"{engine} cannot build a recipe.yaml", why="it reads meta.yaml alone", hint=f"--engine {OWN_ENGINE}"
        )


def require_supported_recipe(feedstock: Feedstock, configs: Iterable[str]) -> None:
    """Refuse a feedstock whose recipe asks for what no build does, as a plan does, before there is one.

    Raises:
        RecipeFault: with the file and the line.
    """
    stagings = limits.run_bounded(lambda: check_keys_and_find_stagings(feedstock))
    if stagings:
        renderings = (render.render(feedstock, config_file.read_config(feedstock, config)) for config in configs)
        require_independent_stagings(renderings, stagings)


def require_independent_stagings(renderings: Iterable[RenderedConfig], places: Mapping[str, Place]) -> None:
    """Refuse staging outputs that require packages of the same recipe, since they are built before all of these.

    ``places`` are those of a recipe.yaml's staging outputs; a meta.yaml has none that are checked.
    """
    for rendered in renderings if places else ():
        names = {output.name for output in rendered.outputs}
        for staging in rendered.stagings:
            needs = staging.requirements
            if own := sorted(names & {package_name(spec) for spec in (*needs.build, *needs.host)}):
                raise RecipeFault(
                    f"the staging output {staging.name} requires {own[0]}, a package of this recipe",
                    at=next(
                        (at for name, at in places.items() if staging.name.startswith(name)), Place(file=rendered.file)
                    ),
                    why="staging outputs are built before all packages",
                    hint=f"build {own[0]} in a feedstock of its own, or in the staging output",
                )


def require_recipe_files(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Require the scripts, which bash can read, patches and local sources that a recipe names."""
    names = dict.fromkeys(
        (rendered.file, *pair) for rendered in renderings for pair in _paths_named_in_recipe(rendered)
    )
    present = sorted(str(path.relative_to(feedstock.recipe)) for path in feedstock.recipe.rglob("*"))
    errors = {}
    for file, key, name in names:
        path = feedstock.recipe / name
        if not (path.exists() if key == "source/path" else path.is_file()):  # a source may be a folder
            errors[file, name] = RecipeFault(
                f"{key}: {name!r} does not exist",
                at=_path_position_in_recipe(feedstock.root, file, name),
                why=f"paths are relative to the recipe's folder, {feedstock.recipe}",
                hint=did_you_mean(name, present) or f"add recipe/{name}, or correct its name",
            )
        elif key == "script" and name.endswith(".sh") and _has_line_ends_of_windows(path):
            errors[file, name] = RecipeFault(
                f"{name} has the line ends of Windows",
                at=Place(file=f"recipe/{name}"),
                why="bash takes them for a part of its commands",
                hint=f"sed -i 's/\\r$//' {path}",
            )
    raise_all(list(errors.values()))


def _has_line_ends_of_windows(path: Path) -> bool:
    with path.open("rb") as file:
        return file.readline(_FIRST_LINE).endswith(b"\r\n")


def require_possible_hashes(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Require hashes of sources that a file can have."""
    from kiln.build.engine.sources import impossible_hashes

    sources = [(rendered.file, source) for rendered in renderings for source in rendered.sources]
    found = dict.fromkeys((file, *hash_) for file, source in sources for hash_ in impossible_hashes(source))
    hint = "kiln bump --hashes writes it"
    raise_all(
        [
            RecipeFault(what, at=_path_position_in_recipe(feedstock.root, file, text), why=why, hint=hint)
            for file, text, what, why in found
        ]
    )


def _paths_named_in_recipe(rendered: RenderedConfig) -> Iterator[tuple[str, str]]:
    """Yield the paths that a build reads, relative to the recipe, each after the key that names it."""
    for source in rendered.sources:
        yield from (("source/path", path) for path in [source.path] if path is not None)
        yield from (("source/patches", patch) for patch in source.patches if LATE not in patch)
    scripts = (
        *(staging.script for staging in rendered.stagings),
        *(output.script for output in rendered.outputs if not output.skip),
    )
    for script in scripts:
        if script.file is not None:
            yield "script", script.file
        elif len(script.lines) == 1 and _SCRIPT_NAME.fullmatch(script.lines[0]):  # a file that is not there
            yield "script", script.lines[0]


def _path_position_in_recipe(root: Path, file: str, name: str, after: Pattern[str] | None = None) -> Place:
    """Return the place of a path in the recipe; the recipe alone for a path that a template makes.

    ``after`` is the pattern of the lines from one of which on the name counts.
    """
    word = re.compile(rf"(?<![\w./-]){re.escape(name)}(?![\w./-])")
    lines = (root / file).read_text(encoding="utf-8", errors="replace").splitlines()
    counts = after is None
    for number, line in enumerate(lines, 1):
        counts = counts or bool(after and after.search(line))
        if counts and (match := word.search(line.partition(" #")[0])):
            return Place(file=file, line=number, column=match.start() + 1)
    return Place(file=file)


def unset_variable_warnings(
    feedstock: Feedstock, renderings: Iterable[RenderedConfig], variables: Container[str]
) -> tuple[RecipeFault, ...]:
    """Return a warning for each of the caller's variables that a recipe passes to scripts, and that is not set."""
    passed = ((rendered.file, engine_recipe.config_caller_variable_names(rendered)) for rendered in renderings)
    names = {(name, file) for file, variable_names in passed for name in variable_names}
    return tuple(
        RecipeFault(
            f"{name} is not set: the scripts to which the recipe gives it go without",
            at=_path_position_in_recipe(feedstock.root, file, name, after=_PASSES),
            why="conda-build drops it without a word",
            hint=f"export {name} before the build, or take it out of the recipe",
        )
        for name, file in sorted(names)
        if name not in variables
    )


# The outputs that have TensorFlow's version, and Serving's.
TENSORFLOW = ("tensorflow", "tensorflow-base", "libtensorflow_framework")
SERVING = ("tensorflow-serving",)
NAMED = 3  # outputs in a message
SETTINGS = "compile.ini"


def version_combinations_of_config(feedstock: Feedstock, config: str) -> tuple[Combination, ...]:
    """Return the combinations of versions of a config, one for each of its Pythons; none if it has nothing to check.

    Raises:
        UnknownConfig: when the config is not found.
    """
    return _rendered_version_combinations(
        feedstock, render.render(feedstock, config_file.read_config(feedstock, config))
    )


def result_for_config_outside_tables(feedstock: Feedstock, config: str) -> DoctorResult:
    """Return the result for a config that the tables are not about: it has neither CUDA nor TensorFlow."""
    outputs = render.render(feedstock, config_file.read_config(feedstock, config)).outputs
    names = list(dict.fromkeys(f"{output.name} {output.version}" for output in outputs)) or ["no output"]
    what = f"{config} ({first_of(names, NAMED)})"
    reason = f"{what} is built without CUDA, and is neither TensorFlow nor TensorFlow Serving"
    finding = Finding(rule="config", verdict=Verdict.UNKNOWN, reason=reason)
    return DoctorResult(combination=Combination(), verdict=Verdict.UNKNOWN, findings=(finding,))


def require_compatible_versions(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Refuse rendered configs that cannot work."""
    from kiln.compat.verdict import judge_combination

    results = (
        (rendered.config.name, judge_combination(combination))
        for rendered in renderings
        for combination in _rendered_version_combinations(feedstock, rendered)
    )
    raise_all([_incompatibility_error(name, result) for name, result in results if result.verdict is Verdict.CANNOT])


def _incompatibility_error(name: str, result: DoctorResult) -> IncompatibleVersions:
    worst = [finding for finding in result.findings if finding.verdict is Verdict.CANNOT]
    rows = "; ".join(f"{row.place}, {row['source']}" for finding in worst for row in finding.rows[:1])
    instead = "; or ".join(suggestion.combination.text for suggestion in result.nearest[:2])
    return IncompatibleVersions(
        f"{name} cannot work: {'; '.join(finding.reason for finding in worst)}",
        why=rows,
        hint=f"kiln doctor {name}" + (f"; {instead} would work" if instead else ""),
    )


def _rendered_version_combinations(feedstock: Feedstock, rendered: RenderedConfig) -> tuple[Combination, ...]:
    from kiln.compat.combination import combinations_of_variant

    config, versions = rendered.config, {output.name: output.version for output in rendered.outputs}
    tf, serving = (
        next((versions[name] for name in names if name in versions), None) for names in (TENSORFLOW, SERVING)
    )
    if tf is None and serving is None and cuda_version_of_config(config) is None:
        return ()
    combinations = combinations_of_variant(config.variant, tf=tf, serving=serving)
    if tf is None and serving is None:
        # Pythons and Bazel are facts about TensorFlow alone.
        combinations = tuple(
            dict.fromkeys(combination.with_versions(python=None, bazel=None) for combination in combinations)
        )
    listed = compiled_cuda_capabilities(feedstock.recipe, cuda_version_of_config(config) or "")
    return tuple(
        combination if combination.built_for else dataclasses.replace(combination, built_for=listed)
        for combination in combinations
    )


def compiled_cuda_capabilities(recipe: Path, cuda: str) -> tuple[str, ...]:
    """Return the compute capabilities that a recipe compiles for with a CUDA; empty where it does not say."""
    import configparser  # few recipes have the file

    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    try:
        settings.read_string((recipe / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return ()  # a recipe without that file
    policy = (
        {int(name) for name in settings["architectures"] if name.isdecimal()} if "architectures" in settings else set()
    )
    accepted = _architectures_in_section(settings, f"cuda {cuda}")
    compiler = settings.get(f"cuda {cuda}", "compiler", fallback="")
    by_compiler = _architectures_in_section(settings, f"compiler {compiler}")
    if accepted is not None and by_compiler is not None:
        accepted &= by_compiler
    numbers = sorted(policy & accepted) if accepted is not None else []
    return (*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}") if numbers else ()


def _architectures_in_section(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    text = settings.get(section, "architectures", fallback="")
    return {int(word) for word in text.split() if word.isdecimal()} or None
