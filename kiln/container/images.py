"""Inspect, fetch, import and load images, and label containers with the process that created them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table
from kiln.base import process as base_process
from kiln.base.errors import ContainerFault, DownloadFailed, UsageError
from kiln.base.system.processes import process_exists
from kiln.container.engine import Engine, EngineKind
from kiln.container.plan import require_valid_image_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


LABEL = "kiln.owner"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerProcess:
    """A process, identified uniquely on this machine over time, as far as the system allows."""

    machine: str
    boot: str
    namespace: str
    pid: int
    started: str

    def __str__(self) -> str:
        return "/".join((self.machine, self.boot, self.namespace, str(self.pid), self.started))

    @classmethod
    def parse(cls, text: str) -> OwnerProcess | None:
        """Return the owner that a label names; None for another label."""
        parts = text.split("/")
        if len(parts) != 5 or not parts[3].isdecimal():
            return None
        return cls(machine=parts[0], boot=parts[1], namespace=parts[2], pid=int(parts[3]), started=parts[4])

    @classmethod
    def of_process(cls, pid: int) -> OwnerProcess | None:
        """Return the running process ``pid``, or None."""
        import platform

        process = process_table.read_process(pid)
        if not process_exists(pid) or (process is not None and process.state in process_table.ENDED):
            return None
        return cls(
            machine=platform.node().replace("/", "-"),
            boot=files.text_or_empty(Path("/proc/sys/kernel/random/boot_id")).strip(),  # empty without /proc
            namespace=_link_target_or_empty(Path("/proc/self/ns/pid")),
            pid=pid,
            started="" if process is None else str(process.started),
        )

    @classmethod
    def of_this_process(cls) -> OwnerProcess:
        """Return this process."""
        me = cls.of_process(os.getpid())
        assert me is not None, "this process runs"
        return me


def has_ended(owner: OwnerProcess, here: OwnerProcess, now: OwnerProcess | None) -> bool:
    """Return whether ``owner`` has ended, seen from ``here``; ``now`` is the process with its number at present.

    Another machine's processes, and those of another process namespace, cannot be seen: they count as running.
    """
    if owner.machine != here.machine:
        return False
    if owner.boot != here.boot:
        return True
    return owner.namespace == here.namespace and owner != now


def _link_target_or_empty(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


LOCAL = "localhost/"


def inspect_image(engine: Engine, image: str) -> Mapping[str, Any] | None:
    """Return the engine's description of an image, or None when it does not have it.

    Raises:
        ContainerFault: when the engine fails.
        UsageError: for an invalid image name.
    """
    require_valid_image_name(image)
    result = engine.run_command("image", "inspect", image)
    if result.ok:
        described: Mapping[str, Any] = json.loads(result.stdout)[0]
        return described
    if is_missing_image_failure(result):
        return None
    raise engine.refusal_error(f"inspect the image {image}", result.tail)


def is_missing_image_failure(result: base_process.ProcessResult) -> bool:
    """Return whether an engine failed because it lacks the image."""
    return not result.ok and any(sign in result.tail.lower() for sign in ("no such image", "image not known"))


def image_digest(engine: Engine, image: str) -> str:
    """Return ``sha256:...`` of a present image: the same on every machine for an image from a registry.

    An image that was made here has no registry's digest; its id, the hash of its configuration, is used instead.

    Raises:
        ContainerFault: when the image is missing.
    """
    described = inspect_image(engine, image)
    if described is None:
        raise ContainerFault(f"image not found: {image}")
    return digest_in_description(described)


def digest_in_description(described: Mapping[str, Any]) -> str:
    """Return the digest in an engine's description of an image."""
    of_registries = [name for name in described.get("RepoDigests") or () if not name.startswith(LOCAL)]
    if of_registries:
        return str(min(of_registries).partition("@")[2])
    return "sha256:" + str(described["Id"]).removeprefix("sha256:")


def platform_in_description(described: Mapping[str, Any]) -> str:
    """Return the platform in an engine's description of an image, such as ``linux/arm64``; empty where it has none.

    The generation of a 64-bit ARM processor is left out: there is one.
    """
    system, architecture = described.get("Os") or "", described.get("Architecture") or ""
    variant = "" if architecture == "arm64" else described.get("Variant") or ""
    return "/".join(filter(None, (system, architecture, variant))) if system and architecture else ""


def refuse_local_image_of_other_platform(image: str, present: str, platform: str) -> None:
    """Refuse an image that was made on this machine for another platform: no registry has it.

    Raises:
        UsageError: with both platforms.
    """
    if image.startswith(LOCAL):
        raise UsageError(
            f"the image {image} is of {present}, the config needs one of {platform}",
            hint="docker_image in the variant, or DOCKER_IMAGE, names another image",
        )


def image_labels(engine: Engine, image: str) -> Mapping[str, str]:
    """Return the labels of an image; empty when it is missing."""
    described = inspect_image(engine, image) or {}
    return (described.get("Config") or {}).get("Labels") or described.get("Labels") or {}


def pull_if_missing(engine: Engine, image: str) -> None:
    """Fetch an image unless it is present."""
    if inspect_image(engine, image) is None:
        pull_image(engine, image)


def pull_image(
    engine: Engine, image: str, *, platform: str | None = None, on_line: Callable[[str], None] | None = None
) -> str:
    """Fetch an image from its registry, for a platform if it is given, and return its digest.

    Raises:
        DownloadFailed: when it cannot be fetched, with a hint.
        UsageError: for an invalid image name.
    """
    require_valid_image_name(image)
    if image.startswith(LOCAL):  # an engine would look for a registry on this machine, thrice
        raise image_unavailable_error(
            engine, image, "images named localhost/... are made on this machine, and none has this name"
        )
    if on_line is not None:
        on_line(f"fetching {image} with {engine.kind.value}")
    options = () if platform is None else ("--platform", platform)
    result = base_process.run([engine.executable, "pull", *options, image], env=engine.environment, on_line=on_line)
    if not result.ok:
        raise image_unavailable_error(engine, image, result.tail)
    return image_digest(engine, image)


def image_unavailable_error(engine: Engine, image: str, output: str) -> DownloadFailed:
    """Return the failure of an image that is missing and cannot be fetched, from the engine's output."""
    output = output.strip()
    last = output.splitlines()[-1] if output else "no reason was given"
    if image.startswith(LOCAL):
        hint = f"'kiln image base --tag {image} --container {engine.kind.value}' makes one from Debian's packages"
    elif any(sign in output.lower() for sign in ("denied", "unauthorized", "authentication required")):
        registry = image.partition("/")[0]
        hint = f"'{engine.kind.value} login {registry}', if the image is private; or see that its name is right"
    elif any(sign in output.lower() for sign in ("no such host", "dial tcp", "timeout", "unreachable", "refused")):
        hint = (
            "the registry is out of reach: look at the network and the engine's proxy, name an image that is here "
            "(DOCKER_IMAGE), make one with 'kiln image base', or build on the host with --container none"
        )
    else:
        hint = "see that the image's name is right, name another (DOCKER_IMAGE), or build with --container none"
    return DownloadFailed(f"{engine.kind.value} cannot get the image {image}", why=last, hint=hint)


def import_rootfs(engine: Engine, archive: Path, tag: str, *, changes: Sequence[str] = ()) -> str:
    """Import a root file system from a tar archive as an image named ``tag``, and return its digest.

    ``changes`` are instructions of a Dockerfile: ENV, LABEL, CMD, WORKDIR.

    Raises:
        ContainerFault: when the engine refuses it.
    """
    options = [word for change in changes for word in ("--change", change)]
    quiet = ["--quiet"] if engine.kind is EngineKind.PODMAN else []
    result = base_process.run([engine.executable, "import", *quiet, *options, archive, tag], env=engine.environment)
    if not result.ok:
        raise engine.refusal_error(f"import {archive} as {tag}", result.tail)
    return image_digest(engine, tag)


def load_archive(engine: Engine, archive: Path) -> None:
    """Load an image from an archive, under the name that is recorded there.

    Raises:
        ContainerFault: when the engine refuses it.
    """
    result = base_process.run([engine.executable, "load", "--quiet", "--input", archive], env=engine.environment)
    if not result.ok:
        raise engine.refusal_error(f"load the image in {archive}", result.tail)
