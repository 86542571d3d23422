"""A machine as the user's own ssh reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.base.errors import UsageError
from kiln.base.process import ProcessResult
from kiln.fleet.detached.credentials import parse_ssh_settings, preferred_host_key, static_host_from_user_ssh

if TYPE_CHECKING:
    from pathlib import Path

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


def host_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, key: str = "id", known: str = KNOWN, **settings: str
) -> dict[str, Any]:
    """Return the host of a user with one key and one file of known hosts, whose ssh has these settings."""
    (folder / "id").touch()
    (folder / "known").touch()
    values = {"hostname": "10.0.0.5", "user": "me", "port": "22", "userknownhostsfile": f"{folder / 'known'} /absent"}
    lines = "\n".join(f"{name} {value}" for name, value in {**values, "identityfile": folder / key, **settings}.items())
    name = settings.get("hostkeyalias", "10.0.0.5" if "port" not in settings else f"[10.0.0.5]:{settings['port']}")

    def capture(words: tuple[object, ...], **_: object) -> ProcessResult:
        if words[:2] == ("ssh", "-G"):
            bad = words[2] == "bad host"
            return ProcessResult(argv=(), exit_code=255 if bad else 0, tail="no such host", seconds=0.0, stdout=lines)
        assert words == ("ssh-keygen", "-F", name, "-f", folder / "known")
        return ProcessResult(argv=(), exit_code=0, tail="", seconds=0.0, stdout=known)

    monkeypatch.setattr(process, "capture", capture)
    return static_host_from_user_ssh("bad host" if settings.get("bad") else "box", {})


def test_a_host_has_the_address_user_key_and_host_key_of_the_users_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host_of(tmp_path, monkeypatch) == {
        "address": "10.0.0.5",
        "user": "me",
        "port": 22,
        "key": str(tmp_path / "id"),
        "known_hosts": "ssh-ed25519 AAAAE",
    }


def test_a_host_behind_another_one_or_at_another_port_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of(tmp_path, monkeypatch, port="2222", proxyjump="gate")
    assert (host["port"], host["ssh_options"]) == (2222, {"ProxyJump": "gate"})
    assert "ssh_options" not in host_of(tmp_path, monkeypatch, proxyjump="none")
    assert host_of(tmp_path, monkeypatch, hostkeyalias="box.lan")["known_hosts"] == "ssh-ed25519 AAAAE"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"key": "absent"}, "there is no private key for box in a file"),
        ({"known": ""}, "the host key of box is unknown"),
        ({"bad": "yes"}, "ssh does not accept the host 'bad host'"),
    ],
)
def test_a_host_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        host_of(tmp_path, monkeypatch, **more)
    assert caught.value.what == what


def test_an_option_of_ssh_is_not_a_host() -> None:
    with pytest.raises(UsageError, match="invalid host '-oProxyCommand=id'"):
        static_host_from_user_ssh("-oProxyCommand=id", {})
