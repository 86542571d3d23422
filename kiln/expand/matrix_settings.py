"""The settings in conda-forge.yml that determine the matrix.

The meaning and default of each setting are conda-smithy's (conda_smithy/configure_feedstock.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.conda_forge_yml import TypedSettings, read_document
from kiln.errors import RecipeFault
from kiln.name_rules import FORGE_PLATFORMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

_PROVIDERS = ("circle", "travis", "appveyor", "azure", "drone", "woodpecker", "github_actions")
_DEFAULT_PROVIDERS = {"osx_64": "azure", "osx_arm64": "azure"}  # all others: GitHub Actions
_NATIVE_PROVIDERS = {"linux_ppc64le": "travis", "linux_s390x": "travis"}
_NATIVE_PLATFORMS = {
    "linux_64", "linux_aarch64", "linux_ppc64le", "linux_s390x", "osx_64", "osx_arm64", "win_64", "win_arm64",
}  # fmt: skip
_GITHUB = "github_actions"
_EXCLUSIVE = "exclusive_config_file"
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
    def platform_name(self) -> str:
        """The platform in the form of config names, such as ``linux_64``."""
        return f"{self.system}_{self.arch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixSettings:
    """The settings that determine the matrix."""

    jobs: tuple[PlatformJob, ...]
    fallback_image: str
    environ: Mapping[str, str]
    labels_kept: bool


def exclusive_config_file(feedstock: Feedstock) -> Path | None:
    """Return the variant file that a feedstock uses in the place of a pinning, None when it names none.

    Source: ``exclusive_config_file`` of conda-smithy's schema of conda-forge.yml.

    Raises:
        RecipeFault: the file does not exist, or is outside of the feedstock.
    """
    document = read_document(feedstock.conda_forge_yml)
    name = document.value.get(_EXCLUSIVE)
    if name is None:
        return None
    path = (feedstock.root / str(name)).resolve()
    if not path.is_relative_to(feedstock.root.resolve()) or not path.is_file():
        why = "it is outside of the feedstock" if path.exists() else "no such file"
        raise RecipeFault(f"{_EXCLUSIVE} is {str(name)!r}", at=document.place_of_key(_EXCLUSIVE), why=why)
    return path


def read_matrix_settings(path: Path) -> MatrixSettings:
    """Return the settings of a feedstock; the defaults without the file.

    Raises:
        KilnError: the file is malformed, or has a setting that kiln does not support.
    """
    settings = TypedSettings.read(path)
    if settings.get_text("recipe_dir", "recipe") != "recipe":
        raise RecipeFault("recipe_dir is not 'recipe'", at=settings.place_of("recipe_dir"), hint="rename the folder")
    return MatrixSettings(
        jobs=tuple(_platform_jobs(settings)),
        fallback_image=str(settings.get_mapping("docker").get("fallback_image") or _IMAGE),
        environ={
            "CONFIG_VERSION": settings.get_text("config_version", "2"),
            "CF_COMPILER_STACK": settings.get_text("compiler_stack", "comp7"),
            "CF_MIN_PY_VER": settings.get_text("min_py_ver", "27"),
            "CF_MAX_PY_VER": settings.get_text("max_py_ver", "37"),
            "CF_MIN_R_VER": settings.get_text("min_r_ver", "34"),
            "CF_MAX_R_VER": settings.get_text("max_r_ver", "34"),
        },
        labels_kept=bool(settings.get_mapping(_GITHUB).get("enabled")),
    )


def _platform_jobs(settings: TypedSettings) -> Iterator[PlatformJob]:
    builds = {platform: platform for platform in FORGE_PLATFORMS} | {
        str(platform): str(build) for platform, build in settings.get_mapping("build_platform").items() if build
    }
    providers = _providers_by_platform(settings, builds)
    noarch = settings.get_list("noarch_platforms", ["linux_64"])
    versions = settings.get_mapping("os_version")
    force_azure = bool(settings.get_mapping("azure").get("force"))
    for provider in _PROVIDERS:
        for platform, build in builds.items():
            system, _, arch = platform.partition("_")
            if not _is_provider_of_platform(provider, build, providers) and not (
                provider == "azure" and force_azure and arch == "64"
            ):
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


def _providers_by_platform(settings: TypedSettings, builds: Mapping[str, str]) -> dict[str, list[str]]:
    platform_providers: dict[str, Any] = {"linux_64": _GITHUB, "osx_64": "azure", "win_64": _GITHUB}
    platform_providers |= settings.get_mapping("provider")
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


def _is_provider_of_platform(provider: str, build: str, providers: Mapping[str, list[str]]) -> bool:
    system, _, arch = build.partition("_")
    if arch == "64" and providers.get(system):
        return provider in providers[system]
    return provider in providers.get(build, [])
