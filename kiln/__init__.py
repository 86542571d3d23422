"""kiln builds a conda feedstock: its matrix, its packages, its tests."""

__version__ = "0.1.0"
