"""An engine for the fleet's pool that runs actions: BuildGrid, PostgreSQL and the worker of `tests.remote_execution`.

One root file system is both images of the pool: Debian's compiler, with which actions run, and under /opt the engine.
Another has what `tests.small_tensorflow` compiles with, for the workers that build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.build.bazel import events
from kiln.container.engine import choose_engine
from kiln.image import apt
from kiln.image import worker as image_worker
from tests import bazel_tls, remote_execution, shared_inputs, small_tensorflow
from tests.remote_execution import flags

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

HERE = Path(__file__).parent
IMAGE = "localhost/kiln-pool:test"
PROPERTIES = {"container-image": f"docker://{IMAGE}", "OSFamily": "Linux"}
# Of the image with Bazel, what no action uses: Java, Bazel, the newer compiler, kiln's engine.
LEFT_OUT = (
    *(
        "dev",
        "proc",
        "sys",
        "tmp",
        "home",
        "opt",
        "var",
        "etc/passwd",
        "usr/lib/jvm",
        "usr/lib/git-core",
    ),
    *("usr/lib/bazel", "usr/lib/file", "usr/libexec/*-linux-gnu/bazel", "usr/include/c++/14"),
    *(f"usr/{place}/gcc/x86_64-linux-gnu/14" for place in ("lib", "libexec")),
    *("usr/libexec/gcc/x86_64-linux-gnu/13/lto1", "usr/bin/*lto-dump*", "usr/bin/bazel*"),
    *(f"usr/bin/{name}" for name in ("cmake", "ctest", "cpack", "git", "git-*", "nodejs")),
    *(
        f"usr/lib/x86_64-linux-gnu/lib{name}.*"
        for name in ("asan", "tsan", "lsan", "ubsan", "hwasan", "grpc*", "gfortran")
    ),
    *(f"usr/share/{name}" for name in ("bazel", "java", "maven-repo", "doc", "perl", "perl5", "cmake-*", "nodejs")),
)
USER = "pool:x:65532:65532::/tmp:/bin/sh\n"
POSTGRESQL = Path("/usr/lib/postgresql")
# Of the host's libraries, those that every process has only once, and the image has itself.
LIBC = ("libc.so", "libm.so", "libdl.so", "libpthread.so", "librt.so", "ld-linux", "linux-vdso", "libresolv.so")


def variables(archive: Path, *, actions: int = 1) -> dict[str, object]:
    """Make the archive of the pool's images, and return the variables that make it the fleet's pool."""
    root_file_system(archive)
    return {
        "kiln_pool_properties": PROPERTIES,
        "kiln_pool_server_image": IMAGE,
        "kiln_pool_server_archive": str(archive),
        "kiln_pool_archive": str(archive),
        "kiln_pool_server_settings": str(HERE / "pool-server.yml.j2"),
        "kiln_pool_worker_settings": str(HERE / "pool-worker.json.j2"),
        "kiln_pool_server_arguments": ["/opt/pool.py", "server", "/etc/kiln-pool/pool-server.yml"],
        "kiln_pool_program": "/opt/pool.py",
        "kiln_pool_arguments": ["worker", "/etc/kiln-pool/pool-worker.json"],
        "kiln_pool_actions": actions,
        "kiln_pool_size": 1,
    }


def root_file_system(archive: Path) -> None:
    """Write the root file system of the pool's server and workers."""
    excluded = [f"--exclude=./{name}" for name in LEFT_OUT]
    words = ("docker", "run", "--rm", small_tensorflow.IMAGE, "tar", "--create", "--directory=/", *excluded, ".")
    with archive.open("wb") as file:
        subprocess.run(words, stdout=file, check=True)
    passwd = subprocess.run(
        ("docker", "run", "--rm", small_tensorflow.IMAGE, "cat", "/etc/passwd"), check=True, capture_output=True
    ).stdout
    with tarfile.open(archive, "a") as packed:
        for name in ("dev", "proc", "sys", "tmp", "var", "var/tmp", "etc/kiln-pool", "data"):
            folder = tarfile.TarInfo(f"./{name}")
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
            packed.addfile(folder)
        _add_text(packed, "etc/passwd", passwd.decode() + USER)
        for script in ("pool.py", "worker.py"):
            _add_text(packed, f"opt/{script}", (HERE / script).read_text(), mode=0o755)
        packed.add(remote_execution.packages(), "./opt/buildgrid", filter=_without_bytecode)
        _add_postgresql(packed)


def _add_postgresql(packed: tarfile.TarFile) -> None:
    """Add this machine's PostgreSQL, at its own paths, with the libraries that it is linked with."""
    home = max(POSTGRESQL.iterdir(), key=lambda path: int(path.name))
    packed.add(home, f".{home}", filter=_without_bytecode)
    share = Path("/usr/share/postgresql", home.name)
    packed.add(share, f".{share}")
    programs = [str(home / "bin" / name) for name in ("initdb", "postgres", "pg_ctl", "pg_isready")]
    linked = subprocess.run(("ldd", *programs), check=True, capture_output=True, text=True).stdout.split()
    for file in sorted({word for word in linked if word.startswith("/") and not word.endswith(":")}):
        if not Path(file).name.startswith(LIBC):
            packed.add(Path(file).resolve(), f"./opt/libraries/{Path(file).name}")


def _add_text(packed: tarfile.TarFile, name: str, text: str, mode: int = 0o644) -> None:
    file = Path(packed.name).with_suffix(".part")  # type: ignore[arg-type]
    file.write_text(text)
    file.chmod(mode)
    packed.add(file, f"./{name}")
    file.unlink()


def _without_bytecode(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if {"__pycache__", "bitcode"} & set(Path(member.name).parts) else member


@contextmanager
def build_image(archive: Path) -> Iterator[dict[str, str]]:
    """Write the image of the workers that build: the small workspace's, with its downloads and TLS in its Bazel.

    The value is an item of the playbooks' variable ``kiln_images``.
    """
    name = f"kiln-pool-image-{archive.parent.name}"
    subprocess.run(("docker", "create", "--name", name, small_tensorflow.IMAGE), check=True, capture_output=True)
    try:
        for source, target in (
            (bazel_tls.server_jar(), "/usr/share/bazel/A-server.jar"),
            (small_tensorflow.STORE / "downloads", "/opt/downloads"),
        ):
            subprocess.run(("docker", "cp", str(source), f"{name}:{target}"), check=True, capture_output=True)
        subprocess.run(("docker", "export", "--output", str(archive), name), check=True)
        yield {"archive": str(archive), "tag": small_tensorflow.IMAGE}
    finally:
        subprocess.run(("docker", "rm", "--force", name), check=True, capture_output=True)


def require() -> None:
    """Have the image with Bazel; skip the test where a part of the engine is missing."""
    if reason := remote_execution.missing():
        pytest.skip(reason)
    if not apt.sources_list_lines("trixie", env=os.environ):
        pytest.skip("this machine's apt knows no mirror of Debian")
    engine = choose_engine("docker", env=os.environ).engine
    assert engine is not None
    recipe = image_worker.base_image_recipe("trixie", (*small_tensorflow.BAZEL, *small_tensorflow.FINDERS))
    shared_inputs.provide_image(engine, recipe, small_tensorflow.IMAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A build's end: what Bazel printed, and the name of the machine that each action ran on."""

    built: bool
    log: str
    workers: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Bazel in a container, whose builds have one kind of actions: they wait, and write the name of their machine."""

    name: str
    address: str
    server: str
    folder: Path
    thread: ThreadPoolExecutor

    def start(self, name: str, credentials: Path, *, actions: int, seconds: int) -> Future[Result]:
        """Start a build of new actions, with the flags that the recipe's script makes."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        (folder / "WORKSPACE").touch()
        command = f"echo {name} %d >/dev/null; sleep {seconds}; hostname >$@"
        rules = f'[genrule(name = "a%d" % n, outs = ["%d" % n], cmd = "{command}" % n) for n in range({actions})]\n'
        (folder / "BUILD").write_text(rules)
        flags.write(folder, f"grpcs://{self.server}", events.encode_credentials_folder(credentials))
        return self.thread.submit(self._build, folder)

    def _build(self, folder: Path) -> Result:
        output = "--output_user_root=/tmp/output"
        retries = "--remote_retries=20" if folder.name != "refused" else "--remote_retries=0"
        script = f"bazel {output} --bazelrc={folder}/bazelrc build {retries} --color=no --curses=no :all"
        words = ("docker", "exec", "--workdir", str(folder), self.name, "sh", "-c", f"{script} 2>&1")
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        words = ("docker", "exec", "--workdir", str(folder), self.name, "sh", "-c", "cat bazel-bin/[0-9]*")
        workers = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
        return Result(built=ended.returncode == 0, log=ended.stdout, workers=workers)


@contextmanager
def client(server: str, folder: Path) -> Iterator[Client]:
    """Run a container with Bazel on the network of the workers."""
    name = f"kiln-pool-client-{os.getpid()}"
    mounts = {bazel_tls.server_jar(): "/usr/share/bazel/A-server.jar:ro", folder: str(folder)}
    volumes = [word for source, target in mounts.items() for word in ("--volume", f"{source}:{target}")]
    words = ("docker", "run", "--detach", "--rm", "--init", "--name", name, *volumes, small_tensorflow.IMAGE)
    subprocess.run((*words, "sleep", "infinity"), check=True, capture_output=True)
    try:
        shown = ("docker", "inspect", "--format", "{{.NetworkSettings.IPAddress}}", name)
        address = subprocess.run(shown, check=True, capture_output=True, text=True).stdout.strip()
        with ThreadPoolExecutor(1) as thread:
            yield Client(name=name, address=address, server=server, folder=folder, thread=thread)
    finally:
        subprocess.run(("docker", "rm", "--force", name), check=False, capture_output=True)


def strangers(credentials: Path, folder: Path) -> Iterator[Path]:
    """Make credentials that a pool refuses: without a certificate, and with one that another authority has signed."""
    anonymous, foreign = folder / "anonymous", folder / "foreign"
    anonymous.mkdir()
    shutil.copy(credentials / "ca.pem", anonymous)
    yield anonymous
    foreign.mkdir()
    remote_execution.authority(foreign, "other")
    remote_execution.certificate(foreign, "other", "client", "127.0.0.1")
    for name in ("other.pem", "other.key"):
        (foreign / name).unlink()
    shutil.copy(credentials / "ca.pem", foreign)
    yield foreign


def kill_in_action(worker: str, container: str = "", *, server: str = "", seconds: float = 60) -> None:
    """Kill a worker's container, or the server's, while the worker runs an action."""
    look = "ps -u 65532 -o comm= | grep --quiet --invert-match -e python3 -e docker-init"
    until = time.monotonic() + seconds
    while subprocess.run(("docker", "exec", worker, "sh", "-c", look), capture_output=True, check=False).returncode:
        assert time.monotonic() < until, "no action has run"
    machine, victim = (server, "kiln-cache") if server else (worker, container)
    subprocess.run(("docker", "exec", machine, "docker", "kill", victim), check=True, capture_output=True)
