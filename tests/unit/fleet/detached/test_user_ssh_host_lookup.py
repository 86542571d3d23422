"""A machine as the user's own ssh reaches it."""

from __future__ import annotations

from kiln.fleet.detached.user_ssh_host_lookup import parse_ssh_settings, preferred_host_key

KNOWN = """\
# Host example.org found: line 3
example.org ssh-rsa AAAAR
|1|hash= ssh-ed25519 AAAAE comment
@revoked example.org ssh-ed25519 AAAAX
"""


def test_the_preferred_host_key_is_taken_and_a_revoked_one_is_not() -> None:
    assert preferred_host_key(KNOWN.splitlines()) == "ssh-ed25519 AAAAE"
    assert preferred_host_key(["example.org ssh-rsa AAAAR"]) == "ssh-rsa AAAAR"
    assert preferred_host_key(["# nothing"]) == ""


def test_a_setting_may_have_several_values() -> None:
    assert parse_ssh_settings("user me\nidentityfile ~/.ssh/a\nidentityfile ~/.ssh/b\n") == {
        "user": ["me"],
        "identityfile": ["~/.ssh/a", "~/.ssh/b"],
    }
