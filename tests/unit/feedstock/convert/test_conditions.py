"""Requirements in rattler-build's notation."""

from __future__ import annotations

import pytest

from kiln.feedstock.convert.composition import ExpressionText
from kiln.feedstock.convert.conditions import SpecConverter, strict_match_spec
from kiln.feedstock.convert.tree import ScalarPart, UnconvertiblePart


@pytest.mark.parametrize(
    ("spec", "section", "wanted"),
    [
        ("numpy", "host", "numpy"),
        ("numpy >=1.2,<3", "host", "numpy >=1.2,<3"),
        ("cmake 3.27", "build", "cmake 3.27.*"),
        ("requests 2.31", "run", "requests 2.31.*"),
        ("requests 2.31", "run_constrained", "requests ==2.31"),
        ("openjdk 21.*", "build", "openjdk 21.*"),
        ("libfoo 1.2 cpu_*", "host", "libfoo ==1.2 cpu_*"),
        ("blas * *mkl", "host", "blas * *mkl"),
        ("a 1|2", "run", "a 1.*|2.*"),
        ("faiss =1.2=*_cpu", "run", "faiss ==1.2 *_cpu"),
        ("proc =*=cuda", "run_constrained", "proc * cuda"),
        ("__cuda  >=12", "run", "__cuda >=12"),
    ],
)
def test_a_spec(spec: str, section: str, wanted: str) -> None:
    assert strict_match_spec(spec, section) == wanted


SPECS = SpecConverter(
    {"cuda": frozenset({"12.9", "13.0"}), "bounds": frozenset({">=1"})},
    {"version": "1.0"},
    {"zlib": {"max_pin": "x.x"}},
)


@pytest.mark.parametrize(
    ("pieces", "section", "wanted"),
    [
        (("cuda-version ", ExpressionText("cuda")), "host", "cuda-version ${{ cuda }}.*"),
        (("tool ", ExpressionText("version")), "run_constrained", "tool ==${{ version }}"),
        (("lib ", ExpressionText("bounds")), "host", "lib ${{ bounds }}"),
        (("tool >=", ExpressionText("version"), ",<2"), "run", "tool >=${{ version }},<2"),
        ((ExpressionText('compiler("c")'),), "build", '${{ compiler("c") }}'),
        (("zlib",), "host", "zlib"),
        (("zlib",), "run", '${{ pin_compatible("zlib", lower_bound="x.x.x.x.x.x.x", upper_bound="x.x") }}'),
        ((ExpressionText('pin_subpackage("a")'), " mpi_*"), "run", '${{ pin_subpackage("a", build="mpi_*") }}'),
        (
            (ExpressionText('pin_subpackage("a")'), " ", ExpressionText("pin")),
            "run",
            '${{ pin_subpackage("a", build=(pin) or none) }}',
        ),
    ],
)
def test_a_spec_with_expressions(pieces: tuple[str | ExpressionText, ...], section: str, wanted: str) -> None:
    result = SPECS.convert(ScalarPart(pieces=pieces), section)
    assert isinstance(result, ScalarPart)
    assert result.template_text == wanted


@pytest.mark.parametrize("pieces", [("numpy x.x",), (ExpressionText('pin_subpackage("a")'), " >1 b")])
def test_a_spec_without_equivalent_is_refused(pieces: tuple[str | ExpressionText, ...]) -> None:
    with pytest.raises(UnconvertiblePart):
        SPECS.convert(ScalarPart(pieces=pieces, number=7), "run")
