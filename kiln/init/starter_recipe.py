"""A new feedstock from nothing: a noarch package with one program, which builds, passes its test and has no lints."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.init.safe_yaml_text import RecipeFormat, yaml_list_lines, yaml_scalar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FILES = Path(__file__).with_name("starter_files")  # texts with fields in braces; the license's own text is SPDX's


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecipe:
    """The recipe of a new feedstock: its files by path, the names that it publishes, and notes on what is left open."""

    name: str
    format: RecipeFormat
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


def starter_recipe(name: str, version: str, format_: RecipeFormat, maintainers: Sequence[str]) -> NewRecipe:
    """Return the recipe of a small package that installs a program."""
    license_file = "LICENSE.txt"
    values = {
        "name": name,
        "scalar_name": yaml_scalar(name),
        "quoted_name": f'"{name}"',
        "quoted_version": f'"{version}"',
        "home": f"https://github.com/{maintainers[0]}/{name}",
        "summary": yaml_scalar(f"A short description of {name}"),
        "license_file": license_file,
        "maintainers": yaml_list_lines(maintainers, 4),
        "holder": ", ".join(maintainers),
    }
    texts = {format_.recipe_path: _starter_template_text(f"{Path(format_.recipe_path).name}.in").format(**values)}
    if format_ is RecipeFormat.V0:
        texts["recipe/build.sh"] = _starter_template_text("build.sh")
    texts |= {
        f"recipe/src/{file}": _starter_template_text(f"{file}.in").format(**values)
        for file in ("hello.sh", license_file)
    }
    note = f"{format_.recipe_path} is an example that builds; change its source, script, tests and about"
    return NewRecipe(name=name, format=format_, files=texts, notes=(note,))


def _starter_template_text(file: str) -> str:
    return (FILES / file).read_text(encoding="utf-8")
