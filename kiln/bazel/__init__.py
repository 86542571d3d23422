"""The files of Bazel: the event file of a build, read while it grows, and the disk caches.

Bazel itself is started by the recipe's compile step, never by kiln. All information about a build comes from the file
that ``--build_event_json_file`` names, with a JSON object per line; Bazel's ``build_event_stream.proto`` documents the
fields. The file is written by a build and not trusted: invalid lines are skipped.
"""
