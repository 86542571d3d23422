"""Where a fleet run has its things, and what its playbooks are told: from the arguments and the environment."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.cli.environment import client, given
from kiln.cli.fleet_arguments import seconds
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.fleet.mission import Mission
    from kiln.fleet.playbooks import Site
    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.layout import Layout

HOUSE = Path(__file__).parents[2]
ANSIBLE = HOUSE / "ansible"
# What a provider's modules read of the environment; it goes to the playbooks' processes, and nowhere else.
CLOUD = re.compile(r"AWS_|OS_|ANSIBLE_VAULT_|PIP_|KILN_FLEET_")
SECRET = re.compile(r"(SECRET|PASSWORD|TOKEN|ACCESS_KEY)")
INDEX = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST")  # which hold for a machine too


def build_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the options of ``kiln build`` on the machines."""
    return () if options.container is None else ("--container", options.container)


def layout_of(feedstock: Feedstock) -> Layout:
    """Return the folders of a feedstock."""
    from kiln.pipeline.layout import Layout

    return Layout.of(feedstock)


def folder_of(feedstock: Feedstock, run: str) -> Path:
    """Return the folder of a fleet run."""
    return feedstock.artifacts.absolute() / "fleet" / run


def site_of(
    options: argparse.Namespace, feedstock: Feedstock, run: str, provider: str, *, mission: Mission | None = None
) -> Site:
    """Return where a run has its things, the fleet's environment made if need be."""
    from kiln import bootstrap
    from kiln.fleet.playbooks import Site

    python = bootstrap.fleet(HOUSE, say=lambda line: print(line, file=sys.stderr))
    folder = folder_of(feedstock, run)
    environment = playbook_environment(os.environ, python)
    variables: dict[str, Any] = {
        "kiln_run": run,
        "kiln_provider": provider,
        "kiln_run_dir": str(folder),
        "kiln_project": str(HOUSE),
        "kiln_feedstock": str(feedstock.root.absolute()),
        "kiln_pip": {
            name: f"{{{{ lookup('ansible.builtin.env', '{name}') }}}}"
            for name in INDEX
            if environment.get(name) and "file:" not in environment[name]
        },
    }
    if mission is not None:
        variables |= {
            "kiln_lease": int(mission.lease),
            "kiln_images": [image_of(text) for text in options.image],
            "kiln_environment": told(feedstock),
        }
    return Site(
        folder=folder,
        playbooks=ANSIBLE,
        python=python,
        variables=variables,
        more=tuple(path.absolute() for path in options.vars),
        environment=environment,
        secrets=tuple(value for name, value in environment.items() if SECRET.search(name)),
        options=build_options(options) if mission is not None else (),
        type="" if mission is None else mission.flavour.type,
        cache_type="" if mission is None or mission.cache is None else mission.cache.type,
        spot=mission is not None and mission.spot,
        poll=seconds(options.poll) if mission is not None else 5.0,
    )


def told(feedstock: Feedstock) -> dict[str, str]:
    """Return the variables that a build on a machine sees of this one's: conda-forge's, and none that is secret."""
    from kiln import pipeline

    return {name: text for name, text in given(feedstock, os.environ).items() if name in pipeline.CONTRACT}


def playbook_environment(environment: Mapping[str, str], python: Path) -> dict[str, str]:
    """Return what the playbooks' processes see: the way to the network and the provider, in a locale that is UTF-8."""
    cloud = {name: text for name, text in environment.items() if CLOUD.match(name)}
    path = os.pathsep.join((str(python.parent), environment.get("PATH", os.defpath)))
    return {**client(environment), **cloud, "PATH": path, "LC_ALL": "C.UTF-8"}


def image_of(text: str) -> dict[str, str]:
    """Return an image that machines are given.

    Raises:
        UsageError: when it is not FILE=TAG, or there is no such file.
    """
    file, _, tag = text.rpartition("=")
    if not file or not tag or not Path(file).is_file():
        raise UsageError(f"{text!r} is no image", hint="--image FILE=TAG, with the file that kiln image base has made")
    return {"archive": str(Path(file).absolute()), "tag": tag}
