"""Packages, records and addresses with the mistakes that damage and attackers make, from a seeded die.

Each mutation takes a good file and a die, and returns a bad one; some leave it good. They go for what readers trust:
the zip's directory and headers, the tar's headers, the types and the depth of JSON values, and text.
"""

from __future__ import annotations

import bz2
import io
import json
import struct
import tarfile
import warnings
import zipfile
from typing import TYPE_CHECKING, Any

from kiln.base.zstd import zstd

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    Info = dict[str, bytes]

CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"
ODD_NAMES = (
    "../out", "/etc/kiln", "info/../../out", "conda-meta/history", "a\0b", "\udcff", "a\nb", "", ".", "..", "x" * 5000,
    "info/index.json", "./info/index.json", "INFO/INDEX.JSON", "share/app", "info", "info/paths.json/x", "\u202ea",
)  # fmt: skip
ODD_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", "\x1b[31m", "../..", "a" * 100_000, [], {}, [[]], [{}], [None],
    {"": ""}, {"a": {"b": {"c": []}}}, [1, "a", None], float("nan"), float("inf"),
)  # fmt: skip
KEYS = (
    *("name", "version", "build", "build_number", "subdir", "depends", "constrains", "noarch", "timestamp", "size"),
    *("sha256", "md5", "license", "extra", "paths", "_path", "path_type", "paths_version", "weak", "files"),
    *(
        "buildDefinition",
        "externalParameters",
        "subject",
        "digest",
        "file",
        "sbom_sha256",
        "python_site_packages_path",
        "track_features",
    ),
)


def conda(info: Info, payload: Callable[[tarfile.TarFile], None], name: str, dice: random.Random) -> bytes:
    """Return a .conda file, of one mistake or none in how its archives are made and put together."""
    archives = {f"info-{name}.tar.zst": packed(tarball(info)), f"pkg-{name}.tar.zst": packed(archive(payload))}
    made = {"metadata.json": b'{"conda_pkg_format_version": 2}', **archives}
    how = dice.choice((plain, plain, reordered, missing, doubled, methods, prefixed, commented))
    return how(made, dice)


def tarball(info: Info) -> bytes:
    """Return the archive with a package's metadata."""

    def fill(tar: tarfile.TarFile) -> None:
        for name, data in info.items():
            add(tar, f"info/{name}", data)

    return archive(fill)


def archive(fill: Callable[[tarfile.TarFile], None]) -> bytes:
    """Return a tar archive."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT, errors="surrogateescape") as tar:
        fill(tar)
    return made.getvalue()


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **more: Any) -> None:
    """Add one member, with fields of its header as given."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for key, value in more.items():
        setattr(member, key, value)
    tar.addfile(member, io.BytesIO(data))


def packed(data: bytes) -> bytes:
    """Return the archive, compressed."""
    return zstd.compress(data)


# How the members of the zip are put together


def plain(members: Info, _dice: random.Random) -> bytes:
    """As packages are."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def reordered(members: Info, dice: random.Random) -> bytes:
    """In another order."""
    names = list(members)
    dice.shuffle(names)
    return plain({name: members[name] for name in names}, dice)


def missing(members: Info, dice: random.Random) -> bytes:
    """Without one of them."""
    gone = dice.choice(list(members))
    return plain({name: data for name, data in members.items() if name != gone}, dice)


def doubled(members: Info, dice: random.Random) -> bytes:
    """With one twice, under its own name or a similar one."""
    name = dice.choice(list(members))
    made = io.BytesIO(plain(members, dice))
    with warnings.catch_warnings(), zipfile.ZipFile(made, "a") as file:
        warnings.simplefilter("ignore")  # of a name that is there already: that is the point
        other = dice.choice((name, name.replace("app", "other"), f"../{name}", name.upper()))
        file.writestr(zipfile.ZipInfo(other), dice.choice((members[name], b"", b"other")))
    return made.getvalue()


def methods(members: Info, dice: random.Random) -> bytes:
    """Compressed once more."""
    made = io.BytesIO()
    method = dice.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    with zipfile.ZipFile(made, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return made.getvalue()


def prefixed(members: Info, dice: random.Random) -> bytes:
    """With something before the first member, or between the last and the directory."""
    data, extra = plain(members, dice), dice.randbytes(dice.randrange(1, 60))
    at = dice.choice((0, data.index(CENTRAL)))
    return data[:at] + extra + data[at:]


def commented(members: Info, dice: random.Random) -> bytes:
    """With a comment at the end, which may look like a directory."""
    data = plain(members, dice)
    comment = dice.choice((b"x" * 65535, END + bytes(18), CENTRAL + bytes(42)))
    return data[:-2] + struct.pack("<H", len(comment)) + comment


# Bytes of a finished file


def bent(data: bytes, dice: random.Random) -> bytes:
    """Return the file with some of its bytes, or of its headers' fields, changed."""
    result = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 8))):
        dice.choice((flipped, field, cut, spread))(result, dice)
    return bytes(result)


def flipped(data: bytearray, dice: random.Random) -> None:
    """Change one byte."""
    if data:
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def field(data: bytearray, dice: random.Random) -> None:
    """Give a field of one of the zip's headers an odd value: flags, method, sizes, offset, lengths."""
    kind = dice.choice((CENTRAL, LOCAL, END))
    places = [at for at in range(len(data)) if data.startswith(kind, at)]
    if places:
        at = dice.choice(places) + dice.randrange(4, 46, 2)
        value = dice.choice((0, 1, 8, 14, 93, 99, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, dice.randrange(1 << 16)))
        new = struct.pack("<I" if value > 0xFFFF else "<H", value)
        data[at : at + len(new)] = new


def cut(data: bytearray, dice: random.Random) -> None:
    """Leave the end out, or a stretch of the middle."""
    begin = dice.randrange(len(data) + 1)
    del data[begin : dice.choice((len(data), begin + dice.randrange(1, 200)))]


def spread(data: bytearray, dice: random.Random) -> None:
    """Write a stretch over another."""
    if len(data) > 100:
        source, target = dice.randrange(len(data) - 50), dice.randrange(len(data) - 50)
        data[target : target + 50] = data[source : source + 50]


# What is in the archives


def payload(tar: tarfile.TarFile, dice: random.Random) -> None:
    """A file, and members that no package should have."""
    add(tar, "share/app", b"app")
    odd = dice.choice(ODD_NAMES)
    kind = dice.choice((None, None, odd_member, odd_link, odd_header, many))
    if kind is not None:
        kind(tar, odd, dice)


def odd_member(tar: tarfile.TarFile, name: str, dice: random.Random) -> None:
    """A member of a strange kind or name."""
    kinds = (
        tarfile.REGTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.FIFOTYPE,
        tarfile.DIRTYPE,
        tarfile.CONTTYPE,
        b"Z",
    )
    add(tar, name or "x", type=dice.choice(kinds), mode=dice.choice((0o644, 0o7777, 0)), uid=dice.choice((0, 10**9)))


def odd_link(tar: tarfile.TarFile, name: str, dice: random.Random) -> None:
    """A link to somewhere."""
    aim = dice.choice(("/etc/passwd", "../../../etc", "link", "share/app", "", "x" * 5000, "a/../../b"))
    add(
        tar,
        dice.choice((name, "link", "share")) or "x",
        type=dice.choice((tarfile.SYMTYPE, tarfile.LNKTYPE)),
        linkname=aim,
    )


def odd_header(tar: tarfile.TarFile, name: str, dice: random.Random) -> None:
    """Extended headers that say otherwise than the plain one, or nothing that can be."""
    key = dice.choice(
        ("path", "size", "mtime", "linkpath", "GNU.sparse.major", "GNU.sparse.size", "GNU.sparse.map", "uid")
    )
    value = dice.choice((name.replace("\0", "") or "x", "-1", "1e400", str(10**18), "nan", "0,99999999999", "1"))
    more = {"GNU.sparse.name": "share/hole", "GNU.sparse.minor": "0"} if "sparse" in key else {}
    add(tar, "share/more", b"more", pax_headers={key: value, **more})


def many(tar: tarfile.TarFile, _name: str, dice: random.Random) -> None:
    """The same name again and again, or names below it."""
    for number in range(dice.randrange(2, 50)):
        add(tar, dice.choice(("share/app", "share/app/below", f"share/{number}")), b"again")


# JSON


def json_like(value: Any, dice: random.Random) -> bytes:
    """Return a JSON text with one mistake: a wrong type somewhere, a key twice, depth, an odd number, odd bytes."""
    how = dice.choice((typed, typed, typed, twice, deep, number, bytes_of))
    return how(value, dice)


def typed(value: Any, dice: random.Random) -> bytes:
    """Return a value of the wrong type at some place."""
    copy = json.loads(json.dumps(value))
    if not isinstance(copy, (dict, list)) or not copy or dice.random() < 0.1:
        return json.dumps(dice.choice(ODD_VALUES)).encode()
    at: Any = copy
    while True:
        key = dice.choice(list(at) if isinstance(at, dict) else list(range(len(at))))
        if isinstance(at[key], (dict, list)) and at[key] and dice.random() < 0.6:
            at = at[key]
            continue
        if isinstance(at, dict) and dice.random() < 0.3:
            at[dice.choice(KEYS)] = dice.choice(ODD_VALUES)
        elif dice.random() < 0.2:
            del at[key]
        else:
            at[key] = dice.choice(ODD_VALUES)
        return json.dumps(copy).encode()


def twice(value: Any, dice: random.Random) -> bytes:
    """Return an object that has a key twice."""
    key = dice.choice(KEYS)
    first = f'{{"{key}": {json.dumps(dice.choice(ODD_VALUES))}, "{key}": {json.dumps(dice.choice(ODD_VALUES))}'
    rest = json.dumps(value)
    return (f"{first}, {rest[1:]}" if rest.startswith("{") and len(rest) > 2 else f"{first}}}").encode()


def deep(value: Any, dice: random.Random) -> bytes:
    """Values in one another, as a whole or at a key."""
    depth = dice.choice((200, 2000, 100_000))
    nest = dice.choice((b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth))
    text = json.dumps(value).encode()
    return nest if dice.random() < 0.5 or not text.startswith(b"{") else b'{"extra": ' + nest + b"," + text[1:]


def number(value: Any, dice: random.Random) -> bytes:
    """Return a invalid or very large number."""
    odd = dice.choice(("NaN", "Infinity", "-Infinity", "1" * 5000, "1e999", "-0", "0x1", "1" * 30))
    return f'{{"build_number": {odd}, {json.dumps(value)[1:]}'.encode()


def bytes_of(value: Any, dice: random.Random) -> bytes:
    """Text in other bytes than UTF-8 has."""
    text = json.dumps(value)
    return dice.choice(
        (
            b"\xef\xbb\xbf" + text.encode(),
            text.encode("utf-16"),
            text.encode() + b"\xff",
            text.encode() + b"\0" * 100,
            b"",
            text.encode() * 2,
            text.replace('"', "'").encode(),
            text.encode()[: dice.randrange(len(text) + 1)],
        )
    )


INDEX = {"name": "app", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
ABOUT = {"license": "CC0-1.0", "extra": {"sha": "1" * 40}}
PATHS = {
    "paths": [{"_path": "share/app", "path_type": "hardlink", "sha256": "0" * 64, "size_in_bytes": 3}],
    "paths_version": 1,
}
EXPORTS = {"weak": ["app >=1"]}


def package(dice: random.Random, *, bz2_too: bool = False) -> tuple[str, bytes]:
    """Return a package of an odd kind: its file name and its bytes."""
    info = {
        name: json.dumps(value).encode()
        for name, value in (
            ("index.json", INDEX),
            ("about.json", ABOUT),
            ("paths.json", PATHS),
            ("run_exports.json", EXPORTS),
        )
    }
    info["licenses/LICENSE"] = b"do as you like"
    values = {"index.json": INDEX, "about.json": ABOUT, "paths.json": PATHS, "run_exports.json": EXPORTS}
    if dice.random() < 0.5:
        victim = dice.choice(list(values))
        info[victim] = json_like(values[victim], dice)
    if dice.random() < 0.1:
        info.pop(dice.choice(list(info)))

    def fill(tar: tarfile.TarFile) -> None:
        payload(tar, dice)

    if bz2_too and dice.random() < 0.3:

        def both(tar: tarfile.TarFile) -> None:
            for name, data in info.items():
                add(tar, f"info/{name}", data)
            fill(tar)

        made, name = bz2.compress(archive(both)), "app-1-0.tar.bz2"
    else:
        made, name = conda(info, fill, "app-1-0", dice), "app-1-0.conda"
    return name, bent(made, dice) if dice.random() < 0.4 else made


def address(url: str, dice: random.Random) -> str:
    """Return a URL with a mistake."""
    odd = dice.choice(
        (" ", "[", "]", "[::1", "\n", "\0", "é", "%", "%zz", "@", ":", "//", "?", "#", "\\", ":99999", ":a", "\u202e")
    )
    at = dice.randrange(len("http://"), len(url) + 1)
    return url[:at] + odd + url[at:]
