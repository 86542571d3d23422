"""Where the programs of a config run: on the host or in a container."""
