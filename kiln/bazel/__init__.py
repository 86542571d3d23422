"""What Bazel leaves beside a build: its event file, read while it grows, and its disk caches.

Bazel itself is started by the recipe's compile step, never by kiln. All that is known of a build comes from the file
that ``--build_event_json_file`` names, a JSON object a line; what the fields mean is said in Bazel's
``build_event_stream.proto``. The file is written by a build and not trusted: what cannot be read is left out.
"""

from kiln.bazel.events import Build
from kiln.bazel.watch import Watch, watched

__all__ = ["Build", "Watch", "watched"]
