"""How a command starts: what it imports, on a bare Python, in a shell's completion, where Ctrl-C is ignored."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import IncompatibleVersions
from kiln.compat import machine
from tests import warm
from tests.waiting import CEILING

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


SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"


CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))


def shell(script: str) -> str:
    """Run bash with kiln's completion loaded, and ``kiln`` being this Python's."""
    prepare = f'kiln() {{ "{sys.executable}" -m kiln "$@"; }}; cd "{ROOT}"; export PYTHONPATH="{ROOT}"'
    words = ("bash", "--norc", "-c", f"{prepare}\n{script}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def completed(line: str, program: str = "kiln") -> list[str]:
    """Return what bash would offer at the end of a line."""
    asked = (
        'eval "$(kiln completion bash)"; '
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; COMP_WORDS=($COMP_LINE); "
        f"export -f kiln; _python_argcomplete {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return [word.strip() for word in shell(asked).splitlines() if word.strip()]


def test_commands_are_completed() -> None:
    assert completed("kiln re") == ["rerender", "render", "report", "rebuild"]


def test_options_of_a_command_are_completed() -> None:
    assert completed("kiln build --reb") == ["--rebuild"]


def test_configs_of_the_named_feedstock_are_completed() -> None:
    assert completed(f"kiln -C {SMALL} build linux_64_cuda_compiler_version12") == [
        name for name in CONFIGS if "12.9" in name or "version12" in name
    ]


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_have_code_of_their_own(name: str) -> None:
    assert "kiln" in warm.kiln("completion", name, check=True).stdout


# A test that interrupts a program of its own; "bare" is one without the suite's hooks.
INTERRUPTING = """
import signal, subprocess, sys

def test_it():
    code = "import sys; print(1, flush=True); sys.stdin.read()"
    program = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
    program.stdout.read(1)
    program.send_signal(signal.SIGINT)
    program.stdin.close()
    assert program.wait(60) != 0
"""


@pytest.mark.sampled
@pytest.mark.parametrize(("hooks", "passes"), [(("-p", "tests.conftest"), True), ((), False)], ids=["suite", "bare"])
def test_programs_are_interrupted_where_the_caller_ignores_it(
    hooks: tuple[str, ...], passes: bool, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(INTERRUPTING)
    ended = subprocess.run(
        (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *hooks, "--rootdir", tmp_path, tmp_path),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (ended.returncode == 0) is passes, ended.stdout + ended.stderr


# As NVIDIA's header declares them, for two GPUs; the second does not report its memory.
NVML = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static int started = 0;
int nvmlInit_v2(void) { started = 1; return %(init)d; }
int nvmlShutdown(void) { started = 0; return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "535.104.05", length); return !started; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, void **device) { *device = (void *)(0x700000000000 + at); return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
  strncpy(name, "Tesla V100-SXM2-16GB", length);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = device == (void *)0x700000000000 ? %(first)d : 7;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *found) {
  found->total = 17179869184ULL;
  return device == (void *)0x700000000000 ? 0 : 3;
}
"""


def nvml(folder: Path, *, init: int = 0, first: int = 7, name: str = "libstandin.so") -> str:
    """A library that answers as NVML does; ``first`` is the major capability of the first GPU."""
    library = folder / name
    source = NVML % {"init": init, "first": first}
    subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", library], input=source, text=True, check=True)
    return str(library)


@pytest.mark.needs("gcc")
def test_gpus_are_asked_of_nvml(tmp_path: Path) -> None:
    driver, cards = machine.driver_and_gpus_from_nvml(nvml(tmp_path))
    assert driver == "535.104.05"
    assert [(card.name, card.capability, card.memory) for card in cards] == [
        ("Tesla V100-SXM2-16GB", "7.0", 16 << 30),
        ("Tesla V100-SXM2-16GB", "7.0", 0),
    ]


@pytest.mark.needs("gcc")
def test_an_nvml_that_refuses_says_why(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nvmlInit_v2: Driver/library version mismatch \(18\)"):
        machine.driver_and_gpus_from_nvml(nvml(tmp_path, init=18))


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("overrides", "arch"),
    [
        ({"CONDA_OVERRIDE_CUDA": "12.9"}, "7.0"),
        ({"CONDA_OVERRIDE_CUDA": "12.9", "CONDA_OVERRIDE_CUDA_ARCH": "9.0"}, "9.0"),
        ({"CONDA_OVERRIDE_CUDA": ""}, None),
    ],
)
def test_of_several_gpus_solves_and_the_doctor_are_given_the_lowest_capability(
    tmp_path: Path, overrides: dict[str, str], arch: str | None
) -> None:
    nvml(tmp_path, first=9, name="libnvidia-ml.so.1")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), **overrides}
    program = (
        "import json, os; from kiln.conda.solve import machine_virtual_packages as packages;"
        "print(json.dumps(packages(os.environ)))"
    )
    solve, doctor = (
        json.loads(
            subprocess.run(
                [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            ).stdout
        )
        for words in (["-c", program], ["-m", "kiln", "doctor", "--json"])
    )
    assert [card["capability"] for card in doctor["machine"]["cards"]] == ["9.0", "7.0"]
    assert doctor["machine"]["cuda_arch"] == arch
    assert solve.get("__cuda_arch") == (None if arch is None else [arch, "0"])


def test_the_doctor_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    """A machine that is only examined has no environment: -S leaves site-packages out."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from kiln.__main__ import main; main(sys.argv[1:])"
    for words in (["--json"], ["--tf", "2.18", "--cuda", "12.5", "--gpu", "p3", "--json"], ["--error", "x", "--json"]):
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", program, "doctor", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=CEILING,
        )
        assert done.returncode in {0, IncompatibleVersions.exit_code}, done.stderr
        json.loads(done.stdout)


def test_a_config_that_cannot_work_is_refused_before_it_is_built(tmp_path: Path) -> None:
    feedstock = tmp_path / "feedstock"
    shutil.copytree(ROOT / "recipe", feedstock / "recipe", ignore=shutil.ignore_patterns("__pycache__"))
    name = "linux_64_cuda_compiler_version12.5microarch_level2python3.12.____cpython"
    config = (ROOT / ".ci_support" / f"{name}.yaml").read_text()
    (feedstock / ".ci_support").mkdir()
    (feedstock / ".ci_support" / f"{name}.yaml").write_text(config.replace("- '13'", "- '14'"))
    done = warm.kiln("-C", str(feedstock), "build", name, "--container", "none", "--dry-run")
    assert done.returncode == IncompatibleVersions.exit_code
    assert f"{name} cannot work: CUDA 12.5 refuses GCC 14: it must be below 14" in done.stderr
    assert re.search(r"why: cuda_compiler\.csv:\d+, NVIDIA's wheels on PyPI", done.stderr)
    assert f"kiln -C {feedstock} doctor {name}; " in done.stderr
    assert "host gcc 13" in done.stderr
