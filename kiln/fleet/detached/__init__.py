"""Runs on a controller in the cloud, which go on without this computer."""
