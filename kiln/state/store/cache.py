"""Find finished configs, built here or on workers: same inputs, and every package unchanged."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import json
import secrets
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiln import __version__
from kiln.base import files
from kiln.base.errors import AlreadyRunning
from kiln.base.serialization import to_json
from kiln.recipe.rendered import OWN_ENGINE
from kiln.state.ledger import json_columns
from kiln.state.ledger.ledger import FINISHED_CONFIG, Ledger, StoredArtifact
from kiln.state.results import PackageReport
from kiln.state.store import deliveries
from kiln.state.store.compile_cache import folder_digest, json_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output
    from kiln.state.store.layout import ArtifactLayout


REHEARSED = "rehearsed config"
FOUND = "same recipe, variant, engine and image as before"
KEY_BYTES = 32
WAIT, LONG = 0.05, 86_400.0  # seconds between two attempts at a lock, and until one that is held for long times out


@dataclass(frozen=True, slots=True, kw_only=True)
class InputHashes:
    """Hashes of a config's inputs: ``shared`` is the same for all configs of an image, ``key`` this config's own."""

    shared: str
    key: str


def recipe_digest(feedstock: Feedstock) -> str:
    """Return a hash over the recipe and the feedstock's settings."""
    settings = feedstock.conda_forge_yml
    return json_digest([folder_digest(feedstock.recipe), files.sha256(settings) if settings.is_file() else ""])


def recipe_and_config_digest(feedstock: Feedstock, config: str) -> str:
    """Return a hash over all files of the feedstock that decide a config's packages."""
    return json_digest([recipe_digest(feedstock), files.sha256(feedstock.config_folder / f"{config}.yaml")])


def input_hashes(
    feedstock: Feedstock,
    config: str,
    *,
    recipe: str,
    engine: str,
    where: str,
    rehearsed_with: str | None = None,
    emulated: bool = False,
    values: str = "",
) -> InputHashes:
    """Return the hashes of a config's inputs: recipe, engine, image (``where``: its digest, or the host), variant.

    ``values`` is a digest of the caller's variables that scripts get, see `values_digest`.

    ``rehearsed_with`` is a hash of a rehearsal's wheels and Python, which separates rehearsals from builds.
    ``emulated`` for a cross-compiled config whose tests run here: without an emulator they were skipped.
    """
    engines = _engine_and_kiln_versions() if engine == OWN_ENGINE else ()
    rehearsal = () if rehearsed_with is None else (REHEARSED, rehearsed_with)
    shared = json_digest([recipe, engine, engines, where, *rehearsal, *([{"values": values}] if values else [])])
    own = [config, files.sha256(feedstock.config_folder / f"{config}.yaml"), *(["emulated"] if emulated else [])]
    return InputHashes(shared=shared, key=json_digest([shared, *own]))


def values_digest(layout: ArtifactLayout, values: Mapping[str, str]) -> str:
    """Return a hash of the caller's variables that scripts get; empty without any.

    They may be secrets and the ledger is read by others, so the hash has a key of this machine's: without it, a short
    value could be found by trying.
    """
    if not values:
        return ""
    place = layout.values_key
    with hold_lock(layout.common_lock_file("values")):
        try:
            key = files.read_regular_file(place, KEY_BYTES)
        except FileNotFoundError:
            key = b""
        if len(key) != KEY_BYTES:
            key = secrets.token_bytes(KEY_BYTES)
            files.write_bytes(place, key, mode=0o600)
    return hmac.new(key, json.dumps(values, sort_keys=True).encode(), "sha256").hexdigest()


@lru_cache(maxsize=1)
def _engine_and_kiln_versions() -> tuple[str, str]:
    """Return the versions of kiln's own engine and of kiln; the first is read from a file."""
    from importlib.metadata import version  # slow to import; only a plan needs it

    return version("py-rattler-build"), __version__


def packages_of_finished_config(
    ledger: Ledger, layout: ArtifactLayout, inputs: InputHashes
) -> tuple[PackageReport, ...] | None:
    """Return a finished config's packages; None when it is not finished, or a package is missing or changed."""
    record = ledger.finished_step(inputs.key)
    if record is None:
        return None
    try:
        packages = tuple(json_columns.record_from_json(PackageReport, package) for package in record.detail["packages"])
    except (ValueError, LookupError, TypeError):  # an unreadable record does not count
        return None
    if not all(_is_artifact_unchanged(ledger, layout, report.artifact.path, inputs) for report in packages):
        return None
    return tuple(
        dataclasses.replace(
            report, reused=True, artifact=dataclasses.replace(report.artifact, path=layout.root / report.artifact.path)
        )
        for report in packages
    )


def packages_of_finished_configs(
    ledger: Ledger, layout: ArtifactLayout, inputs: Mapping[str, InputHashes]
) -> dict[str, tuple[PackageReport, ...]]:
    """Return the packages of the configs that are finished; see `packages_of_finished_config`."""
    builds = {config: packages_of_finished_config(ledger, layout, each) for config, each in inputs.items()}
    return {config: packages for config, packages in builds.items() if packages is not None}


def remove_finished_work(layout: ArtifactLayout, config: str) -> None:
    """Remove the folders of a config that was finished; to be called with the config's lock held.

    A folder without the mark of a finished build is kept: a build from a later step left it for the next one.
    """
    mark = layout.published_marker_file(config)
    if mark.exists():
        files.remove(layout.staging_folder(config))
        files.remove(layout.work_folder(config))
        files.remove(mark)


def remove_leftover_work_folders(layout: ArtifactLayout, configs: Iterable[str]) -> None:
    """Remove the folders of finished configs that a killed process left, but for configs that are being built."""
    for config in configs:
        if layout.published_marker_file(config).exists():
            with contextlib.suppress(AlreadyRunning), files.held_lock_file(layout.lock_file(config)):
                remove_finished_work(layout, config)


def _is_artifact_unchanged(ledger: Ledger, layout: ArtifactLayout, path: Path | str, inputs: InputHashes) -> bool:
    """Return whether the channel has a package unchanged; it is hashed again only when its time has changed."""
    artifact, place = ledger.stored_artifact(str(path)), layout.root / path
    if artifact is None or artifact.inputs != inputs.shared or not place.is_file():
        return False
    status = place.stat()
    if status.st_size != artifact.size:
        return False
    return status.st_mtime_ns == artifact.modified or files.sha256(place) == artifact.sha256


def publish_finished_config(
    ledger: Ledger,
    layout: ArtifactLayout,
    config: str,
    packages_made: Sequence[tuple[Path, dict[str, Any]]],
    inputs: InputHashes,
    *,
    matrix: Collection[str],
    seconds: float,
    disk: int,
) -> tuple[PackageReport, ...]:
    """Put a finished config's packages into the channel, its wheels next to it, and record the config as finished.

    ``packages_made`` are package files with their reports, ``disk`` the bytes that the build took. A package of that
    name that another config of the ``matrix`` has put there, from the same recipe and engine, stays: packages that
    depend on it may have been tested with it. The times of a build and the config's variant are in its metadata, so two
    machines that both build it well make different bytes; then the report is the other config's, with a note, since
    this build and its tests are of another file. The channel is indexed by ``index_channel``, once for all configs that
    were added meanwhile.
    """
    with hold_lock(layout.common_lock_file("channel")):
        reports = [json_columns.record_from_json(PackageReport, fields) for _, fields in packages_made]
        sources = [source for source, _ in packages_made]
        paths = [report.artifact.channel_path for report in reports]
        others = set(matrix) - {config}
        stays = [_package_of_other_config(ledger, layout, path, inputs, others) for path in paths]
        fresh = [(source, path) for source, path, other in zip(sources, paths, stays, strict=True) if other is None]
        packages = [(source, path.split("/")[0]) for source, path in fresh if source.suffix != ".whl"]
        if packages:
            layout.channel.add(packages, index=False)
        for source, path in fresh:
            if source.suffix == ".whl":
                files.link_or_copy(source, layout.safe_path(path))
        artifacts, stored = [], []
        for path, report, other in zip(paths, reports, stays, strict=True):
            artifact = other[0] if other else _artifact_record(layout, path, report, config, inputs)
            artifacts.append(artifact)
            if other and report.artifact.sha256 != artifact.sha256:
                stored.append(dataclasses.replace(other[1], feedstock=report.feedstock))
            else:
                stored.append(_report_with_stored_path(layout, report, artifact))
        ledger.store_artifacts(*artifacts)
        detail = {"disk": disk, "packages": [to_json(_report_with_relative_path(layout, report)) for report in stored]}
        ledger.store_step(inputs.key, config=config, title=FINISHED_CONFIG, seconds=seconds, detail=detail)
    ledger.back_up_finished_config(inputs.key, *artifacts)
    return tuple(stored)


def index_channel(layout: ArtifactLayout) -> None:
    """Index the packages that were added to the channel, and repair an index that a killed run left unfinished.

    Raises:
        BrokenPackage: when the metadata of a package there cannot be read.
    """
    if layout.channel.is_unindexed:
        with hold_lock(layout.common_lock_file("channel")):
            layout.channel.repair_index()


def record_rehearsal(
    ledger: Ledger,
    layout: ArtifactLayout,
    config: str,
    packages_made: Sequence[tuple[Path, dict[str, Any]]],
    inputs: InputHashes,
    *,
    seconds: float,
) -> tuple[PackageReport, ...]:
    """Record a rehearsed config as finished; its packages stay in its own channel."""
    stored, placed = [], []
    for source, fields in packages_made:
        report = json_columns.record_from_json(PackageReport, fields)
        path = str(source.relative_to(layout.root))
        artifact = _artifact_record(layout, path, report, config, inputs)
        ledger.store_artifacts(artifact)
        placed.append(artifact)
        stored.append(_report_with_stored_path(layout, report, artifact))
    detail = {"packages": [to_json(_report_with_relative_path(layout, report)) for report in stored]}
    ledger.store_step(inputs.key, config=config, title=REHEARSED, seconds=seconds, detail=detail)
    ledger.back_up_finished_config(inputs.key, *placed)
    return tuple(stored)


def packages_made_by_other_configs(
    ledger: Ledger, layout: ArtifactLayout, outputs: Sequence[Output], inputs: InputHashes, others: Collection[str]
) -> tuple[PackageReport, ...]:
    """Return the packages of a config that one of the others has made and tested, from the same recipe and engine.

    Their reports are the other config's, with a note.
    """
    paths = sorted({output.channel_path for output in outputs if not output.skip})
    found = (_package_of_other_config(ledger, layout, path, inputs, others) for path in paths)
    return tuple(package[1] for package in found if package)


def _report_of_config_that_built(ledger: Ledger, artifact: StoredArtifact) -> PackageReport | None:
    """Return the report of a package by the config that made it."""
    for record in ledger.latest_steps(FINISHED_CONFIG, artifact.config):
        for fields in record.detail["packages"]:
            report = json_columns.record_from_json(PackageReport, fields)
            if (str(report.artifact.path), report.artifact.sha256) == (artifact.path, artifact.sha256):
                return report
    return None


def _report_with_sharing_note(layout: ArtifactLayout, report: PackageReport, artifact: StoredArtifact) -> PackageReport:
    note = f"made and tested by {artifact.config}"
    tests = dataclasses.replace(report.tests, notes=(*report.tests.notes, note))
    return dataclasses.replace(_report_with_stored_path(layout, report, artifact), reused=True, tests=tests)


def _package_of_other_config(
    ledger: Ledger, layout: ArtifactLayout, path: str, inputs: InputHashes, others: Collection[str]
) -> tuple[StoredArtifact, PackageReport] | None:
    """Return an unchanged package that one of the other configs has made, with its report; None without a report."""
    artifact = ledger.stored_artifact(path)
    if artifact is None or artifact.config not in others or not _is_artifact_unchanged(ledger, layout, path, inputs):
        return None
    report = _report_of_config_that_built(ledger, artifact)
    return None if report is None else (artifact, _report_with_sharing_note(layout, report, artifact))


def _artifact_record(
    layout: ArtifactLayout, path: str, report: PackageReport, config: str, inputs: InputHashes
) -> StoredArtifact:
    status = (layout.root / path).stat()
    return StoredArtifact(
        path=path,
        sha256=report.artifact.sha256,
        size=status.st_size,
        modified=status.st_mtime_ns,
        config=config,
        inputs=inputs.shared,
    )


def _report_with_stored_path(layout: ArtifactLayout, report: PackageReport, artifact: StoredArtifact) -> PackageReport:
    stored = dataclasses.replace(
        report.artifact, path=layout.root / artifact.path, sha256=artifact.sha256, size=artifact.size
    )
    return dataclasses.replace(report, artifact=stored)


def _report_with_relative_path(layout: ArtifactLayout, report: PackageReport) -> PackageReport:
    artifact = dataclasses.replace(report.artifact, path=report.artifact.path.relative_to(layout.root))
    return dataclasses.replace(report, artifact=artifact)


@contextlib.contextmanager
def hold_lock(lock: Path, *, while_true: Callable[[], bool] = lambda: True, seconds: float = 600.0) -> Iterator[None]:
    """Wait for a lock and hold it; raises AlreadyRunning after ``seconds``, or when ``while_true`` returns False."""
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(files.held_lock_file(lock))
                break
            except AlreadyRunning:
                if time.monotonic() > until or not while_true():
                    raise
            time.sleep(WAIT)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    """A config to build on a worker: ``group`` shares its compile, ``inputs`` are the hashes of its inputs."""

    config: str
    group: str
    inputs: InputHashes


def remote_configs(feedstock: Feedstock, configs: Sequence[str], *, options: Sequence[str]) -> tuple[RemoteConfig, ...]:
    """Return configs to build on workers with these options of ``kiln build``; raises UnknownConfig.

    Each worker's ledger has its image; here the options stand for the place of the build.
    """
    from kiln.feedstock import config_file
    from kiln.recipe.variants.files import compile_group

    recipe, where = recipe_digest(feedstock), " ".join(("elsewhere", *options))
    entries = config_file.read_configs(feedstock, dict.fromkeys(configs))
    return tuple(
        RemoteConfig(
            config=entry.name,
            group=compile_group(entry),
            inputs=input_hashes(feedstock, entry.name, recipe=recipe, engine="rattler-build", where=where),
        )
        for entry in entries
    )


def collected_packages(
    feedstock: Feedstock, entries: Sequence[RemoteConfig]
) -> Mapping[str, tuple[PackageReport, ...]]:
    """Return the packages of the configs that were collected before, if they are unchanged in the channel."""
    from kiln.state.store.layout import ArtifactLayout

    layout = ArtifactLayout.for_feedstock(feedstock)
    with Ledger(layout.ledger) as ledger:
        return packages_of_finished_configs(ledger, layout, {entry.config: entry.inputs for entry in entries})


def add_collected_packages(
    feedstock: Feedstock, config: RemoteConfig, packages: Sequence[PackageReport], *, index: bool = True
) -> tuple[PackageReport, ...]:
    """Put a config's collected and verified packages into the channel; return them with their paths there.

    Without ``index``, the caller indexes the channel before anything reads it.

    Raises:
        BrokenPackage: they are not exactly those that the config renders.
    """
    from kiln.state.store.layout import ArtifactLayout

    deliveries.require_packages_of_config(feedstock, config.config, config.group, packages)
    layout = ArtifactLayout.for_feedstock(feedstock)
    packages_made = [(report.artifact.path, to_json(report)) for report in packages]
    seconds = sum(report.build_seconds for report in packages)
    with Ledger(layout.ledger) as ledger:
        added = publish_finished_config(
            ledger,
            layout,
            config.config,
            packages_made,
            config.inputs,
            matrix=feedstock.config_names,
            seconds=seconds,
            disk=0,
        )
    if index:
        index_channel(layout)
    return added
