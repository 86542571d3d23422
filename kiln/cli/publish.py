"""``kiln publish`` and ``kiln collect``: packages published all or none, and taken over from the jobs of a CI."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import masking
from kiln.base.errors import BrokenPackage, UsageError, did_you_mean
from kiln.base.patterns import PLATFORMS
from kiln.cli.options import variables_passed_to_builds
from kiln.cli.output import print_line, print_notes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.publish.provenance import AttestationSettings, Attester
    from kiln.publish.stores.target import StoreTarget
    from kiln.publish.transaction import PublicationTarget
    from kiln.recipe.feedstock import Feedstock


def add_collect_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln collect``."""
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        type=Path,
        help="the folder of a job, or of several: report.json, as 'kiln report --json' prints it, and the packages in "
        "their subdirs",
    )


def run_collect(options: argparse.Namespace, root: Path) -> int:
    """Collect the packages, and print each config with their number."""
    from kiln.base.text import count_text
    from kiln.publish import rebuild
    from kiln.recipe import feedstock as recipe_feedstock

    for config, count, has_log in rebuild.import_ci_job_results(recipe_feedstock.load(root), options.folders):
        lost = "" if has_log else f", without its log: logs/*/{config}.log not found"
        print(f"{config}: {count_text(count, 'package')}{lost}")
    return 0


KEYLESS = "sigstore"  # the word for --attest that is not the path of a key
SHORTEST = 8  # characters; shorter values occur in many files by chance


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln publish``."""
    parser.add_argument(
        "packages", nargs="*", metavar="PACKAGE", type=Path, help="publish only these packages (default: all)"
    )
    parser.add_argument(
        "--to",
        required=True,
        metavar="CHANNEL",
        help="publish to this channel: a folder, s3://BUCKET/PREFIX, "
        "anaconda:OWNER, prefix:CHANNEL, quetz:URL/CHANNEL, artifactory:URL/CHANNEL",
    )
    parser.add_argument(
        "--staging", metavar="NAME", help="test packages from this channel (or label) of the server before the release"
    )
    parser.add_argument("--url", metavar="URL", help="set the URL from which clients read the channel, if it differs")
    parser.add_argument(
        "--partial",
        action="append",
        default=[],
        metavar="CONFIG",
        help="allow this config, or those of a pattern such as 'osx_*', to be missing from the release",
    )
    parser.add_argument(
        "--allow-untested",
        action="append",
        default=[],
        metavar="SUBDIR",
        help="accept cross-compiled packages of this platform, such as linux-aarch64, whose tests were skipped",
    )
    parser.add_argument(
        "--allow-dirty",
        action="store_true",
        help="accept packages that were built from a checkout with changes; their attestations say so",
    )
    parser.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave out packages of which the channel has another file, or had one: for a CI that builds each commit",
    )
    parser.add_argument("--check", action="store_true", help="check the packages for a release, and publish nothing")
    parser.add_argument(
        "--attest",
        metavar="WITH",
        help="sign attestations of each package, also of those that the channel has already (CEP 27, SLSA): with a "
        "private key in this PEM file, or, with 'sigstore', by the identity of the CI job",
    )
    parser.add_argument(
        "--sigstore-config",
        metavar="FILE",
        type=Path,
        help="sign through the Sigstore instance of this trust configuration (default: the public one)",
    )
    parser.add_argument(
        "--bundle",
        metavar="DIR",
        type=Path,
        help="write packages, logs and provenance to this folder instead of publishing",
    )
    parser.add_argument("--abort", action="store_true", help="undo an interrupted publication")
    parser.add_argument("--yank", action="append", default=[], metavar="FILE", help="withdraw a package from the index")
    parser.add_argument("--delete", action="store_true", help="with --yank: also delete the file")
    parser.add_argument(
        "--patch", metavar="JSON", help="with --yank: keep the package, and change these fields of its index record"
    )
    parser.add_argument(
        "--reindex", action="store_true", help="rebuild the index from the files in the channel's folder"
    )
    parser.add_argument("--json", action="store_true", help="print the paths as JSON")


# The attributes of options that do something else than publish, and of those that say how packages are published.
_ACTIONS = ("abort", "yank", "reindex")
_OF_PUBLICATIONS = (
    *("packages", "partial", "allow_untested", "allow_dirty", "skip_existing"),
    *("check", "attest", "sigstore_config", "bundle"),
)


def require_compatible_options(options: argparse.Namespace) -> None:
    """Raise UsageError for options of which one would be ignored."""
    for name in ("delete", "patch"):
        if getattr(options, name) not in {None, False} and not options.yank:
            raise UsageError(f"--{name} goes with --yank")
    if options.delete and options.patch is not None:
        raise UsageError("--delete does not go with --patch", why="a package is deleted, or its record is changed")
    given = [name for name in (*_ACTIONS, *_OF_PUBLICATIONS) if getattr(options, name)]
    if given[1:] and given[0] in _ACTIONS:
        other = "PACKAGE" if given[1] == "packages" else f"--{given[1].replace('_', '-')}"
        raise UsageError(f"{other} does not go with --{given[0]}", hint="give one command for each")


def run(options: argparse.Namespace, root: Path) -> int:
    """Publish, abort, yank or reindex, and print the changed paths of the channel."""
    from kiln.base import process_table
    from kiln.publish import transaction
    from kiln.publish.targets import parse_target, require_existing_folder, require_store_target
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.layout import ArtifactLayout

    require_compatible_options(options)
    feedstock = Feedstock(root=root.absolute())
    journals = ArtifactLayout.for_feedstock(feedstock).safe_path("publications")
    channel = parse_target(
        options.to,
        os.environ,
        journals=journals,
        staging=options.staging,
        reading=options.url,
        subdirs=() if options.abort or options.yank or options.reindex else feedstock_platforms(feedstock),
    )
    if options.abort or options.yank or options.reindex:
        require_existing_folder(channel)
    with process_table.termination_as_interrupt():
        if options.abort:
            print_results(options, aborted=transaction.abort(channel, lambda remark: print_notes([remark])))
        elif options.yank:
            print_results(options, **yank_or_patch_packages(require_store_target(channel), options))
        elif options.reindex:
            reindex_channel(require_store_target(channel), options)
        else:
            print_results(options, **_publish_finished_packages(channel, options, root))
    return 0


def parse_untested_platforms(subdirs: list[str]) -> tuple[str, ...]:
    """Return the platforms whose packages may be untested; raise UsageError for other names."""
    for subdir in subdirs:
        if subdir not in PLATFORMS:
            raise UsageError(
                f"no such platform: {subdir!r}", hint=did_you_mean(subdir, sorted(PLATFORMS)) or "linux-aarch64"
            )
    return tuple(subdirs)


def feedstock_platforms(feedstock: Feedstock) -> frozenset[str]:
    """Return the platforms of a feedstock's configs."""
    from kiln.feedstock import config_file

    return frozenset(config.platform for config in config_file.read_configs(feedstock, feedstock.config_names))


def _publish_finished_packages(channel: PublicationTarget, options: argparse.Namespace, root: Path) -> dict[str, Any]:
    from kiln.base import git
    from kiln.build.job import job
    from kiln.publish import gate, provenance, targets, transaction
    from kiln.publish import release as publish_release
    from kiln.recipe import feedstock as recipe_feedstock

    signer = _requested_attester(options)
    feedstock = recipe_feedstock.load(root)
    if not options.check and not options.bundle:
        targets.require_publication_allowed(
            feedstock.conda_forge_yml,
            options.to,
            environment=os.environ,
            current_branch=lambda: git.output_or_empty(
                root, "symbolic-ref", "--quiet", "--short", "HEAD", env=variables_passed_to_builds(os.environ)
            ).strip(),
        )
    matrix = publish_release.ConfigsAndRuns.from_feedstock(feedstock)
    published = targets.held_packages(channel)
    release = matrix.assemble_release(
        options.packages,
        partial=options.partial,
        published=published,
        damaged=channel.damaged_paths(),
        tokens=environment_secrets(os.environ),
        untested=parse_untested_platforms(options.allow_untested),
        allow_dirty=options.allow_dirty,
    )
    if options.skip_existing:
        release = gate.without_held_packages(release)
        print_notes(release.skipped)
    paths, entries = publish_release.read_releasable_packages(release)
    new_packages = publish_release.packages_new_in_channel(release)
    notes = (*gate.nonblocking_notes(release), *publish_release.damage_notes(release), *channel.notes)
    print_notes(notes if new_packages else ())
    if options.check:
        return {"ready": tuple(path.name for path in paths)}
    attestation = provenance.release_provenance_and_attestations(
        matrix,
        release.candidates if options.bundle or signer else new_packages,
        attesting=_attestation_settings(options, signer, channel.channel_url()),
    )
    if options.bundle:
        provenance.write_release_bundle(options.bundle, matrix, release, attestation)
        return {"bundled": tuple(path.name for path in paths)}
    trial = publish_release.tester_of_staged_packages(
        matrix,
        new_packages,
        channels=(channel.channel_url(),) if published else (),
        environment=variables_passed_to_builds(os.environ),
        on_line=print_line,
    )
    if not new_packages and not release.skipped:
        print_notes(["the channel has all of these packages"])
    changed = transaction.publish(channel, paths, entries, trial, attestation)
    held = [candidate for candidate in release.candidates if candidate not in new_packages] if signer else []
    attested, notes = targets.attest_held_packages(channel, held, attestation)
    print_notes(notes)
    if changed and not options.json:
        url = channel.channel_url()
        read_from = options.url if options.url and url.startswith("file:") else url
        others = job.channel_sources(next(iter(matrix.rendered.values())).config)
        # Packages of several configs may exclude each other.
        of_last = [one.artifact.channel_path for one in new_packages if one.configs[:1] == new_packages[-1].configs[:1]]
        for line in channel_and_install_lines(read_from, of_last or changed, root, others=others):
            print_line(line)
    return {"published": changed, **({"attested": attested} if attested else {})}


def channel_and_install_lines(
    url: str, published: Sequence[str], root: Path, *, others: Sequence[str]
) -> tuple[str, str]:
    """Return where the published packages are, and the command that installs them; dependencies are in ``others``."""
    from kiln.base import http
    from kiln.cli.main import make_pasteable
    from kiln.run.report.text import install_command

    url = http.url_without_credentials(url)
    packages = (path.rpartition("/")[2] for path in published if path.endswith(".conda"))
    names = list(dict.fromkeys(package.rsplit("-", 2)[0] for package in packages))
    command = install_command((url, *(other for other in others if other != url)), names, os.environ)
    return f"channel  {url}", make_pasteable(f"install  {command}", root)


def _requested_attester(options: argparse.Namespace) -> Attester | None:
    from kiln.conda.provenance.signing import KeylessSigner, PrivateKey

    if options.sigstore_config and options.attest != KEYLESS:
        raise UsageError("--sigstore-config goes with --attest sigstore")
    if options.attest is None:
        return None
    if options.attest == KEYLESS:
        return KeylessSigner(config=options.sigstore_config)
    return PrivateKey.from_file(Path(options.attest), os.environ)


def _attestation_settings(
    options: argparse.Namespace, attester: Attester | None, channel: str
) -> AttestationSettings | None:
    """Return the attestations to make for the packages of a channel, given by its URL; None without a signer."""
    from kiln.base import http
    from kiln.cli.options import workflow_uri
    from kiln.publish.provenance import AttestationSettings

    if attester is None:
        return None
    url = http.url_without_credentials(options.url if options.url and channel.startswith("file:") else channel)
    return AttestationSettings(attester=attester, channel=url, workflow=workflow_uri(os.environ))


def environment_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets in the environment, including those in URLs; no package may contain one."""
    return tuple(value for value in masking.secrets_of_environment(environment) if len(value) >= SHORTEST)


def yank_or_patch_packages(channel: StoreTarget, options: argparse.Namespace) -> dict[str, Any]:
    """Withdraw packages, or patch their records in the index."""
    from kiln.publish.stores import target

    if options.patch is None:
        return {"yanked": target.yank_packages(channel, options.yank, delete=options.delete)}
    try:
        fields = json.loads(options.patch)
    except ValueError as error:
        raise UsageError("--patch is not valid JSON", why=str(error)) from error
    if not isinstance(fields, dict):
        raise UsageError("--patch is not a JSON object", hint="""--patch '{"depends": ["python >=3.11"]}'""")
    return {"patched": [target.patch_record(channel, name, fields) for name in options.yank]}


def reindex_channel(channel: StoreTarget, options: argparse.Namespace) -> None:
    """Rebuild the index of a folder, and print the number of packages.

    Raises:
        UsageError: the channel is not in a folder.
        BrokenPackage: after the index is written, with all files that it omits.
    """
    from kiln.conda.index import IndexEntry, read_index_entry
    from kiln.conda.package_reader import require_undamaged
    from kiln.publish.stores import target
    from kiln.publish.stores.folder import FolderStore

    if not isinstance(channel.store, FolderStore):
        raise UsageError(f"{channel.name} is not a folder", why="--reindex reads the packages in one")

    def read(path: str) -> IndexEntry:
        entry = read_index_entry(Path(channel.name) / path)
        require_undamaged(Path(channel.name) / path)
        return entry

    count, broken = target.reindex_channel(channel, read, lambda remark: print_notes([remark]))
    print_results(options, read=count)
    if broken:
        raise BrokenPackage(
            f"{len(broken)} files in {channel.name} are not installable packages; the index contains all others",
            hint="publish them anew; or replace them, or move them out of the channel, and run the same command again",
            others=broken,
        )


def print_results(options: argparse.Namespace, **results: Any) -> None:
    """Print the results of actions."""
    if options.json:
        print(json.dumps(results))
        return
    for action, paths in results.items():
        for path in paths if isinstance(paths, (tuple, list)) else (str(paths),):
            print(f"{action} {path}")
        if paths == ():
            print(f"nothing was {action}", file=sys.stderr)
