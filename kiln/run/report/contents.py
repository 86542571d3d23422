"""What a run made: its packages beside earlier ones, their files, and the environments that they were made in."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.conda import package_reader
from kiln.conda.provenance.contents import build_and_host_packages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.conda.provenance.records import ResolvedPackage
    from kiln.recipe.variants.space import Variants
    from kiln.state.results import Artifact, ConfigRun, MatrixReport, PackageReport

_SCOPES = ("build", "host", "run")
_POINTS = 20  # runs in a history


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChanges:
    """The files of a package against those of an earlier one, each with its size; grown and shrunk ones with both."""

    before: str
    added: tuple[tuple[str, int], ...] = ()
    removed: tuple[tuple[str, int], ...] = ()
    resized: tuple[tuple[str, int, int], ...] = ()

    def __str__(self) -> str:
        counts = ((self.added, "added"), (self.removed, "removed"), (self.resized, "of another size"))
        return ", ".join(f"{len(files):,} {word}" for files, word in counts if files) or "the same files"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageHistory:
    """A package and what came before it: ``runs``, ``sizes`` in bytes and ``seconds`` of its builds, the latest last.

    ``before`` is the size of the last different one, None without one; ``number`` the count of its files, if known.
    """

    package: PackageReport
    runs: tuple[int, ...]
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    before: int | None = None
    number: int | None = None
    files: FileChanges | None = None

    @property
    def growth(self) -> int:
        """The bytes that it is larger than before; 0 where nothing is known."""
        return 0 if self.before is None else self.package.artifact.size - self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentEntry:
    """A package of an environment: ``scopes`` are the environments, ``change`` says what it was in the last run."""

    scopes: str
    package: ResolvedPackage
    change: str = ""


def package_histories(
    run: MatrixReport, config: ConfigRun, earlier: Sequence[MatrixReport], *, read_files: bool = True
) -> list[PackageHistory]:
    """Return a config's packages with those of earlier runs, the latest first; builds and rehearsals are kept apart."""
    runs = [(past.run, other) for past in _comparable(run, earlier) for other in past.configs]
    histories = []
    for package in config.packages:
        same = [
            (number, found)
            for number, other in runs
            if other.config == config.config
            for found in other.packages
            if found.artifact.name == package.artifact.name
        ]
        other = next((found for _, found in same if found.artifact.sha256 != package.artifact.sha256), None)
        points = [*reversed(same[: _POINTS - 1]), (run.run, package)]
        now = package_files(package.artifact) if read_files else None
        histories.append(
            PackageHistory(
                package=package,
                runs=tuple(number for number, _ in points),
                sizes=tuple(found.artifact.size for _, found in points),
                seconds=tuple(found.build_seconds for _, found in points if not found.reused),
                before=None if other is None else other.artifact.size,
                number=None if now is None else len(now),
                files=_file_changes(now, other.artifact) if now is not None and other is not None else None,
            )
        )
    return histories


def package_files(artifact: Artifact) -> dict[str, int] | None:
    """Return the sizes of a package's files; None where it is gone, was replaced, or has no list of them."""
    try:
        if artifact.is_wheel or artifact.path.stat().st_size != artifact.size:
            return None
        entries = package_reader.read_info_json_object(artifact.path, "paths.json")["paths"]
        return {str(entry["_path"]): int(entry.get("size_in_bytes", 0)) for entry in entries}
    except (KilnError, OSError, LookupError, TypeError, ValueError):
        return None


def _file_changes(now: Mapping[str, int], other: Artifact) -> FileChanges | None:
    before = package_files(other)
    if before is None:
        return None
    both = sorted(now.keys() & before.keys(), key=lambda name: -abs(now[name] - before[name]))
    return FileChanges(
        before=other.path.name,
        added=tuple((name, now[name]) for name in sorted(now.keys() - before.keys())),
        removed=tuple((name, before[name]) for name in sorted(before.keys() - now.keys())),
        resized=tuple((name, before[name], now[name]) for name in both if now[name] != before[name]),
    )


def environment_entries(
    run: MatrixReport, config: ConfigRun, earlier: Sequence[MatrixReport]
) -> list[EnvironmentEntry]:
    """Return the packages of a config's environments with their differences to the last run that recorded them.

    Those of the builds are read from the packages, those of the tests are in the ledger, and alone can be compared.
    """
    own = {package.artifact.name for package in config.packages}
    scopes: dict[tuple[str, str, str], dict[str, ResolvedPackage]] = {}
    for package in (*_recorded(config), *_built_with(package.artifact.path for package in config.packages)):
        if package.name not in own:
            scopes.setdefault((package.name, package.version, package.build), {})[package.scope] = package
    others = (other for past in _comparable(run, earlier) for other in past.configs if other.config == config.config)
    before = next((versions for other in others if (versions := _versions(_recorded(other)))), None)
    entries = []
    for (name, version, build), found in sorted(scopes.items()):
        change = ""
        if before is not None and "run" in found:
            past = before.get(name)
            change = "new" if past is None else "" if past == (version, build) else _difference(past, version)
        words = ", ".join(scope for scope in _SCOPES if scope in found)
        entries.append(EnvironmentEntry(scopes=words, package=next(iter(found.values())), change=change))
    return entries


def removed_from_environment(run: MatrixReport, config: ConfigRun, earlier: Sequence[MatrixReport]) -> list[str]:
    """Return the packages that the tests of the last run had, and this one's have not."""
    now, own = _versions(_recorded(config)), {package.artifact.name for package in config.packages}
    others = (other for past in _comparable(run, earlier) for other in past.configs if other.config == config.config)
    before = next((versions for other in others if (versions := _versions(_recorded(other)))), {})
    return [f"{name} {before[name][0]}" for name in sorted(before.keys() - now.keys() - own)] if now else []


def environment_changes(run: MatrixReport, earlier: Sequence[MatrixReport]) -> list[tuple[str, int]]:
    """Return each change of a version in the environments of a run's tests, with the number of configs that have it."""
    counts: Counter[str] = Counter()
    past = {}
    for report in _comparable(run, earlier):
        for other in report.configs:
            if other.config not in past and (versions := _versions(_recorded(other))):
                past[other.config] = versions
    for config in run.configs:
        now, before = _versions(_recorded(config)), past.get(config.config)
        if now and before:
            own = {package.artifact.name for package in config.packages}
            for name in sorted((now.keys() | before.keys()) - own):
                was, is_ = before.get(name), now.get(name)
                if was != is_:
                    counts[f"{name} {was[0] if was else 'new:'} → {is_[0] if is_ else 'gone'}"] += 1
    return counts.most_common()


def variant_texts(config: ConfigRun, variants: Variants) -> list[tuple[str, str]]:
    """Return the keys and values of a config's variant as texts."""
    variant = variants.get(config.config, {})
    return [(key, ", ".join(values)) for key, values in sorted(variant.items())]


def _comparable(run: MatrixReport, earlier: Iterable[MatrixReport]) -> list[MatrixReport]:
    return [past for past in earlier if past.run < run.run and past.rehearsal == run.rehearsal]


def _recorded(config: ConfigRun) -> Iterable[ResolvedPackage]:
    return (found for package in config.packages for found in package.tests.run_packages)


def _built_with(paths: Iterable[Path]) -> Iterable[ResolvedPackage]:
    for path in paths:
        with contextlib.suppress(KilnError, OSError, ValueError):
            yield from build_and_host_packages(package_reader.read_info_files(path))


def _versions(packages: Iterable[ResolvedPackage]) -> dict[str, tuple[str, str]]:
    return {package.name: (package.version, package.build) for package in packages}


def _difference(past: tuple[str, str], version: str) -> str:
    return f"was {past[0]}" if past[0] != version else f"was build {past[1]}"
