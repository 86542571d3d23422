"""The summary of skipped tests."""

from __future__ import annotations

from tests.left_out import summary


def test_programs_are_counted_and_named_with_the_command_that_brings_them() -> None:
    reasons = [
        "Skipped: ssh-keygen is not on this machine; ssh is not on this machine",
        "Skipped: 'docker' is not on this machine: PATH is '/bin'",
        "Skipped: ssh-keygen is not on this machine",
        "Skipped: quetz is not on this machine",
        "Skipped: Ansible needs Python 3.11 or newer",
    ]
    assert summary(reasons, "apt") == (
        "left out: 5 tests, for want of docker (1), quetz (1), ssh (1), ssh-keygen (2), other reasons (1, named above)"
        "; to run more of them: sudo apt install docker.io openssh-client; in no package of this system: quetz"
    )


def test_a_run_that_left_nothing_out_says_so() -> None:
    assert summary([], "apt") == "left out: nothing"


def test_reasons_that_no_package_cures_are_counted_alone() -> None:
    assert summary(["Skipped: only root can mount a small disk"], "dnf") == (
        "left out: 1 test, for want of other reasons (1, named above)"
    )
