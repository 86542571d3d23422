"""Run the matrix: options in, a plan, one process per config, a report out."""
