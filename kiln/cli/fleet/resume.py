"""The command of a fleet run, stored in its folder: what ``resume`` and ``down`` need, from any terminal."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files
from kiln.base.errors import UsageError
from kiln.base.serialization import read_json_object
from kiln.cli.fleet import detached
from kiln.cli.fleet.arguments import add_arguments
from kiln.cli.fleet.site import CREDENTIALS, run_folder
from kiln.fleet.options import read_playbook_variables
from kiln.state.store.layout import may_be_of_checkout

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.fleet.options import FleetOptions
    from kiln.recipe.feedstock import Feedstock

FILE = "command.json"
# Variables that say where credentials are, and of which cloud; none is a secret. The region is recorded on its own.
PROFILES = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
STORED = (
    *(*PROFILES, "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"),
    *("AWS_ENDPOINT_URL_STS", "AWS_CA_BUNDLE", "OS_CLIENT_CONFIG_FILE", "OS_CACERT", "ANSIBLE_VAULT_PASSWORD_FILE"),
)


def has_command(feedstock: Feedstock, run: str) -> bool:
    """Return whether the command of a run is stored here."""
    return (run_folder(feedstock, run) / FILE).exists()


def store_command(options: FleetOptions, feedstock: Feedstock, run: str, configs: Iterable[str]) -> None:
    """Store the command of a run that begins; one of its later stages changes nothing."""
    folder = run_folder(feedstock, run)
    if has_command(feedstock, run):
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = {
        "provider": options.provider,
        "words": [*options.words, *configs],
        "vars": [str(path.absolute()) for path in options.vars],
        "environment": {name: options.environment[name] for name in STORED if options.environment.get(name)},
    }
    files.write_text(folder / FILE, json.dumps(data))


def _stored_command(feedstock: Feedstock, run: str) -> dict[str, Any]:
    """Return the command of a run as it is stored, empty without one.

    It names files of credentials and of variables, which may name programs; so it has to be one that was stored here.

    Raises:
        UsageError: when it may have come with the feedstock, or is damaged.
    """
    file = run_folder(feedstock, run) / FILE
    if not file.exists():
        return {}
    if may_be_of_checkout(file):
        raise UsageError(
            f"{file} may have come with the feedstock, and is not followed",
            why="it names files of credentials; git must be able to say that it does not track it",
            hint="the command that began the run continues it, and kiln fleet down --provider NAME ends it without "
            f"that file; or git rm -r --cached {feedstock.artifacts.name}",
        )
    stored = read_json_object(file)
    texts = [stored.get("words"), stored.get("vars", [])]
    if not all(isinstance(words, list) and all(isinstance(word, str) for word in words) for words in texts):
        raise _damaged_command_error(file)
    return stored


def _damaged_command_error(file: Path) -> UsageError:
    return UsageError(f"{file} is damaged", hint="the command that began the run continues it; it stores a new file")


def _environment_of_run(stored: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment, with what it lacks from the run's; its own credentials replace the run's profile."""
    provider = str(stored.get("provider", ""))
    own = any(environment.get(name) for name in CREDENTIALS.get(provider, ()))
    known = {str(name): str(text) for name, text in dict(stored.get("environment") or {}).items() if name in STORED}
    return {**{name: text for name, text in known.items() if not (own and name in PROFILES)}, **environment}


def options_of_run(options: FleetOptions, feedstock: Feedstock, run: str) -> FleetOptions:
    """Return the options of a command on a run, with the provider and the variables that the run began with.

    Raises:
        UsageError: when a file of variables does not exist any more.
    """
    try:
        stored = _stored_command(feedstock, run)
    except UsageError:
        if not options.provider:
            raise
        stored = {}
    paths = options.vars or tuple(map(Path, stored.get("vars", ())))
    if absent := [path for path in paths if not path.exists()]:
        raise UsageError(
            f"{absent[0]} not found",
            why=f"the fleet run {run} began with its variables, which may say where its workers are",
            hint=f"kiln fleet down {run} --vars FILE names another file",
        )
    return dataclasses.replace(
        options,
        provider=options.provider or str(stored.get("provider", "")),
        vars=paths,
        variables=options.variables or read_playbook_variables(paths),
        environment=_environment_of_run(stored, options.environment),
    )


def command_of_run(
    feedstock: Feedstock, run: str, environment: Mapping[str, str]
) -> tuple[argparse.Namespace, Mapping[str, str]]:
    """Return the arguments of the command that began a run, and its environment.

    Raises:
        UsageError: when its folder has no command, or it is detached.
    """
    if detached.is_detached(feedstock, run):
        raise UsageError(f"fleet run {run!r} is detached, and goes on", hint=f"kiln fleet attach {run} shows it")
    stored = _stored_command(feedstock, run)
    if not stored:
        raise UsageError(
            f"fleet run {run!r} not found in {run_folder(feedstock, run).parent}",
            hint="kiln fleet status lists all runs; the command that began one resumes it, too",
        )
    parser = argparse.ArgumentParser(prog="kiln fleet", exit_on_error=False)
    add_arguments(parser)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            namespace = parser.parse_args(stored["words"])
    except (argparse.ArgumentError, SystemExit) as error:
        raise _damaged_command_error(run_folder(feedstock, run) / FILE) from error
    return namespace, _environment_of_run(stored, environment)
