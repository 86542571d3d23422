"""Views of a run in progress: lines in a log, or a live frame on a terminal."""
