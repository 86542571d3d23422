"""The records of a channel: each line has the hash of the line before."""

from __future__ import annotations

import pytest

from kiln import provenance
from kiln.errors import ProvenanceBroken
from tests.publishing import record

FILES = ("a-1-0.conda", "b-1-0.conda", "c-1-0.conda")


def chain() -> bytes:
    first = provenance.sealed_lines([record(FILES[0])], "")
    return first + provenance.sealed_lines([record(file) for file in FILES[1:]], provenance.last_hash(first))


def test_a_chain_is_read_as_it_was_sealed() -> None:
    links = provenance.parsed_lines(chain())
    assert tuple(link.record["file"] for link in links) == FILES
    assert links[0].previous == ""
    assert [link.previous for link in links[1:]] == [link.hash for link in links[:-1]]


@pytest.mark.parametrize("line", range(3))
def test_a_record_changed_afterwards_is_seen(line: int) -> None:
    lines = chain().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"builder"', b'"another"')
    with pytest.raises(ProvenanceBroken, match=f"line {line + 1} "):
        provenance.parsed_lines(b"".join(lines))


def test_a_record_dropped_or_put_in_is_seen() -> None:
    lines = chain().splitlines(keepends=True)
    for altered in (
        lines[1:],
        [lines[0], lines[2]],
        [*lines, lines[0]],
        [*lines, b"{}\n"],
        [b"\xff\n"],
        [b'{"record": [], "previous": "", "hash": ""}\n'],
    ):
        with pytest.raises(ProvenanceBroken):
            provenance.parsed_lines(b"".join(altered))


def test_removing_the_last_records_restores_the_chain() -> None:
    before = provenance.sealed_lines([record(FILES[0])], "")
    new = [record(file, sha256=f"{number}") for number, file in enumerate(FILES[1:])]
    after = before + provenance.sealed_lines(new, provenance.last_hash(before))
    assert provenance.without_packages(after, ["0", "1"]) == before
    assert provenance.without_packages(after, ["0"]) == after, "it is not the last"


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b"1",
        b"\xff\xfe",
        b'{"record": {}, "previous": "", "hash": 1}',
        b'{"record": {}, "previous": "", "hash": "", "signature": 1}',
        b'{"record": {}, "previous": "", "hash": "", "signature": null}',
        b'{"record": {}, "previous": [], "hash": ""}',
        b'{"record": {}, "record": {}, "previous": "", "hash": ""}',
        b'{"record": {"name": NaN}, "previous": "", "hash": ""}',
        b'{"record": {"name": "\\ud800"}, "previous": "", "hash": ""}',
        b'{"record": [], "previous": "", "hash": ""}',
        b'{"record": {}, "previous": "", "hash": "", "more": 1}',
    ],
)
def test_an_invalid_record_is_reported(line: bytes) -> None:
    with pytest.raises(ProvenanceBroken, match="line 1 of the channel's records is invalid"):
        provenance.parsed_lines(line + b"\n" + chain())


def test_an_empty_chain_has_no_last_hash() -> None:
    assert provenance.last_hash(b"") == ""
    assert provenance.parsed_lines(b"") == ()
    assert provenance.last_hash(chain()) == provenance.parsed_lines(chain())[-1].hash


def test_a_signature_is_of_the_hash_of_its_record() -> None:
    (link,) = provenance.parsed_lines(provenance.sealed_lines([record(FILES[0])], "", lambda text: f"signed {text}"))
    assert link.signature == f"signed {link.hash}"
    assert provenance.parsed_lines(chain())[0].signature == ""
