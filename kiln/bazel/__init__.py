"""The files of Bazel: the event file of a build, read while it grows, and the disk caches.

Bazel itself is started by the recipe's compile step, never by kiln. All information about a build comes from the file
that ``--build_event_json_file`` names, with a JSON object per line; Bazel's ``build_event_stream.proto`` documents the
fields. The file is written by a build and not trusted: invalid lines are skipped.
"""

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.bazel.events import BazelBuildState
    from kiln.bazel.watch import EVENTS, PROFILE, BuildWatch, earlier_event_files, watch_build

__all__ = ["EVENTS", "PROFILE", "BazelBuildState", "BuildWatch", "earlier_event_files", "watch_build"]

__getattr__ = lazy_exports(
    __name__, {"events": "BazelBuildState", "watch": "EVENTS PROFILE BuildWatch earlier_event_files watch_build"}
)
