"""Which values no package may hold, and whether they are found in a file."""

from __future__ import annotations

import os

import pytest

from kiln.base import masking
from kiln.base.errors import BuildFailed
from kiln.base.masked_stream import SecretSearch, secret_variables
from tests import planted, written


@pytest.mark.parametrize("form", sorted(written.FORMS))
def test_every_form_is_found_in_a_file_wherever_it_is_read_apart(form: str) -> None:
    search = SecretSearch.for_secrets(planted.SECRETS)
    assert set(search.masks) == set(planted.SECRETS) - {"PLANTED_PIN"}, "a short one stands anywhere by chance"
    for name in search.masks:
        text = written.FORMS[form](planted.SECRETS[name]).encode()
        assert search.names_of_secrets_in(iter((bytes(range(256)) + text[:9], text[9:] + bytes(256)))) == (name,)


def test_nothing_is_found_by_chance() -> None:
    assert (
        SecretSearch.for_secrets(planted.SECRETS).names_of_secrets_in(iter((os.urandom(1 << 18), bytes(range(256)))))
        == ()
    )


def test_only_possible_secrets_are_refused_in_a_package() -> None:
    handed = {
        "UPLOAD_CHANNEL": "conda-forge",
        "CUDA_HOME": "/usr/local/cuda-12.9",
        "MODE": "release",
        "LEVEL": "12.9.1",
        "PATH": "/a:/b",
        "MY_TOKEN": "conda-forge",
        "ANY": "ghp_9f8E7d6C5b4A3210",
        "PHRASE": "a/b+c==d",
    }
    assert set(secret_variables(handed)) == {"MY_TOKEN", "ANY", "PHRASE"}


def test_short_values_are_reported_unless_they_are_switches() -> None:
    handed = {"A_TOKEN": "abc", "PIN": "k", "USE_MKL": "1", "FAST": "yes", "EMPTY": "", "LONG": "a-long-one", "CI": "x"}
    assert masking.unmaskable_variable_names(handed) == ("A_TOKEN", "PIN")


def test_an_error_is_masked_when_it_is_made() -> None:
    masking.register_secrets(["of-an-error-77"])
    error = BuildFailed("it is of-an-error-77", why="see https://u:pw@host/x", hint="not 'of-an-error-77'")
    assert str(error) == "it is ***\n  why: see https://***@host/x\n  try: not '***'"
    assert "of-an-error-77" not in repr(error)
