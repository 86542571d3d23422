"""Which package brings a program, on each family of systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base import process
from kiln.base.errors import MissingTool

if TYPE_CHECKING:
    from pathlib import Path

DEBIAN = {"PRETTY_NAME": "Debian GNU/Linux forky/sid", "ID": "debian"}
MINT = {"NAME": "Linux Mint", "ID": "linuxmint", "ID_LIKE": "ubuntu debian"}
ROCKY = {"ID": "rocky", "ID_LIKE": "rhel centos fedora"}


@pytest.mark.parametrize(
    ("release", "platform", "hint"),
    [
        (DEBIAN, "linux", "sudo apt install openssh-client"),
        (MINT, "linux", "sudo apt install openssh-client"),
        ({"ID": "fedora"}, "linux", "sudo dnf install openssh"),
        (ROCKY, "linux", "sudo dnf install openssh"),
        ({}, "darwin", "brew install openssh"),
        ({"ID": "arch"}, "linux", "install it with this system's package manager (Debian's package is openssh-client)"),
        ({}, "linux", "install it with this system's package manager (Debian's package is openssh-client)"),
    ],
)
def test_the_command_is_that_of_the_system(release: dict[str, str], platform: str, hint: str) -> None:
    assert process.installation_advice("ssh-keygen", release, platform) == hint


def test_a_program_without_a_known_package_has_no_advice() -> None:
    assert process.installation_advice("no-such-program", {"ID": "debian"}, "linux") == ""
    assert process.system_package_of_program("no-such-program") == ""


@pytest.mark.processes
def test_a_missing_program_is_named_with_the_command_that_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "os_release", lambda: {"ID": "debian"})
    for program in ("rsync", f"{tmp_path}/rsync"):
        with pytest.raises(MissingTool, match="rsync") as caught:
            process.run([program], env={"PATH": str(tmp_path)})
        assert caught.value.hint == "sudo apt install rsync"
