"""Attestations, bills of materials and records of packages, and their verification."""
