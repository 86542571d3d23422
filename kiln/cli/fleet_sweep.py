"""``kiln fleet sweep``: terminate the user's expired workers of all runs, now or by a timer; or everybody's workers."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from kiln.cli import fleet_slurm_options_and_jobs
from kiln.cli.fleet_run_folder_and_variables import PACKAGE_ROOT, playbook_site, provider_variables_without_secrets
from kiln.console.text import duration_seconds, table
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.model.feedstock import Feedstock


def sweep_expired_workers(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Remove the user's expired workers of all runs; with ``--all`` everybody's, once that was confirmed."""
    from kiln.fleet import run_and_removal as fleet

    if options.user == "":  # to the playbook that is everybody: an unset variable of a script is not meant so
        raise UsageError("--user needs a name", hint="leave it out for your own workers; --all is for everybody's")
    if options.user is not None and options.provider == fleet_slurm_options_and_jobs.SLURM:
        raise UsageError("--user is not for Slurm", hint="leave it out: Slurm cancels your own jobs only")
    if options.print_timer:
        print(sweep_timer_script(options, feedstock), end="")
        return 0
    if options.provider == fleet_slurm_options_and_jobs.SLURM:
        fleet_slurm_options_and_jobs.cancel_abandoned_slurm_jobs(everything=options.all)
        print("no jobs of abandoned runs remain", file=sys.stderr)
        return 0
    site = playbook_site(options, feedstock, "sweep", options.provider)
    ids = None
    if options.all and not options.yes:
        workers = workers_of_user(options.user, fleet.list_existing_workers(site))
        if not confirm_termination(workers):
            return 0
        ids = [str(worker["id"]) for worker in workers]  # a run may have created others since they were listed
    remaining = fleet.sweep_leftover_workers(site, everything=options.all, user=options.user, ids=ids)
    print("no workers remain" if options.all else "no expired workers remain", file=sys.stderr)
    if remaining:
        print("still there:", file=sys.stderr)
        print(worker_table(remaining), file=sys.stderr)
    return 0


def workers_of_user(user: str | None, workers: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the workers of a user, with those that name none; all of them for no user."""
    return [worker for worker in workers if not user or worker["account_user"] in {"", user}]


def confirm_termination(workers: Sequence[Mapping[str, Any]]) -> bool:
    """Say whose workers would be terminated, and ask; return True at once when there are none.

    Raises:
        UsageError: when nobody can answer.
    """
    if not workers:
        return True
    users = {worker["account_user"] for worker in workers}
    print(worker_table(workers), file=sys.stderr)
    if not sys.stdin.isatty():
        raise UsageError(
            f"--all would terminate these {len(workers)} workers of {len(users)} users, runs in progress included",
            why="nobody can be asked here",
            hint="--yes answers beforehand, --user NAME narrows it to a user",
        )
    print(f"Terminate these {len(workers)} workers of {len(users)} users? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def worker_table(workers: Iterable[Mapping[str, Any]]) -> str:
    """Return a table of workers, a line for each: its user, run, name, type and state."""
    rows = sorted(
        tuple(str(worker[key]) for key in ("account_user", "run", "name", "type", "state")) for worker in workers
    )
    return table(("user", "run", "worker", "type", "state"), [(row[0] or "unknown", *row[1:]) for row in rows])


def sweep_timer_script(options: argparse.Namespace, feedstock: Feedstock) -> str:
    """Return the script that installs a timer for the same sweep, with the environment without its secrets."""
    from kiln.fleet import worker_leases_and_sweep_timer

    more = [word for path in options.vars for word in ("--vars", str(path.absolute()))]
    more += [] if options.user is None else ["--user", options.user]
    argv = (sys.executable, "-m", "kiln", "-C", str(feedstock.root.absolute()), "fleet", "sweep")
    return worker_leases_and_sweep_timer.sweep_timer_script(
        options.provider,
        (*argv, "--provider", options.provider, *more),
        folder=str(PACKAGE_ROOT),
        environment=provider_variables_without_secrets(os.environ),
        every=duration_seconds(options.every),
    )
