"""From one config to tested packages."""
