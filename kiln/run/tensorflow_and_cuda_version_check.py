"""Check that a config's versions are compatible, by the doctor's rules, before it is built.

The capabilities that a recipe compiles for are the policy of ``compile.ini``, as far as CUDA and compiler accept it.
The recipe computes the same when it is built; here the file is read before, as data. Nothing of a recipe is run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kiln import expand, render
from kiln.compat.combination import Combination
from kiln.compat.results import DoctorResult, Finding, Verdict
from kiln.errors import IncompatibleVersions, raise_all
from kiln.variants.cuda_version import cuda_version_of_config

if TYPE_CHECKING:
    import configparser
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.rendered import RenderedConfig

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
    return _rendered_version_combinations(feedstock, render.render(feedstock, expand.read_config(feedstock, config)))


def result_for_config_outside_tables(feedstock: Feedstock, config: str) -> DoctorResult:
    """Return the result for a config that the tables are not about: it has neither CUDA nor TensorFlow."""
    outputs = render.render(feedstock, expand.read_config(feedstock, config)).outputs
    names = list(dict.fromkeys(f"{output.name} {output.version}" for output in outputs)) or ["no output"]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    what = f"{config} ({', '.join(names[:NAMED])}{more})"
    reason = f"{what} is built without CUDA, and is neither TensorFlow nor TensorFlow Serving"
    finding = Finding(rule="config", verdict=Verdict.UNKNOWN, reason=reason)
    return DoctorResult(combination=Combination(), verdict=Verdict.UNKNOWN, findings=(finding,))


def require_compatible_versions(feedstock: Feedstock, renderings: Iterable[RenderedConfig]) -> None:
    """Refuse rendered configs that cannot work.

    Raises:
        IncompatibleVersions: with the rows of the tables, and combinations that work.
    """
    from kiln.compat.combination_verdict import judge_combination

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
    from kiln.compat.combination_variant_conversion import combinations_of_variant

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
    accepted = _cuda_and_compiler_architectures(settings, f"cuda {cuda}")
    numbers = sorted(policy & accepted) if accepted is not None else []
    return (*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}") if numbers else ()


def _cuda_and_compiler_architectures(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    numbers = _architectures_in_section(settings, section)
    compiler = settings.get(section, "compiler", fallback="")
    by_compiler = _architectures_in_section(settings, f"compiler {compiler}")
    return numbers if numbers is None or by_compiler is None else numbers & by_compiler


def _architectures_in_section(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    text = settings.get(section, "architectures", fallback="")
    return {int(word) for word in text.split() if word.isdecimal()} or None
