"""The process in which rattler-build runs: ``python -m kiln.build.worker JOB.json`` writes the job's result file.

It is a process of its own so that the build can be stopped, its output kept in a log, and a crash of the engine's
runtime told from a failed build. The result file is written last; without it the build has failed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.build.stamp import stamp

if TYPE_CHECKING:
    from rattler_build import BuildResult, RenderedVariant
    from rattler_build.progress import LogEvent

PACKAGE_FORMAT = "conda:1"  # level 1 packs a gigabyte in seconds, level 19 in many minutes


# What it says after a script has failed, of places that are gone by then or lie in a container; --debug leads there.
ADVICE = re.compile(
    r"^(?:Script execution failed\.|(?:Work directory|Prefix|Build prefix): |To run (?:the script|commands) \w+"
    r'|cd ".*" && (?:\./conda_build\.sh|source build_env\.sh))'
)


class Log:
    """rattler-build's progress callback: what it logs goes to standard output."""

    def on_log(self, event: LogEvent) -> None:
        """Write what one event says."""
        for line in event.message.split("\n"):
            if not ADVICE.match(line.strip()):
                sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def on_download_start(self, event: object) -> None:
        """Ignore: downloads are told by the log."""

    on_download_progress = on_download_complete = on_build_step = on_download_start


def main(job_file: str) -> None:
    """Build what the job says and leave at once, past the interpreter's tear-down (see kiln.__main__)."""
    job = json.loads(Path(job_file).read_text())
    command.die_with_parent(parent=job["parent"])
    try:
        result = prepare(job) if job.get("debug") else {"package": str(build(job))}
    except Exception as error:  # noqa: BLE001 - whatever the engine raises is the build's failure
        result = {"error": str(error)}
    files.write_text(Path(job["result"]), json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def build(job: dict[str, Any]) -> Path:
    """Build one package, lay the job's changes over its metadata, and return where it lies."""
    folder = Path(job["folder"])
    (built,) = run_engine(job["recipe"], folder, job["channels"], keep=job.get("keep", False)).packages
    if job.get("keep"):
        return built
    package = folder / built.name
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    stamp(built, package, index=job["index"], epoch=int(epoch) if epoch.isdecimal() else None)
    return package


def prepare(job: dict[str, Any]) -> dict[str, str]:
    """Make all that the engine makes before it runs the script, and return where: environments, sources, the script."""
    from rattler_build import DebugSession, ToolConfiguration

    folder = Path(job["folder"])
    paths = DebugSession.create(
        rendered(job["recipe"], folder),
        tool_config=ToolConfiguration(test_strategy="skip", keep_build=True),
        output_dir=folder / "output",
        channels=job["channels"],
        progress_callback=Log(),
    ).paths
    return {
        "work": str(paths.work_dir),
        "script": str(paths.build_script),
        "environment": str(paths.build_env_script),
        "host": str(paths.host_prefix),
        "build": str(paths.build_prefix),
    }


def rendered(recipe: dict[str, Any], folder: Path) -> RenderedVariant:
    """Hand a concrete recipe to rattler-build, which finds nothing left to decide in it."""
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    (variant,) = Stage0Recipe.from_dict(recipe, recipe_dir=folder / "recipe").render(
        VariantConfig(), RenderConfig(platform=PlatformConfig(target_platform="linux-64"))
    )
    return variant


def run_engine(recipe: dict[str, Any], folder: Path, channels: list[str], *, keep: bool = False) -> BuildResult:
    """Have rattler-build make a package; ``keep`` what the build left in its work directory."""
    from rattler_build import ToolConfiguration

    return rendered(recipe, folder).run_build(
        ToolConfiguration(test_strategy="skip", keep_build=keep),
        output_dir=folder / "output",
        channels=channels,
        progress_callback=Log(),
        no_build_id=True,
        package_format=PACKAGE_FORMAT,
    )


if __name__ == "__main__":
    main(sys.argv[1])
