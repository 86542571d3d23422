from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from kiln.base import yaml as kiln_yaml
from kiln.base.errors import KilnError, MalformedYaml, UnsafeTemplate
from kiln.base.limits.errors import SECONDS
from kiln.base.yaml import ScalarInterpretation, load, parse_document, read_text

if TYPE_CHECKING:
    from pathlib import Path


def test_numbers_stay_text_and_words_become_values() -> None:
    value = parse_document("a: 1.10\nb: yes\nc: null\nd: 'yes'\ne:\n", "f", ScalarInterpretation.WORDS).value
    assert value == {"a": "1.10", "b": True, "c": None, "d": "yes", "e": None}


def test_everything_is_text_in_variant_files() -> None:
    assert parse_document("a: [1, yes]\nb:\n", "f", ScalarInterpretation.TEXT).value == {"a": ["1", "yes"], "b": ""}


def test_outermost_keys_are_placed() -> None:
    document = parse_document("a: 1\n\nb:\n  c: 2\n", "f.yaml", ScalarInterpretation.TEXT)
    assert str(document.place_of_key("b")) == "f.yaml:3:1"
    assert str(document.place_of_key("c")) == "f.yaml"


def test_merged_mappings_give_way_to_own_keys() -> None:
    text = "base: &b\n  x: 1\n  y: 2\nown:\n  <<: *b\n  x: 3\n"
    assert parse_document(text, "f", ScalarInterpretation.WORDS).value["own"] == {"x": "3", "y": "2"}


DEEP = "a: " + "[" * 5_000
EXPLODING = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
BAD: list[tuple[str, str, type[KilnError], str]] = [
    ("unclosed", "a: 1\nb: [1, 2\nc: 3\n", MalformedYaml, "f:"),
    ("tab", "a:\n\tb: 1\n", MalformedYaml, "f:2"),
    ("twice", "a: 1\nb: 2\na: 3\n", MalformedYaml, "f:3:4"),
    ("two documents", "a: 1\n---\nb: 2\n", MalformedYaml, "f:2"),
    ("deep", DEEP, MalformedYaml, "f:1"),
    ("exploding", EXPLODING, MalformedYaml, "f:"),
    ("object", "a: !!python/object/apply:os.system ['id']\n", UnsafeTemplate, "f:1:4"),
    ("own tag", "a: !thing 3\n", UnsafeTemplate, "f:1"),
    ("list as key", "? [a]\n: 1\n", MalformedYaml, "f:1"),
    ("control character", "a: \x00\n", MalformedYaml, "f:1"),
    ("unknown alias", "a: *b\n", MalformedYaml, "f:1"),
]


@pytest.mark.parametrize(("text", "error", "place"), [bad[1:] for bad in BAD], ids=[bad[0] for bad in BAD])
def test_bad_yaml_is_one_clear_error_within_the_limit(text: str, error: type[KilnError], place: str) -> None:
    begin = time.process_time()
    with pytest.raises(error) as caught:
        parse_document(text, "f", ScalarInterpretation.WORDS)
    assert str(caught.value.at).startswith(place)
    assert time.process_time() - begin < SECONDS


@pytest.mark.parametrize("loader", [yaml.CSafeLoader, yaml.SafeLoader], ids=["libyaml", "PyYAML"])
@pytest.mark.parametrize(
    ("text", "place", "what", "hint"),
    [
        ("a:\n\t- b\n", "f:2:1", r"the character '\t'", "indent with spaces"),
        ("ä: b\n{% set a = 1 %}\n", "f:2:2", "the character '%'", "remove the {% %}"),
        ("a: @b\n", "f:1:4", "the character '@'", "quote the text"),
        ("a: 1\nb: 'it\nc: 2\n", "f:2:4", "begins with 'it has no end", "close it with '"),
    ],
)
def test_a_character_and_an_open_quote_are_named(
    loader: object, text: str, place: str, what: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kiln_yaml, "_LOADER", loader)
    with pytest.raises(MalformedYaml) as caught:
        parse_document(text, "f", ScalarInterpretation.WORDS)
    assert str(caught.value.at) == place
    assert what in caught.value.what
    assert hint in caught.value.hint


def test_no_loader_constructs_objects_of_python() -> None:
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        load("!!python/object/apply:os.getcwd []")


def test_the_same_value_twice_is_harmless() -> None:
    assert parse_document("a: 1\na: 1\n", "f", ScalarInterpretation.WORDS).value == {"a": "1"}


def test_a_key_may_be_given_again_where_that_is_meant() -> None:
    assert parse_document("a: 1\na: 2\n", "f", ScalarInterpretation.WORDS, may_repeat=lambda key: key == "a").value == {
        "a": "2"
    }


def test_text_that_is_not_utf8_is_placed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(MalformedYaml) as caught:
        read_text(tmp_path / "f", "f")
    assert str(caught.value.at) == "f:2:4"


def test_a_pipe_and_a_link_to_a_device_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name, why in {"pipe": "a pipe", "zero": "a link to /dev/zero"}.items():
        with pytest.raises(MalformedYaml, match="is not a regular file") as caught:
            read_text(tmp_path / name, name)
        assert why in caught.value.why


def test_a_file_over_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(1 << 40)  # which takes no space
    with pytest.raises(MalformedYaml, match="has 1,099,511,627,776 bytes"):
        read_text(tmp_path / "f", "f")


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa: 1\n")
    assert read_text(tmp_path / "f", "f") == "a: 1\n"
