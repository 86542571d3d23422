"""Records of how packages were made: chained, signed, and written as bills of materials."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kiln import provenance
from kiln.errors import ProvenanceBroken, UsageError
from kiln.provenance import Signers
from tests.publishing import record

if TYPE_CHECKING:
    from pathlib import Path

FILES = ("a-1-0.conda", "b-1-0.conda", "c-1-0.conda")


def chain() -> bytes:
    first = provenance.sealed([record(FILES[0])], "")
    return first + provenance.sealed([record(file) for file in FILES[1:]], provenance.last_hash(first))


def test_a_chain_is_read_as_it_was_sealed() -> None:
    links = provenance.parsed(chain())
    assert tuple(link.record["file"] for link in links) == FILES
    assert links[0].previous == ""
    assert [link.previous for link in links[1:]] == [link.hash for link in links[:-1]]


@pytest.mark.parametrize("line", range(3))
def test_a_record_changed_afterwards_is_seen(line: int) -> None:
    lines = chain().splitlines(keepends=True)
    lines[line] = lines[line].replace(b'"builder"', b'"another"')
    with pytest.raises(ProvenanceBroken, match=f"line {line + 1} "):
        provenance.parsed(b"".join(lines))


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
            provenance.parsed(b"".join(altered))


def test_removing_the_last_records_restores_the_chain() -> None:
    before = provenance.sealed([record(FILES[0])], "")
    new = [record(file, sha256=f"{number}") for number, file in enumerate(FILES[1:])]
    after = before + provenance.sealed(new, provenance.last_hash(before))
    assert provenance.without(after, ["0", "1"]) == before
    assert provenance.without(after, ["0"]) == after, "it is not the last"


@pytest.mark.processes
@pytest.mark.needs("ssh-keygen")
def test_a_signature_holds_for_its_text_and_its_signer_alone(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name))
        subprocess.run(words, check=True)
    allowed = tmp_path / "allowed"
    allowed.write_text(f"release@example.org {(tmp_path / 'ours.pub').read_text()}")
    sign = provenance.signer(tmp_path / "ours", env=os.environ)
    (link,) = provenance.parsed(provenance.sealed([record(FILES[0])], "", sign))
    signers = Signers(file=allowed, env=os.environ)
    assert signers.signer_of(link.hash, link.signature) == "release@example.org"
    theirs = provenance.signer(tmp_path / "theirs", env=os.environ)(link.hash)
    for text, signature in ((link.hash, theirs), ("another", link.signature), (link.hash, ""), (link.hash, "no")):
        with pytest.raises(ProvenanceBroken, match="not signed"):
            signers.signer_of(text, signature)
    with pytest.raises(UsageError, match="cannot sign"):
        provenance.signer(tmp_path / "none", env=os.environ)("text")


# The rules of SPDX 2.3 that concern a document of packages alone: https://spdx.github.io/spdx-spec/v2.3/

REFERENCE = re.compile(r"SPDXRef-[A-Za-z0-9.-]+")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def bill(**changed: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(provenance.bill(record(FILES[0], **changed)))
    return found


def test_a_bill_of_materials_keeps_the_rules_of_spdx() -> None:
    told = bill(depends=("python >=3.11", "python_abi 3.11.*", "__glibc >=2.17", "lib_x", "lib_x >=1"))
    assert (told["spdxVersion"], told["dataLicense"], told["SPDXID"]) == ("SPDX-2.3", "CC0-1.0", "SPDXRef-DOCUMENT")
    assert MOMENT.fullmatch(told["creationInfo"]["created"])
    assert all(re.match(r"(Tool|Organization|Person): ", each) for each in told["creationInfo"]["creators"])
    assert "#" not in told["documentNamespace"]
    known = [told["SPDXID"], *(package["SPDXID"] for package in told["packages"])]
    assert len(known) == len(set(known))
    assert all(REFERENCE.fullmatch(each) for each in known)
    for relation in told["relationships"]:
        assert {relation["spdxElementId"], relation["relatedSpdxElement"]} <= set(known)
    for package in told["packages"]:
        assert package["name"]
        assert package["downloadLocation"]
        assert package["filesAnalyzed"] is False
        assert all(re.fullmatch(r"[0-9a-f]{64}", each["checksumValue"]) for each in package.get("checksums", ()))


def test_a_bill_lists_sources_and_run_requirements() -> None:
    told = bill()
    names = {package["SPDXID"]: package["name"] for package in told["packages"]}
    relations = {(each["relationshipType"], names.get(each["relatedSpdxElement"])) for each in told["relationships"]}
    assert relations == {("DESCRIBES", "a"), ("GENERATED_FROM", "a-1.tar.gz"), ("DEPENDS_ON", "python")}
    assert told["packages"][0]["licenseDeclared"] == "MIT"
    assert told["packages"][1]["checksums"][0]["checksumValue"] == "ef" * 32


def test_an_invalid_spdx_license_becomes_a_comment() -> None:
    main = bill(license="as you like")["packages"][0]
    assert main["licenseDeclared"] == "NOASSERTION"
    assert "as you like" in main["licenseComments"]


def test_the_same_record_has_the_same_bill() -> None:
    assert provenance.bill(record(FILES[0])) == provenance.bill(record(FILES[0]))


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
        provenance.parsed(line + b"\n" + chain())
