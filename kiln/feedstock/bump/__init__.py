"""Another version or build number of a recipe."""
