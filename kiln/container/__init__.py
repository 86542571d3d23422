"""Docker and Podman: an engine, its images, and containers that are removed at the end of a block."""
