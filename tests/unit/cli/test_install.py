"""The arguments of ``kiln install``: one place to install into, and match specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import UnsupportedPlatform, UsageError
from kiln.cli import install, main
from kiln.cli.install import report_of_tests_as_data
from kiln.compat import machine
from kiln.state.results import TestReport, TestVerdict


@pytest.mark.processes
def test_a_name_is_the_prefix_where_conda_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CONDA_ENVS_DIRS", str(tmp_path / "envs"))
    parser, _ = main.command_parser_and_module("install")
    request = install.install_request(parser.parse_args(["six", "-n", "tf"]))
    assert request.prefix == tmp_path / "envs" / "tf"


@pytest.mark.parametrize("words", [["six"], ["six", "-n", "a", "-p", "b"], ["six", "-p", ""]])
def test_one_place_is_required(words: list[str]) -> None:
    parser, _ = main.command_parser_and_module("install")
    with pytest.raises(UsageError):
        parser.parse_args(words)


def test_a_named_environment_is_activated_by_its_name(tmp_path: Path) -> None:
    assert install.activation_commands(tmp_path, "tf").startswith("activate  conda activate tf\n")
    assert install.activation_commands(tmp_path).startswith(f"activate  conda activate {tmp_path}\n")


@pytest.mark.parametrize(
    ("spec", "why"),
    [("app >>1", "is not a version"), ("py* 3", "the name of a package has no asterisk"), ("a .1", "is not a version")],
)
def test_what_names_no_package_is_refused(spec: str, why: str) -> None:
    parser, _ = main.command_parser_and_module("install")
    with pytest.raises(UsageError, match="is not a match spec") as caught:
        install.install_request(parser.parse_args(["six", spec, "-p", "prefix"]))
    assert why in caught.value.why


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
