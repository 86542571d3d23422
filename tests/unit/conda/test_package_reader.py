"""Each fault of a package that once ended in a traceback, or in excessive work, is reported as the package's fault."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage
from kiln.base.zstd import zstd
from kiln.conda import package_reader
from kiln.conda.index import read_index_entry
from tests.broken_packages import CENTRAL, INDEX, add, packed, tarball
from tests.broken_packages import archive as tar_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GOOD = {"index.json": json.dumps(INDEX).encode()}


def package(info: bytes = b"", payload: bytes = b"", metadata: bytes = b"", **more: bytes) -> bytes:
    """A package of these archives."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        if metadata:
            file.writestr("metadata.json", metadata)
        file.writestr("info-app-1-0.tar.zst", info or packed(tarball(GOOD)))
        file.writestr("pkg-app-1-0.tar.zst", payload or packed(tar_of(lambda tar: add(tar, "share/app", b"app"))))
        for name, data in more.items():
            file.writestr(f"{name}.tar.zst", data)
    return made.getvalue()


def field(offset: int, value: int) -> bytes:
    """A good package with one field of its central directory changed."""
    data = bytearray(package())
    at = data.index(CENTRAL) + offset
    data[at : at + 2] = struct.pack("<H", value)
    return bytes(data)


def info(name: str, data: bytes) -> bytes:
    """A package with one file of its metadata as given."""
    return package(packed(tarball({**GOOD, name: data})))


def with_member(**header: object) -> bytes:
    """A package whose metadata has index.json with a header as given."""
    return package(packed(tar_of(lambda tar: add(tar, "info/index.json", GOOD["index.json"], **header))))


def sparse() -> bytes:
    """A package with a file that says it has exabytes of zeros."""
    more = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "share/hole"}
    more["GNU.sparse.realsize"] = str(1 << 60)
    return package(payload=packed(tar_of(lambda tar: add(tar, "x", b"1\n0\n1\n" + bytes(506), pax_headers=more))))


def long_header() -> bytes:
    """A package with a name of gigabytes, which compresses well."""
    header = tarfile.TarInfo("name")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1 << 31
    return package(packed(header.tobuf() + bytes(1 << 20)))


FAULTS: dict[str, Callable[[], bytes]] = {
    "encrypted": lambda: field(8, 1),
    "unknown compression": lambda: field(10, 99),
    "a newer zip": lambda: field(6, 99),
    "an offset beyond the file": lambda: field(42, 0xFFFF),
    "a cut-off directory": lambda: package()[:-30],
    "a cut-off archive": lambda: package(packed(tarball(GOOD))[:-10]),
    "no metadata": lambda: package().replace(b"info-app", b"onfi-app"),
    "metadata twice": lambda: package(**{"info-other": packed(tarball(GOOD))}),
    "a payload twice": lambda: package(**{"pkg-other": packed(tarball(GOOD))}),
    "something before the first member": lambda: b"x" * 10 + package(),
    "something before the directory": lambda: package().replace(CENTRAL, b"x" * 9 + CENTRAL, 1),
    "no archive": lambda: package(b"x" * 100),
    "no tar archive": lambda: package(zstd.compress(b"x" * 1000)),
    "index.json as a link": lambda: with_member(type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0),
    "index.json as a device": lambda: with_member(type=tarfile.CHRTYPE, size=0),
    "a newer format": lambda: package(metadata=b'{"conda_pkg_format_version": 99}'),
    "a format that is text": lambda: package(metadata=b'{"conda_pkg_format_version": "2"}'),
    "no format": lambda: package(metadata=b"[]"),
    "index.json twice": lambda: info("../info/index.json", GOOD["index.json"]),
    "deep JSON": lambda: info("index.json", b"[" * 100_000),
    "a key twice": lambda: info("index.json", GOOD["index.json"].replace(b"{", b'{"name": "other", ')),
    "no number": lambda: info("index.json", GOOD["index.json"].replace(b": 0", b": NaN")),
    "half a character": lambda: info("index.json", GOOD["index.json"].replace(b'"1"', b'"\\ud800"')),
    "an integer of very many digits": lambda: info("index.json", b'{"build_number": ' + b"1" * 100_000 + b"}"),
    "very large JSON": lambda: info("index.json", b'"' + b" " * package_reader.LARGEST_OTHER_JSON + b'"'),
    "JSON of another type": lambda: info("index.json", b"[]"),
    "a known key of another type": lambda: info("index.json", GOOD["index.json"].replace(b'"1"', b'["1"]')),
    "a subdir that leads out": lambda: info("index.json", GOOD["index.json"].replace(b"linux-64", b"../../x")),
    "invalid exports": lambda: info("run_exports.json", b'{"weak": [1]}'),
    "a header of gigabytes": long_header,
    "a path of very many parts": lambda: info("a/" * 5000, b""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_package_is_reported(tmp_path: Path, fault: str) -> None:
    place = tmp_path / "app-1-0.conda"
    place.write_bytes(FAULTS[fault]())
    with pytest.raises(BrokenPackage) as told:
        read_index_entry(place)
    assert str(place) in told.value.what


def test_the_package_that_these_are_made_of_is_good(tmp_path: Path) -> None:
    place = tmp_path / "app-1-0.conda"
    place.write_bytes(package())
    assert read_index_entry(place).record["name"] == "app"


@pytest.mark.parametrize(
    "data",
    [
        sparse,
        lambda: package(payload=packed(tar_of(lambda tar: add(tar, "x", type=tarfile.GNUTYPE_SPARSE)))),
        lambda: package(payload=packed(tar_of(lambda tar: add(tar, "a/" * 5000)))),
        lambda: package(payload=packed(tar_of(lambda tar: add(tar, "bin/x", type=tarfile.CHRTYPE)))),
        lambda: package(payload=packed(tar_of(lambda tar: add(tar, "bin/x", type=tarfile.BLKTYPE)))),
        lambda: package(payload=packed(tar_of(lambda tar: add(tar, "bin/x", type=tarfile.FIFOTYPE)))),
    ],
    ids=["a hole by an extended header", "a hole by its kind", "a long path", "a device", "a disk", "a pipe"],
)
def test_an_invalid_payload_is_refused(tmp_path: Path, data: Callable[[], bytes]) -> None:
    place = tmp_path / "app-1-0.conda"
    place.write_bytes(data())
    with pytest.raises(BrokenPackage), package_reader.open_package_members(place) as members:
        list(members)


def test_a_payload_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_reader, "LEAST_PAYLOAD", 1 << 20)
    place = tmp_path / "app-1-0.conda"
    place.write_bytes(package(payload=packed(tar_of(lambda tar: add(tar, "zeros", bytes(1 << 22))))))
    with pytest.raises(BrokenPackage) as told, package_reader.open_package_members(place) as members:
        assert [content.read() for _, content in members if content]
    assert "it unpacks to more than" in told.value.why


def test_faults_of_the_disk_are_no_faults_of_the_package(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        package_reader.read_info_json(tmp_path / "nowhere.conda", "index.json")
