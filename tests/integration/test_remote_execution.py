"""Google's own Bazel on a remote executor by TLS, and a server that it must not trust.

Debian's Bazel lacks TLS with ALPN, so this one comes from npm. It is older than the flags for a client's certificate,
and sends no headers with its first request. The workers have certificates, which the server requires.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from kiln.build.bazel import events
from tests import remote_execution
from tests.integration.bazel_feedstocks import bazel_feedstock
from tests.remote_execution import flags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remote_execution import Pool

PACKAGE, ARCHIVE = "@bazel/bazel-linux_x64@2.1.0", "bazel-bazel-linux_x64-2.1.0.tgz"
SHA256 = "14cb6958e46fd5130720c26ae0b7c98e181dcb8bd111b0bfb23c7b4744e3609a"
ACTIONS = 4
BUILD = f"""\
[genrule(name = "part%d" % n, outs = ["%d" % n], cmd = "echo %d >$@" % n) for n in range({ACTIONS})]
genrule(name = "here", outs = ["h"], cmd = "echo here >$@", tags = ["no-remote"])
genrule(name = "all", srcs = ["part%d" % n for n in range({ACTIONS})] + ["here"], outs = ["a"], cmd = "cat $(SRCS) >$@")
"""

pytestmark = [pytest.mark.trial, pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb", "npm")]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A server with two workers."""
    if reason := remote_execution.missing():
        pytest.skip(reason)
    bazel_feedstock(tmp_path_factory.mktemp("image") / "small-tensorflow")  # makes the workers' image
    with remote_execution.served(requires_token=False) as served:
        served.start_workers(2, "OSFamily=Linux")
        yield served


@pytest.fixture(scope="module")
def bazel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bazel 2.1.0."""
    folder = tmp_path_factory.mktemp("bazel")
    subprocess.run(("npm", "pack", "--silent", PACKAGE), cwd=folder, check=True, capture_output=True)
    assert hashlib.sha256((folder / ARCHIVE).read_bytes()).hexdigest() == SHA256
    with tarfile.open(folder / ARCHIVE) as archive:
        archive.extract("package/bazel-2.1.0-linux-x86_64", folder)
    (program,) = (folder / "package").iterdir()
    program.chmod(0o755)
    return program


def build(bazel: Path, folder: Path, url: str, credentials: Path) -> subprocess.CompletedProcess[str]:
    """Build with the flags that the recipe's script derives from the caller's variables."""
    folder.mkdir()
    (folder / "WORKSPACE").touch()
    (folder / "BUILD").write_text(BUILD)
    flags.write(folder, url, events.encode_credentials_folder(credentials))
    start = (str(bazel), f"--output_user_root={folder / 'output'}", f"--bazelrc={folder / 'bazelrc'}")
    try:
        more = ("--remote_retries=0", "--color=no", "--curses=no")
        return subprocess.run((*start, "build", *more, ":all"), cwd=folder, capture_output=True, text=True, check=False)
    finally:
        subprocess.run((*start, "shutdown"), cwd=folder, capture_output=True, check=False)
        for path in (folder / "output").rglob("*"):  # Bazel leaves folders that nobody may write to
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)


def test_actions_run_on_the_workers_over_tls_but_for_one_that_may_not(pool: Pool, bazel: Path, tmp_path: Path) -> None:
    url = f"grpcs://{pool.tls}/{remote_execution.INSTANCE}"
    ended = build(bazel, tmp_path / "a", url, pool.folder / "anonymous")
    assert ended.returncode == 0, ended.stderr
    assert f"{ACTIONS + 1} remote" in ended.stderr
    assert (tmp_path / "a" / "bazel-bin" / "a").read_text().splitlines() == ["0", "1", "2", "3", "here"]


def test_a_server_with_a_certificate_of_another_authority_is_refused(pool: Pool, bazel: Path, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    shutil.copy(pool.folder / "credentials" / "other.pem", credentials / "ca.pem")
    ended = build(bazel, tmp_path / "a", f"grpcs://{pool.tls}/{remote_execution.INSTANCE}", credentials)
    assert ended.returncode != 0
    assert "certificate" in ended.stderr.lower(), ended.stderr
    assert not (tmp_path / "a" / "bazel-bin" / "a").exists()
