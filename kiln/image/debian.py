"""The system of a slim image: single Debian packages, unpacked without running their scripts."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, process
from kiln.base.errors import BuildFailed, program_output_with_margin
from kiln.image import apt as image_apt
from kiln.image.apt import mmdebstrap_command, mmdebstrap_error, require_mmdebstrap, write_apt_files
from kiln.image.oci import FOLDER, LayerEntry, entries_of_tree
from kiln.image.worker import BEFORE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kiln.image.apt import AptFiles

# Links into usr in current Debian; older packages still have files below them.
MERGED = ("bin", "sbin", "lib", "lib64")
NONROOT = 65532  # the usual user and group id of images without root
HOME = "/home/nonroot"
# Documentation except licenses, files for the installation of packages, and interactive programs.
_EXCLUDED = re.compile(
    r"usr/sbin/|etc/ca-certificates/|etc/skel/|usr/share/(?:doc/[^/]+/(?!copyright$)|man/|info/|locale/|lintian/|bug/)"
    r"|(?:usr/)?bin/(?:bashbug|clear_console|rbash|tini-static)$"
    r"|etc/(?:issue|update-motd|host\.conf|dpkg/|profile|default/)|usr/share/base-files/|var/"
)
_DOCUMENTATION = "/usr/share/doc/"
_CERTIFICATES = "usr/share/ca-certificates/"
# Scanners read the installed packages of images without dpkg from this folder, with these fields.
_STATUS = "/var/lib/dpkg/status.d"
_FIELDS = ("Package", "Status", "Source", "Version", "Architecture", "Maintainer", "Homepage")
_ALL_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_DEBS = "KILN_DEBS"  # the hook's variable with the folder for the packages
_COPY_DEBS = f'cp "$1"/var/cache/apt/archives/*.deb "${_DEBS}"'
_ACCOUNTS = {
    "/etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{0}:{0}:nonroot:/home/nonroot:/sbin/nologin\n",
    "/etc/group": "root:x:0:\nnonroot:x:{0}:\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedDeb:
    """A Debian package file."""

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
        """The upstream version: ``2.36`` of libc6 2.36-9+deb12u14."""
        plain = self.version.rpartition(":")[2]
        return plain.rpartition("-")[0] or plain


def fetch_packages(
    suite: str,
    names: Sequence[str],
    *,
    folder: Path,
    env: Mapping[str, str],
    on_line: Callable[[str], None] | None = None,
) -> tuple[DownloadedDeb, ...]:
    """Return packages of a suite of Debian, downloaded to a folder, sorted by name.

    apt verifies their signatures. Existing files are reused, so an image made again is the same.
    """
    store = folder / f"debian-{suite}"
    debs = _newest_packages(store)
    if not debs.keys() >= set(names):
        require_mmdebstrap(env)
        _download_packages(suite, names, store, env=env, on_line=on_line)
        debs = _newest_packages(store)
    if missing := sorted(set(names) - debs.keys()):
        raise BuildFailed(
            f"Debian {suite} has no package {', '.join(missing)}", why="apt downloaded all others", hint="check --with"
        )
    return tuple(debs[name] for name in sorted(set(names)))


def system_entries(debs: Iterable[DownloadedDeb], scratch: Path, *, env: Mapping[str, str]) -> tuple[LayerEntry, ...]:
    """Unpack packages and return their files, with the accounts, folders and certificates of a system.

    Documentation is excluded, except licenses. Raises BuildFailed if a package cannot be unpacked or read.
    """
    system: list[LayerEntry] = list(_base_entries())
    for deb in debs:
        root = _unpacked_package(deb, scratch, env=env)
        system += entries_of_tree(root, _included_paths(root), below="")
        system.append(_dpkg_status_entry(deb, env=env))
    bundle = tuple(_certificate_bundle(system))
    single = f"/{_CERTIFICATES}"
    return tuple(_with_merged_usr_path(entry) for entry in (*system, *bundle) if not entry.path.startswith(single))


def _unpacked_package(deb: DownloadedDeb, scratch: Path, *, env: Mapping[str, str]) -> Path:
    root = scratch / deb.path.name
    if not root.exists():
        root.mkdir(parents=True)
        result = process.capture(("dpkg-deb", "--extract", deb.path, root), env=env)
        if not result.ok:
            raise BuildFailed(f"{deb.path.name} cannot be unpacked", why=program_output_with_margin(result.tail))
    return root


def missing_license_packages(system: Iterable[LayerEntry]) -> set[str]:
    """Return the missing packages that contain the licenses of packages among the entries.

    Packages of one source often share a folder of documentation, by a link to that of another package.
    """
    links = {entry.path: entry.link for entry in system if entry.path.startswith(_DOCUMENTATION)}
    targets = {link for path, link in links.items() if link and path.count("/") == _DOCUMENTATION.count("/")}
    return {
        name
        for name in targets
        if "/" not in name and not any(path.startswith(f"{_DOCUMENTATION}{name}/") for path in links)
    }


def _dpkg_status_entry(deb: DownloadedDeb, *, env: Mapping[str, str]) -> LayerEntry:
    """Return a package's record in dpkg's database, without the list of files."""
    result = process.capture(("dpkg-deb", "--field", deb.path, *_FIELDS), env=env)
    if not result.ok:
        raise BuildFailed(f"{deb.path.name} has no control file", why=program_output_with_margin(result.tail))
    first, _, rest = result.stdout.partition("\n")
    text = f"{first}\nStatus: install ok installed\n{rest.strip()}\n"
    return LayerEntry(path=f"{_STATUS}/{deb.name}", mode=0o644, data=text.encode())


def package_of_library(soname: str, suite: str, *, env: Mapping[str, str]) -> str | None:
    """Return the package that contains a shared library on this machine, if the machine has the same suite."""
    if image_apt.debian_codename(process.os_release()) != suite:
        return None
    output = image_apt.package_tool_output(("dpkg-query", "--search", f"*/{soname}"), env)
    owners = [line.split(":")[0] for line in output.splitlines() if line.endswith(f"/{soname}")]
    return min(owners, key=len, default=None)


def download_command(suite: str, names: Iterable[str], apt: AptFiles) -> tuple[str, ...]:
    """Return mmdebstrap's command line that downloads packages with their dependencies, and nothing else."""
    hooks = (f"--setup-hook={BEFORE}", f"--extract-hook={_COPY_DEBS}")
    options = ("--variant=extract", "--format=null", *hooks)
    return mmdebstrap_command(suite, sorted(names), Path("/dev/null"), *options, apt=apt)


def _download_packages(
    suite: str, names: Sequence[str], store: Path, *, env: Mapping[str, str], on_line: Callable[[str], None] | None
) -> None:
    store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kiln-debian-") as scratch, files.held_lock_file(store / ".lock"):
        words = download_command(suite, names, write_apt_files(suite, Path(scratch), env=env))
        debs = Path(scratch, "debs")
        debs.mkdir()
        result = process.run(words, env={**env, _DEBS: str(debs)}, on_line=on_line)
        if not result.ok:
            raise mmdebstrap_error(f"the packages {', '.join(names)} of Debian {suite} could not be downloaded", result)
        for deb in sorted(debs.glob("*.deb")):
            if deb.name.split("_")[0] in names:
                files.link_or_copy(deb, store / deb.name)


def _newest_packages(store: Path) -> dict[str, DownloadedDeb]:
    """Return the packages in a folder by name, the newest file of each."""
    debs = sorted(store.glob("*.deb"), key=lambda path: path.stat().st_mtime_ns)
    return {deb.name: deb for deb in (DownloadedDeb(path=path) for path in debs)}


def _included_paths(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if (path.is_symlink() or path.is_file()) and not _EXCLUDED.match(name):
            yield name


def _base_entries() -> Iterator[LayerEntry]:
    """Yield the entries of every system, independent of its packages."""
    for name in MERGED:
        yield LayerEntry(path=f"/usr/{name}", mode=FOLDER)
        yield LayerEntry(path=f"/{name}", mode=0o777, link=f"usr/{name}")
    for folder, mode in (("/root", 0o700), ("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/run", FOLDER)):  # noqa: S108 - in the image
        yield LayerEntry(path=folder, mode=mode)
    for folder in ("/dev", "/proc", "/sys", "/etc"):
        yield LayerEntry(path=folder, mode=FOLDER)
    yield LayerEntry(path=HOME, mode=0o770, owner=NONROOT)
    yield LayerEntry(path="/etc/localtime", mode=0o777, link="/usr/share/zoneinfo/Etc/UTC")
    for path, text in _ACCOUNTS.items():
        yield LayerEntry(path=path, mode=0o644, data=text.format(NONROOT).encode())


def _certificate_bundle(entries: Iterable[LayerEntry]) -> Iterator[LayerEntry]:
    """Yield the file of all certificates, as update-ca-certificates writes it."""
    texts = [
        entry.source.read_text(encoding="ascii").rstrip("\n") + "\n"
        for entry in entries
        if entry.source is not None and entry.path.startswith(f"/{_CERTIFICATES}") and entry.path.endswith(".crt")
    ]
    if texts:
        yield LayerEntry(path=_ALL_CERTIFICATES, mode=0o644, data="".join(texts).encode())


def _with_merged_usr_path(entry: LayerEntry) -> LayerEntry:
    """Return the entry with its path in usr, if its top-level folder is a link."""
    top = entry.path.split("/")[1]
    if top not in MERGED or entry.path == f"/{top}":
        return entry
    return replace(entry, path=f"/usr{entry.path}")
