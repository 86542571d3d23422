"""The pinning that ``kiln rerender`` and ``kiln matrix`` expand a feedstock with: given, set, or fetched."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from kiln.base.errors import PinningNeeded, UsageError
from kiln.base.system import user
from kiln.base.text import first_of
from kiln.cli import arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from kiln.feedstock.pinning import KeyWithoutValue, Pinning

    Result = TypeVar("Result")

DEFAULT_CHANNEL = "conda-forge"
_FILE = "conda_build_config.yaml"
_SHOWN = 6  # keys without a value that a note lists; it counts the rest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a pinning."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "-e",
        dest="pinning",
        metavar="PINNING",
        help="read this variant file before the recipe's, or this version of the package conda-forge-pinning; "
        "migrations are read from share/conda-forge/migrations in the file's folder (default: exclusive_config_file in "
        "conda-forge.yml, or the newest conda-forge-pinning when keys have no value without one)",
    )
    group.add_argument(
        "--no-pinning",
        action="store_true",
        help="use the feedstock's variant files alone, even if keys have no value then",
    )
    parser.add_argument(
        "--pinning-channel",
        metavar="CHANNEL",
        type=arguments.parse_channel,
        default=DEFAULT_CHANNEL,
        help="fetch conda-forge-pinning from this conda channel; 'none' fetches none (default: %(default)s)",
    )


def run_with_pinning(options: argparse.Namespace, root: Path, work: Callable[[Path | None], Result]) -> Result:
    """Return the result of bounded work with the variant file of the pinning; None for a feedstock that needs none.

    The question whether one is needed and the work share a process, and what it has read, where none has to be fetched.
    """
    from kiln.base import limits  # and no package that the work needs: this process only waits for it

    if options.pinning:
        given = pinning_file_by_name(options.pinning, options.pinning_channel)
        return limits.run_bounded(lambda: work(given))

    def work_unless_keys_lack_values() -> tuple[tuple[KeyWithoutValue, ...], Result | None]:
        from kiln.feedstock import job_settings, pinning
        from kiln.recipe import feedstock as recipe_feedstock

        if options.no_pinning:
            return (), work(None)
        feedstock = recipe_feedstock.load(root)
        variant_file = job_settings.exclusive_config_file(feedstock)
        needs = () if variant_file else pinning.keys_without_value(feedstock)
        return needs, None if needs else work(variant_file)

    needs, result = limits.run_bounded(work_unless_keys_lack_values)
    if not needs:
        return cast("Result", result)
    from kiln.feedstock import pinning as feedstock_pinning

    try:
        if options.pinning_channel == feedstock_pinning.NO_CHANNEL:
            hint = f"-e PINNING/{_FILE}"
            raise PinningNeeded("--pinning-channel none forbids a download", hint=hint)  # noqa: TRY301
        newest = _print_pinning_version(
            feedstock_pinning.newest_pinning(_pinning_cache_folder(), options.pinning_channel)
        ).file
    except PinningNeeded as error:
        why = ": ".join(filter(None, (error.what, error.why)))
        raise feedstock_pinning.missing_values_error(needs, why=why, hint=error.hint) from error
    return limits.run_bounded(lambda: work(newest))


def readable_pinning_file(options: argparse.Namespace) -> Path | None:
    """Return the variant file of the given pinning, or of the newest that can be had; None where none can."""
    from kiln.feedstock import pinning as feedstock_pinning

    if options.pinning:
        return pinning_file_by_name(options.pinning, options.pinning_channel)
    if options.no_pinning or options.pinning_channel == feedstock_pinning.NO_CHANNEL:
        return None
    try:
        return feedstock_pinning.newest_pinning(_pinning_cache_folder(), options.pinning_channel).file
    except PinningNeeded:
        return None


def unfetched_pinning_notes(root: Path, error: PinningNeeded) -> list[str]:
    """Return the notes about keys without a value, since the pinning cannot be fetched."""
    reason = f" ({error.why})" if error.why else ""
    return [f"{note}{reason}" for note in keys_without_value_notes(root)] or [f"{error.what}{reason}"]


def pinning_file_by_name(name: str, channel: str = DEFAULT_CHANNEL) -> Path:
    """Return the variant file of a pinning that is given by its file, its folder or its version in a channel."""
    from kiln.feedstock import pinning as feedstock_pinning

    path = Path(name).absolute()
    file = path / _FILE if path.is_dir() else path
    if file.is_file():
        return file
    if not feedstock_pinning.VERSION.fullmatch(name):
        raise UsageError(
            f"pinning not found: {name}", hint=f"-e PINNING/{_FILE}, or a version such as -e 2026.08.17.07.23.37"
        )
    return _print_pinning_version(feedstock_pinning.pinning_of_version(_pinning_cache_folder(), channel, name)).file


def keys_without_value_notes(root: Path, where: str = "") -> list[str]:
    """Return a note about keys without a value when no pinning is used; the matrix of a CI with one differs."""
    from kiln.base import limits
    from kiln.feedstock import pinning as feedstock_pinning
    from kiln.recipe import feedstock as recipe_feedstock

    needs = limits.run_bounded(lambda: feedstock_pinning.keys_without_value(recipe_feedstock.load(root)))
    return notes_of_keys(needs, where)


def notes_of_keys(needs: Sequence[KeyWithoutValue], where: str = "") -> list[str]:
    """Return a note that lists keys without a value, if there are any."""
    if not needs:
        return []
    keys = first_of((f"{need.key} ({need.at})" for need in needs), _SHOWN)
    return [f"no value{where} without a pinning (-e): {keys}"]


def _print_pinning_version(pinning: Pinning) -> Pinning:
    """Print which version is used, as the message of a commit of the result should have it."""
    print(f"pinning: conda-forge-pinning {pinning.version}", file=sys.stderr)
    return pinning


def _pinning_cache_folder() -> Path:
    return user.user_cache_folder(os.environ) / "kiln" / "pinning"
