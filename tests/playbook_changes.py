"""The changes that each playbook makes with each provider: by its first run, and by a second one.

The rows are in the order in which a run needs them. `tests/integration/test_check_and_second_runs.py` runs them, each
with ``--check``, without, with ``--check`` and without; a unit test requires a row for each playbook and provider.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.playbook_programs import ANSIBLE

PROVIDERS = tuple(sorted(file.parents[1].name.removeprefix("kiln_") for file in ANSIBLE.glob("roles/*/tasks/find.yml")))
LEASE = "/run/kiln-lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes and reports of a playbook's runs; an empty text is nothing, as for every run with ``--check``.

    ``again`` is what the second run changes, and why. ``renewed`` are the files on a worker that each run changes
    without a report, since the state is the same. ``impossible`` is why there cannot be such a run.
    """

    first: str = ""
    again: str = ""
    renewed: tuple[str, ...] = ()
    impossible: str = ""


def on_all(row: Changes, **others: Changes) -> dict[str, Changes]:
    """Return the row for each provider, but for ``others``."""
    return {provider: others.get(provider, row) for provider in PROVIDERS}


NO_ACCOUNT = Changes(impossible="it has no account with quotas, and its role no quota.yml")

PLAYBOOKS: dict[str, dict[str, Changes]] = {
    "sweep": on_all(Changes(first="removes the expired worker of a lost run, and leaves its user's others")),
    "provision": on_all(Changes(first="creates a worker, its records and the run's resources")),
    "add_hosts": on_all(Changes()),
    "quota": on_all(Changes(), local=NO_ACCOUNT, static=NO_ACCOUNT),
    "list": on_all(Changes()),
    "admit": on_all(Changes(first="opens the security group for another address"), local=Changes(), static=Changes()),
    "prepare": on_all(
        Changes(first="changes the host key, copies tools and project, creates the user", renewed=(LEASE,)),
        # A machine that existed before has no first boot that sets its lifetime.
        static=Changes(first="copies tools and project, creates the user", renewed=(LEASE, "/etc/kiln-lease")),
    ),
    "lease": on_all(Changes(renewed=(LEASE,))),
    "controller": on_all(Changes(first="copies the units and the playbooks")),
    "build": on_all(Changes(first="builds the config", renewed=(LEASE,))),
    "collect": on_all(Changes(first="fetches the packages")),
    "down": on_all(Changes(first="removes the worker, its records and the run's resources")),
    "site": on_all(
        Changes(
            first="provisions, builds, collects and removes the worker",
            again="has removed its workers, and so provisions others",
        )
    ),
}
# These remove the workers, so they come after the second runs of all others.
LAST = ("down", "site")
