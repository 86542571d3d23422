"""The files for its tests that an installed package carries, whatever wrote them, and its link scripts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kiln.base.errors import TestsFailed
from kiln.build.steps import TestStep
from kiln.build.test.prefix import link_script_lines, packed_file_folders
from kiln.build.test.tester import run_test_script

STEP = TestStep(
    package="b", specs=(), script=("cat *",), commands=1, environment={}, files={}, folder=Path(), prefix=Path()
)


def installed(prefix: Path, name: str, *depends: str, link: str = "", packed: str = "") -> Path:
    """Write what the installation of a package leaves; return the folder of its unpacked file."""
    unpacked = prefix.parent / f"pkgs-{name}"
    values = {"name": name, "version": "1", "build_number": 2, "depends": depends}
    record = prefix / "conda-meta" / f"{name}-1-0.json"
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps({**values, "extracted_package_dir": str(unpacked)}))
    if link:
        (prefix / "bin").mkdir(exist_ok=True)
        (prefix / "bin" / f".{name}-post-link.sh").write_text(link)
    if packed:
        (prefix / packed).mkdir(parents=True)
    return unpacked


def run(folder: Path, step: TestStep) -> list[str]:
    lines: list[str] = []
    step = dataclasses.replace(step, folder=folder / "test", prefix=folder / "prefix")
    environment = {"PATH": "/usr/bin:/bin", "PREFIX": str(step.prefix)}
    run_test_script(step, environment=environment, log=folder / "log", on_line=lines.append)
    return lines


def test_files_for_tests_are_found_in_every_layout(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    unpacked = installed(prefix, "b", packed="etc/conda/test-files/b/0")
    (prefix / "etc/conda/test-files/b/1").mkdir()
    (unpacked / "info" / "test").mkdir(parents=True)
    installed(prefix, "other", packed="etc/conda/test-files/other/0")
    by_engine = prefix / "etc" / "conda" / "test-files" / "b"
    assert packed_file_folders(prefix, "b") == (by_engine / "0", by_engine / "1", unpacked / "info" / "test")
    assert packed_file_folders(prefix, "") == ()


@pytest.mark.processes
def test_a_test_gets_them_beside_the_files_of_the_recipe(tmp_path: Path) -> None:
    unpacked = installed(tmp_path / "prefix", "b")
    (unpacked / "info" / "test" / "deep").mkdir(parents=True)
    for name, text in (("packed", "from the package"), ("own", "old"), ("deep/more", "more")):
        (unpacked / "info" / "test" / name).write_text(f"{text}\n")
    (tmp_path / "own").write_text("new\n")
    step = dataclasses.replace(STEP, script=("cat packed own deep/more",), files={"own": tmp_path / "own"})
    assert run(tmp_path, dataclasses.replace(step, files_of="b")) == ["from the package", "new", "more"]


@pytest.mark.processes
def test_link_scripts_run_before_the_test_and_requirements_first(tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    installed(prefix, "a", "b >=1", "z", link="echo a after $(cat made)")
    installed(prefix, "b", "absent", link="echo $PKG_NAME $PKG_VERSION $PKG_BUILDNUM >$PREFIX/made")
    installed(prefix, "z", "a")
    assert run(tmp_path, dataclasses.replace(STEP, script=("echo test",))) == ["a after b 1 2", "test"]


@pytest.mark.processes
def test_a_link_script_that_fails_is_a_failed_test(tmp_path: Path) -> None:
    installed(tmp_path / "prefix", "b", link="echo what is wrong; exit 7")
    with pytest.raises(TestsFailed) as caught:
        run(tmp_path, STEP)
    assert "what is wrong\n" in caught.value.why
    assert "the post-link script of b failed with exit code 7" in caught.value.why


def test_a_prefix_without_link_scripts_has_no_lines(tmp_path: Path) -> None:
    installed(tmp_path / "prefix", "b")
    assert link_script_lines(tmp_path / "prefix") == ()
