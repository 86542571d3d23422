"""The base image: what a conda recipe's build script expects around it, from Debian's packages alone."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import command, files
from kiln.container import images
from kiln.errors import BuildFailed, MissingTool, UsageError, excerpt, nearest
from kiln.image import apt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.container import Engine

SUITE = "bookworm"
PACKAGES = (
    "bzip2",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "libgomp1",
    "make",
    "patch",
    "procps",
    "python3",
    "python3-venv",
    "unzip",
    "xz-utils",
    "zstd",
)
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
LABEL = "kiln.base"
ROOM = 2_000_000_000  # the packages, the tree and its archive

ENGINE_HOME = "/opt/kiln"  # a virtual environment with kiln's own locked dependencies, rattler-build among them
WHEELS = "/tmp/kiln-wheels"  # noqa: S108 - in the image that is being made
ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements" / "run.txt"

# Hooks get the new root as $1. The machine's credentials and certificates serve the making and stay out of the image.
# Java's packages, which Bazel needs, do not install without the folder of manual pages, although these are left out.
BEFORE = (
    'mkdir -p "$1/usr/share/man/man1" "$1/etc/apt/auth.conf.d"; '
    'cp /etc/apt/auth.conf.d/*.conf "$1/etc/apt/auth.conf.d/" 2>/dev/null || true'
)
AFTER = (
    'rm -f "$1"/etc/apt/auth.conf.d/* "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/hostname" "$1/etc/resolv.conf"',
    r"""find "$1/etc/apt" -name '*.list' -exec sed -i -E 's#://[^/@[:space:]]+@#://#' {} +""",
    # Whatever number the build's user has, the home of conda-forge's images is there and can be written.
    'chroot "$1" useradd --create-home --home-dir /home/conda --shell /bin/bash conda && chmod 1777 "$1/home/conda"',
)
# The engine, apart from the system: the wheels are fetched by kiln's own pip, with this machine's way to its index, and
# installed by the image's Python, which is asked for its version first. Names of platforms are not expanded by pip.
PYTHON, LOCK = "KILN_PYTHON", "KILN_LOCK"  # what the hook finds in its environment
PROJECT, BELOW = "KILN_PROJECT", "KILN_BELOW"  # and where there is an image below
FETCH = f"""set -eu
wheels="$1{WHEELS}"
version=$(chroot "$1" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
machine=$(chroot "$1" uname -m)
platforms=$(for minor in $(seq 5 36); do echo "--platform manylinux_2_${{minor}}_$machine"; done)
"${PYTHON}" -m pip download --quiet --require-hashes --no-deps --only-binary :all: --python-version "$version" \
    --implementation cp $platforms --dest "$wheels" --requirement "${LOCK}"
cp "${LOCK}" "$wheels/lock.txt"
"""
INSTALL = f"""{FETCH}chroot "$1" python3 -m venv {ENGINE_HOME}
chroot "$1" {ENGINE_HOME}/bin/python -m pip install --quiet --require-hashes --no-deps --no-index --no-cache-dir \
    --find-links {WHEELS} --requirement {WHEELS}/lock.txt
rm -rf "$wheels"
"""
UNREAD = ("man", "info", "locale", "doc")  # below /usr/share; licences stay
CHANGES = ("ENV LANG=C.UTF-8", 'CMD ["/bin/bash"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an image is made of: a suite of Debian, packages besides the smallest system, and kiln's own.

    ``lock`` are the pinned and hashed dependencies of kiln, which the engine that builds in the image is one of.
    ``setup`` and ``hooks`` are what mmdebstrap runs before and after its own work, ``changes`` what the engine is told
    of the image. ``name`` begins that of the archive; ``below`` is the image that this one adds to.
    """

    suite: str
    packages: tuple[str, ...]
    lock: Path = REQUIREMENTS
    setup: tuple[str, ...] = (BEFORE,)
    hooks: tuple[str, ...] = (INSTALL, *AFTER)
    changes: tuple[str, ...] = CHANGES
    name: str = "kiln-base"
    below: Recipe | None = None

    @property
    def key(self) -> str:
        """A hash of all that decides what comes out, Debian's own updates aside."""
        parts = (
            *([self.below.key] if self.below else []),
            self.suite,
            *sorted(self.packages),
            *self.setup,
            *self.hooks,
            *UNREAD,
            *self.changes,
            files.sha256(self.lock),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def file(self) -> str:
        """The name of the archive."""
        return f"{self.name}-{self.suite}-{self.key}.tar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An image in an engine; ``reused`` when it was there before."""

    tag: str
    digest: str
    reused: bool


def recipe(suite: str = SUITE, extra: Sequence[str] = ()) -> Recipe:
    """Return the recipe of a suite with packages of one's own besides; each package once."""
    return Recipe(suite=suite, packages=tuple(dict.fromkeys((*PACKAGES, *extra))))


def default_tag(suite: str) -> str:
    """The name of a suite's base image; ``localhost/`` keeps both engines from looking for it elsewhere."""
    return f"{images.LOCAL}kiln-base:{suite}"


def base(
    engine: Engine,
    what: Recipe,
    *,
    tag: str,
    folder: Path,
    env: Mapping[str, str],
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Made:
    """Have the image in the engine as ``tag``: found there, imported from ``folder``, or made there first.

    The archive of the root file system stays in ``folder`` for the other engine; ``fresh`` makes it anew, with
    Debian's latest updates.

    Raises:
        MissingTool: without mmdebstrap.
        BuildFailed: when mmdebstrap fails.
        ContainerFault: when the engine does not take the archive.
        DiskFull: when there is no room for the making.
        UsageError: for a tag that both engines would not read the same, or a package that the suite does not have.
    """
    if not tag.startswith(images.LOCAL):
        raise UsageError(f"{tag!r} is no name for an image made here", hint=f"{images.LOCAL}{tag}")
    if not fresh and images.labels(engine, tag).get(LABEL) == what.key:
        return Made(tag=tag, digest=images.digest(engine, tag), reused=True)
    with files.locked(folder / ".lock"):
        files.remove_leftovers(folder)
        archive = archive_of(what, folder, env=env, fresh=fresh, on_line=on_line)
        digest = images.load(engine, archive, tag, changes=(*what.changes, f"LABEL {LABEL}={what.key}"))
    return Made(tag=tag, digest=digest, reused=False)


def archive_of(
    what: Recipe, folder: Path, *, env: Mapping[str, str], fresh: bool, on_line: Callable[[str], None] | None
) -> Path:
    """The archive of a root file system, made where it is not in ``folder``, after that of the image below it."""
    archive = folder / what.file
    if fresh or not archive.exists():
        if what.below is not None:
            archive_of(what.below, folder, env=env, fresh=False, on_line=on_line)
        make(what, archive, env=env, on_line=on_line)
    return archive


def make(what: Recipe, archive: Path, *, env: Mapping[str, str], on_line: Callable[[str], None] | None = None) -> None:
    """Write the root file system as a tar archive, whole or not at all.

    Raises:
        MissingTool: without mmdebstrap.
        BuildFailed: when mmdebstrap fails.
        DiskFull: when there is no room for it.
        UsageError: when the suite has no package of a name.
    """
    require_mmdebstrap(env)
    files.require_room(archive.parent, ROOM, for_what="making the base image")
    with tempfile.TemporaryDirectory(prefix="kiln-image-") as scratch, files.replacing(archive) as part:
        lines = apt.sources(what.suite, env=env)
        sources = private(Path(scratch, "sources.list"), "".join(f"{line}\n" for line in lines)) if lines else None
        settings = private(Path(scratch, "apt.conf"), apt.settings(env=env))
        words = argv(what, part, sources=sources, settings=settings, keyring=KEYRING if KEYRING.exists() else None)
        if what.below is None and set(what.packages) - {
            *PACKAGES,
            *apt.names(env=env),
        }:  # told now, not after all else was installed
            _require_packages(words, what, env=env, on_line=on_line)
        own = {PYTHON: sys.executable, LOCK: str(what.lock), PROJECT: str(ROOT)}
        if what.below is not None:
            own[BELOW] = str(archive.parent / what.below.file)
        result = command.run(words, env={**env, **own}, on_line=on_line)
        if not result.ok:
            raise BuildFailed(
                f"mmdebstrap could not make Debian {what.suite}",
                why=f"it ended with exit code {result.exit_code}:\n{excerpt(result.tail)}",
                hint="see that the machine's own 'apt-get update' works, and that the packages' names are Debian's",
            )


def _require_packages(
    words: tuple[str, ...], what: Recipe, *, env: Mapping[str, str], on_line: Callable[[str], None] | None
) -> None:
    """Have mmdebstrap ask the suite's mirrors for the packages alone; other faults are the real run's to tell.

    Raises:
        UsageError: when there are none of a name.
    """
    rehearsed = command.run((words[0], "--simulate", *words[1:]), env=env, on_line=on_line)
    missing = apt.unknown(rehearsed.tail)
    if missing:
        near = nearest(missing[0], apt.names(env=env), most=2)
        raise UsageError(
            f"Debian {what.suite} has no package {' and no package '.join(missing)}",
            hint=near or "apt-cache search finds packages by what they are for",
        )


def argv(what: Recipe, archive: Path, *, sources: Path | None, settings: Path, keyring: Path | None) -> tuple[str, ...]:
    """Return mmdebstrap's command line; without ``sources`` it uses Debian's own mirror."""
    excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNREAD]
    return (
        "mmdebstrap",
        f"--variant={'custom' if what.below else 'minbase'}",
        "--format=tar",  # the archive is written under a passing name, whose ending says nothing
        f"--include={','.join(what.packages)}",
        *([f"--keyring={keyring}"] if keyring else []),  # for machines that trust it only by signed-by
        f"--aptopt={settings}",
        *excludes,
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        *(f"--setup-hook={hook}" for hook in what.setup),
        *(f"--customize-hook={hook}" for hook in what.hooks),
        what.suite,
        str(archive),
        *([str(sources)] if sources else []),
    )


def private(path: Path, text: str) -> Path:
    """Write a file that may hold a proxy's or mirror's password."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def require_mmdebstrap(env: Mapping[str, str]) -> None:
    """Raise MissingTool, with the way to get it, when mmdebstrap is not there."""
    try:
        command.find("mmdebstrap", env=env)
    except MissingTool as error:
        raise MissingTool(
            "mmdebstrap, which makes the base image, is not on this machine",
            why=error.why,
            hint="apt-get install mmdebstrap (Debian's and Ubuntu's package; Fedora has it too)",
        ) from error
