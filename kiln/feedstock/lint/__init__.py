"""The rules of conda-smithy's linter, and their corrections."""
