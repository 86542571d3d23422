from __future__ import annotations

import pytest

from kiln.feedstock.lint.requirements import has_separated_fields, match_spec_strictness, spec_fields

# The strictness that conda (August 2026) gives each spec; None where it refuses one.
COUNTS = [
    ("numpy", 1),
    ("numpy 1.2", 2),
    ("numpy >=1.2,<2", 2),
    ("numpy >=1.2 , <2", 2),
    ("numpy 1.2 py*", 3),
    ("numpy=1.2", 2),
    ("numpy=1.2=py_0", 3),
    ("numpy ==1.2=py_0", 3),
    ("conda-forge::numpy", 3),
    ('numpy[version=">=1"]', 2),
    ("numpy[build=x]", 3),
    ("numpy*", 3),
    ("numpy ~=1.2", 2),
    ("numpy ~=1.2.*", None),
    ("numpy >=1,<", None),
    ("numpy 1..2", None),
    ("foo==", None),
    ("_", 1),
    ("__glibc >=2.17", 2),
    ("numpy-", 1),
    ("numpy@", 3),
    ("numpy 1.0.*|2.*", 2),
    ("numpy ^1.*$", 2),
    ("numpy 1.*.2", 2),
    ("numpy <2.0.*", 2),
    ("numpy-1.0-0.conda", None),
]


@pytest.mark.parametrize(("spec", "count"), COUNTS)
def test_fields_are_counted_as_conda_does(spec: str, count: int | None) -> None:
    assert match_spec_strictness(spec) == count


@pytest.mark.parametrize(
    "spec", ["numpy", "numpy >=1.2", "numpy 1.2 py*", "numpy {{ x }}=1", "compatible_pin zlib x.x", "numpy 1  # old"]
)
def test_separated_specs_are_accepted(spec: str) -> None:
    assert has_separated_fields(spec)


@pytest.mark.parametrize("spec", ["", "numpy=1", "numpy >= 1.2", "numpy 1 2 3", "numpy>=1", "numpy 1..2"])
def test_other_notations_are_not(spec: str) -> None:
    assert not has_separated_fields(spec)


def test_a_spec_has_a_name_in_lower_case() -> None:
    fields = spec_fields("NumPy >=1")
    assert fields is not None
    assert (fields.name, fields.versioned, fields.more) == ("numpy", True, False)
