"""The command ``kiln test``: what it refuses before it installs anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import UnsupportedPlatform
from kiln.cli import main
from kiln.cli.install import report_of_tests_as_data
from kiln.compat import machine
from kiln.state.results import TestReport, TestVerdict

if TYPE_CHECKING:
    import pytest

SMALL = Path(__file__).parents[2] / "fixtures" / "small-feedstock"


def test_tests_on_a_gpu_are_refused_without_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    package = tmp_path / "a-1-0.conda"
    package.touch()

    def no_library(_: str = "") -> None:
        raise OSError("no libnvidia-ml")

    monkeypatch.setattr(machine, "driver_and_gpus_from_nvml", no_library)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main.run(["-C", str(SMALL), "test", "--gpu", str(package)]) == UnsupportedPlatform.exit_code
    error = capsys.readouterr().err
    assert "this machine has no GPU to test on" in error
    assert "NVML: no libnvidia-ml; nvidia-smi: " in error


def test_the_gpus_are_named_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        machine,
        "driver_and_gpus_from_nvml",
        lambda: ("550.1", (machine.GpuCard(name="Tesla T4", capability="7.5", memory=1),)),
    )
    assert machine.gpu_descriptions({}) == (("Tesla T4 (7.5), driver 550.1",), ())


def test_a_report_names_the_gpus_that_were_required() -> None:
    report = TestReport(package="a", verdict=TestVerdict.PASSED)
    assert "gpus" not in report_of_tests_as_data(report)
    assert report_of_tests_as_data(report, ("T4",))["gpus"] == ["T4"]
