from __future__ import annotations

import pytest

from kiln.recipe.template.names import NotSeparable, cut_into_pieces


@pytest.mark.parametrize(
    "text",
    [
        "plain\ntext\n",
        "{% set a = 1 %}\nname: {{ a }}\nplain\nmore\n",
        "{% if x %}\na\n{% endif %}\nb\n",
        "{% for i in x %}\n{% if i %}\n{{ i }}\n{% endif %}\n{% endfor %}\n",
        "{{ 'a' ~\n'b' }}\nc\n",
    ],
)
def test_the_pieces_joined_are_the_template_and_begin_at_their_lines(text: str) -> None:
    pieces = cut_into_pieces(text)
    lines = text.removesuffix("\n").split("\n")
    assert "\n".join(piece for _, piece, _ in pieces) == "\n".join(lines)
    assert all(piece.split("\n")[0] == lines[start] for start, piece, _ in pieces)


def test_plain_lines_are_one_piece_that_needs_no_compiling() -> None:
    assert cut_into_pieces("a\nb\n{{ c }}\nd\n") == [(0, "a\nb", False), (2, "{{ c }}", True), (3, "d", False)]


def test_a_block_is_one_piece_with_all_that_it_holds() -> None:
    assert cut_into_pieces("{% if x %}\na\n{% for y in z %}b{% endfor %}\n{% endif %}\nc\n") == [
        (0, "{% if x %}\na\n{% for y in z %}b{% endfor %}\n{% endif %}", True),
        (4, "c", False),
    ]


def test_closing_marks_in_texts_and_brackets_end_nothing() -> None:
    assert cut_into_pieces("{{ '}}' }}{{ {'a': {'b': 1}} }}\nc\n")[0] == (0, "{{ '}}' }}{{ {'a': {'b': 1}} }}", True)


@pytest.mark.parametrize(
    "text",
    [
        "{% macro f() %}a{% endmacro %}\n",
        "{% import 'x' as y %}\n",
        "{%- if x %}\na\n{% endif %}\n",
        "{% set a %}\nb\n{% endset %}\n",
        "{% if x %}\na\n",
        "{{ a\n" + "b\n" * 600,
    ],
    ids=["macro", "import", "trimmed", "block set", "unclosed block", "unclosed expression"],
)
def test_a_template_whose_parts_depend_on_each_other_is_not_cut(text: str) -> None:
    with pytest.raises(NotSeparable):
        cut_into_pieces(text)
