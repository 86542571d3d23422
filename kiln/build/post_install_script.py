"""Shell lines that run after an output's script: files that conda-build adds to the prefix, or leaves out of it."""

from __future__ import annotations

import shlex
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.matchspec_notation import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.rendered import Output, Source

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

# Bytecode holds the path of its source, which Python replaces by the real one at each import.
_COMPILE = """\
import fnmatch, glob, json, os, py_compile, sys
prefix, skipped, others = os.environ["PREFIX"], sys.argv[1:], set()
for name in glob.glob(os.path.join(prefix, "conda-meta", "*.json")):
    with open(name, encoding="utf-8") as file:
        others.update(json.load(file).get("files", ()))
for top in glob.glob(os.path.join(prefix, "lib", "python*", "site-packages")):
    for folder, _, names in os.walk(top):
        for path in (os.path.join(folder, name) for name in names if name.endswith(".py")):
            own = os.path.relpath(path, prefix)
            if own in others or any(fnmatch.fnmatch(own, pattern) for pattern in skipped):
                continue
            try:
                py_compile.compile(path, dfile=own, doraise=True)
            except (py_compile.PyCompileError, OSError, ValueError, RecursionError):
                pass  # a template, or a module for another Python
"""


def unpack_wheels(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the lines that unpack wheels among the sources next to them, as conda-build does."""
    lines = []
    for source in sources:
        name = source.file_name or (PurePosixPath(urlsplit(source.url[0]).path).name if source.url else "")
        if name.lower().endswith(".whl") and not source.by_engine:
            folder = f"cd {shlex.quote(source.folder)} && " if source.folder else ""
            unpack = f'"$kiln_python" -m zipfile -e {shlex.quote(name)} .'
            lines.append(f"({folder}{unpack})")
    choice = (
        'for kiln_python in "$PREFIX/bin/python" "$BUILD_PREFIX/bin/python" python3; do',
        '  if command -v "$kiln_python" >/dev/null; then break; fi',
        "done",
    )
    return (*choice, *lines) if lines else ()


def compile_modules(output: Output) -> tuple[str, ...]:
    """Return the lines that compile an output's Python modules without the path of the prefix in their bytecode.

    Only where the Python in ``host`` can be run; the engine compiles what then lacks bytecode. Packages for all Pythons
    are compiled when they are installed.
    """
    settings = output.settings.python
    if output.settings.by_engine or output.noarch or settings.version_independent or not _has_python(output):
        return ()
    program, patterns = '"$PREFIX/bin/python"', " ".join(map(shlex.quote, settings.skip_pyc))
    runs = f"if {program} -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then"
    return (runs, f"{program} - {patterns} <<'KILN'", *_COMPILE.splitlines(), "KILN", "fi")


def _has_python(output: Output) -> bool:
    return any(package_name(spec) == "python" for spec in (*output.requirements.host, *output.requirements.build))


def forget_sources(output: Output) -> tuple[str, ...]:
    """Return the lines that remove pip's records of local sources, in a package that installs with Python."""
    return _FORGET_SOURCES if _has_python(output) and not output.settings.by_engine else ()


def link_scripts(output: Output, recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that install the scripts that run when a package is linked or unlinked."""
    lines = []
    for kind, file in output.settings.link_scripts.items():
        target = shlex.quote(f".{output.name}-{kind}.sh")
        lines.append(f'install -D -m 775 {shlex.quote(str(recipe_folder / file))} "$PREFIX/bin/"{target}')
    return tuple(lines)


def in_recipe(license_file: str, recipe_folder: Path) -> str:
    """Return the path of a license relative to the recipe if it is an absolute one inside it; else unchanged."""
    path = PurePath(license_file)
    inside = path.is_absolute() and ".." not in path.parts and path.is_relative_to(recipe_folder)
    return str(path.relative_to(recipe_folder)) if inside else license_file


def recipes_licenses(licenses: Iterable[str], recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that copy licenses from the recipe into the work directory, where it does not have them."""
    lines = []
    for license_file in licenses:
        name = in_recipe(license_file, recipe_folder)
        if name != license_file:  # an absolute path means the recipe's file, whatever the sources have
            lines.append(f'(cd {shlex.quote(str(recipe_folder))} && cp -r --parents {shlex.quote(name)} "$SRC_DIR/")')
        elif not name.startswith(("/", ".")) and ".." not in name.split("/"):
            own, there = shlex.quote(name), shlex.quote(str(recipe_folder / "." / name))
            copy = f'(cd {shlex.quote(str(recipe_folder))} && cp -r --parents {own} "$SRC_DIR/")'
            lines.append(f"if [ ! -e {own} ] && [ -e {there} ]; then {copy}; fi")
    return tuple(lines)
