"""The system below an image's packages: single packages of Debian, unpacked and nothing of them run."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import command, files
from kiln.errors import BuildFailed, MissingTool, excerpt
from kiln.image import apt
from kiln.image.base import BEFORE, KEYRING, private, require_mmdebstrap
from kiln.image.layers import FOLDER, Entry, of_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

# Debian of today has these at the top as links into usr; packages of yesterday still bring files below them.
MERGED = ("bin", "sbin", "lib", "lib64")
NONROOT = 65532  # the user and group number that images without a root user have by custom
HOME = "/home/nonroot"
# Documentation but for licences, what only serves the packages' own installation, and programs for people.
_UNREAD = re.compile(
    r"usr/sbin/|etc/ca-certificates/|etc/skel/|usr/share/(?:doc/[^/]+/(?!copyright$)|man/|info/|locale/|lintian/|bug/)"
    r"|(?:usr/)?bin/(?:bashbug|clear_console|rbash|tini-static)$"
    r"|etc/(?:issue|update-motd|host\.conf|dpkg/|profile|default/)|usr/share/base-files/|var/"
)
_DOCUMENTATION = "/usr/share/doc/"
_CERTIFICATES = "usr/share/ca-certificates/"
# Where scanners look for what is installed in images that have no dpkg, with the fields that they read.
_STATUS = "/var/lib/dpkg/status.d"
_FIELDS = ("Package", "Status", "Source", "Version", "Architecture", "Maintainer", "Homepage")
_ALL_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_TAKEN = "KILN_TAKEN"  # names the folder that receives the packages, in the hook's environment
_TAKE = f'cp "$1"/var/cache/apt/archives/*.deb "${_TAKEN}"'
_ACCOUNTS = {
    "/etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{0}:{0}:nonroot:/home/nonroot:/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnonroot:x:{0}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deb:
    """A package of Debian as a file."""

    path: Path

    @property
    def name(self) -> str:
        """The package's name, as ``libc6``."""
        return self.path.name.split("_")[0]

    @property
    def version(self) -> str:
        """The package's version, without its epoch."""
        return self.path.name.split("_")[1].replace("%3a", ":")

    @property
    def upstream_version(self) -> str:
        """The version of what is packaged: ``2.36`` of libc6 2.36-9+deb12u14."""
        plain = self.version.rpartition(":")[2]
        return plain.rpartition("-")[0] or plain


def fetch(
    suite: str,
    names: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> tuple[Deb, ...]:
    """Have packages of a suite of Debian in a folder, in the order of their names; ``fresh`` asks for newer ones.

    apt checks their signatures. What is there already is taken as it is, so an image made again is the same.

    Raises:
        MissingTool: without mmdebstrap, which brings the machine's apt to do this apart from the machine's packages.
        BuildFailed: when apt cannot get them.
    """
    store = folder / f"debian-{suite}"
    here = {} if fresh else _newest(store)
    if not here.keys() >= set(names):
        require_mmdebstrap(env)
        _download(suite, names, store, env=env, on_line=on_line)
        here = _newest(store)
    if missing := sorted(set(names) - here.keys()):
        raise BuildFailed(
            f"Debian {suite} has no package {', '.join(missing)}", why="apt brought everything else", hint="see --with"
        )
    return tuple(here[name] for name in sorted(set(names)))


def entries(debs: Iterable[Deb], scratch: Path, *, env: Mapping[str, str]) -> tuple[Entry, ...]:
    """Unpack packages and return their files, with the accounts, folders and certificates that make a system of them.

    Documentation stays out, licences stay in. Raises BuildFailed when a package cannot be unpacked or read.
    """
    found: list[Entry] = list(_frame())
    for deb in debs:
        root = _unpacked(deb, scratch, env=env)
        found += of_tree(root, _paths(root), below="")
        found.append(_status(deb, env=env))
    bundle = tuple(_bundle(found))
    single = f"/{_CERTIFICATES}"
    return tuple(_merged(entry) for entry in (*found, *bundle) if not entry.path.startswith(single))


def _unpacked(deb: Deb, scratch: Path, *, env: Mapping[str, str]) -> Path:
    root = scratch / deb.path.name
    if not root.exists():
        root.mkdir(parents=True)
        result = command.capture(("dpkg-deb", "--extract", deb.path, root), env=env)
        if not result.ok:
            raise BuildFailed(f"{deb.path.name} cannot be unpacked", why=excerpt(result.tail))
    return root


def told_elsewhere(system: Iterable[Entry]) -> set[str]:
    """Return the packages that hold the licences of packages among the entries, and are not there themselves.

    Packages of one source often share a folder of documentation: theirs is a link to that of another one.
    """
    found = {entry.path: entry.link for entry in system if entry.path.startswith(_DOCUMENTATION)}
    links = {link for path, link in found.items() if link and path.count("/") == _DOCUMENTATION.count("/")}
    return {
        name
        for name in links
        if "/" not in name and not any(path.startswith(f"{_DOCUMENTATION}{name}/") for path in found)
    }


def _status(deb: Deb, *, env: Mapping[str, str]) -> Entry:
    """What dpkg would remember of a package, but for the list of its files."""
    said = command.capture(("dpkg-deb", "--field", deb.path, *_FIELDS), env=env)
    if not said.ok:
        raise BuildFailed(f"{deb.path.name} has no control file", why=excerpt(said.tail))
    first, _, rest = said.stdout.partition("\n")
    text = f"{first}\nStatus: install ok installed\n{rest.strip()}\n"
    return Entry(path=f"{_STATUS}/{deb.name}", mode=0o644, data=text.encode())


def owner(soname: str, suite: str, *, env: Mapping[str, str]) -> str | None:
    """Return the package of this machine that holds a shared library, when the machine is of the same suite."""
    if apt.codename(apt.os_release()) != suite:
        return None
    try:
        answer = command.capture(("dpkg-query", "--search", f"*/{soname}"), env=env, timeout=60).stdout
    except MissingTool:
        return None
    owners = [line.split(":")[0] for line in answer.splitlines() if line.endswith(f"/{soname}")]
    return min(owners, key=len, default=None)


def argv(suite: str, names: Sequence[str], *, sources: Path | None, settings: Path, keyring: Path | None) -> list[str]:
    """Return mmdebstrap's command line that downloads packages, with what they depend on, and throws the rest away."""
    return [
        "mmdebstrap",
        "--variant=extract",
        "--format=null",
        f"--include={','.join(sorted(names))}",
        *([f"--keyring={keyring}"] if keyring else []),
        f"--aptopt={settings}",
        f"--setup-hook={BEFORE}",
        f"--extract-hook={_TAKE}",
        suite,
        "/dev/null",
        *([str(sources)] if sources else []),
    ]


def _download(
    suite: str,
    names: Sequence[str],
    store: Path,
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None,
) -> None:
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kiln-debian-") as scratch, files.locked(store / ".lock"):
        lines = apt.sources(suite, env=env)
        sources = private(Path(scratch, "sources.list"), "".join(f"{line}\n" for line in lines)) if lines else None
        settings = private(Path(scratch, "apt.conf"), apt.settings(env=env))
        words = argv(suite, names, sources=sources, settings=settings, keyring=KEYRING if KEYRING.exists() else None)
        taken = Path(scratch, "taken")
        taken.mkdir()
        result = command.run(words, env={**env, _TAKEN: str(taken)}, on_line=on_line)
        if not result.ok:
            raise BuildFailed(
                f"the packages {', '.join(names)} of Debian {suite} could not be fetched",
                why=f"mmdebstrap ended with exit code {result.exit_code}:\n{excerpt(result.tail)}",
                hint="see that the machine's own 'apt-get update' works, and that the packages' names are Debian's",
            )
        for deb in sorted(taken.glob("*.deb")):
            if deb.name.split("_")[0] in names:
                files.link_or_copy(deb, store / deb.name)


def _newest(store: Path) -> dict[str, Deb]:
    """The packages in a folder by name, of each the one that came last."""
    debs = sorted(store.glob("*.deb"), key=lambda path: path.stat().st_mtime_ns)
    return {deb.name: deb for deb in (Deb(path=path) for path in debs)}


def _paths(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (path.is_symlink() or path.is_file()) and not _UNREAD.match(name):
            yield name


def _frame() -> Iterator[Entry]:
    """What every system has, whatever is installed in it."""
    for name in MERGED:
        yield Entry(path=f"/usr/{name}", mode=FOLDER)
        yield Entry(path=f"/{name}", mode=0o777, link=f"usr/{name}")
    for folder, mode in (("/root", 0o700), ("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", FOLDER)):  # noqa: S108 - in the image
        yield Entry(path=folder, mode=mode)
    for folder in ("/dev", "/proc", "/sys", "/etc"):
        yield Entry(path=folder, mode=FOLDER)
    yield Entry(path=HOME, mode=0o770, owner=NONROOT)
    yield Entry(path="/etc/localtime", mode=0o777, link="/usr/share/zoneinfo/Etc/UTC")
    for path, text in _ACCOUNTS.items():
        yield Entry(path=path, mode=0o644, data=text.format(NONROOT).encode())


def _bundle(found: Iterable[Entry]) -> Iterator[Entry]:
    """The certificates in the one file that programs read, as update-ca-certificates makes it of the single ones."""
    texts = [
        entry.source.read_text(encoding="ascii").rstrip("\n") + "\n"
        for entry in found
        if entry.source is not None and entry.path.startswith(f"/{_CERTIFICATES}") and entry.path.endswith(".crt")
    ]
    if texts:
        yield Entry(path=_ALL_CERTIFICATES, mode=0o644, data="".join(texts).encode())


def _merged(entry: Entry) -> Entry:
    """The entry with its place in usr, where the top has a link."""
    top = entry.path.split("/")[1]
    if top not in MERGED or entry.path == f"/{top}":
        return entry
    return Entry(
        path=f"/usr{entry.path}",
        mode=entry.mode,
        source=entry.source,
        data=entry.data,
        link=entry.link,
        owner=entry.owner,
    )
