"""Build or rehearse one config, step by step, in a process of its own."""
