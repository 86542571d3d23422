"""Which programs of other platforms run on this machine, by the kernel's registry of interpreters."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from kiln.container import emulation

if TYPE_CHECKING:
    from pathlib import Path

# As the kernel shows what Debian's qemu-user-static registers.
AARCH64 = """\
enabled
interpreter /usr/bin/qemu-aarch64-static
flags: OCF
offset 0
magic 7f454c460201010000000000000000000200b700
mask ffffffffffffff00fffffffffffffffffeffffff
"""
S390X = """\
enabled
interpreter /usr/bin/qemu-s390x-static
flags: POF
offset 0
magic 7f454c4602020100000000000000000000020016
mask ffffffffffffff00fffffffffffffffffffeffff
"""
BY_NAME = "enabled\ninterpreter /usr/bin/wine\nflags: \nextension .exe\n"


@pytest.mark.parametrize(
    ("system", "machine", "own", "in_container"),
    [
        ("Linux", "x86_64", "linux-64", "linux-64"),
        ("Linux", "aarch64", "linux-aarch64", "linux-aarch64"),
        ("Darwin", "arm64", "osx-arm64", "linux-aarch64"),
        ("Darwin", "x86_64", "osx-64", "linux-64"),
        ("Windows", "AMD64", "win-64", "win-64"),
        ("Windows", "ARM64", "win-arm64", "win-arm64"),
    ],
)
def test_a_machine_has_its_own_subdir_and_that_of_its_containers(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, own: str, in_container: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert (emulation.machine_subdir(), emulation.container_subdir()) == (own, in_container)


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    folder = tmp_path / "binfmt_misc"
    folder.mkdir()
    (folder / "status").write_text("enabled\n")
    (folder / "register").write_text("")
    return folder


def test_the_registered_interpreter_of_a_platform_is_returned(registry: Path) -> None:
    (registry / "a-name").write_text(BY_NAME)
    (registry / "any").write_text(AARCH64)
    (registry / "other").write_text(S390X)
    arm, mainframe = (emulation.binfmt_interpreter(name, registry) for name in ("linux-aarch64", "linux-s390x"))
    assert arm is not None
    assert mainframe is not None
    assert (str(arm.program), arm.works_in_containers) == ("/usr/bin/qemu-aarch64-static", True)
    assert str(mainframe.program) == "/usr/bin/qemu-s390x-static"
    for subdir in ("linux-ppc64le", "linux-64", "osx-arm64", "noarch"):
        assert emulation.binfmt_interpreter(subdir, registry) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "qemu").write_text(AARCH64.replace("enabled", "disabled")),
        lambda folder: (folder / "status").write_text("disabled\n"),
        lambda folder: (folder / "status").unlink(),
        lambda folder: (folder / "qemu").write_text(AARCH64.replace("OCF", "OC").replace("/usr/bin", "/no/such")),
    ],
)
def test_an_interpreter_that_is_disabled_or_missing_does_not_count(registry: Path, change: object) -> None:
    (registry / "qemu").write_text(AARCH64)
    assert emulation.binfmt_interpreter("linux-aarch64", registry) is not None
    change(registry)  # type: ignore[operator]
    assert emulation.binfmt_interpreter("linux-aarch64", registry) is None


def test_an_interpreter_that_is_opened_late_serves_no_container(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(emulation.binfmt_interpreter, "__defaults__", (registry,))
    (registry / "qemu").write_text(AARCH64.replace("OCF", "OC").replace("/usr/bin/qemu-aarch64-static", "/bin/sh"))
    assert emulation.can_run_platform("linux-aarch64", in_container=False)
    assert not emulation.can_run_platform("linux-aarch64", in_container=True)
    (registry / "qemu").write_text(AARCH64)
    assert emulation.can_run_platform("linux-aarch64", in_container=True)
    assert emulation.can_run_platform("linux-64", in_container=True)
    assert emulation.can_run_platform("noarch", in_container=True)
    assert not emulation.can_run_platform("osx-64", in_container=False)


def test_images_name_platforms_in_their_own_way() -> None:
    names = [emulation.oci_platform(f"linux-{machine}") for machine in ("64", "aarch64", "ppc64le", "armv7l")]
    assert names == ["linux/amd64", "linux/arm64", "linux/ppc64le", "linux/arm/v7"]


def test_qemu_user_is_the_static_one_if_both_are_there(tmp_path: Path) -> None:
    for name in ("qemu-aarch64", "qemu-aarch64-static", "qemu-x86_64"):
        (tmp_path / name).touch(mode=0o755)
    environment = {"PATH": str(tmp_path)}
    assert emulation.qemu_user_path("linux-aarch64", environment) == str(tmp_path / "qemu-aarch64-static")
    assert emulation.qemu_user_path("linux-64", environment) == str(tmp_path / "qemu-x86_64")
    assert emulation.qemu_user_path("osx-64", environment) is None
    assert emulation.qemu_user_path("linux-ppc64le", environment) is None


def test_the_libraries_are_those_of_debians_packages(tmp_path: Path) -> None:
    assert emulation.cross_libc_folder("linux-aarch64", tmp_path) is None
    (tmp_path / "aarch64-linux-gnu" / "lib").mkdir(parents=True)
    assert emulation.cross_libc_folder("linux-aarch64", tmp_path) is None
    (tmp_path / "aarch64-linux-gnu" / "lib" / "ld-linux-aarch64.so.1").touch()
    assert emulation.cross_libc_folder("linux-aarch64", tmp_path) == tmp_path / "aarch64-linux-gnu"
