"""Solve for packages on this machine, and install them into a prefix completely or not at all."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, http, locks, process
from kiln.base.errors import AlreadyRunning, KilnError, NotWritable, ProvenanceBroken, SolveFailed, UsageError
from kiln.base.position import Place
from kiln.base.system.files import nearest_existing_path
from kiln.base.yaml import ScalarInterpretation, parse_document, read_text
from kiln.conda import diagnosis
from kiln.conda import solve as conda_solve
from kiln.conda.diagnosis import LINES, TargetMachine, explain_failed_solve
from kiln.conda.provenance import bundles, check
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rattler import PrefixRecord, RepoDataRecord

    from kiln.conda.provenance.check import TrustedSigner


_INVALID = re.compile(r"[/ :#\x00-\x1f]")
_BASE = ("base", "root")


def prefix_of_environment(name: str, *, env: Mapping[str, str], home: Path) -> Path:
    """Return the prefix of a name: the environment that exists, else its path in the first folder that can be written.

    Raises:
        UsageError: the name is invalid, or that of conda's own environment.
        NotWritable: none of the folders can be written.
        KilnError: a .condarc is malformed.
    """
    if not name or name in {".", ".."} or _INVALID.search(name):
        raise UsageError(f"{name!r} cannot be the name of an environment", why="it has no '/', ':', '#' and no blank")
    if name in _BASE:
        why = "it contains conda itself, which a failed change could break"
        raise UsageError(f"kiln does not install into conda's environment {name}", why=why, hint="-n NAME, or -p DIR")
    folders = environment_folders(env, home)
    if existing := next((folder / name for folder in folders if (folder / name).is_dir()), None):
        return existing
    if writable := next((folder / name for folder in folders if _is_folder_writable(folder)), None):
        return writable
    raise NotWritable(
        f"no folder for the environment {name} can be written", why=", ".join(map(str, folders)), hint="-p DIR"
    )


def environment_folders(env: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the folders of environments, in the order in which a name is looked up."""
    root = _conda_root(env)
    value = env.get("CONDA_ENVS_DIRS") or env.get("CONDA_ENVS_PATH") or ""
    given = [*filter(None, value.split(os.pathsep)), *_condarc_envs_dirs(env, home, root)]
    own, shared = home / ".conda" / "envs", [root / "envs"] if root else []
    fixed = [*shared, own] if root and os.access(root, os.W_OK) else [own, *shared]
    return tuple(dict.fromkeys([*(_expand_path(text, env, home) for text in given), *fixed]))


def _conda_root(env: Mapping[str, str]) -> Path | None:
    """Return the folder in which conda or mamba is installed; None without them."""
    if program := env.get("CONDA_EXE") or process.program_on_path("conda", env=env):
        root = Path(program).resolve().parents[1]
        if (root / "conda-meta").is_dir():
            return root
    return Path(env["MAMBA_ROOT_PREFIX"]) if env.get("MAMBA_ROOT_PREFIX") else None


def _condarc_envs_dirs(env: Mapping[str, str], home: Path, root: Path | None) -> Iterator[str]:
    """Yield ``envs_dirs`` of the user's settings, and then of the installation's."""
    given = [Path(env["CONDARC"])] if env.get("CONDARC") else []
    places = [*given, home / ".condarc", home / ".conda" / ".condarc", *([root / ".condarc"] if root else [])]
    for path in places:
        if not path.is_file():
            continue
        document = parse_document(read_text(path, str(path)), str(path), ScalarInterpretation.TEXT)
        settings = document.value if isinstance(document.value, dict) else {}
        value = settings.get("envs_dirs", settings.get("envs_path", []))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError("envs_dirs is not a list of folders", at=Place(file=str(path)), hint="-p DIR")
        yield from value


def _expand_path(text: str, env: Mapping[str, str], home: Path) -> Path:
    """Return a path of the settings, with ``~`` and variables replaced."""
    text = re.sub(r"\$\{?(\w+)\}?", lambda match: env.get(match[1], match[0]), text)
    return home / text[2:] if text.startswith("~/") else home if text == "~" else Path(text).absolute()


def _is_folder_writable(folder: Path) -> bool:
    existing = nearest_existing_path(folder)
    return existing.is_dir() and os.access(existing, os.W_OK)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredSigners:
    """The required signers: of all packages, and more of those of single channels, by URL."""

    everywhere: tuple[TrustedSigner, ...]
    channels: tuple[tuple[str, tuple[TrustedSigner, ...]], ...]

    @classmethod
    def parse(
        cls,
        texts: Sequence[str],
        *,
        channel_of: Callable[[str], str | None],
        signers: Callable[[str], tuple[TrustedSigner, ...]],
    ) -> RequiredSigners:
        """Return the rules of a command line, each ``SIGNER`` or ``CHANNEL=SIGNER``.

        ``channel_of`` returns one of the channels that a text names, None for any other text.

        Raises:
            UsageError: when a signer is neither an identity nor a key.
        """
        everywhere: list[TrustedSigner] = []
        single: dict[str, tuple[TrustedSigner, ...]] = {}
        for text in texts:
            places = [place for place, character in enumerate(text) if character == "="]
            channel, place = next(((name, place) for place in places if (name := channel_of(text[:place]))), ("", -1))
            if channel:
                url = _channel_url(channel)
                single[url] = (*single.get(url, ()), *signers(text[place + 1 :]))
            else:
                everywhere += signers(text)
        return cls(everywhere=tuple(everywhere), channels=tuple(single.items()))

    def signers_of_package(self, record: RepoDataRecord) -> tuple[TrustedSigner, ...]:
        """Return the signers of whom one must attest a package; empty when none has to."""
        named = [signers for url, signers in self.channels if url == _channel_url(str(record.channel or ""))]
        return (*(signer for signers in named for signer in signers), *self.everywhere)


def verify_attestations(records: Sequence[RepoDataRecord], rules: RequiredSigners) -> None:
    """Verify the attestations of packages.

    Raises:
        ProvenanceBroken: with every package that lacks one.
        DownloadFailed, TokenRefused: when a server does not send them.
    """
    refusals = []
    for record in records:
        if signers := rules.signers_of_package(record):
            try:
                _verify_attestation(record, signers)
            except ProvenanceBroken as error:
                refusals.append(error)
    if refusals:
        first: KilnError = refusals[0]
        more = f"; and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        raise ProvenanceBroken(f"{first.what}{more}", why=first.why, hint=first.hint, others=refusals[1:])


def _verify_attestation(record: RepoDataRecord, signers: tuple[TrustedSigner, ...]) -> None:
    if not record.attestations_sha256 or not record.sha256:
        what = "SHA-256" if record.attestations_sha256 else "attestation"
        raise ProvenanceBroken(
            f"the index has no {what} of {record.file_name}",
            hint="--require-attestation CHANNEL=SIGNER requires one of the packages of one channel alone",
        )
    package = f"{record.name.source}-{record.version}-{record.build}"
    if record.file_name not in {f"{package}.conda", f"{package}.tar.bz2"}:
        raise ProvenanceBroken(
            f"the index has {record.file_name} as {package}",
            why="an attestation is of a file's name, and would be of another package",
            hint="leave the package out, or report it to the channel's owner",
        )
    check.verified_attestation_facts(
        bundles.download_sidecar(str(record.url), record.attestations_sha256.hex()),
        file=record.file_name,
        sha256=record.sha256.hex(),
        channel=_channel_url(str(record.channel or "")),
        signers=signers,
    )


def _channel_url(channel: str) -> str:
    """Return the URL of a channel: of a name, conda.anaconda.org's."""
    from rattler import Channel

    try:
        return http.url_without_credentials(Channel(channel).base_url).rstrip("/")
    except Exception as error:  # the library's own
        raise UsageError(f"{channel!r} is not a channel", why=str(error)) from error


class PackageAction(str, Enum):
    """The change of a package in the prefix."""

    NEW = "new"
    CHANGED = "changed"
    KEPT = "kept"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The request to install specs from channels, in order of priority, for a machine, into a prefix.

    ``verbose`` shows the solver's complete message when it fails.
    """

    prefix: Path
    specs: tuple[str, ...]
    channels: tuple[str, ...]
    machine: TargetMachine
    priority: str = "strict"
    verbose: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageChange:
    """One package of the prefix; ``was`` is the present build, ``size`` the bytes of the file, 0 when unknown."""

    action: PackageAction
    name: str
    version: str
    build: str
    channel: str
    size: int
    was: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPlan:
    """The plan of an install: every package of the future prefix, and the removed ones.

    ``notes`` say what the user may not expect of the packages.
    """

    request: InstallRequest
    specs: tuple[str, ...]
    records: tuple[RepoDataRecord, ...]
    changes: tuple[PackageChange, ...]
    exists: bool
    notes: tuple[str, ...] = ()

    @property
    def packages_without_sha256(self) -> tuple[str, ...]:
        """The packages without a SHA-256 in the channel's index: an MD5 detects damage, not attacks."""
        return tuple(record.file_name for record in self.records if not record.sha256)

    @property
    def packages_to_link(self) -> tuple[RepoDataRecord, ...]:
        """The packages that are new in the prefix."""
        new = {change.name for change in self.changes if change.action in {PackageAction.NEW, PackageAction.CHANGED}}
        return tuple(record for record in self.records if record.name.normalized in new)

    @property
    def is_up_to_date(self) -> bool:
        """True when the prefix already has all packages."""
        return self.exists and all(change.action is PackageAction.KEPT for change in self.changes)


def plan_install(request: InstallRequest) -> InstallPlan:
    """Solve for the packages; nothing is written.

    Raises:
        SolveFailed: with what the machine or the specs lack, as far as known.
        DownloadFailed: when a channel cannot be reached.
        BrokenIndex: when a channel's index is invalid.
        NotWritable: when the prefix is not a conda prefix.
    """
    _require_prefix_or_new_folder(request.prefix)
    there = conda_solve.installed_package_records(request.prefix)
    specs = (*request.specs, *_previously_requested_specs(there, but=request.specs))
    solve = partial(conda_solve.solve, request.channels, priority=request.priority)
    try:
        records = solve(specs, virtual_packages=request.machine.virtual_packages, installed=there)
    except SolveFailed as failure:
        most = sys.maxsize if request.verbose else LINES
        raise explain_failed_solve(
            failure, specs, solve, channels=request.channels, machine=request.machine, most=most
        ) from failure
    installation = InstallPlan(
        request=request,
        specs=specs,
        records=tuple(records),
        changes=_package_changes(there, records),
        exists=bool(there),
    )
    notes = diagnosis.cpu_build_notes(installation.packages_to_link, specs, solve, request.machine)
    return dataclasses.replace(installation, notes=notes)


def _previously_requested_specs(there: Iterable[PrefixRecord], *, but: Sequence[str]) -> tuple[str, ...]:
    """Return the specs that were requested when a prefix was made, except those requested again.

    A prefix without recorded specs keeps every package by its name.
    """
    there = list(there)
    specs: list[str] = []
    for record in there:
        single = [record.requested_spec] if record.requested_spec not in {None, "", "None"} else []
        specs += map(str, record.requested_specs or single)
    anew = {package_name(spec) for spec in but}
    names = [record.name.normalized for record in there]
    return tuple(dict.fromkeys(spec for spec in specs or names if package_name(spec) not in anew))


def _package_changes(there: Iterable[PrefixRecord], records: Iterable[RepoDataRecord]) -> tuple[PackageChange, ...]:
    old = {record.name.normalized: record for record in there}
    changed = [_package_change(record, old.pop(record.name.normalized, None)) for record in records]
    removed = [_package_change(record, record, action=PackageAction.REMOVED) for record in old.values()]
    return tuple(sorted((*changed, *removed), key=lambda change: change.name))


def _package_change(
    record: RepoDataRecord, old: PrefixRecord | None, *, action: PackageAction | None = None
) -> PackageChange:
    same = old is not None and (str(old.version), str(old.build)) == (str(record.version), str(record.build))
    return PackageChange(
        action=action or (PackageAction.NEW if old is None else PackageAction.KEPT if same else PackageAction.CHANGED),
        name=record.name.normalized,
        version=str(record.version),
        build=str(record.build),
        channel=str(record.channel or ""),
        size=record.size or 0,
        was=f"{old.version} {old.build}" if old is not None and not same else "",
    )


def execute_install_plan(
    installation: InstallPlan,
    *,
    cache: Path,
    on_received: Callable[[int, int | None], None] = lambda _done, _total: None,
) -> None:
    """Make the prefix, or a changed copy that then replaces it; after a failure it is unchanged.

    ``on_received`` gets how many bytes of the packages are there, of how many, if known.

    The files that killed installs left next to the same prefix are removed, also when nothing is to be installed.

    Raises:
        AlreadyRunning: when another process changes the prefix, or has changed it since the packages were chosen.
        DownloadFailed: when a package cannot be fetched.
        HashMismatch, BrokenPackage: when one does not match its channel's index.
        UnsafePackage: when one has paths outside the prefix; nothing was written there.
        DiskFull: when the disk is full.
        NotWritable: when the prefix cannot be written.
    """
    prefix = installation.request.prefix
    if installation.is_up_to_date:
        locks.remove_leftovers_of_killed_processes(prefix)
        return
    making = files.atomic_folder_change(prefix) if installation.exists else files.atomic_replacement(prefix)
    try:
        with locks.exclusive_folder_lock(prefix) as lock:
            _require_unchanged_prefix(installation)
            with making as part:
                conda_solve.install(
                    list(installation.records),
                    part,
                    cache=cache,
                    seen_at=str(prefix),
                    lock=lock,
                    on_received=on_received,
                )
                conda_solve.record_requested_specs(part, installation.specs)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        raise NotWritable(
            f"{error.filename or prefix} cannot be written",
            why=error.strerror or str(error),
            hint="choose another --prefix, or --cache",
        ) from error


def _require_unchanged_prefix(installation: InstallPlan) -> None:
    """Raise AlreadyRunning where another install has changed the prefix since the packages were chosen."""
    request, there = installation.request, conda_solve.installed_package_records(installation.request.prefix)
    specs = (*request.specs, *_previously_requested_specs(there, but=request.specs))
    if specs != installation.specs or _package_changes(there, installation.records) != installation.changes:
        raise AlreadyRunning(
            f"another process has changed {request.prefix} since the packages were chosen",
            hint="run the same command again",
        )


def _require_prefix_or_new_folder(prefix: Path) -> None:
    if prefix.is_dir() and not (prefix / "conda-meta").is_dir() and any(prefix.iterdir()):
        raise NotWritable(
            f"{prefix} is not a conda prefix",
            why="the folder is not empty, and has no conda-meta",
            hint="name a new folder, or a prefix",
        )
    if prefix.exists() and not prefix.is_dir():
        raise NotWritable(f"{prefix} is not a folder", hint="name a new folder, or a prefix")
    if prefix.is_dir() and Path.cwd().is_relative_to(prefix):
        why = "an install replaces the folder, and the shell would stay in the old one"
        raise NotWritable(f"the working directory is in {prefix}", why=why, hint="change to another folder: cd ..")
