"""TLS for Debian's Bazel: its Netty lacks ALPN, which gRPC needs, since Debian leaves the classes for it out.

Debian's source of Netty has them. They are compiled against Bazel's own archive of classes, and put into a copy of it.
"""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

from kiln.base import files
from kiln.image import apt
from kiln.image.apt import KEYRING
from tests import shared_inputs, small_tensorflow

CLASSES = "handler/src/main/java/io/netty/handler/ssl/"
NEGOTIATOR = "JdkAlpnApplicationProtocolNegotiator.java"
# Debian changes these in other places than the lines below only; NPN, which nobody uses any more, becomes ALPN.
CHANGED = ("JdkSslContext.java", "SslProvider.java")
NPN = ("JdkNpnApplicationProtocolNegotiator", "JdkAlpnApplicationProtocolNegotiator")
AVAILABLE = "private static final boolean AVAILABLE = "
OTHERS = ("if (Conscrypt.isEngineSupported", "if (JettyAlpnSslEngine.isAvailable")
COMPILE = """set -e
cp /usr/share/bazel/A-server.jar /bazel/A-server.jar
javac -nowarn -d /bazel/classes -cp /bazel/A-server.jar /bazel/*.java
jar uf /bazel/A-server.jar -C /bazel/classes .
"""


def server_jar(folder: Path = small_tensorflow.STORE) -> Path:
    """Return Bazel's archive of classes with ALPN; made once, in the image that has Bazel."""
    words = ("docker", "image", "inspect", "--format", "{{.Id}}", small_tensorflow.IMAGE)
    made = files.sha256(Path(__file__)) + subprocess.run(words, check=True, capture_output=True, text=True).stdout
    jar, complete = folder / "A-server.jar", folder / "A-server.complete"
    with shared_inputs.turn("bazel-tls"):
        if not complete.exists() or complete.read_text() != made:
            with tempfile.TemporaryDirectory(prefix="kiln-bazel-tls-") as scratch:
                work = Path(scratch)
                write_classes(netty_source(work / "apt"), work)
                mount = ("--volume", f"{work}:/bazel", small_tensorflow.IMAGE)
                small_tensorflow.run(("docker", "run", "--rm", *mount, "sh", "-c", COMPILE))
                files.write_bytes(jar, (work / "A-server.jar").read_bytes())
            files.write_text(complete, made)
    return jar


def netty_source(folder: Path) -> Path:
    """Fetch Debian's source of Netty with this machine's mirrors; return the archive of its first author."""
    (folder / "lists" / "partial").mkdir(parents=True)
    trust = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    lines = apt.sources_list_lines("trixie", env=os.environ)
    sources = [line.replace("deb ", f"deb-src {trust}", 1) for line in lines]
    (folder / "sources.list").write_text("".join(f"{line}\n" for line in sources))
    settings = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    words = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    small_tensorflow.run(("apt-get", *words, "-q", "update"), cwd=folder)
    small_tensorflow.run(("apt-get", *words, "-q", "source", "--download-only", "netty"), cwd=folder)
    (archive,) = folder.glob("netty_*.orig.tar.*")
    return archive


def write_classes(archive: Path, folder: Path) -> None:
    """Write the classes with ALPN by Java alone, without the optional libraries for it."""
    with tarfile.open(archive) as tar:
        texts = {
            Path(member.name).name: tar.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in tar
            if CLASSES in member.name and member.name.endswith((NEGOTIATOR, *CHANGED))
        }
    for name in CHANGED:
        (folder / name).write_text(texts[name].replace(*NPN))
    (folder / NEGOTIATOR).write_text(java_alone(texts[NEGOTIATOR]))


def java_alone(text: str) -> str:
    """Return the negotiator without Conscrypt and Jetty."""
    head, _, tail = text.partition(AVAILABLE)
    text = f"{head}{AVAILABLE}jdkAlpnSupported();{tail.partition(';')[2]}"
    for start in OTHERS:
        head, _, tail = text.partition(start)
        text = head + tail.partition("}\n")[2]
    return text
