"""Shell lines that run after an output's script: files that conda-build adds to the prefix, or leaves out of it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kiln.matchspec import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.rendered import Output

# A record of pip (PEP 610) that names the folder of the sources, which is gone once the package is made. Those of
# packages in conda-meta belong to others.
_FORGET_SOURCES = (
    'for kiln_url in "$PREFIX"/lib/python*/site-packages/*.dist-info/direct_url.json; do',
    '  kiln_info="${kiln_url%/*}"; kiln_name="${kiln_info##*/}/direct_url.json"',
    '  if grep -qs \'"file:\' "$kiln_url" && ! grep -qsF "$kiln_name" "$PREFIX"/conda-meta/*.json; then',
    '    rm -f "$kiln_url"',
    '    grep -vF "$kiln_name," "$kiln_info/RECORD" >"$kiln_info/RECORD.kiln" || true',
    '    cat "$kiln_info/RECORD.kiln" >"$kiln_info/RECORD"; rm -f "$kiln_info/RECORD.kiln"',
    "  fi",
    "done",
)


def forget_sources(output: Output) -> tuple[str, ...]:
    """Return the lines that remove pip's records of local sources, in a package that installs with Python."""
    specs = (*output.requirements.host, *output.requirements.build)
    return _FORGET_SOURCES if any(package_name(spec) == "python" for spec in specs) else ()


def link_scripts(output: Output, recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that install the scripts that run when a package is linked or unlinked."""
    lines = []
    for kind, file in output.settings.link_scripts.items():
        target = shlex.quote(f".{output.name}-{kind}.sh")
        lines.append(f'install -D -m 775 {shlex.quote(str(recipe_folder / file))} "$PREFIX/bin/"{target}')
    return tuple(lines)


def recipes_licenses(licenses: Iterable[str], recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that copy licenses from the recipe into the work directory, where it does not have them."""
    lines = []
    for name in licenses:
        if not name.startswith(("/", ".")) and ".." not in name.split("/"):
            own, there = shlex.quote(name), shlex.quote(str(recipe_folder / "." / name))
            copy = f'(cd {shlex.quote(str(recipe_folder))} && cp -r --parents {own} "$SRC_DIR/")'
            lines.append(f"if [ ! -e {own} ] && [ -e {there} ]; then {copy}; fi")
    return tuple(lines)
