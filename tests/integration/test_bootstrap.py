"""The environment makes itself: real interpreters, real pip, one small package from a folder in the network's place."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.environment import LOCK, base_python
from kiln.base.errors import HashMismatch, UnsupportedPython
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow("environments are made"), pytest.mark.sampled]
ROOT = Path(__file__).parents[2]
ENTRIES = ("build-locally.py", "tests/__main__.py")
# In the place of build-locally.py; the program that it starts prints how it was started.
ENTRY = """
import sys
from pathlib import Path

{before}
from kiln.base.bootstrap import exec_in_environment

exec_in_environment(Path(__file__).resolve().parent, "-c", {tell!r}, *sys.argv[1:])
"""
TELL = """
import json, sys
import kiln, pebble
print(json.dumps({"python": sys.executable, "arguments": sys.argv[1:], "path": sys.path, "kiln": kiln.__file__,
                  "pebble": pebble.VERSION}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clone:
    """A copy of the project that locks one small package of our own making."""

    root: Path
    wheels: Path

    @property
    def env(self) -> dict[str, str]:
        offline = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels.as_uri()}
        return {**{name: value for name, value in os.environ.items() if not name.startswith("PIP_")}, **offline}

    def argv(self, *arguments: str) -> list[str]:
        return [str(base_python()), str(self.root / "entry.py"), *arguments]

    def enter(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.argv(*arguments), **env)

    def run(self, argv: list[str], **env: str) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **env}
        return subprocess.run(argv, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=CEILING)

    def start(self, **env: str) -> subprocess.Popen[str]:
        env = {**self.env, **env}
        return subprocess.Popen(
            self.argv(), env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def lock(self, version: str, digest: str = "") -> None:
        """Lock the package at a version, under its own hash unless another is given."""
        digest = digest or write_wheel(self.wheels, version)
        lock = self.root / "requirements" / "run.txt"
        lock.write_text(f"pebble=={version} \\\n    --hash=sha256:{digest}\n")

    def write_entry(self, before: str = "") -> None:
        (self.root / "entry.py").write_text(ENTRY.format(before=before, tell=TELL))

    @property
    def left(self) -> list[str]:
        return [entry.name for entry in (self.root / ".venv").iterdir()]


def write_wheel(folder: Path, version: str) -> str:
    """Write a wheel of the package ``pebble``; returns its SHA-256."""
    info = f"pebble-{version}.dist-info"
    files = {
        "pebble.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: pebble\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: kiln\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{record_hash(text)},{len(text)}\n" for name, text in files.items()) + f"{info}/RECORD,,\n"
    wheel = folder / f"pebble-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def record_hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A fresh clone in a folder whose name has a space and a letter outside ASCII."""
    root, wheels = tmp_path / "a clôné", tmp_path / "wheels"
    wheels.mkdir()
    (root / "requirements").mkdir(parents=True)
    shutil.copytree(ROOT / "kiln" / "base", root / "kiln" / "base", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "kiln" / "__init__.py", root / "kiln")
    made = Clone(root=root, wheels=wheels)
    made.lock("1.0")
    made.write_entry()
    return made


def test_it_is_made_once_then_used_from_anywhere_whatever_the_users_settings_are(clone: Clone, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.mkdir()
    for name in ("kiln.py", "pebble.py", "pip.py"):
        (rubbish / name).write_text("raise SystemExit('the wrong module')\n")
    settings = {"PIP_REQUIRE_VIRTUALENV": "1", "PIP_USER": "1", "PIP_TARGET": str(rubbish / "t"), "PIP_PREFIX": "/x"}
    first = clone.enter("--filter", "*cuda*", "ü", **settings)
    told = json.loads(first.stdout)
    assert re.fullmatch(
        r"first run: setting up \.venv \(about 20 s\)\n(making \.venv \(\d+ s\)\n)*"
        r"(fetching packages(: 0 of 1 done)? \(\d+ s\)\n)*fetched 1 package, installing it\n"
        r"(installing packages: [01] of 1 done \(\d+ s\)\n|checking the packages \(\d+ s\)\n)*"
        r"\.venv is ready \(\d+ s\)\n",
        first.stderr,
    )
    assert told["python"] == str(clone.root / ".venv" / "bin" / "python")
    assert told["arguments"] == ["--filter", "*cuda*", "ü"]
    assert told["kiln"] == str(clone.root / "kiln" / "__init__.py")

    second = clone.enter(PYTHONPATH=str(rubbish))
    assert second.stderr == ""
    assert not [path for path in json.loads(second.stdout)["path"] if path in {"", "/", str(rubbish)}]


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes whoever comes, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(CEILING)
        yield server


@contextmanager
def fetching(clone: Clone, silent: socket.socket) -> Iterator[subprocess.Popen[str]]:
    """A set-up that waits, for as long as the block takes, for packages that a server does not send."""
    url = "http://{}:{}/".format(*silent.getsockname())
    with clone.start(PIP_FIND_LINKS=url, PIP_DEFAULT_TIMEOUT="900", PIP_RETRIES="0") as process:
        connection, _ = silent.accept()
        with connection:
            yield process


def test_a_killed_set_up_is_redone(clone: Clone, silent: socket.socket) -> None:
    with fetching(clone, silent) as process:
        process.kill()
    after = clone.enter()
    assert "the last set-up did not end: setting up .venv" in after.stderr
    assert json.loads(after.stdout)["pebble"] == "1.0"


def test_a_package_that_is_not_the_locked_one_is_refused(clone: Clone) -> None:
    clone.lock("1.0", digest="0" * 64)
    refused = clone.enter()
    assert refused.returncode == HashMismatch.exit_code
    assert "error: a package is not the file whose hash was locked" in refused.stderr
    assert clone.left == [LOCK]


def test_without_ensurepip_this_pythons_own_pip_is_lent(clone: Clone) -> None:
    clone.write_entry(before="sys.modules['ensurepip'] = None")
    with_pip = clone.run([sys.executable, *clone.argv()[1:]])  # of Debian's, its own environments have one alone
    assert json.loads(with_pip.stdout)["pebble"] == "1.0", with_pip.stderr
    assert not list(clone.root.glob(".venv/lib/*/site-packages/pip"))


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_python_that_is_too_old_is_reported(entry: str) -> None:
    old = old_pythons()
    if not old:
        pytest.skip("there is no Python older than 3.10 on this machine")
    for python in old:
        refused = subprocess.run([python, ROOT / entry], capture_output=True, text=True, check=False)
        assert refused.returncode == UnsupportedPython.exit_code
        assert re.match(r"error: this is Python [23]\.\d+\.\d+, but kiln needs 3\.10 or newer\n  try: ", refused.stderr)


def old_pythons() -> list[Path]:
    """The Pythons of this machine that are too old, pyenv's among them."""
    names = ("python2.7", *(f"python3.{minor}" for minor in range(4, 10)))
    folders = [Path("/usr/bin"), Path("/usr/local/bin")]
    folders += (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("*/bin")
    return [folder / name for folder in folders for name in names if (folder / name).exists()]
