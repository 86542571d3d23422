"""The records of a channel: each line has the hash of the line before."""

from __future__ import annotations

import pytest

from kiln.base.errors import ProvenanceBroken
from kiln.conda.provenance import records
from tests.publishing import record

FILES = ("a-1-0.conda", "b-1-0.conda", "c-1-0.conda")


def chain() -> bytes:
    first = records.serialize_chain([record(FILES[0])], "")
    return first + records.serialize_chain([record(file) for file in FILES[1:]], records.last_record_hash(first))


def test_a_chain_is_read_as_it_was_sealed() -> None:
    links = records.parse_chain(chain())
    assert tuple(link.record["file"] for link in links) == FILES
    assert links[0].previous == ""
    assert [link.previous for link in links[1:]] == [link.hash for link in links[:-1]]


@pytest.mark.parametrize("line", range(3))
def test_a_record_changed_afterwards_is_seen(line: int) -> None:
    lines = chain().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"builder"', b'"another"')
    with pytest.raises(ProvenanceBroken, match=f"line {line + 1} "):
        records.parse_chain(b"".join(lines))


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
            records.parse_chain(b"".join(altered))


def test_removing_the_last_records_restores_the_chain() -> None:
    before = records.serialize_chain([record(FILES[0])], "")
    new = [record(file, sha256=f"{number}") for number, file in enumerate(FILES[1:])]
    after = before + records.serialize_chain(new, records.last_record_hash(before))
    assert records.chain_without_trailing_records(after, ["0", "1"]) == before
    assert records.chain_without_trailing_records(after, ["0"]) == after, "it is not the last"


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
        records.parse_chain(line + b"\n" + chain())


def test_an_empty_chain_has_no_last_hash() -> None:
    assert records.last_record_hash(b"") == ""
    assert records.parse_chain(b"") == ()
    assert records.last_record_hash(chain()) == records.parse_chain(chain())[-1].hash


def test_a_signature_is_of_the_hash_of_its_record() -> None:
    (link,) = records.parse_chain(records.serialize_chain([record(FILES[0])], "", lambda text: f"signed {text}"))
    assert link.signature == f"signed {link.hash}"
    assert records.parse_chain(chain())[0].signature == ""
