"""Whether a package is what the records of a channel say."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from kiln import archive, files
from kiln.errors import ProvenanceBroken
from kiln.provenance.chain import parsed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import Any

    from kiln.provenance.chain import Link
    from kiln.provenance.signing import Signers


def verify(
    package: Path,
    chain: bytes,
    *,
    bill_of: Callable[[str], bytes | None],
    offered: Mapping[str, str],
    signers: Signers | None = None,
) -> tuple[Link, tuple[str, ...]]:
    """Return the record of a package, and what was seen to hold.

    ``bill_of`` gives the bill of materials of a package's hash, ``offered`` the hashes in the channel's index, by
    path; none where there is no index, as in a bundle. With ``signers`` the record must be signed by one of them.

    Raises:
        ProvenanceBroken: at the first thing that does not hold.
    """
    links = parsed(chain)
    sha256 = files.sha256(package)
    link = _of(links, package, sha256)
    held = [f"{len(links)} records follow one another", f"the file is the one of the record, by its hash {sha256}"]
    held.append(_same(link.record, package))
    held += _index(link.record, offered)
    held += _bill(link.record, bill_of(sha256))
    if signers is not None:
        held.append(f"the record is signed by {signers.who(link.hash, link.signature)}")
    return link, tuple(held)


def _of(links: tuple[Link, ...], package: Path, sha256: str) -> Link:
    for link in reversed(links):
        if link.record.get("sha256") == sha256:
            return link
    named = [link for link in links if link.record.get("file") == package.name]
    if not named:
        raise ProvenanceBroken(f"no record tells of {package.name}", hint="name its channel with --channel")
    raise ProvenanceBroken(
        f"{package.name} is not the package that was published",
        why=f"its hash is {sha256}, that of the record {named[-1].record.get('sha256')}",
    )


def _same(record: Mapping[str, Any], package: Path) -> str:
    index, about = archive.read_info(package, "index.json"), archive.read_info(package, "about.json")
    told = {**{key: index.get(key) for key in ("name", "version", "build", "subdir")}, "file": package.name}
    told["commit"] = about.get("extra", {}).get("sha")
    wrong = [key for key, value in told.items() if record.get(key) != value]
    if wrong:
        raise ProvenanceBroken(f"{package.name} and its record differ in {', '.join(wrong)}")
    return (
        f"it is {told['name']} {told['version']} {told['build']} of commit {told['commit'] or 'unknown'}, as recorded"
    )


def _index(record: Mapping[str, Any], offered: Mapping[str, str]) -> list[str]:
    path = f"{record.get('subdir')}/{record.get('file')}"
    if not offered:
        return []
    if path not in offered:
        return ["the channel's index does not offer it: it was withdrawn"]
    if offered[path] != record.get("sha256"):
        raise ProvenanceBroken(f"the channel's index has another hash for {path}", why=offered[path])
    return ["the channel's index has the same hash"]


def _bill(record: Mapping[str, Any], bill: bytes | None) -> list[str]:
    wanted = record.get("sbom_sha256")
    if bill is None or hashlib.sha256(bill).hexdigest() != wanted:
        raise ProvenanceBroken("the bill of materials is missing or is not the one of the record", why=f"hash {wanted}")
    return ["its bill of materials is the one of the record"]
