"""The steps and the outputs of a config: their names, and those that a pattern matches."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kiln import render
from kiln.errors import UsageError, did_you_mean
from kiln.model.rattler_build_settings import OWN_ENGINE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.model.rendered import Output, RenderedConfig, Staging


def step_names(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the names of a config's steps, in their order; outputs of one name share theirs."""
    from kiln.build.plan import outputs_in_build_order  # few runs name a step or an output

    outputs = [output.name for output in outputs_in_build_order(rendered.outputs)]
    compiling = (staging.title for staging in rendered.stagings)
    every = ("render", *compiling, *(f"build {name}" for name in outputs), *(f"test {name}" for name in outputs))
    return tuple(dict.fromkeys(every))


def require_known_step(feedstock: Feedstock, configs: Iterable[BuildConfig], step: str, *, engine: str) -> None:
    """Refuse to start at a step that a config does not have.

    Raises:
        UsageError: with the valid steps, the most similar ones first.
    """
    if engine != OWN_ENGINE:
        raise UsageError(
            f"--from-step requires --engine rattler-build: {engine} has one step only", hint="remove --from-step"
        )
    for config in configs:
        names = step_names(render.close_static_pins(render.render(feedstock, config)))
        if step not in names:
            raise UsageError(
                f"{config.name} has no step {step!r}",
                why=f"its steps are {', '.join(map(repr, names))}",
                hint=did_you_mean(step, names) or "name one of these",
            )


def find_matching_staging(rendered: RenderedConfig, pattern: str) -> Staging | None:
    """Return the build step that outputs share whose name matches a pattern; without one, the only or first one."""
    stagings = [staging for staging in rendered.stagings if fnmatchcase(staging.name, pattern or "*")]
    return stagings[0] if stagings else None


def find_matching_output(rendered: RenderedConfig, pattern: str) -> Output:
    """Return the output whose name, or package's file name, matches a pattern; without one, the only output.

    Raises:
        UsageError: when none matches, or several do.
    """
    from kiln.build.plan import outputs_in_build_order

    outputs = outputs_in_build_order(rendered.outputs)
    matches = [
        output
        for output in outputs
        if any(fnmatchcase(name, pattern or "*") for name in (output.name, output.package_file_name))
    ]
    if len(matches) == 1:
        return matches[0]
    names = [*(staging.name for staging in rendered.stagings), *dict.fromkeys(output.name for output in outputs)]
    problem = f"{len(matches)} outputs match {pattern!r}" if matches else f"no output matches {pattern!r}"
    listing = ", ".join(sorted({output.name for output in matches})) if matches else ", ".join(names)
    raise UsageError(
        problem,
        why=f"{'they' if matches else 'the outputs'} are {listing}",
        hint=did_you_mean(pattern, names) or "--output-id NAME",
    )
