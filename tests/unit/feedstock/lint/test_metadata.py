from __future__ import annotations

import pytest

from kiln.feedstock.lint.metadata import LicenseExpression, is_license_family, spdx_identifiers

# An expression, and the licenses and exceptions in it that SPDX does not have.
EXPRESSIONS = [
    ("MIT", (), ()),
    ("MIT OR Apache-2.0", (), ()),
    ("MIT or Apache-2.0", (), ()),
    ("(MIT AND BSD-3-Clause) OR GPL-2.0-only WITH Classpath-exception-2.0", (), ()),
    ("LicenseRef-Small.1", (), ()),
    ("LicenseRef_Small", ("LicenseRef_Small",), ()),
    ("GPL-3.0", ("GPL-3.0",), ()),
    ("mit", ("mit",), ()),
    ("My License", ("My License",), ()),
    ("MIT AND", ("MIT AND",), ()),
    ("MIT OR (Apache-2.0", ("MIT OR (Apache-2.0",), ()),
    ("MIT WITH Foo", (), ("Foo",)),
    ("", (), ()),
    ("(" * 60 + "MIT" + ")" * 60, ("(" * 60 + "MIT" + ")" * 60,), ()),
]


@pytest.mark.parametrize(("text", "licenses", "exceptions"), EXPRESSIONS)
def test_unknown_identifiers_of_an_expression(
    text: str, licenses: tuple[str, ...], exceptions: tuple[str, ...]
) -> None:
    expression = LicenseExpression.parse(text)
    assert (expression.unknown_licenses, expression.unknown_exceptions) == (licenses, exceptions)


@pytest.mark.parametrize("name", ["BSD", "bsd", "Public Domain", "Lesser General Public License", "GPL 3", "gpl2"])
def test_families_of_conda_build(name: str) -> None:
    assert is_license_family(name)


@pytest.mark.parametrize("name", ["BSD-3-Clause", "mpl", "GPL-4", "Apache 2.0"])
def test_other_families(name: str) -> None:
    assert not is_license_family(name)


def test_identifiers_are_read_once_from_the_table() -> None:
    assert {"MIT", "0BSD"} <= spdx_identifiers("license")
    assert spdx_identifiers("exception").isdisjoint(spdx_identifiers("license"))
