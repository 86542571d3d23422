"""The matrix: every cell that a recipe, its variant files and its settings make, and each cell's file."""

from __future__ import annotations

from kiln.expand.disk import Drift, drift, write
from kiln.expand.files import read, text
from kiln.expand.forge import CondaSettings, conda_settings
from kiln.expand.matrix import cells

__all__ = ["CondaSettings", "Drift", "cells", "conda_settings", "drift", "read", "text", "write"]
