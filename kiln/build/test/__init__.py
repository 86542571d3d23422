"""The tests of built packages and wheels."""
