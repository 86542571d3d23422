"""The feedstock's settings, conda-forge.yml, as far as they shape the matrix.

What each setting means, and what holds without it, is conda-smithy's (conda_smithy/configure_feedstock.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.yamltext import Document, Scalars, parse, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

_PLATFORMS = (
    "emscripten_wasm32", "freebsd_64", "linux_32", "linux_64", "linux_aarch64", "linux_armv6l", "linux_armv7l",
    "linux_ppc64", "linux_ppc64le", "linux_riscv64", "linux_s390x", "osx_64", "osx_arm64", "wasi_wasm32", "win_32",
    "win_64", "win_arm64", "zos_z",
)  # fmt: skip
_PROVIDERS = ("circle", "travis", "appveyor", "azure", "drone", "woodpecker", "github_actions")
_DEFAULT = {"osx_64": "azure", "osx_arm64": "azure"}  # all others: GitHub Actions
_NATIVE = {"linux_ppc64le": "travis", "linux_s390x": "travis"}
_NATIVE_KNOWN = {
    "linux_64", "linux_aarch64", "linux_ppc64le", "linux_s390x", "osx_64", "osx_arm64", "win_64", "win_arm64",
}  # fmt: skip
_GITHUB = "github_actions"
_READ = frozenset(
    [
        "provider", "build_platform", "os_version", "noarch_platforms", "azure", "force", _GITHUB, "enabled", "docker",
        "fallback_image", "recipe_dir", "conda_build_tool", "config_version", "compiler_stack", "min_py_ver",
        "max_py_ver", "min_r_ver", "max_r_ver",
    ]
)  # fmt: skip
_PRIORITIES = ("strict", "flexible", "disabled")
_IMAGE = "quay.io/condaforge/linux-anvil-comp7"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One platform that one provider builds for; ``build_platform`` is where the build runs."""

    provider: str
    system: str
    arch: str
    build_platform: str
    keep_noarch: bool
    linux_version: str | None

    @property
    def name(self) -> str:
        """The platform as it begins the names of its cells, such as ``linux_64``."""
        return f"{self.system}_{self.arch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forge:
    """The settings that shape the matrix."""

    jobs: tuple[Job, ...]
    fallback_image: str
    environ: Mapping[str, str]
    labels_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaSettings:
    """What the settings say of conda and conda-build, which build a cell where the engine is conda-build.

    ``conda_build`` are settings of conda's own by their names, ``solver`` is None where conda is to choose.
    """

    channel_priority: str
    conda_build: Mapping[str, str]
    solver: str | None


def conda_settings(path: Path) -> CondaSettings:
    """How conda and conda-build are set up for a feedstock's builds.

    Source: ``setup_conda_rc`` and ``run_conda_forge_build_setup`` of conda-forge-ci-setup, and conda-smithy's
    build_steps.sh.

    Raises:
        KilnError: the file is malformed, or asks for a channel priority that conda has not.
    """
    document = parsed(path)
    settings = _Settings(document, document.value)
    priority = settings.text("channel_priority", "strict")
    if priority not in _PRIORITIES:
        raise RecipeFault(
            f"channel_priority is {priority!r}", at=document.place("channel_priority"), hint=", ".join(_PRIORITIES)
        )
    asked = {str(name): str(value) for name, value in settings.mapping("conda_build").items() if value is not None}
    tool = settings.text("conda_build_tool", "").partition("+")[2].replace("conda-libmamba-solver", "libmamba")
    return CondaSettings(
        channel_priority=priority,
        conda_build={"pkg_format": "2", **asked},
        solver=tool or settings.text("conda_solver", "") or None,
    )


def read(path: Path) -> Forge:
    """The settings of a feedstock; without the file, those that hold by default.

    Raises:
        KilnError: the file is malformed, or asks for what kiln does not do.
    """
    document = parsed(path)
    settings: dict[str, Any] = document.value
    if str(settings.get("conda_build_tool", "")) == "rattler-build":
        what = "conda_build_tool: rattler-build builds from recipe.yaml, which kiln does not read"
        raise RecipeFault(what, at=document.place("conda_build_tool"))
    if str(settings.get("recipe_dir") or "recipe") != "recipe":
        raise RecipeFault("recipe_dir is not 'recipe'", at=document.place("recipe_dir"), hint="rename the folder")
    return _forge(_Settings(document, settings))


def parsed(path: Path) -> Document:
    """The file as a mapping with places; empty without the file.

    Raises:
        KilnError: the file is malformed.
    """
    if not path.is_file():
        return Document(file=path.name, value={})
    found = parse(read_text(path, path.name), path.name, Scalars.WORDS, may_repeat=_is_unread)
    if found.value is None:
        return Document(file=path.name, value={})
    if not isinstance(found.value, dict):
        raise RecipeFault("conda-forge.yml is a mapping of settings", at=found.place())
    return found


def _is_unread(key: str) -> bool:
    # conda-smithy takes a key that is given twice; here only where it shapes no cell.
    return key not in _READ and key not in _PLATFORMS


class _Settings:
    """Typed access to the settings."""

    def __init__(self, document: Document, values: dict[str, Any]) -> None:
        self._document = document
        self._values = values

    def mapping(self, key: str) -> dict[str, Any]:
        """A setting that is a mapping; empty when it is missing."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RecipeFault(f"the setting {key!r} is no mapping", at=self._document.place(key))
        return value

    def text(self, key: str, default: str) -> str:
        """A setting that is text."""
        value = self._values.get(key)
        return default if value is None else str(value)

    def items(self, key: str, default: list[str]) -> list[str]:
        """A setting that is a list, or one item of it."""
        value = self._values.get(key)
        if value is None:
            return default
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _forge(settings: _Settings) -> Forge:
    github = settings.mapping(_GITHUB)
    return Forge(
        jobs=tuple(_jobs(settings)),
        fallback_image=str(settings.mapping("docker").get("fallback_image") or _IMAGE),
        environ={
            "CONFIG_VERSION": settings.text("config_version", "2"),
            "CF_COMPILER_STACK": settings.text("compiler_stack", "comp7"),
            "CF_MIN_PY_VER": settings.text("min_py_ver", "27"),
            "CF_MAX_PY_VER": settings.text("max_py_ver", "37"),
            "CF_MIN_R_VER": settings.text("min_r_ver", "34"),
            "CF_MAX_R_VER": settings.text("max_r_ver", "34"),
        },
        labels_kept=bool(github.get("enabled")),
    )


def _jobs(settings: _Settings) -> Iterator[Job]:
    builds = {platform: platform for platform in _PLATFORMS} | {
        str(platform): str(build) for platform, build in settings.mapping("build_platform").items() if build
    }
    providers = _providers(settings, builds)
    noarch = settings.items("noarch_platforms", ["linux_64"])
    versions = settings.mapping("os_version")
    forced = bool(settings.mapping("azure").get("force"))
    for provider in _PROVIDERS:
        for platform, build in builds.items():
            system, _, arch = platform.partition("_")
            if not _served(provider, build, providers) and not (provider == "azure" and forced and arch == "64"):
                continue
            version = versions.get(platform)
            yield Job(
                provider=provider,
                system=system,
                arch=arch,
                build_platform=build.replace("_", "-"),
                keep_noarch=platform in noarch,
                linux_version=str(version) if version and system == "linux" else None,
            )


def _providers(settings: _Settings, builds: Mapping[str, str]) -> dict[str, list[str]]:
    given: dict[str, Any] = {"linux_64": _GITHUB, "osx_64": "azure", "win_64": _GITHUB}
    given |= settings.mapping("provider")
    found = {}
    for platform in (*given, *builds):
        value = given.get(platform)
        if value in ("default", "emulated"):
            value = _DEFAULT.get(platform, _GITHUB)
        elif value == "native" and platform in _NATIVE_KNOWN:
            value = _NATIVE.get(platform, _DEFAULT.get(platform, _GITHUB))
        found[platform] = [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []
    return found


def _served(provider: str, build: str, providers: Mapping[str, list[str]]) -> bool:
    system, _, arch = build.partition("_")
    if arch == "64" and providers.get(system):
        return provider in providers[system]
    return provider in providers.get(build, [])
