"""Remote execution: Bazel's flags for the executor that the caller names, and the files of its credentials.

The caller sets BAZEL_REMOTE_EXECUTOR (scheme://host:port/instance), and may set BAZEL_REMOTE_CREDENTIALS (base64 of a
JSON object: ``headers``, pairs of a name and a value; ``ca``, ``certificate`` and ``key``, texts of PEM files),
BAZEL_REMOTE_JOBS, and BAZEL_REMOTE_FALLBACK. Standard library only, Python 3.9 or newer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import configparser
    from collections.abc import Mapping
    from pathlib import Path

SECTION = "remote"
CERTIFICATES = {"ca": "--tls_certificate", "certificate": "--tls_client_certificate", "key": "--tls_client_key"}


@dataclass(frozen=True)
class Executor:
    """An executor, and how actions run there: ``properties`` are of the platform, ``flags`` from compile.ini."""

    address: str
    instance: str
    properties: tuple[str, ...]
    flags: tuple[str, ...]
    jobs: int
    fallback: bool
    uses_disk_cache: bool
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificates: Mapping[str, str] = field(default_factory=dict, repr=False)

    def public_flags(self) -> list[str]:
        """Return the flags without the credentials."""
        return [
            *(flag.replace("{remote_jobs}", str(self.jobs)) for flag in self.flags),
            *(["--remote_local_fallback"] if self.fallback else []),
            f"--remote_executor={self.address}",
            *([f"--remote_instance_name={self.instance}"] if self.instance else []),
            *(f"--remote_default_exec_properties={item}" for item in self.properties),
        ]

    def secret_flags(self, folder: Path) -> list[str]:
        """Return the flags with the credentials, whose certificates are files in a folder."""
        files = [f"{CERTIFICATES[name]}={folder / name}.pem" for name in CERTIFICATES if name in self.certificates]
        return [*(f"--remote_header={name}={value}" for name, value in self.headers), *files]

    def write(self, folder: Path) -> Path:
        """Write the certificates and a file for ``--bazelrc`` into a folder that nobody else can read."""
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
        contents = {f"{name}.pem": text for name, text in self.certificates.items()}
        lines = (f"build {quoted(flag)}\n" for flag in self.secret_flags(folder))
        for name, text in {**contents, "bazelrc": "".join(lines)}.items():
            (folder / name).touch(mode=0o600)
            (folder / name).chmod(0o600)
            (folder / name).write_text(text, encoding="utf-8")
        return folder / "bazelrc"

    def cache_key(self, key: str) -> str:
        """Return the key that separates entries of a cache: by the properties, and by the executor without an image.

        An image in the properties says what an action's programs are; without one, the executor decides.
        """
        has_image = any(item.startswith("container-image=") for item in self.properties)
        where = [] if has_image else [self.address, self.instance]
        text = json.dumps([key, sorted(self.properties), where])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the caller's variables for this executor: its key, and no disk cache where Bazel refuses both."""
        result = {**environment, "BAZEL_CACHE_KEY": self.cache_key(environment.get("BAZEL_CACHE_KEY", ""))}
        if not self.uses_disk_cache:
            result.pop("BAZEL_DISK_CACHE", None)
        return result


def quoted(flag: str) -> str:
    """Return a flag in the quotes of a bazelrc."""
    escaped = flag.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def executor(settings: configparser.ConfigParser, environment: Mapping[str, str]) -> Executor | None:
    """Return the caller's executor with the properties of compile.ini, None without one.

    Raises:
        ValueError: when compile.ini has no [remote], or a variable is invalid.
    """
    url = environment.get("BAZEL_REMOTE_EXECUTOR", "")
    if not url:
        return None
    if SECTION not in settings:
        raise ValueError(f"BAZEL_REMOTE_EXECUTOR is set, and the settings have no section [{SECTION}]")
    section = settings[SECTION]
    parts = urlsplit(url)
    headers, certificates = credentials(environment.get("BAZEL_REMOTE_CREDENTIALS", ""))
    return Executor(
        address=f"{parts.scheme}://{parts.netloc}",
        instance=parts.path.strip("/"),
        properties=lines(section.get("properties", "")),
        flags=lines(section.get("flags", "")),
        jobs=jobs(environment.get("BAZEL_REMOTE_JOBS") or section.get("jobs", "")),
        fallback=bool(environment.get("BAZEL_REMOTE_FALLBACK")),
        uses_disk_cache=section.get("disk_cache", "yes") == "yes",
        headers=headers,
        certificates=certificates,
    )


def jobs(text: str) -> int:
    """Return the number of actions at a time."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"invalid number of remote jobs: {text!r}")
    return int(text)


def lines(text: str) -> tuple[str, ...]:
    """Return the lines of a setting that are not empty."""
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def credentials(text: str) -> tuple[tuple[tuple[str, str], ...], dict[str, str]]:
    """Return the headers, and the texts of PEM files by their names; an error does not show them."""
    if not text:
        return (), {}
    try:
        value = json.loads(base64.b64decode(text, validate=True))
        headers = tuple((str(name), str(content)) for name, content in value.get("headers", ()))
        certificates = {name: str(value[name]) for name in CERTIFICATES if value.get(name)}
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise ValueError("BAZEL_REMOTE_CREDENTIALS is not base64 of a JSON object") from None
    return headers, certificates
