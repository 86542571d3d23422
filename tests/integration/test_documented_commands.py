"""Every command of the pages that a new user follows runs, in order, from an empty folder, as the pages say."""

from __future__ import annotations

import contextlib
import http.server
import os
import re
import shlex
import subprocess
import sys
import tarfile
import threading
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.environment import base_python
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

pytestmark = pytest.mark.slow("kiln is installed by pip, and a feedstock is made, built, published and installed")

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(?P<kind>sh|yaml)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands that a test cannot run, each with the reason; `test_no_command_is_left_out_without_need` keeps them few.
NOT_RUN = {
    "kiln build --all": "it pulls conda-forge's image",
}
USER, PASSWORD, TOKEN = "reader", "pass-word-1", "token-of-a-reader"


def commands_of(page: str, *, first: str = "", last: str = "") -> list[str]:
    """Return the commands of a page's blocks of shell, and its blocks of YAML as ``yaml:TEXT``, in order."""
    text = (DOCS / page).read_text(encoding="utf-8")
    text = text[text.index(first) :] if first else text
    text = text[: text.index(last)] if last else text
    found: list[str] = []
    for block in BLOCK.finditer(text):
        if block["kind"] == "yaml":
            found.append(f"yaml:{block['text']}")
        else:
            found += [line.partition("  #")[0].rstrip() for line in block["text"].splitlines() if line.strip()]
    return found


class Shell:
    """A user's shell in an empty home; what is written in capitals on a page is replaced."""

    def __init__(self, home: Path, values: Mapping[str, str]) -> None:
        self.home, self.values = home, values
        home.mkdir()
        identity = "[user]\n  name = Jane\n  email = jane@example.org\n[init]\n  defaultBranch = main\n"
        (home / ".gitconfig").write_text(identity)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.env = {**kept, "HOME": str(home), "PATH": f"{base_python().parent}:{os.environ['PATH']}"}

    def run(
        self, commands: Sequence[str], *, prepare: Sequence[str] = (), codes: Mapping[str, int] | None = None
    ) -> str:
        """Run commands in one shell, each of which must end with 0, or with its own of ``codes``; return the output."""
        lines = ["cd", *prepare]
        run = [command for command in commands if command not in NOT_RUN]
        for number, command in enumerate(run):
            given = command
            for old, new in self.values.items():
                given = given.replace(old, new)
            lines += [given, f"code=$?; echo; echo '@@' {number} $code; (exit $code)"]
        script = self.home.with_suffix(".sh")
        script.write_text("\n".join(lines))
        argv = ("bash", "--norc", "-O", "expand_aliases", str(script))
        ended = subprocess.run(
            argv,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=4 * CEILING,  # the whole tutorial
        )
        marks = dict(re.findall(r"^@@ (\d+) (\d+)$", ended.stdout, re.MULTILINE))
        expected = {str(number): str((codes or {}).get(command, 0)) for number, command in enumerate(run)}
        assert marks == expected, "\n".join((*run, ended.stdout))
        return ended.stdout


def edit(file: str, old: str, new: str) -> str:
    """Return the command that edits a file as a page tells its reader to."""
    program = f"from pathlib import Path; p = Path({file!r}); t = p.read_text(); assert {old!r} in t, t; "
    return f"python3 -c {shlex.quote(program + f'p.write_text(t.replace({old!r}, {new!r}))')}"


class Guarded(http.server.SimpleHTTPRequestHandler):
    """A channel for those with a password, or with conda's token in the path."""

    root = Path()

    def do_GET(self) -> None:
        basic = f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        if not self.path.startswith(f"/t/{TOKEN}/") and self.headers.get("Authorization") != basic:
            self.send_error(401)
            return
        super().do_GET()

    do_HEAD = do_GET  # noqa: N815 - the name that the server asks for

    def translate_path(self, path: str) -> str:
        return str(self.root / path.removeprefix(f"/t/{TOKEN}/").lstrip("/").partition("?")[0])

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a channel to those who may read it; yields its address."""
    handler = type("OfFolder", (Guarded,), {"root": folder})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    subprocess.run(argv, check=True, timeout=CEILING)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def shell(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """The shell of somebody who has followed the page on new feedstocks up to its last section."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "hello").mkdir()
    program = folder / "hello" / "hello.sh"
    program.write_text('#!/bin/sh\necho "hello of upstream"\n')
    (folder / "hello" / "LICENSE.txt").write_text("BSD\n")
    with tarfile.open(folder / "hello-1.0.tar.gz", "w:gz") as archive:
        archive.add(folder / "hello", "hello-1.0")
    made = Shell(
        folder / "home",
        {
            "git+URL-OF-THIS-REPOSITORY@COMMIT": wheel.as_uri(),
            "YOUR-GITHUB-NAME": "jane",
            "https://HOST/": f"{folder.as_uri()}/",
        },
    )
    commands: list[str] = []
    for command in commands_of("how-to/new-feedstock.md", last="## From a project on PyPI"):
        if command.startswith("yaml:"):
            source = command.removeprefix("yaml:").replace("https://HOST/", f"{folder.as_uri()}/")
            lines = [line for line in source.splitlines() if line != "source:"]
            commands.append(edit("recipe/recipe.yaml", "  path: src\n", "".join(f"{line}\n" for line in lines)))
        else:
            commands.append(command)
    output = made.run(commands)
    assert "published noarch/hello-1.0-" in output
    assert output.rstrip().splitlines()[-3] == "hello of upstream"
    return made


def test_a_feedstock_of_ones_own(shell: Shell) -> None:
    (channel,) = (shell.home / "my-channel" / "noarch").glob("hello-1.0-*.conda")
    assert (shell.home / "hello" / "conda-meta" / f"{channel.stem}.json").is_file()


ENTER = ('export PATH=~/kiln/bin:"$PATH"', "cd hello-feedstock")


def test_from_pypi_and_in_a_checkout_that_exists(shell: Shell) -> None:
    meta = "package:\\n  name: a\\n  version: 1\\n"
    recipe = f"mkdir -p keras-feedstock/recipe && printf '{meta}' >keras-feedstock/recipe/meta.yaml"
    commands = commands_of("how-to/new-feedstock.md", first="## From a project on PyPI")
    output = shell.run(commands, prepare=(ENTER[0], recipe))
    assert "made the feedstock in" in output
    assert "completed the feedstock in" in output


def test_secrets(shell: Shell) -> None:
    first, command, *rest = commands_of("how-to/secrets.md")
    lines = first.removeprefix("yaml:").removeprefix("build:\n")
    script = re.search(r"  script:\n(?:    - .*\n)+", (shell.home / "hello-feedstock/recipe/recipe.yaml").read_text())
    assert script
    change = edit("recipe/recipe.yaml", script[0], lines)
    output = shell.run([change, f"{command} --container none"], prepare=ENTER)
    assert "***" not in output
    assert "1 done" in output
    with serving(shell.home / "my-channel") as address:
        (package,) = (shell.home / "my-channel" / "noarch").glob("hello-1.0-*.conda")
        values = {
            "https://USER:PASSWORD@host/channel": address.replace("//", f"//{USER}:{PASSWORD}@"),
            "https://host/t/TOKEN/channel": f"{address}/t/{TOKEN}",
            "small-1.2-h123_0.conda": str(package),
            "install small ": "install hello ",
        }
        shell.values = {**shell.values, **values}
        installed = shell.run(rest, prepare=ENTER)
    assert PASSWORD not in installed
    assert (shell.home / "small" / "bin" / "hello").is_file()


def test_publish(shell: Shell) -> None:
    (package,) = (shell.home / "my-channel" / "noarch").glob("hello-1.0-*.conda")
    shell.values = {**shell.values, "CHANNEL": "~/another-channel", "small-1.2-h123_0.conda": package.name}
    shell.values = {**shell.values, "libsmall >=1.3": "hello"}
    output = shell.run(
        commands_of("how-to/publish.md"),
        prepare=(*ENTER, "git checkout --quiet . && kiln build --all --container none"),
    )
    assert f"published noarch/{package.name}" in output


@pytest.mark.sampled
@pytest.mark.slow("TensorFlow's wheels are fetched, packaged and tested")
def test_the_tutorial(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home", {"URL-OF-THIS-REPOSITORY": ROOT.as_uri()})
    commands = commands_of("tutorial/first-packages.md")
    publish = next(command for command in commands if command.startswith("kiln publish"))
    number = edit("recipe/meta.yaml", "{% set number = 0 %}", "{% set number = 1 %}")
    output = shell.run([*commands[:-1], number, commands[-1]], codes={publish: 21})
    assert "_26" in output.rpartition(publish)[2]


def test_no_command_is_left_out_without_need() -> None:
    pages = ("how-to/new-feedstock.md", "how-to/secrets.md", "how-to/publish.md", "tutorial/first-packages.md")
    there = {command for page in pages for command in commands_of(page)}
    assert set(NOT_RUN) <= there
