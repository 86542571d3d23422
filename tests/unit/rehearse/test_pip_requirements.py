"""Requirements of conda packages are pip's requirements with the same meaning, as far as pip has it."""

from __future__ import annotations

import pytest

from kiln.rehearse.pip_requirements import (
    has_known_project,
    known_pypi_names,
    pip_requirement,
    pip_specifiers,
    pypi_name,
)


@pytest.mark.parametrize(
    ("constraint", "specifiers"),
    [
        ("", ()),
        ("1.2", ("==1.2",)),
        ("1.2.*", ("==1.2.*",)),
        ("=1.2", ("==1.2.*",)),
        ("==1.2", ("==1.2",)),
        (">=1.22,<3.0a0", (">=1.22", "<3.0a0")),
        (">=1.0.*", (">=1.0",)),
        ("!=1.5.*", ("!=1.5.*",)),
        ("~=1.2.0", ("~=1.2.0",)),
        ("*", ()),
        (">=2|<1", ()),
        (">=1.0.1_,<2", ("<2",)),
    ],
)
def test_version_constraints_have_pips_syntax(constraint: str, specifiers: tuple[str, ...]) -> None:
    assert pip_specifiers(constraint) == specifiers


def test_names_of_the_table_are_certain_and_others_are_the_same_on_pypi() -> None:
    assert pypi_name("python-flatbuffers") == "flatbuffers"
    assert pypi_name("ml_dtypes") == "ml-dtypes"
    assert (pypi_name("seaborn-base"), pypi_name("seaborn")) == ("seaborn", "seaborn")
    assert pypi_name("Some_Thing") == "some-thing"
    assert (has_known_project("python-flatbuffers"), has_known_project("some-thing")) == (True, False)
    assert known_pypi_names("libcublas") == (), "a wheel with libraries is not a Python package"


def test_the_constraints_of_all_environments_are_one_requirement() -> None:
    assert pip_requirement("typing_extensions", ["", ">=4", ">=4,<5"]) == "typing-extensions<5,>=4"
