"""The capabilities that a recipe compiles for: the policy of ``compile.ini``, as far as CUDA and compiler accept it.

The recipe computes the same when it is built; here the file is read before, as data. Nothing of a recipe is run.
"""

from __future__ import annotations

import configparser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = "compile.ini"


def built_for(recipe: Path, cuda: str) -> tuple[str, ...]:
    """Return the compute capabilities that a recipe compiles for with a CUDA; empty where it does not say."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    try:
        settings.read_string((recipe / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return ()  # a recipe without that file
    policy = (
        {int(name) for name in settings["architectures"] if name.isdecimal()} if "architectures" in settings else set()
    )
    accepted = _accepted(settings, f"cuda {cuda}")
    numbers = sorted(policy & accepted) if accepted is not None else []
    return (*(f"sm_{number}" for number in numbers), f"compute_{numbers[-1]}") if numbers else ()


def _accepted(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    """Return the architectures that a CUDA and its compiler both accept."""
    numbers = _numbers(settings, section)
    compiler = settings.get(section, "compiler", fallback="")
    by_compiler = _numbers(settings, f"compiler {compiler}")
    return numbers if numbers is None or by_compiler is None else numbers & by_compiler


def _numbers(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    text = settings.get(section, "architectures", fallback="")
    return {int(word) for word in text.split() if word.isdecimal()} or None
