"""``kiln fleet sweep``: terminate the expired workers of all runs, now or by a timer."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from kiln.cli import fleet_slurm_options
from kiln.cli.fleet_ansible_settings import PACKAGE_ROOT, public_environment, site_of
from kiln.cli.fleet_arguments import seconds

if TYPE_CHECKING:
    import argparse

    from kiln.model.feedstock import Feedstock


def sweep(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Remove the expired workers of all runs."""
    from kiln.fleet import run as fleet

    if options.print_timer:
        print(sweep_timer_script(options, feedstock), end="")
        return 0
    if options.provider == fleet_slurm_options.SLURM:
        fleet_slurm_options.sweep(everything=options.all)
        print("no jobs of abandoned runs remain", file=sys.stderr)
        return 0
    site = site_of(options, feedstock, "sweep", options.provider)
    fleet.sweep(site, everything=options.all)
    print("no expired workers remain", file=sys.stderr)
    return 0


def sweep_timer_script(options: argparse.Namespace, feedstock: Feedstock) -> str:
    """Return the script that installs a timer for the same sweep, with the environment without its secrets."""
    from kiln.fleet import lease_expiry

    more = [word for path in options.vars for word in ("--vars", str(path.absolute()))]
    argv = (sys.executable, "-m", "kiln", "-C", str(feedstock.root.absolute()), "fleet", "sweep")
    return lease_expiry.sweep_timer_script(
        options.provider,
        (*argv, "--provider", options.provider, *more),
        folder=str(PACKAGE_ROOT),
        environment=public_environment(os.environ),
        every=seconds(options.every),
    )
