"""Secrets of a careless recipe, printed in all their forms and looked for in all that a run leaves, says and starts."""

from __future__ import annotations

import base64
import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest

from kiln.base.errors import DownloadFailed, SecretInPackage, TestsFailed, TokenRefused
from kiln.conda import package_reader
from tests import planted, warm, written
from tests.integration.matrix.helpers import CPU_311, ROOT, SMALL, kiln, usable

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

pytestmark = pytest.mark.slow("a feedstock is built with a secret in every form")

CARELESS = ROOT / "tests" / "fixtures" / "careless"
HANDED = {**planted.SECRETS, **planted.ONE_LETTER}
PASSWORD, TOKEN = "pw-Zq81xK", "tok-Zq81xK"


@pytest.fixture(
    params=[
        "none",
        pytest.param("docker", marks=pytest.mark.sampled),
        pytest.param("podman", marks=pytest.mark.sampled),
    ]
)
def where(request: pytest.FixtureRequest) -> str:
    return usable(request.param)


@pytest.fixture
def careless(tmp_path: Path) -> Path:
    """A feedstock whose scripts, those of tests too, print what they are handed in every form that they know."""
    root = shutil.copytree(CARELESS, tmp_path / "careless-feedstock")
    shutil.copy(written.__file__, root / "recipe" / "written.py")
    (tmp_path / "home").mkdir()
    return root


def left(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, and every file in a package."""
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.is_symlink():
            yield str(file), file.read_bytes()
            if file.suffix == ".conda":
                with package_reader.open_package_members(file) as members:
                    for member, content in members:
                        yield f"{file}: {member.name}", content.read() if content else b""


def found(*places: tuple[str, bytes]) -> dict[str, list[str]]:
    """Return the places with secrets, and the forms of these."""
    return {name: forms for name, data in places if (forms := planted.found(data))}


@contextmanager
def processes(seen: set[bytes]) -> Iterator[None]:
    """Look at the command lines of all processes again and again."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            for process in Path("/proc").glob("[0-9]*"):  # nothing below it, which glob would look up unguarded
                try:
                    seen.add((process / "cmdline").read_bytes())
                except OSError:
                    continue  # it has ended

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def built(root: Path, where: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the careless recipe, and see that nothing of it is anywhere; the run's log is one of its files."""
    home = root.parent / "home"
    seen: set[bytes] = set()
    with processes(seen):
        ended = kiln(root, "linux_64_", "--container", where, *more, **HANDED, **variables, HOME=str(home))
    said = (("standard output", ended.stdout.encode()), ("standard error", ended.stderr.encode()))
    assert found(*said, *left(root), *left(home), ("processes", b"\n".join(seen))) == {}, ended.stderr
    assert any(str(root).encode() in line for line in seen), "the processes of the run were seen"
    return ended


def log_of(root: Path) -> str:
    (file,) = (root / "build_artifacts" / "logs").rglob("linux_64_.log")
    return file.read_text()


def test_a_secret_in_any_form_is_found_where_nothing_masks(careless: Path) -> None:
    """The search of the tests below finds each secret where it is not masked."""
    script = ("bash", "-c", "PREFIX=$PWD/prefix RECIPE_DIR=$PWD/recipe bash recipe/tell.sh")
    told = subprocess.run(script, cwd=careless, env={**os.environ, **HANDED}, capture_output=True, check=True)
    forms = planted.found(told.stdout + told.stderr)
    assert {form.partition(" as ")[0] for form in forms} == set(planted.SECRETS)
    assert len({form.partition(" as ")[2] for form in forms}) >= 20


def test_nothing_that_a_run_leaves_holds_a_secret(careless: Path, where: str) -> None:
    """Log, ledger, packages, caches, messages, JSON, page and processes; its scripts print secrets in every form."""
    ended = built(careless, where, "--json")
    assert ended.returncode == 0, ended.stderr
    json.loads(ended.stdout)
    log = log_of(careless)
    for name in planted.SECRETS:
        assert log.count(f"{name} as raw: <<***") == 3, "the compile, the build and the test have printed it"
    assert "PLANTED_LETTER as raw: <<k>>" in log, "a letter is not masked, nor does it tear others to pieces"
    assert "the value of PLANTED_LETTER is too short to be masked" in ended.stderr
    page = warm.kiln("-C", str(careless), "report", check=True)
    assert found(("what report says", (page.stdout + page.stderr).encode()), *left(careless)) == {}


@pytest.mark.parametrize("step", ["FAIL_BUILD", "FAIL_TEST"])
def test_nothing_that_a_failed_run_leaves_holds_a_secret(careless: Path, where: str, step: str) -> None:
    """The folders of what failed stay, with the engine's own log of the script in it."""
    ended = built(careless, where, "--keep-failed", **{step: "yes"})
    assert ended.returncode == (TestsFailed.exit_code if step == "FAIL_TEST" else 17), ended.stderr
    assert (careless / "build_artifacts" / "work" / "linux_64_").is_dir()


def test_a_package_that_holds_a_secret_is_refused(careless: Path) -> None:
    ended = built(careless, "none", LEAK="yes")
    assert ended.returncode == SecretInPackage.exit_code, ended.stderr
    report = warm.kiln("-C", str(careless), "report", "--json", check=True)
    assert "PLANTED_QUOTED in share/careless/leak" in log_of(careless) + ended.stderr + report.stdout
    assert not list(careless.rglob("careless-*.conda"))


@contextmanager
def server(folder: Path, *, leads_to: str = "") -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """A channel that wants a password or a token; yields its address, and the requests with their credentials."""
    asked: list[tuple[str, str | None]] = []
    expected = f"Basic {base64.b64encode(f'user:{PASSWORD}'.encode()).decode()}"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self) -> io.BytesIO | BinaryIO | None:
            asked.append((self.path, self.headers.get("Authorization")))
            if self.path.startswith(f"/t/{TOKEN}/"):
                self.path = self.path.removeprefix(f"/t/{TOKEN}")
            elif self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return None
            if leads_to:
                self.send_response(302)
                self.send_header("Location", f"{leads_to}{self.path}")
                self.end_headers()
                return None
            return super().send_head()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{httpd.server_port}", asked
        httpd.shutdown()


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel with the small feedstock's packages and their records."""
    folder = tmp_path_factory.mktemp("channel")
    root = shutil.copytree(SMALL, folder / "small-feedstock")
    assert kiln(root, CPU_311, "--container", "none").returncode == 0
    published = command(folder, "-C", str(root), "publish", "--to", str(folder / "served"), "--partial", "*")
    shutil.copytree(root / "build_artifacts", folder / "served", dirs_exist_ok=True) if published.returncode else None
    return folder / "served"


def command(home: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run kiln with caches of its own."""
    return warm.kiln(*more, env=own_caches(home))


def own_caches(home: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}


def places(host: str, *, password: str = PASSWORD, token: str = TOKEN) -> tuple[str, str]:
    return f"http://user:{password}@{host}", f"http://{host}/t/{token}"


def holding(folder: Path, *secrets: str) -> list[str]:
    """Return the files in which a text stands."""
    return [name for name, data in left(folder) for secret in secrets if secret.encode() in data]


@pytest.mark.parametrize("kind", [0, 1], ids=["password", "token"])
def test_install_opens_a_channel_and_writes_its_credentials_nowhere(channel: Path, tmp_path: Path, kind: int) -> None:
    package = next(channel.glob("*/*.conda")).name.rsplit("-", 2)[0]
    with server(channel) as (host, asked):
        url = places(host)[kind]
        ended = command(tmp_path, "install", package, "--from", url, "--prefix", str(tmp_path / "prefix"), "--json")
    assert ended.returncode == 0, ended.stderr
    assert any(path.endswith(".conda") for path, _ in asked)
    assert list((tmp_path / "prefix" / "conda-meta").glob("*.json"))
    assert holding(tmp_path, PASSWORD, TOKEN) == []
    assert not [secret for secret in (PASSWORD, TOKEN) if secret in ended.stdout + ended.stderr]


@pytest.mark.parametrize("kind", [0, 1], ids=["password", "token"])
def test_a_refused_install_prints_no_credentials(channel: Path, tmp_path: Path, kind: int) -> None:
    with server(channel) as (host, _):
        url = places(host, password="pw-wrong-77", token="tok-wrong-77")[kind]
        ended = command(tmp_path, "install", "x", "--from", url, "--prefix", str(tmp_path / "prefix"))
    assert ended.returncode == DownloadFailed.exit_code, ended.stderr
    assert "wrong-77" not in ended.stdout + ended.stderr
    assert holding(tmp_path, "wrong-77") == []


def test_credentials_go_to_no_other_server(channel: Path, tmp_path: Path) -> None:
    """Neither by rattler nor by what reads records; what is open to everybody may be fetched there."""
    package = next(channel.glob("*/*.conda"))
    with server(channel) as (other, elsewhere), server(channel, leads_to=f"http://{other}") as (host, asked):
        url = places(host)[0]
        command(tmp_path, "install", package.name.rsplit("-", 2)[0], "--from", url, "--prefix", str(tmp_path / "p"))
        verified = command(tmp_path, "verify", str(package), "--channel", url)
    assert asked
    assert [value for _, value in elsewhere if value] == []
    assert verified.returncode == DownloadFailed.exit_code, verified.stderr
    assert "leads to another server" in verified.stderr
    assert PASSWORD not in verified.stderr


@pytest.mark.parametrize("kind", [0, 1], ids=["password", "token"])
def test_verify_opens_a_channel(channel: Path, tmp_path: Path, kind: int) -> None:
    package = next(channel.glob("*/*.conda"))
    with server(channel) as (host, asked):
        ended = command(tmp_path, "verify", str(package), "--channel", places(host)[kind])
        refused = command(tmp_path, "verify", str(package), "--channel", places(host, password="no", token="no")[kind])
    assert [path for path, _ in asked if path.endswith(f"{package.name}.intoto.json")]
    assert "401" not in ended.stderr
    assert PASSWORD not in ended.stderr + ended.stdout
    assert refused.returncode == TokenRefused.exit_code, refused.stderr


def test_a_build_opens_a_channel_and_writes_its_credentials_nowhere(channel: Path, tmp_path: Path) -> None:
    package = next(channel.glob("*/*.conda")).name.rsplit("-", 2)[0]
    root = tmp_path / "user-feedstock"
    with server(channel) as (host, asked):
        for name, text in {
            "recipe/meta.yaml": USER.format(package=package),
            ".ci_support/linux_64_.yaml": f"channel_sources:\n- {places(host)[0]}\ntarget_platform:\n- linux-64\n",
        }.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        ended = kiln(root, "linux_64_", "--container", "none", HOME=str(tmp_path))
    assert ended.returncode == 0, ended.stderr
    assert any(path.endswith(".conda") for path, _ in asked)
    assert holding(root / "build_artifacts", PASSWORD) == []
    assert PASSWORD not in ended.stderr


USER = """
package:
  name: user
  version: "1"
build:
  script:
    - mkdir -p $PREFIX/share
    - echo user > $PREFIX/share/user
requirements:
  host:
    - {package}
  run:
    - {package}
test:
  commands:
    - test -e $PREFIX/share/user
"""


def test_the_list_of_processes_shows_no_credentials_of_a_command_line(channel: Path, tmp_path: Path) -> None:
    """Of the words that somebody typed, those with credentials are overwritten once they are read."""
    seen: set[bytes] = set()
    with server(channel) as (host, _), processes(seen):
        words = ("install", "x", "--from", places(host)[0], "--prefix", str(tmp_path / "p"))
        subprocess.run((sys.executable, "-m", "kiln", *words), cwd=ROOT, env=own_caches(tmp_path), check=False)
    assert any(f"http://***@{host}".encode() in line for line in seen)


@pytest.mark.parametrize("word", ["--mirror", "--remote-cache"])
def test_usage_errors_print_no_credentials(careless: Path, word: str) -> None:
    ended = kiln(careless, "linux_64_", word, f"ftp://user:{PASSWORD}@host")
    assert ended.returncode == 2
    assert PASSWORD not in ended.stderr
