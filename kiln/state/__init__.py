"""What is on disk between commands: the ledger, build_artifacts, caches, results."""
