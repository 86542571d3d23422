"""The settings in conda-forge.yml that determine the matrix.

The meaning and default of each setting are conda-smithy's (conda_smithy/configure_feedstock.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import limits
from kiln.errors import RecipeFault
from kiln.names import CONDA_PLATFORMS
from kiln.yamltext import Document, Scalars, parse, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Any

    from kiln.model.feedstock import Feedstock

_PLATFORMS = tuple(platform.replace("-", "_") for platform in CONDA_PLATFORMS)
_PROVIDERS = ("circle", "travis", "appveyor", "azure", "drone", "woodpecker", "github_actions")
_DEFAULT_PROVIDERS = {"osx_64": "azure", "osx_arm64": "azure"}  # all others: GitHub Actions
_NATIVE_PROVIDERS = {"linux_ppc64le": "travis", "linux_s390x": "travis"}
_NATIVE_PLATFORMS = {
    "linux_64", "linux_aarch64", "linux_ppc64le", "linux_s390x", "osx_64", "osx_arm64", "win_64", "win_arm64",
}  # fmt: skip
_GITHUB = "github_actions"
_EXCLUSIVE = "exclusive_config_file"
_CONDA = "2"  # pkg_format of .conda files
LEVEL = 16  # conda-forge's zstd level
_LEVELS = range(1, 23)
_READ_KEYS = frozenset(
    [
        "provider", "build_platform", "os_version", "noarch_platforms", "azure", "force", _GITHUB, "enabled", "docker",
        "fallback_image", "recipe_dir", "conda_build_tool", "config_version", "compiler_stack", "min_py_ver",
        "max_py_ver", "min_r_ver", "max_r_ver", _EXCLUSIVE,
    ]
)  # fmt: skip
_PRIORITIES = ("strict", "flexible", "disabled")
_IMAGE = "quay.io/condaforge/linux-anvil-comp7"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformJob:
    """One platform of one provider; ``build_platform`` is the platform that the build runs on."""

    provider: str
    system: str
    arch: str
    build_platform: str
    keep_noarch: bool
    linux_version: str | None

    @property
    def name(self) -> str:
        """The platform in the form of config names, such as ``linux_64``."""
        return f"{self.system}_{self.arch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgeSettings:
    """The settings that determine the matrix."""

    jobs: tuple[PlatformJob, ...]
    fallback_image: str
    environ: Mapping[str, str]
    labels_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaSettings:
    """The settings of conda and conda-build, for builds with the engine conda-build.

    ``conda_build`` holds conda's own settings by name; ``solver`` is None to let conda choose.
    """

    channel_priority: str
    conda_build: Mapping[str, str]
    solver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """The form of the packages that kiln's own engine makes: ``.conda`` files, of a zstd level."""

    level: int


def package_format(path: Path) -> PackageSettings:
    """Return the form of the packages, by ``conda_build`` of a feedstock's settings.

    Raises:
        KilnError: the file is malformed, or asks for a form that kiln's own engine does not make.
    """
    document = limits.bounded(lambda: parsed(path))
    settings = TypedSettings(document, document.value).mapping("conda_build")
    form = str(settings.get("pkg_format") or _CONDA)
    if form not in {_CONDA, ".conda"}:
        raise RecipeFault(
            f"conda_build/pkg_format is {form!r}",
            at=document.place("conda_build"),
            why="this engine makes .conda files, which are format 2",
            hint="remove the setting, or build with --engine conda-build",
        )
    level = str(settings.get("zstd_compression_level") or LEVEL)
    if not level.isdecimal() or int(level) not in _LEVELS:
        raise RecipeFault(
            f"conda_build/zstd_compression_level is {level!r}",
            at=document.place("conda_build"),
            why=f"zstd has the levels {_LEVELS[0]} to {_LEVELS[-1]}",
            hint=f"{LEVEL} is the default",
        )
    return PackageSettings(level=int(level))


def conda_settings(path: Path) -> CondaSettings:
    """Return the settings of conda and conda-build for a feedstock's builds.

    Source: ``setup_conda_rc`` and ``run_conda_forge_build_setup`` of conda-forge-ci-setup, and conda-smithy's
    build_steps.sh.

    Raises:
        KilnError: the file is malformed, or its channel priority is invalid.
    """
    document = limits.bounded(lambda: parsed(path))
    settings = TypedSettings(document, document.value)
    priority = settings.text("channel_priority", "strict")
    if priority not in _PRIORITIES:
        raise RecipeFault(
            f"channel_priority is {priority!r}", at=document.place("channel_priority"), hint=", ".join(_PRIORITIES)
        )
    conda_build = {
        str(name): str(value) for name, value in settings.mapping("conda_build").items() if value is not None
    }
    tool = settings.text("conda_build_tool", "").partition("+")[2].replace("conda-libmamba-solver", "libmamba")
    return CondaSettings(
        channel_priority=priority,
        conda_build={"pkg_format": "2", **conda_build},
        solver=tool or settings.text("conda_solver", "") or None,
    )


def exclusive_config_file(feedstock: Feedstock) -> Path | None:
    """Return the variant file that a feedstock uses in the place of a pinning, None when it names none.

    Source: ``exclusive_config_file`` of conda-smithy's schema of conda-forge.yml.

    Raises:
        RecipeFault: the file does not exist, or is outside of the feedstock.
    """
    document = parsed(feedstock.root / "conda-forge.yml")
    name = document.value.get(_EXCLUSIVE)
    if name is None:
        return None
    path = (feedstock.root / str(name)).resolve()
    if not path.is_relative_to(feedstock.root.resolve()) or not path.is_file():
        why = "it is outside of the feedstock" if path.exists() else "no such file"
        raise RecipeFault(f"{_EXCLUSIVE} is {str(name)!r}", at=document.place(_EXCLUSIVE), why=why)
    return path


def read(path: Path) -> ForgeSettings:
    """Return the settings of a feedstock; the defaults without the file.

    Raises:
        KilnError: the file is malformed, or has a setting that kiln does not support.
    """
    document = parsed(path)
    settings: dict[str, Any] = document.value
    if str(settings.get("recipe_dir") or "recipe") != "recipe":
        raise RecipeFault("recipe_dir is not 'recipe'", at=document.place("recipe_dir"), hint="rename the folder")
    return _forge(TypedSettings(document, settings))


def parsed(path: Path) -> Document:
    """Return the file as a mapping with places; empty without the file.

    Raises:
        KilnError: the file is malformed.
    """
    if not path.is_file():
        return Document(file=path.name, value={})
    document = parse(read_text(path, path.name), path.name, Scalars.WORDS, may_repeat=_is_unread)
    if document.value is None:
        return Document(file=path.name, value={})
    if not isinstance(document.value, dict):
        raise RecipeFault("conda-forge.yml is a mapping of settings", at=document.place())
    return document


def _is_unread(key: str) -> bool:
    # conda-smithy accepts duplicate keys; kiln only those that do not affect a config.
    return key not in _READ_KEYS and key not in _PLATFORMS


class TypedSettings:
    """Typed access to the settings."""

    def __init__(self, document: Document, values: dict[str, Any]) -> None:
        self._document = document
        self._values = values

    def get(self, key: str) -> Any:
        """Return a setting as it is; None when it is missing."""
        return self._values.get(key)

    def mapping(self, key: str) -> dict[str, Any]:
        """Return a setting that is a mapping; empty when it is missing."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise RecipeFault(f"the setting {key!r} is not a mapping", at=self._document.place(key))
        return value

    def text(self, key: str, default: str) -> str:
        """Return a setting that is text."""
        value = self._values.get(key)
        return default if value is None else str(value)

    def items(self, key: str, default: list[str]) -> list[str]:
        """Return a setting that is a list, or one item of it."""
        value = self._values.get(key)
        if value is None:
            return default
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _forge(settings: TypedSettings) -> ForgeSettings:
    github = settings.mapping(_GITHUB)
    return ForgeSettings(
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


def _jobs(settings: TypedSettings) -> Iterator[PlatformJob]:
    builds = {platform: platform for platform in _PLATFORMS} | {
        str(platform): str(build) for platform, build in settings.mapping("build_platform").items() if build
    }
    providers = _providers(settings, builds)
    noarch = settings.items("noarch_platforms", ["linux_64"])
    versions = settings.mapping("os_version")
    force_azure = bool(settings.mapping("azure").get("force"))
    for provider in _PROVIDERS:
        for platform, build in builds.items():
            system, _, arch = platform.partition("_")
            if not _served(provider, build, providers) and not (provider == "azure" and force_azure and arch == "64"):
                continue
            version = versions.get(platform)
            yield PlatformJob(
                provider=provider,
                system=system,
                arch=arch,
                build_platform=build.replace("_", "-"),
                keep_noarch=platform in noarch,
                linux_version=str(version) if version and system == "linux" else None,
            )


def _providers(settings: TypedSettings, builds: Mapping[str, str]) -> dict[str, list[str]]:
    platform_providers: dict[str, Any] = {"linux_64": _GITHUB, "osx_64": "azure", "win_64": _GITHUB}
    platform_providers |= settings.mapping("provider")
    providers = {}
    for platform in (*platform_providers, *builds):
        value = platform_providers.get(platform)
        if value in ("default", "emulated"):
            value = _DEFAULT_PROVIDERS.get(platform, _GITHUB)
        elif value == "native" and platform in _NATIVE_PLATFORMS:
            value = _NATIVE_PROVIDERS.get(platform, _DEFAULT_PROVIDERS.get(platform, _GITHUB))
        providers[platform] = (
            [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []
        )
    return providers


def _served(provider: str, build: str, providers: Mapping[str, list[str]]) -> bool:
    system, _, arch = build.partition("_")
    if arch == "64" and providers.get(system):
        return provider in providers[system]
    return provider in providers.get(build, [])
