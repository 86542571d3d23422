"""Store the results of builds below build_artifacts: layout, caches of steps, builds and compiles."""
