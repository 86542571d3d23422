"""Templates of recipes: Jinja without side effects, selectors, and the names that they see."""
