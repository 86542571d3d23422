"""``kiln image``: container images made here."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.container import Engine
    from kiln.image.runtime import MadeImage

KINDS = {
    "tensorflow": "a lean image of installed TensorFlow packages, for programs that run models",
    "serving": "a lean image of TensorFlow Serving, for models behind gRPC and REST",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln image``."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="IMAGE")
    base = kinds.add_parser(
        "base",
        help="the image that cells build in, from Debian's packages alone",
        description="Make a local base image from Debian's packages, with this machine's mirrors.",
    )
    base.add_argument("--with", dest="extra", metavar="PACKAGE", nargs="+", default=[], help="Debian packages to add")
    machine = kinds.add_parser(
        "machine",
        help="a machine of the fleet as a container, for trying and testing",
        description="Make an image that boots systemd, cloud-init, sshd and a Docker of its own; it needs Docker.",
    )
    disk = kinds.add_parser(
        "disk",
        help="a machine of the fleet as a disk for virtual machines (QEMU)",
        description="Make a disk of that machine's system, with a kernel of its own; it needs no container engine.",
    )
    _made_here(disk)
    _local_arguments(base, "localhost/kiln-base:SUITE")
    _local_arguments(machine, "localhost/kiln-machine:SUITE")
    for name, summary in KINDS.items():
        _lean_arguments(kinds.add_parser(name, help=summary, description=f"Make {summary}."))


def _local_arguments(parser: argparse.ArgumentParser, tag: str) -> None:
    parser.add_argument("--tag", metavar="NAME", help=f"what to call it (default: {tag})")
    parser.add_argument("--container", metavar="ENGINE", choices=("docker", "podman"), help="docker or podman")
    _made_here(parser)


def _made_here(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", default="bookworm", help="Debian's release (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="make it anew, with Debian's latest updates")


def _lean_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="*", metavar="SPEC", help="packages to install (default: the kind's own)")
    parser.add_argument(
        "--from",
        dest="channels",
        metavar="CHANNEL",
        action="append",
        help="a channel's folder, URL or name; may be given again (default: conda-forge)",
    )
    parser.add_argument("--cuda", metavar="VERSION", default="", help="for GPUs whose driver can run this CUDA version")
    parser.add_argument("--output", metavar="FILE", type=Path, help="an archive (.tar) or a folder (an OCI layout)")
    parser.add_argument("--tag", metavar="NAME", help="what to call it (default: localhost/KIND-cpu:VERSION)")
    parser.add_argument("--load", metavar="ENGINE", choices=("docker", "podman"), help="load it into docker or podman")
    parser.add_argument("--suite", default="bookworm", help="Debian's release below (default: %(default)s)")
    parser.add_argument("--with", dest="extra", metavar="PACKAGE", nargs="+", default=[], help="Debian packages to add")
    parser.add_argument("--json", action="store_true", help="print what was made as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Make the image and print its name and digest.

    Raises:
        MissingTool: without an engine, where one is asked for.
    """
    if options.kind == "disk":
        return _disk(options, root)
    return _lean(options, root) if options.kind in KINDS else _local(options, root)


def _disk(options: argparse.Namespace, root: Path) -> int:
    from kiln import image
    from kiln.model.feedstock import Feedstock

    made = image.disk(
        image.disk_recipe(options.suite),
        Feedstock(root=root).artifacts / "images",
        env=os.environ,
        fresh=options.fresh,
        on_line=_to_stderr,
    )
    print(f"{made.folder}{' (found)' if made.reused else ''}")
    return 0


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def _local(options: argparse.Namespace, root: Path) -> int:
    from kiln import image
    from kiln.model.feedstock import Feedstock

    if options.kind == "base":
        what, tag = image.recipe(options.suite, options.extra), image.default_tag(options.suite)
    else:
        what, tag = image.machine_recipe(options.suite), image.machine_tag(options.suite)
    made = image.base(
        _engine(options.container),
        what,
        tag=options.tag or tag,
        folder=Feedstock(root=root).artifacts / "images",
        env=os.environ,
        fresh=options.fresh,
        on_line=_to_stderr,
    )
    print(f"{made.tag} {made.digest}{' (found)' if made.reused else ''}")
    return 0


def _lean(options: argparse.Namespace, root: Path) -> int:
    from kiln.console.steps import Steps
    from kiln.container import images
    from kiln.image import kind, runtime
    from kiln.model.feedstock import Feedstock

    engine = _engine(options.load) if options.load else None
    chosen = kind.load(options.kind)
    request = runtime.Request(
        kind=chosen,
        channels=tuple(map(channel_name, options.channels or ["conda-forge"])),
        specs=tuple(options.specs) or chosen.specs,
        suite=options.suite,
        debian=tuple(options.extra),
        cuda=options.cuda,
    )
    steps = Steps(sys.stderr, animated=sys.stderr.isatty())
    made = runtime.make(
        request,
        options.output,
        tag=options.tag,
        work=Feedstock(root=root).artifacts / "images",
        env=os.environ,
        step=steps.step,
    )
    if engine is not None:
        with steps.step(f"load it into {engine.kind.value}"):
            images.take(engine, made.path)
    _print(made, as_json=options.json)
    return 0


def channel_name(name: str) -> str:
    """A channel as solvers want it: a folder that is there as a URL, everything else as it stands.

    Raises:
        UsageError: for no name at all, and for a path where no folder is.
    """
    folder = Path(name)
    if not name.strip() or (name.startswith(("/", ".")) and not folder.is_dir()):
        raise UsageError(f"there is no channel {name!r}", hint="a folder, a URL, or a name such as conda-forge")
    return folder.resolve().as_uri() if folder.is_dir() else name


def _print(made: MadeImage, *, as_json: bool) -> None:
    if as_json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(made), default=str, indent=2))
        return
    from kiln.files import size_text

    width = max(len(title) for title, _ in made.layers)
    for title, size in made.layers:
        print(f"{title:<{width}}  {size_text(size):>8}")
    print(f"{'unpacked':<{width}}  {size_text(sum(size for _, size in made.layers)):>8}")
    print(f"{made.tag}  {made.digest}\n{made.path}  {size_text(made.size)}")


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
