"""The key of a detached run: one file with all that attaching to its controller takes, from any computer."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import UsageError
from kiln.serialization import from_json_values, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

NAME = "key.json"
USER = "kiln"
RUN = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
ADDRESS = re.compile(r"[A-Za-z0-9_.:\[\]%-]+")
# Of ssh's options those that say how a host is reached; others could run commands here. ssh writes ProxyJump into the
# command line of a shell.
OPTIONS = frozenset({"ProxyJump", "Port", "AddressFamily"})
VALUE = re.compile(r'"?[\w.:\[\]@/%+~][\w.:\[\]@/%+~,-]*"?', re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInputHashes:
    """The hashes of a config's inputs when the run began, and the configs that share its compile."""

    group: str
    shared: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKey:
    """The access to a run's controller: ``private_key`` allows what ``kiln-controller gate`` does, and nothing else.

    ``provider`` and ``machine`` are the controller's, ``options`` are further ones of ssh. ``inputs`` are those of
    each config that the run builds, with the ``build_options`` of ``kiln build``.
    """

    run: str
    provider: str
    machine: str
    address: str
    port: int
    host_key: str
    private_key: str = field(repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, ConfigInputHashes] = field(default_factory=dict)
    build_options: tuple[str, ...] = ()

    def write_key_file(self, path: Path) -> None:
        """Write the file, which its owner alone can read."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(to_json(self), indent=1) + "\n", encoding="utf-8")


def read_run_key(path: Path) -> RunKey:
    """Read the key of a run from its file, or from the run's folder.

    Raises:
        UsageError: when it cannot be read, or is invalid.
    """
    path = path / NAME if path.is_dir() else path
    try:
        key = from_json_values(RunKey, json.loads(path.read_text(encoding="utf-8")), (ConfigInputHashes,))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{path} is not the key of a detached run",
            why=str(error),
            hint=f"kiln fleet run --detach writes it: build_artifacts/fleet/RUN/{NAME}",
        ) from error
    if fault := _invalid_key_reason(key):
        raise UsageError(f"{path} is not the key of a detached run", why=fault)
    return key


def _invalid_key_reason(key: RunKey) -> str:
    """Return why a key is invalid: its fields become arguments of ssh, and names of files."""
    if not RUN.fullmatch(key.run):
        return f"invalid run {key.run!r}"
    if not ADDRESS.fullmatch(key.address) or key.address.startswith("-"):
        return f"invalid address {key.address!r}"
    if "\n" in key.host_key.strip():
        return "the host key is not one line"
    if unknown := set(key.options) - OPTIONS:
        return f"unknown options of ssh: {', '.join(sorted(unknown))}"
    for name, text in key.options.items():
        if not VALUE.fullmatch(text):
            return f"invalid {name} {text!r}"
    return ""


def find_run_keys(feedstock: Feedstock) -> tuple[RunKey, ...]:
    """Return the keys of a feedstock's detached runs, those that are collected excepted."""
    keys = []
    for path in sorted(feedstock.artifacts.glob(f"fleet/*/{NAME}")):
        with contextlib.suppress(UsageError):
            keys.append(read_run_key(path))
    return tuple(keys)


def key_of_run(feedstock: Feedstock, run: str | None) -> RunKey:
    """Return the key of a feedstock's detached run; without a name, of the only one.

    Raises:
        UsageError: when none exists, or several and none was named.
    """
    keys = find_run_keys(feedstock)
    matches = [key for key in keys if run in {None, key.run}]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(key.run for key in keys)
    if matches:
        raise UsageError("no RUN given, and several fleet runs are detached", hint=f"name one of {names}")
    what = "this feedstock has no detached fleet run" if run is None else f"no detached fleet run {run!r} here"
    raise UsageError(
        what, hint=f"there is {names}" if names else "kiln fleet run --detach starts one; elsewhere use --key FILE"
    )


def remove_run_key(folder: Path) -> None:
    """Delete the key of a run that is collected."""
    files.remove(folder / NAME)
