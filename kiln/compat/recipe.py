"""What a recipe compiles for, as its ``compile.ini`` says: its policy, as far as CUDA and compiler accept it.

The recipe works this out by itself when it is built; here it is read beforehand, as data. Nothing of a recipe is run.
"""

from __future__ import annotations

import configparser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = "compile.ini"


def built_for(recipe: Path, cuda: str) -> tuple[str, ...]:
    """Return the compute capabilities that a recipe compiles for with a CUDA; nothing where it does not say."""
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    try:
        settings.read_string((recipe / SETTINGS).read_text(encoding="utf-8"))
    except (OSError, ValueError, configparser.Error):
        return ()  # another recipe's own affair
    policy = (
        {int(name) for name in settings["architectures"] if name.isdecimal()} if "architectures" in settings else set()
    )
    accepted = _accepted(settings, f"cuda {cuda}")
    wanted = sorted(policy & accepted) if accepted is not None else []
    return (*(f"sm_{number}" for number in wanted), f"compute_{wanted[-1]}") if wanted else ()


def _accepted(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    """The architectures that a CUDA and the compiler chosen for it both accept."""
    numbers = _numbers(settings, section)
    compiler = settings.get(section, "compiler", fallback="")
    by_compiler = _numbers(settings, f"compiler {compiler}")
    return numbers if numbers is None or by_compiler is None else numbers & by_compiler


def _numbers(settings: configparser.ConfigParser, section: str) -> set[int] | None:
    text = settings.get(section, "architectures", fallback="")
    return {int(word) for word in text.split() if word.isdecimal()} or None
