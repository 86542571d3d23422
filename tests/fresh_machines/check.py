"""Set the project up in fresh containers of Debian, and run its tests there.

``python3 -m tests.fresh_machines [--whole] [SUITE ...]``: on each of the named releases of Debian (default: all) the
unit tests run as an ordinary user, and what depends on machine and user as a user without a line in /etc/passwd and as
root; with ``--whole`` every test runs as each of them. It needs Docker and mmdebstrap.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import process
from kiln.base.errors import UnsupportedPython
from kiln.build.rehearsal.wheel_download import PYTHONS
from kiln.container.engine import choose_engine
from kiln.image import worker
from kiln.image.worker import AFTER, ImageRecipe
from tests.lanes import ADDED, Lane

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build_artifacts" / "images"
PACKAGES = ("ca-certificates", "git", "python3-venv")
SUITES = ("trixie", "forky")  # Python 3.13 and 3.14
WEEK = 7 * 24 * 3600
HOME = "/kiln"
ORDINARY, NAMELESS, BOSS = 1000, 4321, 0
USERS = {ORDINARY: "an ordinary user", NAMELESS: "a user without a line in /etc/passwd", BOSS: "root"}
# What depends on the machine and on who runs it: the set-up, processes, users and programs that are missing.
ON_USER = (
    "tests/unit/base/test_bootstrap.py",
    "tests/unit/base/test_environment.py",
    "tests/unit/base/test_files.py",
    "tests/unit/base/test_process.py",
    "tests/unit/build/bazel/test_events.py",
    "tests/unit/build/bazel/test_watch.py",
    "tests/unit/conda/provenance/test_bazel_repositories.py",
    "tests/unit/state/store/test_compile_cache.py",
    "tests/unit/test_playbook_modules.py",
    "tests/integration/test_install_limits.py::test_a_download_that_breaks_off_is_a_failure_of_the_network",
    "tests/integration/test_playbooks.py",
)
ON_MACHINE = (
    *ON_USER,
    *("tests/integration/test_bootstrap.py", "tests/integration/test_provenance.py"),
    "tests/integration/test_wheels.py::test_a_python_of_a_channel_is_installed_found_again_and_packaged",
    "tests/integration/test_wheels.py::test_the_command_that_gets_a_python_is_one_of_this_system",
    "tests/integration/test_rehearsal.py::test_an_interpreter_and_real_wheels_run_in_a_fresh_prefix",
)
SHARES: Mapping[int, Sequence[str]] = {ORDINARY: ADDED[Lane.FAST], NAMELESS: ON_MACHINE, BOSS: ON_USER}
# The way to the network, by name alone: values, which may hold passwords, stay out of the command line.
PASSED_ON = re.compile(
    r"PIP_(?:INDEX_URL|CERT|PROXY|TRUSTED_HOST)|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|\w+_proxy", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshMachine:
    """A release of Debian as an image, and a clone of the project for it."""

    suite: str
    tag: str
    clone: Path

    def run(self, user: int, *words: str) -> tuple[int, str]:
        """Run a command in the clone as a user; returns its exit code and what it said."""
        own = self.clone.stat().st_uid
        if own != user:
            subprocess.run(["chown", "--recursive", f"{user}:{user}", self.clone], check=True)
        passed_on = [f"--env={name}" for name in os.environ if PASSED_ON.fullmatch(name)]
        argv = [
            *("docker", "run", "--rm", "--network=host", f"--user={user}:{user}", f"--workdir={HOME}"),
            *(f"--volume={self.clone}:{HOME}", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"),
            *(*passed_on, f"--env=PIP_CACHE_DIR={HOME}/.pip-cache", self.tag, *words),
        ]
        result = process.run(argv, env=os.environ, tail_lines=400)
        return result.exit_code, result.tail


def image_of(suite: str) -> str:
    """Return the image of a release, built if it does not exist or is older than a week."""
    engine = choose_engine("docker", env=os.environ).engine
    assert engine is not None
    what = ImageRecipe(
        suite=suite,
        packages=PACKAGES,
        hooks=(*AFTER[:2], f'chroot "$1" useradd --create-home --uid {ORDINARY} ordinary'),
        name="kiln-fresh",
    )
    archive = CACHE / what.archive_name
    old = archive.exists() and time.time() - archive.stat().st_mtime > WEEK
    with tempfile.TemporaryDirectory() as scratch:
        # A mirror that stands still for weeks is good enough here. Its signatures are checked all the same.
        settings = Path(scratch, "apt.conf")
        settings.write_text('Acquire::Check-Valid-Until "false";\n')
        env = {**os.environ, "APT_CONFIG": str(settings)}
        return worker.provide_image(
            engine, what, tag=f"localhost/kiln-fresh:{suite}", folder=CACHE, env=env, fresh=old
        ).tag


def clone_into(folder: Path) -> None:
    """Clone the project as it is committed; `git clone` on the machine itself would bring the same."""
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)


def tests(machine: FreshMachine, user: int, files: Sequence[str]) -> str:
    """Run tests; returns what went wrong, or nothing."""
    began = time.monotonic()
    code, said = machine.run(user, "python3", "-m", "tests", "-q", *files)
    seconds = time.monotonic() - began
    print(
        f"--- Debian {machine.suite}, {USERS[user]}: {seconds:.0f} s\n{said}", flush=True
    )  # whole: others run at the same time
    last = said.splitlines()[-1] if said else ""
    if code or not last.startswith("left out: "):
        return f"{machine.suite}, {USERS[user]}: the tests end with exit code {code}: {last}"
    return ""


def rehearsal(machine: FreshMachine) -> str:
    """Ask for a rehearsal that may fetch no Python; returns what went wrong, or nothing."""
    code, version = machine.run(ORDINARY, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    words = ("python3", "build-locally.py", "--rehearse", "--dry-run", "--python-channel", "none")
    code, said = machine.run(ORDINARY, *words)
    if version in PYTHONS and code == 0:
        return ""
    if version not in PYTHONS and code == UnsupportedPython.exit_code and "python install" in said:
        return ""
    return f"{machine.suite}: a rehearsal with Python {version} ends with exit code {code}"


def check(suite: str, tag: str, *, whole: bool) -> list[str]:
    """Run everything on one release; returns what went wrong."""
    with tempfile.TemporaryDirectory(prefix=f"kiln-{suite}-") as scratch:
        machine = FreshMachine(suite=suite, tag=tag, clone=Path(scratch, "clone"))
        Path(scratch).chmod(0o755)
        clone_into(machine.clone)
        faults = [tests(machine, user, () if whole else share) for user, share in SHARES.items()]
        faults.append(rehearsal(machine))
        return [fault for fault in faults if fault]


def main() -> int:
    """Check the releases that the command line names."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python3 -m tests.fresh_machines", description=description)
    parser.add_argument("suites", nargs="*", default=SUITES, help="releases of Debian (default: trixie forky)")
    parser.add_argument("--whole", action="store_true", help="run every test")
    options = parser.parse_args()
    tags = {suite: image_of(suite) for suite in options.suites}
    with ThreadPoolExecutor(len(tags)) as beside:  # each uses one core for most of its time
        checks = [beside.submit(check, suite, tag, whole=options.whole) for suite, tag in tags.items()]
        faults = [fault for item in checks for fault in item.result()]
    for fault in faults:
        print(f"error: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
