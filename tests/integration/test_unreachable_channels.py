"""An unreachable channel is named, with its host and the reason."""

from __future__ import annotations

import pytest

from kiln.conda.rattler.worker import unreachable_channel_error

DNS = (
    "error sending request for url (https://conda.example.invalid/x/noarch/repodata_shards.msgpack.zst)\n"
    "Caused by: client error (Connect)\nCaused by: dns error\nCaused by: Name or service not known"
)


@pytest.mark.parametrize(
    ("channels", "why", "what", "reason"),
    [
        (
            ["file:///here", "https://conda.example.invalid/x"],
            DNS,
            "the channel https://conda.example.invalid/x cannot be reached",
            "conda.example.invalid: Name or service not known",
        ),
        (
            ["https://other.example/y", "https://another.example/z"],
            DNS,
            "a channel of https://other.example/y, https://another.example/z cannot be reached",
            "conda.example.invalid: Name or service not known",
        ),
        (["https://other.example/y"], "no words", "a channel of https://other.example/y cannot be reached", "no words"),
    ],
)
def test_an_unreachable_channel_is_named(channels: list[str], why: str, what: str, reason: str) -> None:
    error = unreachable_channel_error(channels, why)
    assert (error.what, error.why) == (what, reason)
