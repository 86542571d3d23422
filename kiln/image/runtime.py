"""A lean image of installed conda packages: what programs need to run, on the smallest system, no tool to build.

Made without a container engine. The same packages give the same bytes: no time, name or order of this machine is in it.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import __version__, channel, files
from kiln.compat import lines, tables
from kiln.errors import BuildFailed, NotWritable, SolveFailed, UsageError
from kiln.image import bytecode, debian, lean, needs, oci
from kiln.image.layers import PROGRAM, Entry, Layer, dead_links, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from rattler import RepoDataRecord

    from kiln.console.steps import Step
    from kiln.image.debian import Deb
    from kiln.image.kind import Kind
    from kiln.image.lean import Installed

PREFIX = "/opt/conda"
SYSTEM = ("base-files", "ca-certificates", "libc6", "netbase", "tini", "tzdata")
# The first process of a container gets no signal that it does not ask for, so without an init 'docker stop' waits.
INIT = ("/usr/bin/tini", "-s", "--")
PACKAGE_LIST = "/usr/share/kiln/packages.json"
ROOM = 8_000_000_000  # bytes: packages, prefix and layers of the largest, one with CUDA
_ROUNDS = 8  # of asking which libraries the libraries just added need in turn
_NOT_OF_TAGS = re.compile(r"[^A-Za-z0-9_.-]")  # of versions such as 1!2.0+local
_CUDA = re.compile(r"__cuda(?:\s+>=?\s*(\d+(?:\.\d+)?))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an image is asked to be: match specs from channels, on a suite of Debian with some packages more.

    ``cuda`` is the CUDA version that the driver of the machines can run, empty for machines without a GPU.
    """

    kind: Kind
    channels: tuple[str, ...]
    specs: tuple[str, ...]
    suite: str
    debian: tuple[str, ...] = ()
    cuda: str = ""

    @property
    def tag(self) -> str:
        """The name of the image where none is given, without its version."""
        return f"localhost/{self.kind.name}-{'gpu' if self.cuda else 'cpu'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What goes into an image: its layers, those that change rarely first, and what it is made of."""

    layers: tuple[Layer, ...]
    packages: tuple[Installed, ...]
    debs: tuple[Deb, ...]

    @property
    def epoch(self) -> int:
        """The time of the newest package, in seconds since 1970: the image's, and that of all its files."""
        return max((package.timestamp for package in self.packages), default=0) // 1000

    @property
    def version(self) -> str:
        """The version of the first package that was asked for."""
        return self.packages[0].version


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeImage:
    """An image in a file: its tag, digests, and its layers' titles with their bytes unpacked."""

    tag: str
    path: Path
    digest: str
    config_digest: str
    size: int  # bytes of the file
    layers: tuple[tuple[str, int], ...]
    packages: int


def make(
    request: Request,
    output: Path | None,
    *,
    tag: str | None,
    work: Path,
    env: Mapping[str, str],
    step: Callable[[str], AbstractContextManager[Step]],
) -> MadeImage:
    """Make an image and write it to ``output``: an archive if its name ends in ``.tar``, a folder otherwise.

    Raises:
        SolveFailed: when the channels have nothing that fits.
        BuildFailed: when a library is in none of the packages, naming what needs it.
        MissingTool: without mmdebstrap.
        DiskFull: when there is no room.
        NotWritable: when it cannot be written there.
        UsageError: for a name that engines would not take, and a CUDA that is no version.
    """
    _require_sense(request, tag)
    files.require_room(work, ROOM if request.cuda else ROOM // 3, for_what="making the image")
    with files.locked(work / ".lock"):
        files.remove_leftovers(work)
        with tempfile.TemporaryDirectory(dir=work, prefix=".image-", suffix=".part") as folder:
            scratch = Path(folder)
            contents = _contents(request, scratch, work, env=env, step=step)
            tag = tag or f"{request.tag}:{_NOT_OF_TAGS.sub('-', contents.version)}"
            with step("pack the layers"):
                layout, written = _write(request, contents, scratch, tag=tag)
            target = output or work / f"{tag.rpartition('/')[2].replace(':', '-')}.tar"
            with step(f"write {target.name}"):
                _deliver(layout, target)
            return MadeImage(
                tag=tag,
                path=target,
                digest=written.digest,
                config_digest=written.config_digest,
                size=_bytes(target),
                layers=tuple((layer.title, layer.size) for layer in contents.layers),
                packages=len(contents.packages),
            )


def _require_sense(request: Request, tag: str | None) -> None:
    """Refuse at once what would be found wrong only at the end, or never."""
    if tag is not None:
        oci.require_name(tag)
    if request.cuda and not lines.is_version(request.cuda):
        raise UsageError(f"--cuda {request.cuda!r} is no version", hint="--cuda 12.9, as nvidia-smi shows it")


def virtual_packages(glibc: str, cuda: str) -> dict[str, tuple[str, str]]:
    """What the image offers to packages: the solve is for it, not for the machine that makes it."""
    machine = {
        "__unix": ("0", "0"),
        "__linux": ("5.10", "0"),
        "__glibc": (glibc, "0"),
        "__archspec": ("1", "x86_64"),
    }
    return {**machine, "__cuda": (cuda, "0")} if cuda else machine


def split(
    request: Request, system: Iterable[Entry], packages: Mapping[Installed, tuple[Entry, ...]], own: Iterable[Entry]
) -> tuple[Layer, ...]:
    """Put the entries into layers, in the order of how rarely they change."""

    def is_product(package: Installed) -> bool:
        return any(fnmatch.fnmatchcase(package.name, pattern) for pattern in request.kind.product)

    others = itertools.chain.from_iterable(entries for each, entries in packages.items() if not is_product(each))
    product = itertools.chain.from_iterable(entries for each, entries in packages.items() if is_product(each))
    layers = (
        Layer(title=f"Debian {request.suite}: {', '.join(SYSTEM)} and what is needed besides", entries=tuple(system)),
        Layer(title="conda packages that it depends on", entries=tuple(others)),
        Layer(title=f"conda packages of {request.kind.name}", entries=tuple(product)),
        Layer(title="how it is started", entries=tuple(own)),
    )
    return tuple(layer for layer in layers if layer.entries)


def configuration(request: Request, contents: Contents) -> oci.Config:
    """What an engine does with the image."""
    kind = request.kind
    return oci.Config(
        entrypoint=(*INIT, *kind.entrypoint),
        environment={
            "HOME": debian.HOME,
            "PATH": f"{PREFIX}/bin:/usr/bin",
            "LANG": "C.UTF-8",
            "SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt",
            **kind.environment,
            **(_of_gpus(contents.packages) if request.cuda else {}),
        },
        user=f"{debian.NONROOT}:{debian.NONROOT}",
        folder=kind.folder,
        ports=kind.ports,
        labels=labels(request, contents),
        health=oci.Health(argv=kind.health) if kind.health else None,
    )


def labels(request: Request, contents: Contents) -> dict[str, str]:
    """Where the image comes from: the packages that were asked for, the system below, and who made it."""
    asked = contents.packages[0]
    said = {
        "org.opencontainers.image.title": f"{request.kind.name} {'for GPUs' if request.cuda else 'for CPUs'}",
        "org.opencontainers.image.description": request.kind.summary,
        "org.opencontainers.image.version": asked.version,
        "org.opencontainers.image.licenses": asked.license,
        "kiln.version": __version__,
        "kiln.package": asked.file_name,
        "kiln.package.sha256": asked.sha256,
        "kiln.packages": PACKAGE_LIST,
        "kiln.debian": " ".join(f"{deb.name}={deb.version}" for deb in contents.debs),
        "kiln.rehearsal": "true" if any(package.rehearsal for package in contents.packages) else "",
        **(_driver(least_cuda(contents.packages)) if request.cuda else {}),
    }
    return {name: value for name, value in said.items() if value}


def least_cuda(packages: Iterable[Installed]) -> str:
    """Return the lowest CUDA version whose driver satisfies every package, as they say by ``__cuda``; or nothing."""
    specs = [spec for each in packages for spec in (*each.depends, *each.constrains)]
    said = [match.group(1) for spec in specs if (match := _CUDA.match(spec))]
    return max(filter(None, said), key=lambda version: tuple(map(int, version.split("."))), default="")


def _driver(cuda: str) -> dict[str, str]:
    """The CUDA that the driver must be able to run, and the oldest driver that does, as the doctor's tables have it."""
    row = tables.minor_version_driver(cuda) or tables.driver(cuda) if cuda else None
    return {"kiln.cuda": cuda, "kiln.cuda.driver": f">={row['driver']}" if row else ""}


def _of_gpus(packages: Iterable[Installed]) -> dict[str, str]:
    """What NVIDIA's container toolkit reads: it refuses to start the image on a driver that is too old."""
    least = least_cuda(packages)
    return {
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        **({"NVIDIA_REQUIRE_CUDA": f"cuda>={least}"} if least else {}),
    }


def _contents(
    request: Request,
    scratch: Path,
    work: Path,
    *,
    env: Mapping[str, str],
    step: Callable[[str], AbstractContextManager[Step]],
) -> Contents:
    names = (*SYSTEM, *request.kind.debian, *request.debian)
    with step(f"fetch {len(names)} packages of Debian {request.suite}") as now:
        debs = debian.fetch(request.suite, names, folder=work, env=env, on_line=now.line)
    with step("solve"):
        records = _solve(request, debs)
    prefix = scratch / "prefix"
    with step(f"install {len(records)} packages"):
        channel.install(records, prefix, cache=work / "cache", seen_at=PREFIX)
    packages = _asked_first(lean.installed(prefix), request.specs)
    with step("take what programs need"):
        chosen = lean.selection().with_packages(request.kind.left_out)
        taken = {each: tuple(lean.entries(prefix, each, chosen, below=PREFIX)) for each in packages}
    with step("compile Python's modules"):
        bytecode.compile_all(itertools.chain.from_iterable(taken.values()), prefix, seen_at=PREFIX)
        taken = {each: bytecode.beside(entries) for each, entries in taken.items()}
    dead = dead_links(itertools.chain.from_iterable(taken.values()), below=PREFIX)
    taken = {each: tuple(entry for entry in entries if entry.path not in dead) for each, entries in taken.items()}
    with step("look for libraries that are needed and not there") as now:
        system, debs = _complete(request, debs, taken, scratch, work, env=env, now=now)
    return Contents(layers=split(request, system, taken, _own(request.kind, packages)), packages=packages, debs=debs)


def _solve(request: Request, debs: Iterable[Deb]) -> list[RepoDataRecord]:
    glibc = next(deb.upstream_version for deb in debs if deb.name == "libc6")
    try:
        return channel.solve(request.channels, request.specs, virtual_packages=virtual_packages(glibc, request.cuda))
    except SolveFailed as error:
        if request.cuda or "__cuda" not in error.why:
            raise
        raise SolveFailed(error.what, why=error.why, hint="an image for machines with a GPU: --cuda 12.9") from error


def _asked_first(packages: Sequence[Installed], specs: Sequence[str]) -> tuple[Installed, ...]:
    asked = {re.split(r"[\s=<>!~\[]", spec.split("::")[-1])[0]: place for place, spec in enumerate(specs)}
    return tuple(sorted(packages, key=lambda package: asked.get(package.name, len(asked))))


def _complete(
    request: Request,
    debs: tuple[Deb, ...],
    taken: Mapping[Installed, tuple[Entry, ...]],
    scratch: Path,
    work: Path,
    *,
    env: Mapping[str, str],
    now: Step,
) -> tuple[tuple[Entry, ...], tuple[Deb, ...]]:
    """Add packages of Debian until every library that is needed is there, and every licence; return files and packages.

    Packages of a conda channel bring all but glibc. A rehearsal's Python uses libraries of the machine that it comes
    from; where that machine is of the same suite, its own list tells which package they are in.
    """
    conda = tuple(itertools.chain.from_iterable(taken.values()))
    lacking: dict[str, str] = {}
    for _ in range(_ROUNDS):
        system = debian.entries(debs, scratch / "debian", env=env)
        lacking = needs.missing((*system, *conda))
        owners = {soname: debian.owner(soname, request.suite, env=env) for soname in lacking}
        others = debian.told_elsewhere(system)
        if not lacking and not others:
            return system, debs
        if unknown := [soname for soname, owner in owners.items() if owner is None]:
            raise _unresolved({soname: lacking[soname] for soname in unknown}, request.suite)
        added = sorted({*others, *(owner for owner in owners.values() if owner is not None)})
        now.note(f"from Debian: {', '.join(added)}")
        names = (*(deb.name for deb in debs), *added)
        debs = debian.fetch(request.suite, names, folder=work, env=env, on_line=now.line)
    raise _unresolved(lacking, request.suite)


def _unresolved(lacking: Mapping[str, str], suite: str) -> BuildFailed:
    return BuildFailed(
        f"the image would lack {', '.join(sorted(lacking))}",
        why="\n".join(f"    {path} needs {soname}" for soname, path in sorted(lacking.items())[:10]),
        hint=f"name the packages of Debian {suite} that hold them: --with PACKAGE ...",
    )


def _own(kind: Kind, packages: Sequence[Installed]) -> Iterator[Entry]:
    """What is neither Debian's nor a package's: scripts, folders, the list of packages."""
    for folder in kind.folders:
        yield Entry(path=folder, mode=0o775, owner=debian.NONROOT)
    for place, script in kind.scripts.items():
        yield Entry(path=place, mode=PROGRAM, source=script)
    listed = [
        {name: getattr(each, name) for name in ("name", "version", "build", "sha256", "license")} for each in packages
    ]
    yield Entry(path=PACKAGE_LIST, mode=0o644, data=_encoded(listed))
    for each, record in zip(packages, listed, strict=True):  # where scanners look for conda's packages
        file = f"{PREFIX}/conda-meta/{each.name}-{each.version}-{each.build}.json"
        yield Entry(path=file, mode=0o644, data=_encoded({**record, "fn": each.file_name, "depends": each.depends}))


def _encoded(value: object) -> bytes:
    return f"{json.dumps(value, indent=1)}\n".encode()


def _write(request: Request, contents: Contents, scratch: Path, *, tag: str) -> tuple[Path, oci.Written]:
    layout = scratch / "layout"
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    packed = []
    for number, layer in enumerate(contents.layers):
        each = pack(layer, blobs / f"{number}.part", epoch=contents.epoch)
        packed.append(replace(each, path=each.path.rename(oci.blob_path(layout, each.digest))))
    written = oci.write(layout, packed, configuration(request, contents), tag=tag, epoch=contents.epoch)
    return layout, written


def _deliver(layout: Path, target: Path) -> None:
    """Put a layout where it was asked for, in the place of an earlier image."""
    try:
        _put(layout, target)
    except OSError as error:
        raise NotWritable(f"{target} cannot be written", why=error.strerror or str(error)) from error


def _put(layout: Path, target: Path) -> None:
    if target.suffix == ".tar":
        oci.archive(layout, target)
        return
    if target.exists() and not (target / "oci-layout").is_file():
        raise NotWritable(f"{target} is there and is no image", hint="name another folder, or one that ends in .tar")
    with files.no_room_as_disk_full(target.parent), files.replacing(target) as part:
        shutil.copytree(layout, part)
        files.remove(target)


def _bytes(path: Path) -> int:
    parts = path.rglob("*") if path.is_dir() else (path,)
    return sum(part.stat().st_size for part in parts if part.is_file())
