from __future__ import annotations

import pytest

from kiln.conda.specs import matches


@pytest.mark.parametrize(
    ("version", "spec", "wanted"),
    [
        ("3.10", ">=3.9", True),
        ("3.10", ">=3.9,<3.10", False),
        ("3.10", "<3.9|>=3.10", True),
        ("3.10.4", "3.10.*", True),
        ("3.1", "3.10.*", False),
        ("3.10.4", "=3.10", True),
        ("3.10.4", "==3.10", False),
        ("3.10", "==3.10.0", True),
        ("3.10.4", "!=3.10.*", False),
        ("3.11", "!=3.10.*", True),
        ("1.4.5", "~=1.4.2", True),
        ("1.5.0", "~=1.4.2", False),
        ("1.4.1", "~=1.4.2", False),
        ("2.0", "(>=1,<2)|>=3", False),
        ("3.5", "(>=1,<2)|>=3", True),
        ("1.0rc1", "<1.0", True),
        ("7", "*", True),
        ("12.9", "12", False),
        ("12", "12", True),
    ],
)
def test_a_version_fits_a_spec(version: str, spec: str, wanted: bool) -> None:
    assert matches(version, spec) is wanted


@pytest.mark.parametrize("spec", ["", ">>1", ">=1,", "(>=1", ">=1)", "a b", "1" * 2000, "(" * 300 + "1" + ")" * 300])
def test_a_malformed_spec_is_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=r"version|parenthesis"):
        matches("1", spec)
