"""Shell lines that run after an output's script: files that conda-build adds to the prefix, or leaves out of it."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kiln.matchspec_notation import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable

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

# Files that conda-build packs in no package: those of git, desktops, libtool, conda's own removals and optimized
# bytecode (filter_files in conda_build/utils.py; rm_pyo, rm_share_info_dir and remove_easy_install_pth in post.py).
_NO_FILES = ("*.la", "*.conda_trash", "*.conda_trash_[0-9]*", "*.pyo", "*.opt-[0-9].pyc")
_NO_FOLDERS = (".git", "*.DS_Store*")

# conda-build merges an egg that is a folder into site-packages, and lists all others there (remove_easy_install_pth).
_UNPACK_EGGS = """\
for kiln_egg in "$PREFIX"/lib/python*/site-packages/*-py*.egg; do
  kiln_name="${kiln_egg##*/}"
  if [ ! -e "$kiln_egg" ] || grep -qsF "site-packages/$kiln_name" "$PREFIX"/conda-meta/*.json; then
    continue
  fi
  if [ ! -d "$kiln_egg" ] || [ -n "$kiln_keep" ]; then
    echo "./$kiln_name" >"${kiln_egg%/*}/${kiln_name%%-*}.pth"
    continue
  fi
  if [ -d "$kiln_egg/EGG-INFO" ]; then mv "$kiln_egg/EGG-INFO" "$kiln_egg-info"; fi
  rm -rf "$kiln_egg/__pycache__"
  (cd "$kiln_egg" && find . ! -type d) | while IFS= read -r kiln_file; do
    if [ -e "${kiln_egg%/*}/$kiln_file" ]; then
      echo "$kiln_file is in $kiln_name and in site-packages: set build/preserve_egg_dir to true, or remove it" >&2
      exit 1
    fi
  done
  cp -RP "$kiln_egg/." "${kiln_egg%/*}/"
  rm -rf "$kiln_egg"
done
"""

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


def compile_modules_lines(output: Output) -> tuple[str, ...]:
    """Return the lines that compile an output's Python modules without the path of the prefix in their bytecode.

    Only where the Python in ``host`` can be run; the engine compiles what then lacks bytecode. Packages for all Pythons
    are compiled when they are installed.
    """
    settings = output.settings.python
    if output.settings.by_engine or output.noarch or settings.version_independent or not _requires_python(output):
        return ()
    program, patterns = '"$PREFIX/bin/python"', " ".join(map(shlex.quote, settings.skip_pyc))
    runs = f"if {program} -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then"
    return (runs, f"{program} - {patterns} <<'KILN'", *_COMPILE.splitlines(), "KILN", "fi")


def _requires_python(output: Output) -> bool:
    return any(package_name(spec) == "python" for spec in (*output.requirements.host, *output.requirements.build))


def direct_url_removal_script(output: Output) -> tuple[str, ...]:
    """Return the lines that remove pip's records of local sources, in a package that installs with Python."""
    return _FORGET_SOURCES if _requires_python(output) and not output.settings.by_engine else ()


def remove_excluded_files_lines(output: Output) -> tuple[str, ...]:
    """Return the lines that remove what conda-build leaves out of every package; a noarch one has no bytecode."""
    if output.settings.by_engine:
        return ()
    names = (*_NO_FILES, "*.pyc") if output.noarch else _NO_FILES
    files, folders = (" -o ".join(f"-name {shlex.quote(name)}" for name in each) for each in (names, _NO_FOLDERS))
    tests = f"\\( {folders} -o ! -type d \\( {files} \\) \\)"
    return (
        f'find "$PREFIX" -path "$PREFIX/conda-meta" -prune -o {tests} -prune -exec rm -rf {{}} +',
        'rm -f "$PREFIX"/share/info/dir "$PREFIX"/lib/python*/site-packages/easy-install.pth',
    )


def unpack_eggs_lines(output: Output) -> tuple[str, ...]:
    """Return the lines that merge eggs into site-packages, or list them there, in a package that installs with Python.

    A file that both have ends the build, as in conda-build.
    """
    if output.settings.by_engine or not _requires_python(output):
        return ()
    return (f"kiln_keep={'yes' if output.settings.python.keep_eggs else ''}", *_UNPACK_EGGS.splitlines())


def install_link_scripts_lines(output: Output, recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that install the scripts that run when a package is linked or unlinked."""
    lines = []
    for kind, file in output.settings.link_scripts.items():
        target = shlex.quote(f".{output.name}-{kind}.sh")
        lines.append(f'install -D -m 775 {shlex.quote(str(recipe_folder / file))} "$PREFIX/bin/"{target}')
    return tuple(lines)


def recipe_license_path(license_file: str, recipe_folder: Path) -> str:
    """Return the path of a license relative to the recipe if it is an absolute one inside it; else unchanged."""
    path = PurePath(license_file)
    inside = path.is_absolute() and ".." not in path.parts and path.is_relative_to(recipe_folder)
    return str(path.relative_to(recipe_folder)) if inside else license_file


def copy_recipe_licenses_to_workdir_lines(licenses: Iterable[str], recipe_folder: Path) -> tuple[str, ...]:
    """Return the lines that copy licenses from the recipe into the work directory, where it does not have them."""
    lines = []
    for license_file in licenses:
        name = recipe_license_path(license_file, recipe_folder)
        if name != license_file:  # an absolute path means the recipe's file, whatever the sources have
            lines.append(f'(cd {shlex.quote(str(recipe_folder))} && cp -r --parents {shlex.quote(name)} "$SRC_DIR/")')
        elif not name.startswith(("/", ".")) and ".." not in name.split("/"):
            own, there = shlex.quote(name), shlex.quote(str(recipe_folder / "." / name))
            copy = f'(cd {shlex.quote(str(recipe_folder))} && cp -r --parents {own} "$SRC_DIR/")'
            lines.append(f"if [ ! -e {own} ] && [ -e {there} ]; then {copy}; fi")
    return tuple(lines)
