from __future__ import annotations

import time
from typing import Any

import pytest

from kiln.base.errors import SelectorFault, UnsafeTemplate
from kiln.base.limits.errors import SECONDS
from kiln.recipe.template.names import Namespace, RestrictedOs, language_version_names, platform_names
from kiln.recipe.template.selectors import BoundedDict, SelectableText, lines_with_selectors


def names(subdir: str = "linux-64", *, known: frozenset[str] = frozenset(), **variant: Any) -> Namespace:
    fixed = {
        **platform_names(subdir),
        **language_version_names("3.11.* *_cpython", "2", "5", "5"),
        "os": RestrictedOs({"CI": "1"}),
    }
    return Namespace(fixed, variant, known)


def kept(text: str, **variant: Any) -> str:
    return SelectableText(text, "f").select(names(known=frozenset({"missing"}), **variant)).text


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("a  # [linux]", "a"),
        ("a  # [win]", None),
        ("a  # [not win and x86_64]", "a"),
        ("a # [py >= 311]", "a"),
        ("a # [py<311]", None),
        ("a # [c == 1]", "a"),  # whole numbers in variants are numbers to selectors
        ("a # [flag]", "a"),  # and so are truth values
        ("a # [s == 'x']", "a"),
        ("a # [missing]", None),
        ('a # [missing in (undefined, "None")]', "a"),
        ("a # [missing == missing_min]", "a"),  # a missing name is replaced inside of longer ones too
        ('a # [os.environ.get("CI", "0") == "1"]', "a"),
        ("a # [s.startswith('x') and len(s) == 1]", "a"),
        ("a # note [linux]", "a"),
        ("a # [linux] (why)", "a # [linux] (why)"),  # a parenthesis behind it: a Markdown link, no selector
        ('"a"  # [linux]', '"a"'),
        ("a: [linux]", "a:"),  # a bare bracket at the end of a line counts too
        ("a: [x, y]", "a:"),
        ("some [words]", None),
        ("a[0] b", "a[0] b"),
        ("a: [[x, y]]", "a: [[x, y]]"),
        ("# a [win]", ""),
    ],
)
def test_a_line_stays_where_its_selector_holds(line: str, wanted: str | None) -> None:
    result = kept(f"first\n{line}\nlast\n", c="1", flag="true", s="x")
    middle = [] if wanted is None else [wanted]
    assert result == "\n".join(["first", *middle, "last", ""])


def test_kept_lines_know_where_they_stood() -> None:
    selected = SelectableText("a\nb  # [win]\nc\n", "f").select(names())
    assert selected.text == "a\nc\n"
    assert selected.line_in_file(2) == 3


@pytest.mark.parametrize("name", ["lixnux", "cuda_compiler_verion"])
def test_an_unknown_name_is_placed_and_the_nearest_suggested(name: str) -> None:
    with pytest.raises(SelectorFault) as caught:
        SelectableText(f"a\n  b  # [win or {name}]\n", "f").select(names(cuda_compiler_version="12"))
    assert str(caught.value.at) == "f:2:16"
    assert "did you mean" in caught.value.hint


@pytest.mark.parametrize("selector", ["win and", "a b", "1 +", "x ==", "'a", "linux > 'a'"])
def test_an_invalid_expression_is_refused(selector: str) -> None:
    with pytest.raises(SelectorFault):
        kept(f"a  # [{selector}]\n")


@pytest.mark.parametrize(
    "selector",
    [
        "__import__('os').system('id')", "os.system('id')", "().__class__", "(lambda: 1)()", "2 ** 9 ** 9", "'a' * 9",
        "f'{1}'", "'%9999999d' % 1", "open('/etc/passwd')", "os.environ.__class__", "x := 1", "*linux, ",
        "str.mro(int)",
    ],
)  # fmt: skip
def test_what_reaches_further_is_refused(selector: str) -> None:
    with pytest.raises((UnsafeTemplate, SelectorFault)):
        kept(f"a  # [{selector}]\n")


@pytest.mark.parametrize(
    "line",
    [
        "#" * 400_000 + "[",
        "[" * 400_000 + "]",
        "[a" * 200_000 + "]" * 3,
        "x # [" + "not " * 400 + "win]",
        "(" * 400_000 + "[]",
    ],
    ids=["hashes", "brackets", "pairs", "nots", "parentheses"],
)
def test_long_lines_cost_little(line: str) -> None:
    begin = time.process_time()
    lines_with_selectors(f"a {line}\n")
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize("items", ["a.txt, b.txt", "COPYING LICENSE"])
def test_a_list_in_brackets_is_explained_as_the_selector_that_it_is(items: str) -> None:
    with pytest.raises((SelectorFault, UnsafeTemplate)) as caught:
        kept(f"  license_file: [{items}]")
    assert "give each item of license_file a line of its own" in caught.value.hint
    with pytest.raises((SelectorFault, UnsafeTemplate)) as caught:
        kept(f"  license_file: a.txt  # [{items}]")
    assert not caught.value.hint


def test_the_oldest_entry_goes_when_the_cache_is_full() -> None:
    cache: BoundedDict[str, int] = BoundedDict(2)
    cache["a"] = 1
    cache["b"] = 2
    cache["a"] = 3  # a new value makes no entry newer
    assert cache == {"a": 3, "b": 2}
    cache["c"] = 4
    assert cache == {"b": 2, "c": 4}


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("run: [libfoo, libbar]", "run"),
        ("  commands: [x]", "commands"),
        ("  - requires: [a]", "requires"),
        ("run: # [linux]", ""),
        ("skip: true [win]", ""),
        ("- [a, b]", ""),
        ("imports: []", ""),
    ],
)
def test_a_list_in_brackets_that_is_a_selector_gives_a_warning(line: str, key: str) -> None:
    warnings = SelectableText(f"a: b\n{line}\n", "recipe/meta.yaml").lists_as_selectors
    assert [(at.line, fault.what.rpartition(" so ")[2].split()[0]) for at, fault in warnings.items()] == (
        [(2, key)] if key else []
    )
