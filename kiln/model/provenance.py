"""The provenance of packages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRepository:
    """A repository that Bazel's files of a source declare: a module of a registry, or an archive at an address.

    ``alias`` is the name that the source's own files use for a module, ``version`` that of a module or a Git revision.
    Unknown values are empty.
    """

    name: str
    alias: str = ""
    version: str = ""
    registry: str = ""
    url: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPackage:
    """A package that the solver chose for an environment: ``scope`` is ``build``, ``host``, or ``run`` in a test.

    ``url`` is its address without credentials, ``channel`` that of its channel. Unknown values are empty.
    """

    scope: str
    name: str
    version: str
    build: str
    subdir: str = ""
    url: str = ""
    sha256: str = ""
    channel: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The provenance of one package: times are in seconds since the epoch, ``epoch`` is the package's own timestamp.

    ``sources`` are the recipe's, each with its hash or commit. ``recipe`` is a hash over the recipe's files,
    ``log_sha256`` one over the build's log. ``tests`` is the verdict, ``tested_with`` the run dependencies that the
    tests were run with, each with its package URL. ``cross_compiled`` says for which platform on which one, empty for a
    native build. ``kiln`` is the version that built, ``workflow`` and ``run_url`` are of the CI that built, empty on a
    user's machine. ``feedstock_files`` are texts of files of the feedstock that the
    package does not carry, by their paths. Unknown values are None.
    """

    file: str
    subdir: str
    sha256: str
    size: int
    name: str
    version: str
    build: str
    license: str
    depends: tuple[str, ...]
    config: str
    variant: Mapping[str, tuple[str, ...]]
    sources: tuple[Mapping[str, Any], ...]
    recipe: str
    commit: str | None
    remote: str | None
    engine: str
    engine_version: str | None
    kiln: str
    container: str
    image: str | None
    machine: str
    cores: int
    started: float | None
    finished: float | None
    epoch: int | None
    tests: str
    log_sha256: str | None
    tested_with: tuple[Mapping[str, str], ...] = ()
    cross_compiled: str = ""
    workflow: str = ""
    run_url: str = ""
    sbom_sha256: str = ""
    cyclonedx_sha256: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    feedstock_files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAttestations:
    """The attestations that are published with packages.

    ``seal`` returns the lines of the records, given the hash of the line before them; ``boms`` and ``cyclonedx`` are
    bills of materials by the hash of their package, as SPDX and as CycloneDX. ``bundles`` signs the statements about a
    package, given by its hash, and returns them as Sigstore bundles: first that of its publication; None where nothing
    is to be signed. ``is_own`` returns whether the same signer has attested its publication already, in a sidecar.
    """

    seal: Callable[[str], bytes]
    boms: Mapping[str, bytes]
    cyclonedx: Mapping[str, bytes] = field(default_factory=dict)
    bundles: Callable[[str], tuple[bytes, ...]] | None = None
    is_own: Callable[[str, bytes], bool] = field(default=lambda _sha256, _sidecar: False)
