"""A command imports no module that it does not need, and compiles no expression for others, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Runs a command, and prints the modules that it imported, then the expressions that modules of kiln compiled on import.
OBSERVED = """
import atexit, re, sys
compile_now, compiled = re.compile, []
def noted(pattern, flags=0):
    caller = sys._getframe(1)
    if caller.f_code.co_name == "<module>" and caller.f_globals["__name__"].startswith("kiln."):
        compiled.append(pattern)
    return compile_now(pattern, flags)
re.compile = noted
atexit.register(lambda: print(*sys.modules, repr(compiled), sep="\\n", file=sys.__stderr__))
if "--in-one-process" in sys.argv:
    from kiln.base.limits.errors import BoundedRunState
    BoundedRunState.inside = True
    sys.argv.remove("--in-one-process")
from kiln.__main__ import main
main(sys.argv[1:])
"""
CONFIG = next((ROOT / ".ci_support").glob("*.yaml")).stem
FEEDSTOCK = ("-C", str(ROOT))
# What a waiting process would copy for the one that it waits for, and what takes long.
OF_THE_WORK = {
    "yaml",
    "jinja2",
    "shutil",
    "hashlib",
    "difflib",
    "traceback",
    "kiln.feedstock.matrix",
    "kiln.recipe.v0.recipe",
}
OF_V1 = {
    "kiln.recipe.v1.recipe",
    "kiln.recipe.v1.sections",
    "kiln.recipe.v1.rendering",
}
OF_THE_MATRIX = {"kiln.feedstock.matrix", "kiln.feedstock.pinning", "kiln.feedstock.collapse"}
OF_OTHERS = {"shutil", "json", "kiln.base.masked_stream", "kiln.cli.options", "kiln.cli.runs"} | (
    {"dataclasses", "inspect"} if sys.version_info < (3, 14) else set()  # argparse's colors need these
)


def name_of(value: object) -> str:
    return " ".join(value).replace(str(ROOT), "ROOT").replace(CONFIG, "CONFIG") if isinstance(value, list) else ""


@pytest.mark.parametrize(
    ("words", "unneeded"),
    [
        (["--version"], {"textwrap", "kiln.cli.arguments", *OF_OTHERS}),
        (["--help"], {"kiln.cli.arguments", *OF_OTHERS}),
        (["build", "--help"], OF_OTHERS),
        ([*FEEDSTOCK, "matrix", "--no-pinning"], OF_THE_WORK),
        ([*FEEDSTOCK, "render", CONFIG], OF_THE_WORK),
        # it looks for pipes and devices among the files before a process comes under limits
        ([*FEEDSTOCK, "rerender", "--check", "--no-pinning"], OF_THE_WORK - {"hashlib", "shutil"}),
        (
            ["--in-one-process", *FEEDSTOCK, "matrix"],
            {"kiln.feedstock.rerender", "kiln.recipe.rendered", *OF_V1},
        ),
        (
            ["--in-one-process", *FEEDSTOCK, "render", CONFIG],
            {"kiln.feedstock.rerender", *OF_THE_MATRIX, *OF_V1},
        ),
        (
            ["--in-one-process", *FEEDSTOCK, "rerender", "--check"],
            {"kiln.recipe.rendered", *OF_V1},
        ),
    ],
    ids=name_of,
)
def test_a_command_imports_and_compiles_only_what_it_needs(words: list[str], unneeded: set[str]) -> None:
    process = subprocess.run((sys.executable, "-c", OBSERVED, *words), text=True, capture_output=True, check=False)
    *modules, compiled = process.stderr.splitlines()
    assert "kiln.cli.main" in modules
    assert not {*unneeded, "subprocess", "selectors"}.intersection(modules)
    assert compiled == "[]"


def test_the_script_of_this_repository_starts_its_own_kiln() -> None:
    argv = (sys.executable, str(ROOT / "build-locally.py"), "--help")
    ended = subprocess.run(argv, cwd=ROOT.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage: build-locally.py ")
