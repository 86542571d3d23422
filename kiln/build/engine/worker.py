"""The process in which rattler-build runs: ``python -m kiln.build.engine.worker JOB.json`` writes a result file.

A separate process can be stopped, has a log of its own, and distinguishes a crash of the engine's runtime from a
failed build. The result file is written last; without it the build has failed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table
from kiln.base.zstd import FAST
from kiln.build.bazel import watch
from kiln.build.engine.failures import (
    LEFT_OUT_TEXT,
    SPECIAL_TEXT,
    UNUSABLE_TEXT,
    files_omitted_by_engine,
    host_prefixes,
    message_naming_files,
    special_files_that_ended_script,
    version_and_link_faults,
)
from kiln.build.engine.output_filter import joined_parts
from kiln.recipe.rendered import BuildPlatforms, PackageSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rattler_build import BuildResult, RenderedVariant, ToolConfiguration
    from rattler_build.progress import LogEvent

    from kiln.recipe.rendered import Pin

PACKAGE_FORMAT = f"conda:{FAST}"  # a release's packages are packed again, with their timestamps
RECIPE = "recipe"  # the folder, in a step's, that the engine takes for the recipe's


# Advice that it prints after a script has failed, with paths that are gone by then or in a container; see --debug.
ADVICE = re.compile(
    r"^(?:Script execution failed\.|(?:Work directory|Prefix|Build prefix): |To run (?:the script|commands) \w+"
    r'|cd ".*" && (?:\./conda_build\.sh|source build_env\.sh))'
)


class EngineProgressCallback:
    """rattler-build's progress callback: writes log messages to standard output."""

    def on_log(self, event: LogEvent) -> None:
        """Write the message of an event."""
        for line in event.message.split("\n"):
            if not ADVICE.match(line.strip()):
                sys.stdout.write(joined_parts(f"{line}\n"))
        sys.stdout.flush()

    def on_download_start(self, event: object) -> None:
        """Ignore the event: the log reports downloads."""

    on_download_progress = on_download_complete = on_build_step = on_download_start


def main(job_file: str) -> None:
    """Build the job and exit at once, without the interpreter's tear-down (see kiln.__main__)."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    process_table.die_with_parent(parent=job["parent"])
    try:
        result = prepare_script_of_job(job) if job.get("debug") else {"package": str(build_package_of_job(job))}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the build's failure
        names = special_files_that_ended_script(Path(job["folder"]))
        result = {"error": message_naming_files(SPECIAL_TEXT, names) if names else str(error)}
    files.write_text(Path(job["result"]), json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def build_package_of_job(job: dict[str, Any]) -> Path:
    """Build one package, merge the job's changes into its metadata, and return its path."""
    folder, settings = Path(job["folder"]), PackageSettings(**job["settings"])
    copy_packed_test_files(job.get("packed", ()), Path(job.get("recipe_folder", "")), folder / RECIPE)
    (package_file,) = run_rattler_build(
        job["recipe"],
        folder,
        job["channels"],
        BuildPlatforms(**job["platforms"]),
        channel_priority=settings.channel_priority,
    ).packages
    watch.write_repository_record(folder)
    if job.get("keep"):
        return package_file
    from kiln.build.engine.metadata import rewrite_package_metadata  # a compile needs none of it

    refuse_unusable_files(folder, job["recipe"], by_conda_build_rules="sections" in job["edits"])
    package = folder / package_file.name
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = int(epoch) if epoch.isdecimal() else None
    rewrite_package_metadata(
        package_file,
        package,
        index=job["index"],
        edits=job["edits"] | {"installed_info": installed_info_files(folder)},
        pins=pins_from_json(job["pins"]),
        epoch=moment,
        level=settings.level,
    )
    return package


def installed_info_files(folder: Path) -> list[str]:
    """Return the files that the script has put into the prefix's folder ``info``, by their names there.

    The engine packs them as metadata, and lists none of them.
    """
    folders = (prefix / "info" for prefix in host_prefixes(folder))
    files_of_folders = ((info, file) for info in folders for file in sorted(info.rglob("*")))
    return [str(file.relative_to(info)) for info, file in files_of_folders if file.is_file() and not file.is_symlink()]


def pins_from_json(values: Iterable[tuple[str, dict[str, Any]]]) -> tuple[tuple[str, Pin], ...]:
    """Return the job's bounds of versions that the engine solves, by field of the output."""
    if not values:
        return ()
    from kiln.recipe.rendered import Pin  # few packages have any, and the types of a rendering take long to import

    return tuple((field, Pin(**pin)) for field, pin in values)


def refuse_unusable_files(folder: Path, recipe: dict[str, Any], *, by_conda_build_rules: bool) -> None:
    """Refuse a package that lacks files of the prefix in the step's folder, or has files that conda-build refuses.

    The recipe may choose its files itself. By conda-build's rules, no link may lead into the folder of the config's
    steps, above that of the step.
    """
    if recipe["build"].get("files"):
        return
    for prefix in host_prefixes(folder):
        missing, cache_tags = files_omitted_by_engine(prefix)
        if missing:
            raise ValueError(message_naming_files(LEFT_OUT_TEXT, missing))
        for name in cache_tags:
            sys.stdout.write(f"{LEFT_OUT_TEXT}{name}: it has no content of its own\n")
        if not by_conda_build_rules:
            continue
        name, version = recipe["package"]["name"], recipe["package"]["version"]
        faults = version_and_link_faults(prefix, name=name, version=version, build_folder=folder.parent)
        if faults:
            raise ValueError(message_naming_files(UNUSABLE_TEXT, faults, separator="; "))


def copy_packed_test_files(patterns: Iterable[str], source: Path, target: Path) -> None:
    """Copy the recipe's files that tests in the package use to the folder in which the engine looks for them."""
    for pattern in patterns:
        for file in sorted(source.glob(pattern)):
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.is_dir():
                shutil.copytree(file, place, dirs_exist_ok=True)
            else:
                shutil.copy2(file, place)


def prepare_script_of_job(job: dict[str, Any]) -> dict[str, str]:
    """Make everything that the engine makes before it runs the script; return the paths."""
    from rattler_build import DebugSession

    folder, settings = Path(job["folder"]), PackageSettings(**job["settings"])
    paths = DebugSession.create(
        render_variant(job["recipe"], folder, BuildPlatforms(**job["platforms"])),
        tool_config=tool_configuration(settings.channel_priority),
        output_dir=folder / "output",
        channels=job["channels"],
        progress_callback=EngineProgressCallback(),
    ).paths
    return {
        "work": str(paths.work_dir),
        "script": str(paths.build_script),
        "environment": str(paths.build_env_script),
        "host": str(paths.host_prefix),
        "build": str(paths.build_prefix),
    }


def render_variant(recipe: dict[str, Any], folder: Path, platforms: BuildPlatforms) -> RenderedVariant:
    """Return a concrete recipe as rattler-build renders it: exactly one variant.

    The engine takes a build's platforms from the keys of its variant, which must be used to be there.
    """
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    build, keys = recipe["build"], {"build_platform": platforms.build, "host_platform": platforms.target}
    variant_settings = {**build.get("variant", {}), "use_keys": sorted(keys)}
    config = PlatformConfig(
        target_platform=platforms.target, build_platform=platforms.build, host_platform=platforms.target
    )
    (variant,) = Stage0Recipe.from_dict(
        {**recipe, "build": {**build, "variant": variant_settings}}, recipe_dir=folder / RECIPE
    ).render(
        VariantConfig({key: [value] for key, value in {**keys, "target_platform": platforms.target}.items()}),
        RenderConfig(platform=config),
    )
    return variant


def run_rattler_build(
    recipe: dict[str, Any],
    folder: Path,
    channels: list[str],
    platforms: BuildPlatforms,
    *,
    channel_priority: str = "strict",
) -> BuildResult:
    """Have rattler-build make a package, and keep its work directory."""
    return render_variant(recipe, folder, platforms).run_build(
        tool_configuration(channel_priority),
        output_dir=folder / "output",
        channels=channels,
        progress_callback=EngineProgressCallback(),
        no_build_id=True,
        package_format=PACKAGE_FORMAT,
    )


def tool_configuration(channel_priority: str) -> ToolConfiguration:
    """Return the engine's configuration; it has no priority ``flexible``, which with one channel is ``strict``."""
    from rattler_build import ToolConfiguration

    return ToolConfiguration(
        test_strategy="skip",
        keep_build=True,
        channel_priority="disabled" if channel_priority == "disabled" else "strict",
    )


if __name__ == "__main__":
    main(sys.argv[1])
