"""Read and write conda packages as files."""
