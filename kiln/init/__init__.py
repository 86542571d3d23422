"""New feedstocks: from nothing, from a project on PyPI, or from a checkout that lacks kiln's files."""
