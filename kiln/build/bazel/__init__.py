"""Compiles by Bazel: their progress, caches and remote executors."""
