"""Match specs between conda-build's way of writing them and rattler-build's."""

from __future__ import annotations

import pytest

from kiln.matchspec import legacy, package_name, strict

PAIRS = [
    ("numpy", "numpy"),
    ("libfoo 2.21.0", "libfoo ==2.21.0"),
    ("libfoo 2.21.0 cpu_*", "libfoo ==2.21.0 cpu_*"),
    ("python 3.11.* *_cpython", "python 3.11.* *_cpython"),
    ("zlib >=1.2,<2", "zlib >=1.2,<2"),
    ("zlib 1.2|1.3", "zlib ==1.2|==1.3"),
    ("zlib >=1.2,1.4", "zlib >=1.2,==1.4"),
    ("cuda-version =12.9", "cuda-version =12.9"),
]


@pytest.mark.parametrize(("written", "wanted"), PAIRS)
def test_a_bare_version_becomes_an_exact_one(written: str, wanted: str) -> None:
    assert strict(written) == wanted


@pytest.mark.parametrize(("written", "wanted"), PAIRS)
def test_the_strict_form_turns_back(written: str, wanted: str) -> None:
    assert legacy(wanted) == written


def test_several_blanks_count_as_one() -> None:
    assert strict("x86_64-microarch-level  1") == "x86_64-microarch-level ==1"


@pytest.mark.parametrize(
    "spec", ["ab-c_1", "ab-c_1 2.0", "ab-c_1>=2", "ab-c_1=2=h_0", " ab-c_1 [build=x]", "ab-c_1!=3"]
)
def test_the_name_ends_where_the_version_begins(spec: str) -> None:
    assert package_name(spec) == "ab-c_1"
