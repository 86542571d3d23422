"""The folder build_artifacts: caches, and what is handed from one build to another."""
