"""A feedstock as files: settings, matrix, config files, workflow."""
