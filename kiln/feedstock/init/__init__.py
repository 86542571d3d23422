"""New feedstocks: from a starter recipe, from PyPI, or around a recipe."""
