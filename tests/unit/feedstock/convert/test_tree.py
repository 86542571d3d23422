"""The tree of a recipe without statements: conditions belong to the parts that they cover."""

from __future__ import annotations

import pytest

from kiln.feedstock.convert.composition import ExpressionText
from kiln.feedstock.convert.conditions import SpecConverter, strict_match_spec
from kiln.feedstock.convert.statements import expand_statements
from kiln.feedstock.convert.tree import DictPart, ListPart, ScalarPart, UnconvertiblePart, recipe_tree


def tree(text: str) -> DictPart:
    return recipe_tree(expand_statements(text, frozenset(), {}))


def test_a_condition_belongs_to_a_key_or_to_an_item() -> None:
    result = tree("a: x  # [linux]\nb:\n  - y  # [win] why\n")
    value, items = result.values_of_key("a")[0], result.values_of_key("b")[0]
    assert [guard.text for guard in value.guards] == ["linux"]
    assert isinstance(items, ListPart)
    assert [guard.text for guard in items.items[0].guards] == ["win"]
    assert items.items[0].behind == "# why"


def test_a_condition_on_all_lines_of_an_item_is_the_item_s() -> None:
    result = tree("a:\n  - url: x  # [linux]\n    fn: y  # [linux]\n").values_of_key("a")[0]
    assert isinstance(result, ListPart)
    assert [guard.text for guard in result.items[0].guards] == ["linux"]
    assert isinstance(result.items[0], DictPart)
    assert not result.items[0].values_of_key("fn")[0].guards


def test_a_condition_on_the_first_line_of_an_item_alone_is_refused() -> None:
    with pytest.raises(UnconvertiblePart) as refused:
        tree("a:\n  - url: x  # [linux]\n    fn: y\n")
    assert refused.value.number == 2


def test_a_condition_inside_a_text_is_refused() -> None:
    with pytest.raises(UnconvertiblePart) as refused:
        tree("a: |\n  x\n  y  # [linux]\n")
    assert (refused.value.number, "linux" in str(refused.value)) == (3, True)


def test_a_key_may_stand_several_times() -> None:
    assert [part.number for part in tree("a: x  # [linux]\na: y  # [win]\n").values_of_key("a")] == [1, 2]


def test_text_keeps_its_expressions() -> None:
    result = tree("a: 'x{{ b ~ c }}y'\n").values_of_key("a")[0]
    assert isinstance(result, ScalarPart)
    assert (result.template_text, result.plain) == ('x${{ b | default("") ~ c | default("") }}y', False)


def test_comments_stay_where_they_are() -> None:
    result = tree("# top\na:  # at the key\n  # above\n  - x  # behind\n  # below\nb: y\n# end\n")
    items = result.values_of_key("a")[0]
    assert isinstance(items, ListPart)
    assert (items.above, items.behind) == (["# top"], "# at the key")
    assert (items.items[0].above, items.items[0].behind, items.items[0].below) == (["# above"], "# behind", ["# below"])
    assert result.below == ["# end"]


@pytest.mark.parametrize(
    ("text", "line"), [("a: b: c\n", 1), ("- a\n", 0), ("a: 1\n{{ b }}: 2\n", 2), ("? {a: b}\n: c\n", 1)]
)
def test_what_is_no_recipe_is_refused(text: str, line: int) -> None:
    with pytest.raises(UnconvertiblePart) as refused:
        tree(text)
    assert refused.value.number == line


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
