"""Derive an image: another one, with packages that its own package manager has installed.

The image is made once for a digest and a set of packages, and then found by its name. Its label lists the packages::

    docker image ls --filter label=kiln.system-packages
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.container import image_inspection_and_pull
from kiln.container.container import Container
from kiln.container.owner_labels import LABEL as OWNER
from kiln.errors import ContainerFault, DownloadFailed, program_output_with_margin
from kiln.model.container import ContainerRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from kiln.container.engine import Engine

LABEL = "kiln.system-packages"
NAME = f"{image_inspection_and_pull.LOCAL}kiln-system-packages"
SECONDS = 1800.0  # until an installation is stopped
NO_MANAGER = 96

# Packages give files away, set modes and capabilities, and make users; no other of root's rights is granted.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETFCAP", "SETGID", "SETUID", "SYS_CHROOT")

# yum first: conda-forge's CI calls it by this name. Today it is a link to dnf.
INSTALL = f"""
for manager in yum dnf microdnf; do
    if command -v "$manager" >/dev/null; then
        "$manager" install -y "$@" || exit 1
        "$manager" clean all >/dev/null 2>&1
        exit 0
    fi
done
exit {NO_MANAGER}
"""

# The messages of dnf 4 and 5, yum 3 and microdnf about a name that no repository has.
_UNKNOWN = re.compile(r"No match for argument: (\S+)|No package (\S+) available|No package matches '([^']+)'")
_PROXY = re.compile(r"\w*_proxy", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRefusal:
    """The reason why an image cannot be derived: no repository has the ``unknown`` packages, or it has no manager."""

    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedImage:
    """An image with further packages; ``digest`` is that of the image below, ``platform`` is set if it is emulated."""

    image: str
    digest: str
    packages: tuple[str, ...]
    platform: str | None = None

    @property
    def key(self) -> str:
        """A hash of everything that determines the image, except the state of the repositories."""
        parts = (self.digest, self.platform or "", INSTALL, *sorted(set(self.packages)))
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def tag(self) -> str:
        """The name of the image."""
        return f"{NAME}:{self.key[:24]}"

    def install_plan(self) -> ContainerRun:
        """Return the container that installs the packages: as root, with the network, without any mount."""
        return ContainerRun(
            image=self.image,
            argv=("sh", "-c", INSTALL, "kiln", *self.packages),
            network=True,
            capabilities=CAPABILITIES,
            platform=self.platform,
            # Not ``user``: in rootless Podman that would be the caller, not the root of the container.
            options=("--entrypoint", "", "--user", "0:0"),
        )


def derived_image_exists(engine: Engine, derived: DerivedImage) -> bool:
    """Return whether the engine has a derived image."""
    return image_inspection_and_pull.inspect_image(engine, derived.tag) is not None


def provide_derived_image(
    engine: Engine, derived: DerivedImage, *, on_line: Callable[[str], None] | None = None
) -> InstallRefusal | None:
    """Make a derived image unless the engine has it; return the reason if the packages can never be installed there.

    Raises:
        DownloadFailed: the package manager fails for another reason.
        ContainerFault: the engine refuses.
    """
    if derived_image_exists(engine, derived):
        return None
    below = image_inspection_and_pull.inspect_image(engine, derived.image)
    if below is None:
        raise ContainerFault(f"image not found: {derived.image}")
    if on_line is not None:
        on_line(f"installing {' '.join(derived.packages)} into {derived.image}, once")
    lines: list[str] = []

    def record_line(line: str) -> None:
        lines.append(line)
        if on_line is not None:
            on_line(line)

    with Container(engine, derived.install_plan()) as container:
        result = container.run(on_line=record_line, timeout=SECONDS)
        if result.ok:
            container.commit(
                derived.tag, changes=restored_setting_instructions(below, container.variable_names(), derived.packages)
            )
            return None
    unknown = packages_not_found(lines)
    if unknown or result.exit_code == NO_MANAGER:
        return InstallRefusal(unknown=unknown)
    raise DownloadFailed(
        f"the package manager of {derived.image} cannot install {' '.join(derived.packages)}",
        why=f"it ended with exit code {result.exit_code}:\n{program_output_with_margin(result.tail)}",
        hint="see that containers reach the repositories of the image, or name an image that has them (DOCKER_IMAGE)",
    )


def packages_not_found(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the packages that no repository has, from the messages of a package manager."""
    matches = (match for line in lines for match in _UNKNOWN.finditer(line))
    return tuple(dict.fromkeys(next(filter(None, match.groups())) for match in matches))


def restored_setting_instructions(
    below: Mapping[str, Any], variables: Iterable[str], packages: Iterable[str]
) -> Iterator[str]:
    """Yield the instructions that restore the settings of the image below, which a commit takes from the container.

    ``variables`` are the names of the container's: proxies, which may have passwords, do not stay in the image.
    """
    config = below.get("Config") or {}
    yield f"USER {config.get('User') or '0:0'}"
    yield f"ENTRYPOINT {json.dumps(_string_list(config.get('Entrypoint')))}"
    yield f"CMD {json.dumps(_string_list(config.get('Cmd')))}"
    before = dict(entry.split("=", 1) for entry in config.get("Env") or () if "=" in entry)
    for name in sorted(set(variables)):
        if _PROXY.fullmatch(name):
            yield f"ENV {name}={_quoted_dockerfile_value(before.get(name, ''))}"
    yield f"LABEL {OWNER}="
    yield f'LABEL {LABEL}="{" ".join(packages)}"'


def _quoted_dockerfile_value(value: str) -> str:
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _string_list(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
