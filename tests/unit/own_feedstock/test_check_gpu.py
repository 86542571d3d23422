"""The test of the CUDA libraries on a GPU: what it makes of the process that runs the operations, and of its end."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock.config_file import read_config
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests.unit.own_feedstock.test_recipe import ROOT, name

if TYPE_CHECKING:
    from pathlib import Path

# Runs operations as gpu_operations.py does, with another ending for each library.
OPERATIONS = """\
import os, sys
names = ["cuBLAS", "cuFFT", "cuDNN", "NCCL"]
if "--after" in sys.argv:
    names = names[names.index(sys.argv[-1]) + 1:]
print("messages of others")
for name in names:
    print(f"began {name}", flush=True)
    if name == os.environ.get("BROKEN"):
        os.abort()
    if name == os.environ.get("WRONG"):
        print(f"failed {name}: 3 is not 4: far off")
    else:
        print(f"passed {name}: {name.lower()} did it")
"""

pytestmark = pytest.mark.processes


@pytest.fixture
def check_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "recipe"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "check_gpu", raising=False)
    return importlib.import_module("check_gpu")


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    script = tmp_path / "operations.py"
    script.write_text(OPERATIONS)
    return (sys.executable, str(script))


def test_all_libraries_that_pass_are_listed(check_gpu: Any, command: tuple[str, ...]) -> None:
    assert check_gpu.run(command) == (["cuBLAS", "cuFFT", "cuDNN", "NCCL"], {})


def test_a_library_that_ends_the_process_is_named_and_the_others_still_run(
    check_gpu: Any, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "cuFFT")
    monkeypatch.setenv("WRONG", "NCCL")
    passed, failed = check_gpu.run(command)
    assert passed == ["cuBLAS", "cuDNN"]
    assert failed == {"cuFFT": "the process was ended by SIGABRT", "NCCL": "3 is not 4: far off"}


def test_the_exit_code_and_the_last_lines_name_what_fails(
    check_gpu: Any, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check_gpu, "OPERATIONS", command)
    assert check_gpu.main() == 0
    assert capsys.readouterr().out.endswith("GPU: all agree with the CPU: cuBLAS, cuFFT, cuDNN, NCCL\n")
    monkeypatch.setenv("WRONG", "cuDNN")
    assert check_gpu.main() == 1
    assert capsys.readouterr().err == "GPU: cuDNN fails: 3 is not 4: far off\n"


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise SystemExit(3)", "the process ended with 3"), ("import os; os.kill(os.getpid(), 9)", "SIGKILL")],
)
def test_a_process_that_begins_nothing_fails_once(check_gpu: Any, tmp_path: Path, code: str, reason: str) -> None:
    script = tmp_path / "operations.py"
    script.write_text(code)
    passed, failed = check_gpu.run((sys.executable, str(script)))
    assert passed == []
    assert list(failed) == ["the start"]
    assert reason in failed["the start"]


def test_a_skipped_test_is_no_failure(
    check_gpu: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "operations.py"
    script.write_text("print('GPU: skipped, this build is for the CPU')")
    monkeypatch.setattr(check_gpu, "OPERATIONS", (sys.executable, str(script)))
    assert check_gpu.main() == 0
    assert capsys.readouterr().out == "GPU: skipped, this build is for the CPU\n"


def test_every_library_that_the_packages_require_has_an_operation() -> None:
    text = (ROOT / "recipe" / "gpu_operations.py").read_text()
    (table,) = (
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "OPERATIONS"
    )
    assert isinstance(table, ast.Dict)
    names = {key.value.lower() for key in table.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    feedstock = recipe_feedstock.load(ROOT)
    outputs = render.render(feedstock, read_config(feedstock, name("12.9", "3.12"))).outputs
    (framework,) = (output for output in outputs if output.name == "libtensorflow_framework")
    host = [spec.split()[0] for spec in framework.requirements.host]
    required = {re.sub(r"^(cuda-|lib)|-dev$", "", name) for name in host} - {"version", "cudart"}
    assert required | {"cudnn"} <= names, required - names
    assert {"cublaslt", "ptxas and libdevice"} <= names
