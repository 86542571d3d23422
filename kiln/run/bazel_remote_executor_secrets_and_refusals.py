"""The remote executor of a run's compiles: its secret variables, and the refusal of builds that cannot use it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import render
from kiln.errors import UsageError
from kiln.model.rattler_build_settings import OWN_ENGINE
from kiln.store import executor_credentials_encoding
from kiln.store.bazel_variables_of_compile_scripts import CREDENTIALS, EXECUTOR, REMOTE_CACHE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.run.options import RunOptions

READ = 1 << 20  # bytes of each file of a recipe that are searched
HTTP = re.compile(r"https?:")


def remote_secret_variables(options: RunOptions) -> dict[str, str]:
    """Return the secret variables of the compile steps: addresses, and the content of the credentials' files."""
    credentials = options.remote_credentials
    variables = {
        REMOTE_CACHE: options.remote_cache,
        EXECUTOR: options.remote_executor,
        CREDENTIALS: executor_credentials_encoding.encode_credentials_folder(credentials)
        if isinstance(credentials, Path)
        else credentials,
    }
    return {name: value for name, value in variables.items() if value}


def refuse_ineffective_remote_options(
    feedstock: Feedstock, configs: Iterable[BuildConfig], options: RunOptions
) -> None:
    """Refuse options of a remote executor that have no effect.

    Raises:
        UsageError: for another engine or a rehearsal, for a recipe that does not use it, for options without an
            executor, or a cache that Bazel does not combine with one.
    """
    if options.remote_executor is None:
        build = options.build
        named = {
            "--remote-credentials": options.remote_credentials,
            "--remote-jobs": build.remote_jobs,
            "--remote-fallback": build.remote_fallback,
        }
        unused = [name for name, value in named.items() if value]
        if unused:
            raise UsageError(f"{unused[0]} requires --remote-executor")
        return
    if options.build.rehearsal:
        raise UsageError("--remote-executor has no effect with --rehearse", why="a rehearsal compiles nothing by Bazel")
    if options.build.engine != OWN_ENGINE:
        raise UsageError(
            f"--remote-executor requires --engine {OWN_ENGINE}",
            why=f"{options.build.engine} passes none of its variables to a compile",
        )
    if options.remote_cache is not None and HTTP.match(options.remote_cache):
        raise UsageError(
            "Bazel does not combine a remote executor with a cache over HTTP",
            hint="leave the cache out: the executor has its own; or name one with grpc:// or grpcs://",
        )
    if not any(render.render(feedstock, config).stagings for config in configs):
        raise UsageError("--remote-executor: the recipe has no compile step that its outputs share")
    if not _recipe_reads_executor_variable(feedstock.recipe):
        raise UsageError(
            f"--remote-executor: no file of the recipe reads {EXECUTOR}",
            why="a compile by something else than Bazel, or by a script that ignores the variable, would run here",
            hint="leave the option out, or have the compile step pass the variable to --remote_executor of Bazel",
        )


def _recipe_reads_executor_variable(recipe: Path) -> bool:
    for path in sorted(recipe.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                if EXECUTOR.encode() in file.read(READ):
                    return True
    return False
