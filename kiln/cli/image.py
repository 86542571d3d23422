"""``kiln image``: make container images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import MissingTool
from kiln.cli import arguments
from kiln.cli.output import command_steps_view, print_line

if TYPE_CHECKING:
    import argparse

    from kiln.container.engine import Engine
    from kiln.image.slim import SlimImage

KINDS = {
    "tensorflow": "a slim image of installed TensorFlow packages, for programs that run models",
    "serving": "a slim image of TensorFlow Serving, for models behind gRPC and REST",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln image``."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="IMAGE")
    base = kinds.add_parser(
        "base",
        help="an image to build configs in, made of Debian's packages",
        description="Make a local base image from Debian's packages, with this machine's mirrors.",
    )
    base.add_argument(
        "--with", dest="extra", metavar="PACKAGE", nargs="+", default=[], help="add these Debian packages"
    )
    worker = kinds.add_parser(
        "worker",
        help="an image of a fleet worker as a container, for trials and tests",
        description="Make an image that boots systemd, cloud-init, sshd and an inner Docker; requires Docker.",
    )
    _add_container_image_arguments(base, "localhost/kiln-base:SUITE")
    _add_container_image_arguments(worker, "localhost/kiln-worker:SUITE")
    for name, summary in KINDS.items():
        _add_slim_image_arguments(kinds.add_parser(name, help=summary, description=f"Make {summary}."))


def _add_container_image_arguments(parser: argparse.ArgumentParser, tag: str) -> None:
    parser.add_argument("--tag", metavar="NAME", help=f"name the image (default: {tag})")
    parser.add_argument(
        "--container", metavar="ENGINE", choices=("docker", "podman"), help="make the image for this engine"
    )
    parser.add_argument("--suite", default="bookworm", help="use this release of Debian (default: %(default)s)")
    parser.add_argument("--fresh", action="store_true", help="make it again, with Debian's latest updates")


def _add_slim_image_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "specs",
        nargs="*",
        metavar="SPEC",
        help="match specs of packages to install (default: those of this kind of image)",
    )
    arguments.add_channel_arguments(parser, default="conda-forge")
    parser.add_argument("--cuda", metavar="VERSION", help="make an image for GPUs with a driver for this CUDA version")
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write an archive (.tar) or a folder (an OCI layout)"
    )
    parser.add_argument("--tag", metavar="NAME", help="name the image (default: localhost/KIND-cpu:VERSION)")
    parser.add_argument(
        "--load", metavar="ENGINE", choices=("docker", "podman"), help="load the image into this engine"
    )
    parser.add_argument("--suite", default="bookworm", help="use this release of Debian (default: %(default)s)")
    parser.add_argument(
        "--with", dest="extra", metavar="PACKAGE", nargs="+", default=[], help="add these Debian packages"
    )
    parser.add_argument("--json", action="store_true", help="print the image's properties as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Make the image and print its name and digest.

    Raises:
        MissingTool: if a required container engine is missing.
    """
    from kiln.recipe.feedstock import Feedstock
    from kiln.state.store.layout import ArtifactLayout

    folder = ArtifactLayout.for_feedstock(Feedstock(root=root)).safe_path("images")
    return _make_slim_image(options, folder) if options.kind in KINDS else _make_container_image(options, folder)


def _make_container_image(options: argparse.Namespace, folder: Path) -> int:
    from kiln.image.worker import base_image_recipe, provide_image, worker_recipe

    is_base = options.kind == "base"
    recipe = base_image_recipe(options.suite, options.extra) if is_base else worker_recipe(options.suite)
    result = provide_image(
        _required_container_engine(options.container),
        recipe,
        tag=options.tag or recipe.tag,
        folder=folder,
        env=os.environ,
        fresh=options.fresh,
        on_line=print_line,
    )
    print(f"{result.tag} {result.digest}{' (cached)' if result.reused else ''}")
    return 0


def _make_slim_image(options: argparse.Namespace, folder: Path) -> int:
    from kiln.container import images
    from kiln.image import contents, slim

    engine = _required_container_engine(options.load) if options.load else None
    image_kind = contents.read_image_kind(options.kind)
    request = contents.ImageRequest(
        kind=image_kind,
        channels=tuple(options.channels or ["conda-forge"]),
        specs=tuple(options.specs) or image_kind.specs,
        suite=options.suite,
        debian=tuple(options.extra),
        cuda=options.cuda or "",
    )
    steps = command_steps_view()
    result = slim.make_slim_image(
        request, options.output, tag=options.tag, work=folder, env=os.environ, step=steps.step
    )
    if engine is not None:
        with steps.step(f"load the image into {engine.kind.value}"):
            images.load_archive(engine, result.path)
    _print_slim_image(result, as_json=options.json)
    return 0


def _print_slim_image(image: SlimImage, *, as_json: bool) -> None:
    if as_json:
        import json

        from kiln.base.serialization import to_json

        print(json.dumps(to_json(image), indent=2))
        return
    from kiln.base.files import human_readable_size

    width = max(len(title) for title, _ in image.layers)
    for title, size in image.layers:
        print(f"{title:<{width}}  {human_readable_size(size):>8}")
    print(f"{'unpacked':<{width}}  {human_readable_size(sum(size for _, size in image.layers)):>8}")
    print(f"{image.tag}  {image.digest}\n{image.path}  {human_readable_size(image.size)}")


def _required_container_engine(name: str | None) -> Engine:
    from kiln.container.engine import choose_engine

    choice = choose_engine(name, env=os.environ, executable=os.environ.get("DOCKER_EXECUTABLE") or None)
    if choice.engine is None:
        raise MissingTool(
            "this image requires Docker or Podman, and neither works",
            why="; ".join(choice.notes[:2]),
            hint="install one (Debian's packages: docker.io, podman), and start it",
        )
    return choice.engine
