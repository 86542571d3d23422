"""The settings in conda-forge.yml that determine builds: their packages, solves, tests, containers and secrets."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln import limits
from kiln.conda_forge_yml import TypedSettings
from kiln.conda_forge_yml.schema import setting_definitions
from kiln.errors import RecipeFault
from kiln.expand.secret_names import secret_names
from kiln.model.rattler_build_settings import PackageSettings
from kiln.operating_system.file_operations import file_content_stamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

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
    return secret_names(_read_settings(path))


def _read_settings(path: Path) -> TypedSettings:
    return _cached_settings(path, file_content_stamp(path) if path.exists() else ())


@lru_cache(maxsize=4)
def _cached_settings(path: Path, _stamp: tuple[int, ...]) -> TypedSettings:
    return limits.run_bounded(lambda: TypedSettings.read(path))


def _harmless_run_arguments(settings: TypedSettings, text: str) -> tuple[str, ...]:
    """Return the words of ``docker.run_args``.

    Raises:
        RecipeFault: they contain an option that is not harmless.
    """
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
    return RecipeFault(
        f"docker.run_args has the option {option!r}",
        at=settings.place_of("docker"),
        why="it may show the build more of this machine than its recipe and caches, and a feedstock cannot decide that",
        hint=f"if you trust the feedstock: {RUN_ARGUMENTS}={shlex.quote(text)} kiln build",
    )
