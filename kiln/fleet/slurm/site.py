"""The site of a run on Slurm: the shared folder, and the options of its jobs."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path  # noqa: TC003 - for from_json
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import UsageError, did_you_mean
from kiln.model.fleet_run import MachineType
from kiln.model.job_estimate import JobSize
from kiln.serialization import from_json_values, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS = "slurm.json"  # in the run's folder on this computer
FREE = MachineType(
    provider="slurm",
    type="job",
    name="job",
    cores=0,
    memory=0,
    disk=0,
    spot_hourly=0,
    source="an existing cluster",
    date="2026-11-22",
)
OURS = re.findall(
    r"\S+",
    """account array bb begin chdir clusters comment cpus-per-task dependency error export export-file get-user-env hold
    input job-name kill-on-invalid-dep mem mem-per-cpu no-requeue nodes ntasks open-mode output parsable partition qos
    requeue test-only time wait wrap""",
)
# Further options, by sbatch's manual: which nodes and devices a job gets, its priority, and who is notified. None
# changes what sbatch itself does or prints (--version, --help, --quiet), or runs jobs as somebody else.
ACCEPTED = re.findall(
    r"\S+",
    """acctg-freq cluster-constraint constraint contiguous core-spec cores-per-socket
    cpu-freq cpus-per-gpu deadline exclude exclusive extra-node-info gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags hint licenses mail-type mail-user mcs-label mem-bind mem-per-gpu
    mincpus nice nodelist oversubscribe power prefer priority profile reservation resv-ports segment
    sockets-per-node spread-job switches thread-spec threads-per-core tmp tres-bind tres-per-task use-min-nodes
    wckey""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The settings of a run's jobs: ``folder`` is on a filesystem that this computer and all nodes share.

    ``cores`` and ``memory`` (in bytes) are those of a job, ``time`` is its limit in minutes, ``extra`` are further
    options of sbatch. Empty ones are left to Slurm.
    """

    folder: Path
    cores: int
    memory: int
    partition: str = ""
    account: str = ""
    qos: str = ""
    time: int | None = None
    extra: tuple[str, ...] = ()

    @property
    def machine_type(self) -> MachineType:
        """A job as the plan sees a worker: nothing is charged for it."""
        return dataclasses.replace(FREE, name=f"{self.cores} cores", cores=self.cores, memory=self.memory / 1e9)

    def sbatch_options(self) -> tuple[str, ...]:
        """Return the options of sbatch that are the same for all jobs."""
        values = {"partition": self.partition, "account": self.account, "qos": self.qos}
        return (*(f"--{name}={value}" for name, value in values.items() if value), *self.extra)

    def store_in_run_folder(self, run_folder: Path) -> None:
        """Store the settings in a run's folder, for the commands that come later."""
        run_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_text(run_folder / SETTINGS, json.dumps(to_json(self)))

    @classmethod
    def read_from_run_folder(cls, run_folder: Path) -> SlurmSettings | None:
        """Return the settings of a run, None where they are missing."""
        try:
            return from_json_values(cls, json.loads((run_folder / SETTINGS).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def check_sbatch_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return further options of sbatch.

    Raises:
        UsageError: for a word that is not a long option, one that kiln sets, or one that changes what sbatch does.
    """
    for option in options:
        name = option.removeprefix("--").partition("=")[0]
        if not option.startswith("--") or not name:
            raise UsageError(f"invalid option of sbatch {option!r}", hint="write it as --slurm-option=--NAME=VALUE")
        if any(other.startswith(name) for other in OURS):  # sbatch takes the beginning of a name, too
            raise UsageError(
                f"--{name} of sbatch is set by kiln",
                hint="kiln fleet run --help lists kiln's own options: --slurm-partition, --slurm-time, ...",
            )
        if name not in ACCEPTED:
            raise UsageError(
                f"--{name} of sbatch is not accepted",
                why="further options say which nodes a job gets and how it is queued, by their full names",
                hint=did_you_mean(name, ACCEPTED) or f"one of {', '.join(ACCEPTED)}",
            )
    return tuple(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSite:
    """The site of a run: ``folder`` is the run's on this computer, ``shared_folder`` is the run's on the nodes.

    ``sizes`` are those of configs that have their own.
    ``feedstock`` and ``project`` (the clone of kiln) are copied from here, ``python`` is the interpreter that makes
    kiln's environment. ``environment`` is that of Slurm's programs, ``variables`` are passed to builds, and hold no
    secret, ``secrets`` are. ``options`` are those of ``kiln build``. ``ledger`` knows the run. The
    states of jobs are read every ``poll`` seconds.
    """

    run: str
    folder: Path
    settings: SlurmSettings
    sizes: Mapping[str, JobSize] = field(default_factory=dict)
    feedstock: Path
    project: Path
    python: Path
    ledger: Path
    environment: Mapping[str, str] = field(repr=False)
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    options: tuple[str, ...] = ()
    poll: float = 5.0

    @property
    def shared_folder(self) -> Path:
        """The run's folder on the shared filesystem."""
        return self.settings.folder / f"run-{self.run}"

    @property
    def compile_cache(self) -> Path:
        """The folder of Bazel's caches, which all runs share."""
        return self.settings.folder / "compile-cache"

    @property
    def disk_reserve_file(self) -> Path:
        """A file that reserves disk space for the tear-down."""
        return self.folder / "reserve"

    def job_size(self, config: str) -> JobSize:
        """Return the size of a config's job: its own, else that of all."""
        size, settings = self.sizes.get(config, JobSize()), self.settings
        limit = None if settings.time is None else settings.time * 60.0
        return dataclasses.replace(
            size,
            cores=size.cores or settings.cores,
            memory=size.memory or settings.memory / 1e9,
            time_limit=size.time_limit or limit,
        )
