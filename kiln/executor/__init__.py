"""Run the programs of one build: on this host, or in a container."""
