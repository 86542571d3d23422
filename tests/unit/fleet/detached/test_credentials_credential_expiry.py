"""A detached run cannot renew credentials: it is refused with those that expire before its end."""

from __future__ import annotations

import pytest

from kiln.base.errors import UsageError
from kiln.fleet.detached.credentials import require_lasting_credentials

NOON = 1795608000.0  # 2026-11-25T12:00:00Z
NAME = "AWS_CREDENTIAL_EXPIRATION"


@pytest.mark.parametrize("text", ["2026-11-25T14:00:00Z", "2026-11-25T15:00:00+01:00", "2026-11-25T14:00:00"])
def test_the_expiry_is_compared_with_the_end_of_the_plan(text: str) -> None:
    require_lasting_credentials("aws", {NAME: text}, begin=NOON, end=NOON + 7000)
    require_lasting_credentials("openstack", {NAME: text}, begin=NOON, end=NOON + 9000)
    with pytest.raises(UsageError) as refused:
        require_lasting_credentials("aws", {NAME: text}, begin=NOON, end=NOON + 9000)
    assert refused.value.why == f"these expire in 2.0 h ({NAME}), and the plan takes 2.5 h"


def test_credentials_that_have_expired_are_said_to_have() -> None:
    with pytest.raises(UsageError) as refused:
        require_lasting_credentials("aws", {NAME: "2026-11-25T09:00:00Z"}, begin=NOON, end=NOON + 60)
    assert "these expired 3.0 h ago" in refused.value.why


def test_an_expiry_that_cannot_be_read_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    require_lasting_credentials("aws", {NAME: "tomorrow"}, begin=NOON, end=NOON + 60)
    assert "'tomorrow' is not a time" in caplog.text
    caplog.clear()
    require_lasting_credentials("aws", {}, begin=NOON, end=NOON + 60)
    assert caplog.text == ""


def test_a_plan_says_what_its_run_would_refuse(caplog: pytest.LogCaptureFixture) -> None:
    require_lasting_credentials("aws", {NAME: "2026-11-25T14:00:00Z"}, begin=NOON, end=NOON + 9000, begins=False)
    assert "run --detach will refuse these credentials: these expire in 2.0 h" in caplog.text
    assert "the plan takes 2.5 h" in caplog.text
    caplog.clear()
    require_lasting_credentials("aws", {NAME: "2026-11-25T14:00:00Z"}, begin=NOON, end=NOON + 7000, begins=False)
    assert caplog.text == ""


@pytest.mark.parametrize("begins", [True, False])
def test_an_expiry_before_the_time_limit_is_noted(begins: bool, caplog: pytest.LogCaptureFixture) -> None:
    environment = {NAME: "2026-11-25T14:00:00Z"}
    require_lasting_credentials("aws", environment, begin=NOON, end=NOON + 3600, limit=NOON + 7200, begins=begins)
    assert caplog.text == ""
    require_lasting_credentials("aws", environment, begin=NOON, end=NOON + 3600, limit=NOON + 7201, begins=begins)
    assert "expire in 2.0 h, before --time-limit" in caplog.text


@pytest.mark.parametrize(
    ("provider", "variable", "text"),
    [
        ("aws", "AWS_SESSION_TOKEN", f"temporary (AWS_SESSION_TOKEN), and {NAME} does not say when they expire"),
        ("openstack", "OS_TOKEN", "temporary (OS_TOKEN): they may expire before the run ends"),
    ],
)
def test_temporary_credentials_of_unknown_expiry_are_noted(
    provider: str, variable: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    require_lasting_credentials(provider, {variable: "t"}, begin=NOON, end=NOON + 60)
    assert text in caplog.text
    caplog.clear()
    require_lasting_credentials("static", {variable: "t"}, begin=NOON, end=NOON + 60)
    assert caplog.text == ""
