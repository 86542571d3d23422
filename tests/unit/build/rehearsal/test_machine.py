"""Programs of this machine stand in for packages when their versions fit, and never silently when they do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.build.rehearsal import machine
from kiln.build.rehearsal.machine import UNKNOWN_VERSION, find_program, fitting_stand_in_version, satisfies_constraints
from kiln.build.rehearsal.packages import stand_in_metadata, write_stand_in_package
from kiln.build.rehearsal.wheels import StandIn
from tests.unit.build.sample import content, info, unpacked

if TYPE_CHECKING:
    from pathlib import Path


def program(folder: Path, name: str, output: str) -> dict[str, str]:
    """Write a program that prints a text, and return an environment with it alone."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{output}'\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.processes
@pytest.mark.parametrize("link", ["hard", "symbolic"])
def test_the_program_behind_a_proxy_of_rustups_is_taken(tmp_path: Path, link: str) -> None:
    real = tmp_path / "toolchain"
    program(real, "cargo", "cargo 1.95.0")
    env = program(tmp_path / "bin", "rustup", str(real / "cargo"))
    proxy = tmp_path / "bin" / "cargo"
    (proxy.hardlink_to if link == "hard" else proxy.symlink_to)(tmp_path / "bin" / "rustup")
    assert machine.program_paths(("cargo", "rustup"), env) == {
        "cargo": str(real / "cargo"),
        "rustup": str(tmp_path / "bin" / "rustup"),
    }


@pytest.mark.processes
def test_a_proxy_of_rustups_without_a_toolchain_stays(tmp_path: Path) -> None:
    env = program(tmp_path / "bin", "rustup", "error: no default is configured")
    (tmp_path / "bin" / "cargo").symlink_to(tmp_path / "bin" / "rustup")
    assert machine.program_paths(("cargo",), env) == {"cargo": str(tmp_path / "bin" / "cargo")}


@pytest.mark.processes
@pytest.mark.parametrize(
    ("output", "version"),
    [
        ("cmake version 3.25.1", "3.25.1"),
        ("gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0"),
        ("This is perl 5, version 36, subversion 0 (v5.36.0) built for x86_64", "5.36.0"),
        ("1.8", "1.8"),
        ("no number", UNKNOWN_VERSION),
    ],
)
def test_the_version_of_a_program_is_what_it_prints(tmp_path: Path, output: str, version: str) -> None:
    result = find_program("tool", program(tmp_path / "bin", "tool", output))
    assert result is not None
    assert (result.path, result.version) == (tmp_path / "bin" / "tool", version)


@pytest.mark.parametrize(
    ("own", "constraints", "version"),
    [
        ("12.2.0", ["14.*", ""], "14"),
        ("14.1.0", ["14.*"], "14.1.0"),
        ("12.2.0", [">=13,<15"], "13"),
        ("12.2.0", ["14.*", "13.*"], "12.2.0"),
        ("2.17", [], "2.17"),
    ],
)
def test_a_stand_in_has_its_own_version_or_one_that_fits(own: str, constraints: list[str], version: str) -> None:
    assert fitting_stand_in_version(own, constraints) == version
    assert satisfies_constraints("1.0", [">=1.0.0", "<2.0a0"])
    assert not satisfies_constraints("1.0", ["not a version spec"])


def test_each_row_of_the_table_has_programs() -> None:
    table = machine.program_packages()
    assert all(row.programs for row in table.values())
    assert (table["cmake"].programs[0], table["cmake"].pypi) == ("cmake", "cmake")


@pytest.mark.processes
def test_a_compiler_stands_in_with_the_pinned_version_and_exports_its_runtime(tmp_path: Path) -> None:
    env = program(tmp_path / "bin", "gcc", "gcc (here) 12.2.0")
    packages = machine.toolchain_stand_ins({"gcc_linux-64": ["14.*"], "sysroot_linux-64": ["2.17.*"]}, env)
    by_name = {package.name: package for package in packages}
    assert by_name.keys() == {"gcc_linux-64", "sysroot_linux-64", "libgcc"}
    compiler = by_name["gcc_linux-64"]
    assert (compiler.version, compiler.differs, compiler.strong_exports) == ("14", True, ("libgcc >=14",))
    assert compiler.programs["x86_64-conda-linux-gnu-cc"] == str(tmp_path / "bin" / "gcc")
    assert any('CC="x86_64-conda-linux-gnu-cc"' in line for line in compiler.activation)
    assert by_name["sysroot_linux-64"].strong_exports == ("__glibc >=2.17,<3.0.a0",)
    assert by_name["libgcc"].version == "14"
    assert machine.missing_toolchain_program("gfortran_linux-64", env) == "gfortran"
    assert machine.missing_toolchain_program("gcc_linux-64", env) == ""


@pytest.mark.processes
def test_a_compiler_of_the_required_version_is_no_difference(tmp_path: Path) -> None:
    env = program(tmp_path / "bin", "g++", "g++ (here) 14.2.0")
    (compiler, *runtimes) = machine.toolchain_stand_ins({"gxx_linux-64": ["14.*"]}, env)
    assert (compiler.version, compiler.differs) == ("14.2.0", False)
    assert [(package.name, package.version) for package in runtimes] == [("libgcc", "14.2.0"), ("libstdcxx", "14.2.0")]


def test_the_package_of_a_stand_in_is_marked_and_runs_the_machines_program(tmp_path: Path) -> None:
    (tmp_path / "libx.so.1").write_bytes(b"\x7fELF")
    stand_in = StandIn(
        name="tool",
        version="3",
        programs={"tool": "/opt/a tool"},
        libraries={"libx.so.1": str(tmp_path / "libx.so.1")},
        activation=("export TOOL=1",),
        strong_exports=("libx >=3",),
        origin="/opt/a tool 3",
    )
    package = write_stand_in_package(stand_in, tmp_path)
    assert content(package, "bin/tool") == b"#!/bin/sh\nexec '/opt/a tool' \"$@\"\n"
    assert unpacked(package)["bin/tool"].mode & 0o111
    assert content(package, "etc/conda/activate.d/tool.sh") == b"export TOOL=1\n"
    assert content(package, "lib/libx.so.1") == b"\x7fELF"
    assert info(package, "run_exports") == {"strong": ["libx >=3"]}
    assert info(package, "about")["extra"]["rehearsal"] is True
    assert info(package, "about")["extra"]["stand_in_for"] == "tool"
    assert "rehearsal" in stand_in_metadata(stand_in).build
    assert write_stand_in_package(stand_in, tmp_path) == package
