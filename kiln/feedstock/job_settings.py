"""The settings in conda-forge.yml that determine the matrix and the builds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiln.base import limits
from kiln.base.errors import RecipeFault
from kiln.base.patterns import FORGE_PLATFORMS
from kiln.base.system.files import file_content_stamp
from kiln.feedstock.settings import TypedSettings, read_document, setting_definitions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import PackageSettings


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


_CONDA = "2"  # pkg_format of .conda files
LEVEL = 16  # conda-forge's zstd level
_LEVELS = range(1, 23)
_STRICT, _FLEXIBLE = "strict", "flexible"
_ENGINES = ("docker", "podman")
# Options of `docker run` that show the container nothing of the machine; true for those with a value.
_HARMLESS = {
    "--cpus": True,
    "--env": True,
    "-e": True,
    "--gpus": True,
    "--hostname": True,
    "--init": False,
    "--memory": True,
    "--memory-swap": True,
    "--rm": False,
    "--shm-size": True,
    "--stop-timeout": True,
    "--tmpfs": True,
    "--ulimit": True,
}
_ENVIRONMENT = frozenset({"-e", "--env"})
RUN_ARGUMENTS = "CONDA_FORGE_DOCKER_RUN_ARGS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaSettings:
    """The settings of conda and conda-build, for builds with the engine conda-build.

    ``conda_build`` holds conda's own settings by name; ``solver`` is None to let conda choose.
    """

    channel_priority: str
    conda_build: Mapping[str, str]
    solver: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """The settings of containers: the engine's name, None for any, and options of its command ``run``."""

    engine: str | None
    run_arguments: tuple[str, ...]


def package_settings(path: Path) -> PackageSettings:
    """Return the settings of the packages that kiln's own engine makes.

    Raises:
        KilnError: the file is malformed, or asks for packages that this engine does not make.
    """
    from kiln.recipe.rendered import PackageSettings

    settings = _read_settings(path)
    conda_build = settings.get_nested("conda_build")
    form = conda_build.get_text("pkg_format", _CONDA) or _CONDA
    if form not in {_CONDA, ".conda"}:
        raise RecipeFault(
            f"conda_build/pkg_format is {form!r}",
            at=settings.place_of("conda_build"),
            why="this engine makes .conda files, which are format 2",
            hint="remove the setting, or build with --engine conda-build",
        )
    level = conda_build.get_number("zstd_compression_level", LEVEL)
    if level not in _LEVELS:
        raise RecipeFault(
            f"conda_build/zstd_compression_level is {str(level)!r}",
            at=settings.place_of("conda_build"),
            why=f"zstd has the levels {_LEVELS[0]} to {_LEVELS[-1]}",
            hint=f"{LEVEL} is the default",
        )
    return PackageSettings(
        level=level,
        channel_priority=settings.get_text("channel_priority", _STRICT),
        error_overlinking=conda_build.get_flag("error_overlinking", default=False),
    )


def require_supported_priority(path: Path, channels: Iterable[tuple[str, ...]]) -> None:
    """Refuse a priority that kiln's own engine does not have; ``channels`` are those of each config.

    With a single channel, ``flexible`` is the same as ``strict``.

    Raises:
        RecipeFault: the priority is flexible, and a config has several channels.
    """
    settings = _read_settings(path)
    several = next((each for each in channels if len(each) > 1), None)
    if several is not None and settings.get_text("channel_priority", _STRICT) == _FLEXIBLE:
        raise RecipeFault(
            f"channel_priority is {_FLEXIBLE}, with the channels {', '.join(several)}",
            at=settings.place_of("channel_priority"),
            why="rattler-build has the priorities strict and disabled",
            hint="disabled takes the newest package of all channels; or build with --engine conda-build",
        )


def conda_build_only_settings(path: Path) -> tuple[str, ...]:
    """Return the settings of conda-build that kiln's own engine does not have.

    Raises:
        KilnError: the file is malformed.
    """
    names = (f"conda_build.{name}" for name in _read_settings(path).get_mapping("conda_build"))
    return tuple(name for name in names if name not in setting_definitions())


def conda_settings(path: Path) -> CondaSettings:
    """Return the settings of conda and conda-build for a feedstock's builds.

    Source: ``setup_conda_rc`` and ``run_conda_forge_build_setup`` of conda-forge-ci-setup, and conda-smithy's
    build_steps.sh.

    Raises:
        KilnError: the file is malformed, or its channel priority is invalid.
    """
    settings = _read_settings(path)
    conda_build = {
        str(name): str(value) for name, value in settings.get_mapping("conda_build").items() if value is not None
    }
    tool = settings.get_text("conda_build_tool", "").partition("+")[2].replace("conda-libmamba-solver", "libmamba")
    return CondaSettings(
        channel_priority=settings.get_text("channel_priority", _STRICT),
        conda_build={"pkg_format": "2", **conda_build},
        solver=tool or settings.get_text("conda_solver", "") or None,
    )


def container_settings(
    path: Path, *, engine_replaced: bool = False, run_arguments_replaced: bool = False
) -> ContainerSettings:
    """Return the settings of containers, without those that the caller replaces.

    A feedstock is untrusted: it cannot name a program of this machine, nor options that show the build more of it.
    ``docker`` is conda-smithy's default, which selects what no setting does: Docker, or Podman where Docker is missing.

    Raises:
        KilnError: the file is malformed, or has such a setting.
    """
    settings = _read_settings(path)
    docker = settings.get_nested("docker")
    engine = None if engine_replaced else docker.get_text("executable", "") or None
    if engine is not None and engine not in _ENGINES:
        raise RecipeFault(
            f"docker.executable is {engine!r}",
            at=settings.place_of("docker"),
            why="a feedstock cannot choose a program of this machine",
            hint=f"{' or '.join(_ENGINES)}, or the variable DOCKER_EXECUTABLE",
        )
    arguments = "" if run_arguments_replaced else docker.get_text("run_args", "")
    return ContainerSettings(
        engine=None if engine == _ENGINES[0] else engine, run_arguments=_harmless_run_arguments(settings, arguments)
    )


def runs_emulated_tests(path: Path) -> bool:
    """Return whether cross-compiled packages are tested where this machine runs their programs.

    Source: ``test`` of conda-smithy's schema of conda-forge.yml.

    Raises:
        KilnError: the file is malformed.
    """
    return _read_settings(path).get_text("test", "all") != "native"


def ci_secret_names(path: Path) -> tuple[str, ...]:
    """Return the names of the secrets that CI gives to builds.

    Raises:
        KilnError: the file is malformed, or a name cannot be a variable's.
    """
    from kiln.feedstock.workflow_settings import secret_names

    return secret_names(_read_settings(path))


def _read_settings(path: Path) -> TypedSettings:
    return _cached_settings(path, file_content_stamp(path) if path.exists() else ())


@lru_cache(maxsize=4)
def _cached_settings(path: Path, _stamp: tuple[int, ...]) -> TypedSettings:
    return limits.run_bounded(lambda: TypedSettings.read(path))


def _harmless_run_arguments(settings: TypedSettings, text: str) -> tuple[str, ...]:
    """Return the words of ``docker.run_args``."""
    import shlex

    try:
        words = shlex.split(text)
    except ValueError as error:
        raise RecipeFault(f"docker.run_args is {text!r}", at=settings.place_of("docker"), why=str(error)) from error
    rest = iter(words)
    for word in rest:
        option, assigned, value = word.partition("=")
        takes_value = _HARMLESS.get(option)
        if takes_value and not assigned:
            value = next(rest, "")
        # A variable without a value is the caller's, and may be a secret.
        if takes_value is None or (option in _ENVIRONMENT and "=" not in value):
            raise _harmful_option_error(settings, f"{option} {value}".strip() if takes_value else word, text)
    return tuple(words)


def _harmful_option_error(settings: TypedSettings, option: str, text: str) -> RecipeFault:
    import shlex

    return RecipeFault(
        f"docker.run_args has the option {option!r}",
        at=settings.place_of("docker"),
        why="it may show the build more of this machine than its recipe and caches, and a feedstock cannot decide that",
        hint=f"if you trust the feedstock: {RUN_ARGUMENTS}={shlex.quote(text)} kiln build",
    )
