"""Bazel's output: caches, events, last messages."""
