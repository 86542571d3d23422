"""Plan and build the matrix of a feedstock, and read the states of its last run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import expand, files, limits, render
from kiln.ledger import Ledger
from kiln.run import recipe_support
from kiln.run.plan import RunPlan, make_run_plan
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.errors import KilnError
    from kiln.job.host_environment_and_python import HostMachine
    from kiln.model.feedstock import Feedstock
    from kiln.model.observer import RunObserver
    from kiln.model.run import ConfigState, MatrixReport
    from kiln.run.options import RunOptions


def plan_run(
    feedstock: Feedstock, options: RunOptions, machine: HostMachine, *, on_line: Callable[[str], None] | None = None
) -> RunPlan:
    """Return the plan of a run, see `kiln.run.plan.make_run_plan`; ``on_line`` gets the progress of fetched images."""
    recipe_support.require_supported_recipe(feedstock, options.configs, engine=options.build.engine)
    build_options = options.build
    layout = ArtifactLayout.for_feedstock(
        feedstock, rehearsal=build_options.rehearsal, compile_cache=build_options.compile_cache
    )
    with Ledger(layout.ledger) as ledger:
        return make_run_plan(feedstock, options, machine=machine, ledger=ledger, layout=layout, on_line=on_line)


def caller_variable_names(feedstock: Feedstock, configs: Iterable[str]) -> frozenset[str]:
    """Return the names of the caller's variables that the recipe passes to its scripts.

    A meta.yaml names them in ``build/script_env``, a recipe.yaml in the ``secrets`` of a script.
    """
    recipe = "\n".join(map(files.text_or_empty, (feedstock.meta, feedstock.recipe_v1)))
    if not any(key in recipe for key in ("script_env", "secrets")):
        return frozenset()
    from kiln.build.script_variables import config_caller_variable_names as of  # most recipes have none

    return limits.run_bounded(
        lambda: frozenset(
            name for config in configs for name in of(render.render(feedstock, expand.read_config(feedstock, config)))
        )
    )


def build_planned_configs(planned: RunPlan, watcher: RunObserver) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build a plan; return the report, and the errors of failed configs.

    Raises:
        KeyboardInterrupt: when the run was stopped; finished configs are kept.
    """
    from kiln.run.runner import MatrixRun

    with Ledger(planned.layout.ledger) as ledger:
        run = MatrixRun(planned, ledger=ledger, watcher=watcher)
        try:
            return run.execute(), run.errors
        finally:
            if used := {job.cache_key for job in planned.jobs_of.values()}:
                planned.layout.compile_caches.trim_to_size(planned.options.cache_bound, keep=used)


def last_config_states(feedstock: Feedstock, *, rehearsal: bool) -> Mapping[str, ConfigState]:
    """Return the state of each config in its last run, of rehearsals or of builds."""
    with Ledger(ArtifactLayout.for_feedstock(feedstock).ledger) as ledger:
        return ledger.latest_config_states(rehearsal=rehearsal)
