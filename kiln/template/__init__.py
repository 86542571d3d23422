"""Evaluation of selectors and Jinja templates without running any code of the recipe."""

from __future__ import annotations
