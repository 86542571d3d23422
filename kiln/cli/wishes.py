"""What ``kiln build`` was asked for, read from its options and from conda-forge's variables."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from kiln.cli.environment import client, given, pip_settings
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.pipeline import Wishes

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def wishes(feedstock: Feedstock, options: argparse.Namespace, configs: tuple[str, ...]) -> Wishes:
    """Return what was asked for, on the command line and in conda-forge's variables."""
    from kiln import pipeline
    from kiln.command import without_credentials

    environment = os.environ
    asked = pipeline.callers_variables(feedstock, configs)
    return pipeline.Wishes(
        configs=configs,
        command=without_credentials(typed(sys.argv[1:])),
        jobs=options.jobs,
        engine=options.engine,
        container=options.container,
        image=environment.get("DOCKER_IMAGE") or None,
        executable=environment.get("DOCKER_EXECUTABLE") or None,
        options=pipeline.run_arguments(environment.get("CONDA_FORGE_DOCKER_RUN_ARGS", "")),
        cores=options.cores,
        memory=None if options.memory is None else size(options.memory),
        rebuild=options.rebuild,
        keep_failed=options.keep_failed,
        from_step=options.from_step,
        network=options.network,
        fetch=not options.dry_run,
        rehearsal=options.rehearse,
        given=given(feedstock, environment),
        client={
            **client(environment),
            **pip_settings(environment),
            **{name: environment[name] for name in asked if name in environment},
        },
        remote_cache=remote_cache(options.remote_cache or environment.get("BAZEL_REMOTE_CACHE")),
        distdir=folder(options.distdir),
        mirror=mirror(options.mirror),
        stall=60 * options.stall,
        cache_bound=size(options.cache_size),
    )


def typed(words: Sequence[str]) -> str:
    """Return the command as a person has typed it: without what an entry script puts before that person's own words."""
    from kiln.cli import top_parser

    if "--called" not in words[:1]:
        return shlex.join(("kiln", *words))
    top = top_parser().parse_args(words)
    own = top.rest[2:] if top.rest[:1] == ["--python"] else top.rest
    return shlex.join((top.called, *own))


def remote_cache(url: str | None) -> str | None:
    """Return the address of a cache as Bazel takes it.

    Raises:
        UsageError: when it is none; it is not repeated, for it may hold a password.
    """
    if url and not re.match(r"(?:https?|grpcs?)://[^/\s]+\S*$", url):
        raise UsageError(
            "--remote-cache is no address of a cache", hint="--remote-cache https://HOST/PATH, or grpcs://"
        )
    return url or None


def mirror(url: str | None) -> str | None:
    """Return the address of a mirror.

    Raises:
        UsageError: when it is none, or holds a password, for it would stand in logs and job files.
    """
    if url and not re.match(r"https?://[^/\s@]+(?:/\S*)?$", url):
        raise UsageError(
            "--mirror is no address of a mirror", hint="--mirror https://HOST/PATH, without a user and a password"
        )
    return url or None


def folder(path: Path | None) -> Path | None:
    """Return a folder that is there.

    Raises:
        UsageError: when it is not.
    """
    if path is not None and not path.is_dir():
        raise UsageError(f"there is no folder {path}", hint="--distdir FOLDER, with the files that Bazel would fetch")
    return path


def size(text: str) -> int:
    """Return the bytes that a size such as ``16GB``, ``500 MB`` or ``2GiB`` stands for.

    Raises:
        UsageError: when it is none.
    """
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size", hint="--memory 16GB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].lower()])
