"""The files of a run on the shared filesystem: kiln with its environment, and a folder for each attempt of a config."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import SystemFault
from kiln.base.serialization import read_json_object
from kiln.state.store.compile_cache import json_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.fleet.slurm.site import SlurmSite
    from kiln.state.results import JobSize


PROJECT = ("build-locally.py", "kiln", "requirements")
FEEDSTOCK = ("conda-forge.yml", "recipe", ".ci_support")
SHARE = 0.9  # of a job's memory, which the build may use
SETUP_SECONDS = 1800.0  # for kiln's environment, whose packages may have to be downloaded
CONTROLLER = "controller.json"
GRES = "--gres="
NO_CACHES = shutil.ignore_patterns("__pycache__")


def install_kiln(site: SlurmSite) -> Path:
    """Copy kiln to the shared folder and create its environment there, unless both exist; return the folder."""
    target = site.settings.folder / "kiln" / kiln_files_digest(site.project)
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.held_folder_lock(target.parent):
        if not target.is_dir():
            with files.atomic_replacement(target) as part:
                part.mkdir()
                copy_files(PROJECT, site.project, part)
        result = process.capture(
            (site.python, target / "build-locally.py", "--help"), env=site.environment, timeout=SETUP_SECONDS
        )
    if not result.ok:
        raise SystemFault(f"kiln's environment could not be created in {target}", why=result.tail[-500:])
    return target


def kiln_files_digest(project: Path) -> str:
    """Return a hash over the files of kiln that jobs need."""
    paths = [path for name in PROJECT for path in files.files_below(project / name) or [project / name]]
    sources = [path for path in paths if "__pycache__" not in path.parts]
    return json_digest([(str(path.relative_to(project)), files.sha256(path)) for path in sources])[:16]


def copy_files(names: tuple[str, ...], source: Path, target: Path) -> None:
    """Copy files and folders, with links as links."""
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, symlinks=True, ignore=NO_CACHES)
        elif (source / name).exists():
            shutil.copy2(source / name, target / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFolder:
    """The folder of an attempt of a config."""

    folder: Path

    @classmethod
    def for_attempt(cls, site: SlurmSite, config: str, number: int) -> AttemptFolder:
        """Return an attempt of a config.

        Packages have the path of their build in them, in 255 bytes at most; a config's name in it, once more than in
        the folder of builds, would be too long.
        """
        return cls(folder=site.shared_folder / config_folder_name(config) / str(number))

    @classmethod
    def latest_of_config(cls, site: SlurmSite, config: str) -> AttemptFolder | None:
        """Return the latest attempt of a config, None before the first."""
        folder = site.shared_folder / config_folder_name(config)
        numbers = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
        return cls.for_attempt(site, config, max(numbers)) if numbers else None

    @classmethod
    def create(
        cls, site: SlurmSite, project: Path, *, config: str, number: int, key: str, after: str = ""
    ) -> AttemptFolder:
        """Write the folder of an attempt, with the feedstock as it is now; one that exists is replaced."""
        site.shared_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        controller = {"run": site.run, "ledger": str(site.ledger), "machine": platform.node()}
        files.write_text(site.shared_folder / CONTROLLER, json.dumps(controller))
        attempt = cls.for_attempt(site, config, number)
        files.remove(attempt.folder)
        attempt.feedstock.mkdir(parents=True)
        copy_files(FEEDSTOCK, site.feedstock, attempt.feedstock)
        job = {
            "argv": build_command(site, project, attempt.feedstock, config),
            "environment": {**site.variables, **site.secrets},  # in a file that its owner alone can read
            "key": key,
            "after": after,
        }
        files.write_text(attempt.folder / "job.json", json.dumps(job), mode=0o600)
        files.write_text(attempt.folder / "state.json", json.dumps({"state": "submitted", "key": key}))
        files.write_text(attempt.script_path, job_script(project, attempt.folder, config), mode=0o700)
        return attempt

    @property
    def feedstock(self) -> Path:
        """The copy of the feedstock that the job builds."""
        return self.folder / "feedstock"

    @property
    def artifacts(self) -> Path:
        """The folder of the job's finished packages and logs."""
        return self.feedstock / "build_artifacts"

    @property
    def script_path(self) -> Path:
        """The script that is submitted."""
        return self.folder / "job.sh"

    @property
    def job_state(self) -> dict[str, Any]:
        """The state that the job has written; empty when it cannot be read at the moment."""
        return read_json_object(self.folder / "state.json")

    @property
    def awaited_config(self) -> str:
        """The config whose build the job depends on; empty without one."""
        return str(read_json_object(self.folder / "job.json").get("after", ""))

    @property
    def job_number(self) -> str:
        """Slurm's number of the job; empty when it was not submitted."""
        return files.text_or_empty(self.folder / "id").strip()

    def store_job_number(self, number: str) -> None:
        """Store Slurm's number of the job."""
        files.write_text(self.folder / "id", f"{number}\n")

    def latest_build_log(self, config: str) -> Path | None:
        """Return the latest log of the config's build, as kiln writes it; None before it exists."""
        logs = sorted(self.artifacts.glob(f"logs/*/{config}.log"))
        return logs[-1] if logs and not logs[-1].is_symlink() else None

    def end_of_job_output(self) -> str:
        """Return the end of what Slurm and kiln have printed."""
        texts = (files.text_or_empty(self.folder / name)[-300:].strip() for name in ("slurm.out", "log"))
        return "; ".join(filter(None, texts))


def config_folder_name(config: str) -> str:
    """Return the name of a config's folder."""
    return hashlib.sha256(config.encode()).hexdigest()[:8]


def build_command(site: SlurmSite, project: Path, feedstock: Path, config: str) -> list[str]:
    """Return the command that builds a config on a node."""
    size = site.job_size(config)
    return [
        *process.Program.KILN.script_command(python=str(project / ".venv" / "bin" / "python"), isolated=True),
        *("-C", str(feedstock), "build", config, "--json"),
        *("--compile-cache", str(site.compile_cache)),
        *("--cores", str(size.cores), "--memory", f"{int(SHARE * memory_mebibytes(size))}MiB"),
        *site.options,
    ]


def job_script(project: Path, folder: Path, config: str) -> str:
    """Return the script of a job, which holds no secret and no setting."""
    program = (project / ".venv" / "bin" / "python", "-I", project / "kiln/fleet/slurm/node_job.py", folder)
    return f"#!/bin/sh\n# kiln: build {config}\nexec {' '.join(shlex.quote(str(word)) for word in program)}\n"


def memory_mebibytes(size: JobSize) -> int:
    """Return the memory of a job in Slurm's megabytes."""
    return int(size.memory * 1e9) >> 20


def sbatch_size_options(size: JobSize) -> list[str]:
    """Return the options of sbatch for the size of a job; its files are in the shared folder, whatever its disk."""
    return [
        *(f"--cpus-per-task={size.cores}", f"--mem={memory_mebibytes(size)}M"),
        *((f"--gres=gpu:{size.gpus}",) if size.gpus else ()),
        *((f"--time={math.ceil(size.time_limit / 60)}",) if size.time_limit else ()),
    ]


def merge_gres(size: JobSize, options: Sequence[str]) -> list[str]:
    """Return a job's options with one ``--gres``, since sbatch uses the last one alone.

    A config's number of GPUs prevails over one in further options, which may name their type: ``--gres=gpu:a100``.
    """
    entries = [entry for option in options if option.startswith(GRES) for entry in option[len(GRES) :].split(",")]
    if not size.gpus or len(entries) < 2:  # one is the config's own
        return list(options)
    gpus = [entry.split(":") for entry in entries if entry.split(":")[0] == "gpu"]
    kinds = [parts[1] for parts in gpus if len(parts) > 1 and not parts[1].isdecimal()]
    others = [entry for entry in entries if entry.split(":")[0] != "gpu"]
    merged = ",".join([":".join(["gpu", *kinds[:1], str(size.gpus)]), *others])
    return [*(option for option in options if not option.startswith(GRES)), f"{GRES}{merged}"]


def sbatch_options(
    site: SlurmSite, attempt: AttemptFolder, *, worker: str, config: str, number: int, after: str
) -> list[str]:
    """Return the options of sbatch for an attempt; its build begins after the success of the job ``after``."""
    size = site.job_size(config)
    output = str(attempt.folder / "slurm.out").replace("\\", "\\\\").replace("%", "%%")
    return [
        f"--job-name={worker}",
        f"--comment=kiln {site.run} {config} {number}",
        f"--chdir={attempt.folder}",
        f"--output={output}",
        "--open-mode=append",
        "--export=NONE",  # the environment here may hold secrets, which Slurm would store
        *("--nodes=1", "--ntasks=1", "--requeue"),
        *((f"--dependency=afterok:{after}", "--kill-on-invalid-dep=yes") if after else ()),
        *merge_gres(size, [*sbatch_size_options(size), *site.settings.sbatch_options()]),
    ]
