"""Detached fleet runs: their controller is another machine, which this computer asks over ssh."""
