"""The options of ``kiln fleet``: values that were parsed and checked before anything is contacted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base.system.machine import PACKAGE_ROOT
from kiln.fleet.model import LEASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.fleet.slurm.site import SlurmSettings
    from kiln.state.results import ControllerCharge

ANSIBLE = PACKAGE_ROOT / "ansible"
SLURM = "slurm"
CLOUDS = ("aws", "openstack")  # whose machines are charged for, whose capacity changes, and which have zones
DEFAULT_TYPE = "compute-16"
AWS_REGION = "us-east-1"  # that of the role kiln_aws
LOSSES = 3  # workers that a config may lose; spot workers are lost as a matter of course:
SPOT_LOSSES = 10  # of a config, and for each worker of a run; and the fewest that any run replaces


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of a command of ``kiln fleet``; money is in the provider's currency, times are in seconds.

    ``environment`` is the caller's; ``variables`` are those of the playbooks in the files ``vars``, without encrypted
    ones; ``prices`` is the user's table of prices. A command on an existing run names it by ``run`` or by its ``key``.

    ``fallbacks`` are machine types and the word on-demand. ``gpu`` is the worker of tests, which ``gpu_tests`` has
    after a run, then of ``gpu_types``. ``images`` are copied to the workers, each a dictionary of archive and tag.
    ``remote_executor`` and its credentials are the environment's where no option names them. ``slurm`` are the settings
    of Slurm's jobs, whose folder may be missing.

    ``words`` are the action and the options of this command line, by which a run is resumed.

    With ``detach`` a controller gets ``controller_words`` as its options. On a controller ``own_run`` is the name that
    it was given, and ``own_charge`` what it costs itself.
    """

    provider: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    vars: tuple[Path, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    prices: Path | None = None
    words: tuple[str, ...] = ()
    run: str | None = None
    key: Path | None = None
    json: bool = False
    html: Path | None = None
    container: str | None = None
    rebuild: bool = False
    types: tuple[str, ...] = ()
    cache: str | None = None
    workers: int | None = None
    zones: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()
    spot: bool = False
    optimize: str = "both"
    cost_limit: float | None = None
    time_limit: float | None = None
    offline: bool = False
    gpu: bool = False
    gpu_tests: bool = False
    gpu_types: tuple[str, ...] = ()
    images: tuple[Mapping[str, str], ...] = ()
    attempts: int | None = None
    replacements: int | None = None
    capacity_timeout: float = 3600.0
    additional: bool = False
    keep_going: bool = False
    lease: float = LEASE
    unreachable_timeout: float = 180.0
    poll: float = 5.0
    remote_executor: str | None = None
    remote_credentials: Path | str | None = None
    remote_jobs: int | None = None
    remote_fallback: bool = False
    slurm: SlurmSettings | None = None
    detach: bool = False
    controller: str | None = None
    controller_type: str | None = None
    keep: float = 72 * 3600.0
    controller_words: tuple[str, ...] = ()
    own_run: str = ""
    own_charge: ControllerCharge | None = None

    def variable_text(self, name: str) -> str:
        """Return a text of the playbooks' variables, empty without one."""
        return str(self.variables.get(name) or "")

    @property
    def build_options(self) -> tuple[str, ...]:
        """The options of ``kiln build`` on the workers."""
        return () if self.container is None else ("--container", self.container)

    @property
    def job_options(self) -> tuple[str, ...]:
        """The options of ``kiln build`` on the workers, with those that have no part in the packages."""
        jobs = () if self.remote_jobs is None else ("--remote-jobs", str(self.remote_jobs))
        return (*self.build_options, *jobs, *(("--remote-fallback",) if self.remote_fallback else ()))

    def loss_limits(self, *, workers: int, worker_seconds: float) -> tuple[int, int]:
        """Return on how many workers each config is tried, and how many lost workers a run replaces.

        By default as many as the run has workers and ``worker_seconds`` allow for: `SPOT_LOSSES` of each spot worker,
        one in each hour of others.
        """
        hours = math.ceil(worker_seconds / 3600)
        replacements = SPOT_LOSSES * workers if self.spot else max(SPOT_LOSSES, hours)
        return (
            (SPOT_LOSSES if self.spot else LOSSES) if self.attempts is None else self.attempts,
            replacements if self.replacements is None else self.replacements,
        )


def read_playbook_variables(files: Iterable[Path]) -> dict[str, Any]:
    """Return the variables of the playbooks from files; encrypted files and values are passed over.

    Raises:
        UsageError: when a file cannot be read.
    """
    import yaml

    from kiln.base.errors import UsageError

    class AnsibleTagLoader(yaml.SafeLoader):
        """Reads values with Ansible's tags, such as ``!vault``, as None."""

    AnsibleTagLoader.add_multi_constructor("!", lambda *_: None)
    variables: dict[str, Any] = {}
    for path in files:
        try:
            data = yaml.load(path.read_text(encoding="utf-8"), AnsibleTagLoader)  # noqa: S506 - it is safe_load's
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise UsageError(f"{path} cannot be read", why=str(error)) from error
        variables |= {name: value for name, value in data.items() if value} if isinstance(data, dict) else {}
    return variables
