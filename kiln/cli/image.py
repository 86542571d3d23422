"""``kiln image``: container images made here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from kiln.container import Engine


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln image``."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="IMAGE")
    base = kinds.add_parser(
        "base",
        help="the image that cells build in, from Debian's packages alone",
        description="Make a local base image from Debian's packages, with this machine's mirrors.",
    )
    base.add_argument("--tag", metavar="NAME", help="what to call it (default: localhost/kiln-base:SUITE)")
    base.add_argument("--container", metavar="ENGINE", choices=("docker", "podman"), help="docker or podman")
    base.add_argument("--suite", default="bookworm", help="Debian's release (default: %(default)s)")
    base.add_argument("--with", dest="extra", metavar="PACKAGE", nargs="+", default=[], help="Debian packages to add")
    base.add_argument("--fresh", action="store_true", help="make it anew, with Debian's latest updates")


def run(options: argparse.Namespace, root: Path) -> int:
    """Make the image and print its name and digest.

    Raises:
        MissingTool: without an engine.
    """
    from kiln import image
    from kiln.model.feedstock import Feedstock

    made = image.base(
        _engine(options.container),
        image.recipe(options.suite, options.extra),
        tag=options.tag or image.default_tag(options.suite),
        folder=Feedstock(root=root).artifacts / "images",
        env=os.environ,
        fresh=options.fresh,
        on_line=lambda line: print(line, file=sys.stderr),
    )
    print(f"{made.tag} {made.digest}{' (found)' if made.reused else ''}")
    return 0


def _engine(name: str | None) -> Engine:
    from kiln.container import choose
    from kiln.errors import MissingTool

    choice = choose(name, env=os.environ, executable=os.environ.get("DOCKER_EXECUTABLE") or None)
    if choice.engine is None:
        raise MissingTool(
            "an image needs Docker or Podman, and neither can be used",
            why="; ".join(choice.notes[:2]),
            hint="install one (Debian's packages: docker.io, podman), and start it",
        )
    return choice.engine
