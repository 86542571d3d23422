"""Selectors and Jinja templates, evaluated without running any code of the recipe."""

from __future__ import annotations
