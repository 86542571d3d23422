"""Fetch the results of a config's build from a worker, which is not trusted, and accept only what the build reported.

``python -m kiln.fleet.ansible.fetch FOLDER WORKER CONFIG`` does it for collect.yml. Packages, log and report go into
collected/WORKER/CONFIG of a run's folder, by rsync over ssh, which resumes interrupted transfers. verified.json is
written last, once every package has the hash that the build's report gives for it. The report comes from the worker, so
its paths are only used as names of files below the folder of finished packages.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import BrokenPackage, HashMismatch, KilnError, MachinesUnknown, SystemFault
from kiln.fleet.ansible.playbooks import ssh_config_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOME = "/var/lib/kiln"  # on a worker
PACKAGE = re.compile(
    r"(?:linux-[a-z0-9_]+|noarch)/[A-Za-z0-9_.!+-]+\.(?:conda|tar\.bz2)"
    r"|wheels/(?:cpu|cuda\d+(?:\.\d+)*)(?:-linux-[a-z0-9]+)?/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl"
)
LOG = re.compile(r"logs/\d+/[A-Za-z0-9_.+-]+\.log")
LONGEST = 16 << 20  # bytes of a report, and of the end of a log
PATIENCE = 120.0  # seconds for the end of a log
TRIES = 3  # to fetch a package with the right hash
RESERVE = 64 << 20  # bytes of this computer's disk that stay free: for the index, logs and other files
LOST_CONNECTION = frozenset({10, 12, 30, 35, 255})  # exit codes of rsync


def size_limited_command(argv: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return a command whose files the system keeps from becoming longer than some bytes, in POSIX's blocks."""
    return ("sh", "-c", 'ulimit -f "$0" && exec "$@"', str(-(-limit // 512)), *argv)


def reported_files(report: Any, config: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the packages of a config in its report, as {path, sha256, size}, and its logs.

    Raises:
        BrokenPackage: for a path that is not a package's.
    """
    packages, logs = [], []
    for entry in report.get("configs", ()) if isinstance(report, dict) else ():
        if entry.get("config") != config:
            continue
        if entry.get("log") and LOG.fullmatch(log := _path_in_artifacts(entry["log"])):
            logs.append(log)
        for artifact in (package["artifact"] for package in entry.get("packages", ())):
            path = _path_in_artifacts(artifact["path"])
            if not PACKAGE.fullmatch(path):
                raise BrokenPackage(f"{artifact['path']!r} in the report is not the path of a package")
            if type(artifact["size"]) is not int or artifact["size"] < 0:
                raise BrokenPackage(f"{path} cannot have {artifact['size']!r} bytes")
            packages.append({"path": path, "sha256": artifact["sha256"], "size": artifact["size"]})
    return packages, logs


def _path_in_artifacts(path: str) -> str:
    return path.partition("/build_artifacts/")[2]


def wrong_packages(packages: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return the packages that are missing, are links, or have another hash."""
    paths = {package["path"]: folder / package["path"] for package in packages}
    hashes = {name: files.sha256(path) for name, path in paths.items() if path.is_file() and not path.is_symlink()}
    return [package["path"] for package in packages if hashes.get(package["path"]) != package["sha256"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResults:
    """The results of a config's build, on its worker and in the run's folder here."""

    run_folder: Path
    worker: str
    config: str
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())

    @property
    def folder(self) -> Path:
        """The folder of the results here."""
        return self.run_folder / "collected" / self.worker / self.config

    def fetch(self) -> bool:
        """Fetch what is not here yet; return whether that was anything.

        Raises:
            MachinesUnknown: the connection was lost.
            HashMismatch: a package has another hash each time.
            BrokenPackage: the report names other files than packages.
            DiskFull: the packages would fill this computer's disk.
            SystemFault: a transfer failed in another way.
        """
        job, artifacts = f"{HOME}/jobs/{self.config}", f"{HOME}/project/build_artifacts"
        self._fetch_files(job, self.folder, ["report.json", "state.json"], LONGEST)
        self._fetch_logs(job, ["log"])
        try:
            report = json.loads((self.folder / "report.json").read_text(encoding="utf-8", errors="replace"))
        except ValueError:
            report = {}  # the build ended before it could report
        try:
            packages, logs = reported_files(report, self.config)
        except (KeyError, TypeError, AttributeError) as error:
            raise BrokenPackage("the report is invalid", why=repr(error)) from error
        verified, text = self.folder / "verified.json", json.dumps(packages, indent=1) + "\n"
        if files.text_or_empty(verified) == text and not wrong_packages(packages, self.folder / "packages"):
            return False
        self._fetch_logs(artifacts, logs)
        self._fetch_packages(artifacts, packages)
        files.write_text(verified, text)
        return True

    def _fetch_packages(self, source: str, packages: list[dict[str, Any]]) -> None:
        target = self.folder / "packages"
        wrong = wrong_packages(packages, target)
        needed = sum(package["size"] for package in packages if package["path"] in wrong) + RESERVE
        files.require_disk_space(target, needed, for_what=f"collecting {self.config} from {self.worker}")
        for _ in range(TRIES):
            for package in packages:
                if package["path"] in wrong:
                    (target / package["path"]).unlink(missing_ok=True)
                    self._fetch_files(source, target, [package["path"]], package["size"])
            wrong = wrong_packages(packages, target)
            if not wrong:
                return
        for part in [*target.rglob(".partial")]:
            files.remove(part)
        raise HashMismatch(f"not what the build reported: {', '.join(wrong)}")

    def _fetch_logs(self, source: str, names: list[str]) -> None:
        """Fetch logs, of those that are too long the end, and leave out what cannot be fetched of these."""
        self._fetch_files(source, self.folder, names, LONGEST)
        for name in (name for name in names if not (self.folder / name).exists()):
            words = f"tail -c {LONGEST} {shlex.quote(f'{source}/{name}')}"
            argv = ("ssh", "-F", self._ssh_config, self.worker, words)
            end = process.capture(argv, env=self.environment, timeout=PATIENCE, most=LONGEST)
            if data := end.stdout.encode()[:LONGEST]:
                files.write_bytes(self.folder / name, data)

    def _fetch_files(self, source: str, target: Path, names: list[str], limit: int) -> None:
        """Fetch files by name, each of at most ``limit`` bytes; longer ones and links are left out."""
        if not names:
            return
        target.mkdir(parents=True, exist_ok=True)
        options = ("--times", "--no-links", "--partial-dir=.partial", "--timeout=60", f"--max-size={limit}")
        listed, shell = ("--files-from=-", "--from0"), f"--rsh=ssh -F {shlex.quote(self._ssh_config)}"
        argv = ("rsync", *options, *listed, shell, f"{self.worker}:{source}/", f"{target}/")
        process.find_program("rsync", env=self.environment)  # which the limit's shell would not name
        result = process.capture(
            size_limited_command(argv, limit), env=self.environment, secrets=self.secrets, stdin="\0".join(names)
        )
        if not result.ok:
            kind = MachinesUnknown if result.exit_code in LOST_CONNECTION else SystemFault
            raise kind(f"rsync ended with exit code {result.exit_code}", why=result.tail[-500:])

    @property
    def _ssh_config(self) -> str:
        return str(ssh_config_file(self.run_folder, self.worker))


def main(words: list[str]) -> int:
    """Fetch a config's results for a playbook, and print CHANGED when something was fetched."""
    folder, worker, config = words
    try:
        results = BuildResults(run_folder=Path(folder), worker=worker, config=config, environment=os.environ)
        sys.stdout.write("CHANGED\n" if results.fetch() else "")
    except (KilnError, OSError) as error:
        sys.stderr.write(f"cannot collect {config} from {worker}: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
