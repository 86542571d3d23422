"""The targets of a publication, by their names, and what conda-forge.yml forbids."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.base import limits
from kiln.base.errors import TokenRefused, UsageError
from kiln.base.system.files import full_path
from kiln.conda.index import IndexEntry
from kiln.conda.provenance.bundles import SIDECAR_FIELD
from kiln.feedstock.settings import TypedSettings
from kiln.publish.attestations import attest_published_package
from kiln.publish.servers.servers import HINT, LOOPBACK, ServerCredentials, ServerKind, TrustedPublisher
from kiln.publish.servers.target import ServerTarget
from kiln.publish.stores.folder import FolderStore
from kiln.publish.stores.s3 import S3Store
from kiln.publish.stores.target import StoreTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kiln.conda.provenance.records import ReleaseAttestations
    from kiln.publish.model import Candidate
    from kiln.publish.servers.servers import Server
    from kiln.publish.transaction import PublicationTarget


# The services with a setting upload_packages, which are values of conda-forge's variable CI, and their own variables.
_SERVICES = {"github_actions": "GITHUB_ACTIONS", "azure": "TF_BUILD"}


def require_publication_allowed(
    path: Path, target: str, *, environment: Mapping[str, str], current_branch: Callable[[], str]
) -> None:
    """Refuse a publication to a target that conda-forge.yml forbids.

    ``current_branch`` returns the branch of the feedstock's checkout, empty when it is unknown; conda-forge's variable
    GIT_BRANCH precedes it. Source: upload_or_check_non_existence.py of conda-forge-ci-setup.

    Raises:
        UsageError: the branch is another one, uploads from this CI service are off, or must be private.
        KilnError: the file is malformed.
    """
    settings = limits.run_bounded(lambda: TypedSettings.read(path))
    service = environment.get("CI", "")
    if service not in _SERVICES:  # CI is true where a job does not set it
        own = (name for name, variable in _SERVICES.items() if environment.get(variable, "").lower() == "true")
        service = next(own, "")
    if service and not settings.get_nested(service).get_flag("upload_packages", default=True):
        raise UsageError(
            f"{service}.upload_packages is false",
            at=settings.place_of(service),
            why="this job may not publish packages",
            hint="remove the setting, or publish from another machine",
        )
    expected = settings.get_text("upload_on_branch", "")
    branch = (environment.get("GIT_BRANCH") or current_branch()) if expected else ""
    if expected and branch != expected:
        raise UsageError(
            f"upload_on_branch is {expected!r}, and this is {branch or 'an unknown branch'}",
            at=settings.place_of("upload_on_branch"),
            why="packages of other branches are not published",
            hint=f"git switch {expected}" if branch else f"GIT_BRANCH={expected}, if this is its commit",
        )
    if target.startswith("anaconda:") and settings.get_flag("private_upload", default=False):
        raise UsageError(
            "private_upload is true, and kiln cannot ask anaconda.org for it",
            at=settings.place_of("private_upload"),
            why="the packages would be public",
            hint="kiln publish --bundle DIR, then anaconda upload --private",
        )


_CHANNEL = re.compile(r"\w[\w.-]*", re.ASCII)  # it becomes a part of paths and addresses
# What -c takes for a channel of a server, and a URL whose slashes were forgotten, not a folder to make.
_NO_FOLDER = re.compile(r"conda-forge|bioconda|defaults|[\w.+-]+:.*", re.DOTALL)


def parse_target(
    name: str,
    environment: Mapping[str, str],
    *,
    journals: Path,
    staging: str | None = None,
    reading: str | None = None,
    subdirs: Iterable[str] = (),
) -> PublicationTarget:
    """Return the target of a name: a folder, ``s3://BUCKET/PREFIX``, or ``KIND:CHANNEL`` on a server.

    ``journals`` is the folder of this machine for the journals of publications to servers, ``subdirs`` are those of the
    packages that may be published there.

    Raises:
        UsageError: when it is not a valid target.
        TokenRefused: it needs a token and has none.
    """
    kind, _, rest = name.partition(":")
    if name.startswith("s3://"):
        return StoreTarget(store=S3Store.parse(name, reading))
    if kind in {server.value for server in ServerKind}:
        server_kind = ServerKind(kind)
        server = _server_of_channel_url(server_kind, rest, environment, reading)
        return ServerTarget(
            kind=server_kind, server=server, staging=staging, journals=journals, subdirs=frozenset(subdirs)
        )
    if "://" in name or (_NO_FOLDER.fullmatch(name) and not Path(name).is_dir()):
        hint = "s3://BUCKET/PREFIX, anaconda:OWNER, prefix:CHANNEL, quetz: ..., or ./NAME for a folder"
        raise UsageError(f"{name!r} is not a target", hint=hint)
    return StoreTarget(store=FolderStore(root=full_path(Path(name))))


def _server_of_channel_url(kind: ServerKind, text: str, environment: Mapping[str, str], reading: str | None) -> Server:
    """Return the server of an owner, a channel or its URL; ``reading`` is where clients read channels."""
    url, _, channel = text.rpartition("/")
    url = url or kind.server_class.default_url
    parts = urlsplit(url)
    if not _CHANNEL.fullmatch(channel) or parts.scheme not in {"http", "https"}:
        raise UsageError(f"{text!r} is not a channel of {kind.value}", hint=f"{kind.value}:https://SERVER/CHANNEL")
    credentials = _server_credentials(kind, url, environment)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise TokenRefused(f"a token would be sent to {url} unencrypted", hint="use https")
    return kind.server_class(
        url=url,
        channel=channel,
        credentials=credentials,
        auth_file=None if isinstance(credentials, TrustedPublisher) else environment.get("RATTLER_AUTH_FILE"),
        client_url=f"{reading.rstrip('/')}/{{channel}}" if reading else None,
    )


def _server_credentials(
    kind: ServerKind, url: str, environment: Mapping[str, str]
) -> ServerCredentials | TrustedPublisher:
    """Return a token of the environment or of rattler's file, else the exchange of a CI job's identity."""
    variable = kind.server_class.token_variable
    if token := environment.get(variable):
        return ServerCredentials(token=token)
    if auth_file := environment.get("RATTLER_AUTH_FILE"):
        return ServerCredentials.from_file(Path(auth_file), url)
    publisher = TrustedPublisher.from_ci_job(url, environment) if kind.server_class.trusts_jobs else None
    if publisher is None:
        hint = f"set {variable}, or RATTLER_AUTH_FILE to a file"
        raise TokenRefused(f"no token for {url}", hint=f"{hint}; {HINT}" if kind.server_class.trusts_jobs else hint)
    return publisher


def held_packages(channel: PublicationTarget) -> dict[str, str]:
    """Return the hashes of a channel's packages by path, an empty one for a package that was withdrawn.

    An index that a server keeps has no withdrawn ones.
    """
    hashes = channel.package_hashes()
    if isinstance(channel, StoreTarget):
        index = channel.channel_index
        for subdir in map(index.subdir_packages, index.subdir_names()):
            hashes |= dict.fromkeys((f"{subdir.name}/{file}" for file in subdir.removed_files), "")
    return hashes


def attest_held_packages(
    channel: PublicationTarget, candidates: Sequence[Candidate], attestation: ReleaseAttestations
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sign packages that a channel has already; return the paths of those that were signed, and notes on the others."""
    if not candidates:
        return (), ()
    if not isinstance(channel, StoreTarget):
        return (), (f"{channel.name} takes attestations with uploads alone: packages that it has get no other one",)
    signed: dict[str, dict[str, str]] = {}
    notes = []
    with channel.exclusive_lock():
        channel.journal.require_no_pending_publication()
        subdirs = {one.artifact.subdir for one in candidates}
        records = {subdir: channel.channel_index.subdir_packages(subdir).records for subdir in subdirs}
        for one in candidates:
            file, subdir = one.path.name, one.artifact.subdir
            record = records[subdir].get(file, {})
            if record.get("sha256") != one.artifact.sha256:
                continue
            before = IndexEntry(file=file, subdir=subdir, record=record, run_exports={})
            after = attest_published_package(channel.store, before, attestation)
            if after is None:
                notes.append(f"{before.path} is not signed: others have attested another record of how it was made")
            elif after != before:
                signed.setdefault(subdir, {})[file] = str(after.record[SIDECAR_FIELD])
        if signed:
            channel.channel_index.edit_subdirs(
                lambda subdir: subdir.with_field_of_records_set(SIDECAR_FIELD, signed.get(subdir.name, {}))
            )
    return tuple(f"{subdir}/{file}" for subdir, files in signed.items() for file in files), tuple(notes)


def require_existing_folder(channel: PublicationTarget) -> None:
    """Refuse a channel in a folder that does not exist: to change it would make an empty one."""
    if isinstance(channel, StoreTarget) and isinstance(channel.store, FolderStore) and not channel.store.root.is_dir():
        raise UsageError(f"{channel.name} does not exist", hint="name the folder of a channel")


def require_store_target(channel: PublicationTarget) -> StoreTarget:
    """Return a target whose index kiln writes.

    Raises:
        UsageError: when a server writes it.
    """
    if not isinstance(channel, StoreTarget):
        raise UsageError(
            f"the index of {channel.name} is kept by its server", hint="use the server's own commands or pages"
        )
    return channel
