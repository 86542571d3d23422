"""The network that scripts see, and a shell where one runs."""

from __future__ import annotations

import select
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.recipe.feedstock import Feedstock
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import ConfigState
from kiln.state.store.layout import ArtifactLayout
from tests.integration.matrix.helpers import CPU_311, kiln, packages, replace, states, usable, words
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled

SEES = 'echo "{} sees $(ls /sys/class/net | tr "\\n" " ")"\n'


@pytest.fixture
def printing(small: Path) -> Path:
    """The small feedstock, whose scripts print the networks that they see."""
    replace(small, "build.sh", "mkdir", f"{SEES.format('compile')}mkdir")
    replace(small, "install-app.sh", "mkdir", f"{SEES.format('small')}mkdir")
    replace(small, "check.sh", "test ", f"{SEES.format('test')}test ")
    return small


def seen(root: Path) -> dict[str, set[str]]:
    """The networks that each script of the last run saw."""
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        report = ledger.run_report()
    assert report is not None
    log = report.configs[0].log
    assert log is not None
    lines = [line.split()[2:] for line in log.read_text().splitlines() if " sees " in line]
    return {words[0]: set(words[2:]) for words in lines if words[0] != "+"}


@pytest.mark.parametrize("where", ["docker", pytest.param("podman", marks=pytest.mark.sampled)])
def test_of_the_scripts_only_those_reach_the_network_that_the_recipe_grants_it(printing: Path, where: str) -> None:
    replace(printing, "meta.yaml", "extra:\n", "extra:\n  network:\n    - compile\n")
    ended = kiln(printing, CPU_311, "--container", usable(where))
    assert ended.returncode == 0, ended.stderr
    networks = seen(printing)
    assert len(networks.pop("compile")) > 1
    assert networks == {"small": {"lo"}, "test": {"lo"}}


def test_all_scripts_have_the_network_on_request(printing: Path) -> None:
    replace(printing, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    ended = kiln(printing, CPU_311, "--container", usable("docker"), "--network", "always")
    assert ended.returncode == 0, ended.stderr
    assert {name: len(networks) > 1 for name, networks in seen(printing).items()} == dict.fromkeys(
        ("compile", "small", "test"), True
    )


def test_a_script_that_fails_without_network_has_a_hint_to_grant_it(printing: Path) -> None:
    replace(printing, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    fails = "echo >/dev/tcp/192.0.2.1/9 || exit 9\n"
    replace(printing, "install-app.sh", "mkdir", f"{fails}mkdir")
    ended = kiln(printing, CPU_311, "--container", usable("docker"))
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert states(printing) == {CPU_311: ConfigState.FAILED}
    assert "grant it in the recipe (extra: network: [build small]), or --network always" in ended.stderr


def test_a_compile_without_network_is_reported_even_with_a_known_cause(printing: Path) -> None:
    """Bazel's words for an address that it cannot look up stand in the table of causes, with a hint of their own."""
    replace(printing, "meta.yaml", "extra:\n", "extra:\n  network: nothing\n")
    fails = "echo 'class java.net.UnknownHostException Unknown host: example.org'; exit 9\n"
    replace(printing, "build.sh", "mkdir", f"{fails}mkdir")
    ended = kiln(printing, CPU_311, "--container", usable("docker"))
    assert ended.returncode == BuildFailed.exit_code, ended.stderr
    assert "download failed" in ended.stderr
    assert "grant it in the recipe (extra: network: [compile]), or --network always" in ended.stderr


# pty.spawn stands between this test and a terminal, and hands the exit code on.
AT_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def debug(root: Path, where: str, lines: str, *more: str) -> subprocess.CompletedProcess[str]:
    argv = words(root, CPU_311, "--container", where, "--debug", *more)
    return subprocess.run(argv, input=lines, text=True, capture_output=True, check=False, timeout=CEILING)


@pytest.mark.parametrize("where", ["none", "docker"])
def test_an_outputs_script_runs_by_hand_with_what_was_compiled(small: Path, where: str) -> None:
    lines = """
        test -x conda_build.sh && echo "in the work folder of $PKG_NAME, $BUILD_WITH_CONDA_DEBUG $BUILD_OUTPUT_ID"
        cat "$SRC_DIR/dist/small.txt"
        ./conda_build.sh >/dev/null 2>&1 && "$PREFIX/bin/small"
        exit 7
    """
    ended = debug(small, usable(where), lines, "--output-id", "small-1.2-*")
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines()[-3:] == [
        "in the work folder of small, 1 small-1.2-*",
        "compiled for CUDA None with a patched greeting",
        "compiled for CUDA None with a patched greeting, python 3.11",
    ]
    assert "run the script with ./conda_build.sh" in ended.stdout
    assert "- build libsmall" in ended.stderr
    assert packages(small) == set()
    assert ArtifactLayout.for_feedstock(Feedstock(root=small)).work_folder(CPU_311).is_dir(), (
        "the compile stays for the build"
    )


def test_an_unknown_output_is_refused_with_the_valid_ones(small: Path) -> None:
    ended = debug(small, "none", "", "--output-id", "smal")
    assert ended.returncode == 2
    assert "no output matches 'smal'" in ended.stderr
    assert "did you mean 'small'" in ended.stderr
    several = debug(small, "none", "", "--output-id", "*small*")
    assert "2 outputs match '*small*'" in several.stderr


@pytest.mark.parametrize("where", ["none", "docker"])
def test_the_terminal_is_handed_over(small: Path, where: str) -> None:
    """Ctrl-C ends what runs in the shell, not the shell and not kiln."""
    argv = (sys.executable, "-c", AT_A_TERMINAL, *words(small, CPU_311, "--container", usable(where), "--debug"))
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process,
        killed_if_it_fails(process),
    ):
        assert process.stdin is not None

        def type_in(text: str) -> None:
            assert process.stdin is not None
            process.stdin.write(text.encode())

        read_until(process, "[debug compile] $ ")
        type_in("test -t 0 && sh -c 'cat greeting.txt; echo g\"\"o; exec sleep 1000'\n")  # one job, in front by then
        assert "a patched greeting" in read_until(process, "go\r\n")
        read_until(process, "[debug compile] $ ", nudge=lambda: type_in("\x03"))
        type_in("exit 5\n")
        process.stdin.close()
        read_until(process, None)
    assert process.returncode == 5


@contextmanager
def killed_if_it_fails(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process when the block fails: at a prompt it would wait for ever; its terminal goes, and what is at it."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def read_until(process: subprocess.Popen[bytes], text: str | None, *, nudge: Callable[[], None] = lambda: None) -> str:
    """Read from a terminal until a text comes, or to its end; ``nudge`` it before, and whenever it says nothing."""
    assert process.stdout is not None
    said, until = "", time.monotonic() + CEILING
    nudge()
    while text is None or text not in said:
        if not select.select([process.stdout], [], [], 2)[0]:
            assert time.monotonic() < until, f"never said {text!r}, but {said}"
            nudge()
            continue
        chunk = process.stdout.read(4096)
        if not chunk:
            assert text is None, f"never said {text!r}, but {said}"
            break
        said += chunk.decode("utf-8", "replace")
    return said
