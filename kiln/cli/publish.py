"""``kiln publish``: put a run's packages into a channel, all at once, or withdraw one."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.cli.environment import passed_on
from kiln.errors import UsageError

SECRET = re.compile(r"(?:TOKEN|API_?KEY|SECRET|PASSWORD|SECRET_ACCESS_KEY)$", re.IGNORECASE)
SHORTEST = 12  # characters; what is shorter stands in many files by chance

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.publish.channel import ChannelTarget
    from kiln.publish.targets import Target


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln publish``."""
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", type=Path, help="these alone (default: all)")
    parser.add_argument(
        "--to",
        required=True,
        metavar="CHANNEL",
        help="a folder, s3://BUCKET/PREFIX, anaconda:OWNER, prefix:CHANNEL, quetz:URL/CHANNEL, artifactory:URL/CHANNEL",
    )
    parser.add_argument("--staging", metavar="NAME", help="the channel (or label) of a server to try packages out from")
    parser.add_argument("--url", metavar="URL", help="where clients read the channel, when that is elsewhere")
    parser.add_argument("--partial", action="append", default=[], metavar="CONFIG", help="a cell that may be missing")
    parser.add_argument("--check", action="store_true", help="tell what speaks against a release, and publish nothing")
    parser.add_argument("--sign-key", metavar="FILE", type=Path, help="sign the records with this SSH key")
    parser.add_argument("--bundle", metavar="DIR", type=Path, help="write packages, logs and records there, no more")
    parser.add_argument("--abort", action="store_true", help="take back a publication that was interrupted")
    parser.add_argument("--yank", action="append", default=[], metavar="FILE", help="withdraw a package from the index")
    parser.add_argument("--delete", action="store_true", help="with --yank: remove the file, too")
    parser.add_argument("--patch", metavar="JSON", help="with --yank: keep it, but tell these fields of its record so")
    parser.add_argument("--reindex", action="store_true", help="index what lies in the channel's folder")
    parser.add_argument("--json", action="store_true", help="the paths as JSON on standard output")


def run(options: argparse.Namespace, root: Path) -> int:
    """Publish, or do what else was asked for, and print the paths in the channel that changed."""
    from kiln import command
    from kiln.model.feedstock import Feedstock
    from kiln.publish.targets import own_channel, target

    journals = Feedstock(root=root.absolute()).artifacts / "publications"
    where = target(options.to, os.environ, journals=journals, staging=options.staging, reading=options.url)
    with command.termination_as_interrupt():
        if options.abort:
            show(options, aborted=where.abort())
        elif options.yank:
            show(options, **yank(own_channel(where), options))
        elif options.reindex:
            show(options, read=reindex(own_channel(where)))
        else:
            show(options, **publish(where, options, root))
    return 0


def publish(where: Target, options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Publish what the ledger says was built."""
    from kiln import load, provenance
    from kiln.pipeline import attest, bundle, release

    built = release.Built.of(load.find(root))
    held = where.held()
    wanted = built.release(options.packages, partial=options.partial, held=held, tokens=tokens(os.environ))
    paths, entries = release.judged(wanted)
    if options.check:
        return {"ready": tuple(path.name for path in paths)}
    sign = provenance.signer(options.sign_key, env=os.environ) if options.sign_key else None
    attested = attest.attestation(built, release.new_of(wanted), sign=sign)
    if options.bundle:
        bundle.write(options.bundle, built, wanted, attested)
        return {"bundled": tuple(path.name for path in paths)}
    trial = release.trial(
        built,
        wanted,
        known=(where.address(),) if held else (),
        environment=passed_on(os.environ),
        on_line=lambda line: print(line, file=sys.stderr),
    )
    for note in where.notes if trial.candidates else ():
        print(f"note: {note}", file=sys.stderr)
    return {"published": where.publish(paths, entries, trial, attested)}


def tokens(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets of this environment, by the names of their variables; no package may hold one."""
    return tuple(value for name, value in environment.items() if SECRET.search(name) and len(value) >= SHORTEST)


def yank(where: ChannelTarget, options: argparse.Namespace) -> dict[str, Any]:
    """Withdraw packages, or have the index tell one otherwise."""
    if options.patch is None:
        return {"yanked": where.yank(options.yank, delete=options.delete)}
    try:
        fields = json.loads(options.patch)
    except ValueError as error:
        raise UsageError("--patch is no JSON", why=str(error)) from error
    if not isinstance(fields, dict):
        raise UsageError("--patch is no JSON object", hint="""--patch '{"depends": ["python >=3.11"]}'""")
    return {"patched": [where.patch(name, fields) for name in options.yank]}


def reindex(where: ChannelTarget) -> int:
    """Index what lies in a folder, and return how many packages were read."""
    from kiln import repodata

    return where.reindex(lambda path: repodata.read(Path(where.name) / path))


def show(options: argparse.Namespace, **what: Any) -> None:
    """Print what was done."""
    if options.json:
        print(json.dumps(what))
        return
    for done, paths in what.items():
        for path in paths if isinstance(paths, (tuple, list)) else (str(paths),):
            print(f"{done} {path}")
        if paths == ():
            print(f"nothing was {done}", file=sys.stderr)
