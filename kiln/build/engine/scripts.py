"""The shell lines around an output's script: prepared sources, its interpreter, a prefix put right."""

from __future__ import annotations

import re
import shlex
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING

from kiln.base.patterns import file_name_of_url, is_wheel
from kiln.build.engine.source_plan import is_unpacked_by_kiln
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.recipe.rendered import Output, Script, Source


def prepare_sources_lines(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the lines that leave the sources as conda-build has them when the script starts."""
    return (*unpack_wheels_lines(sources), *remove_checkout_marks_lines(sources))


def unpack_wheels_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the lines that unpack wheels among the sources next to them, as conda-build does."""
    lines = []
    for source in sources:
        name = source.file_name or (file_name_of_url(source.url[0]) if source.url else "")
        if is_wheel(name) and not source.by_engine and not is_unpacked_by_kiln(source):
            folder = f"cd {shlex.quote(source.folder)} && " if source.folder else ""
            unpack = f'"$kiln_python" -m zipfile -e {shlex.quote(name)} .'
            lines.append(f"({folder}{unpack})")
    choice = (
        'for kiln_python in "$PREFIX/bin/python" "$BUILD_PREFIX/bin/python" python3; do',
        '  if command -v "$kiln_python" >/dev/null; then break; fi',
        "done",
    )
    return (*choice, *lines) if lines else ()


def remove_checkout_marks_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the lines that remove the engine's mark of a finished checkout, ``.ok``, from git repositories.

    A repository's own file of that name stays.
    """
    lines = []
    for source in sources:
        if source.git_url is not None and not source.by_engine:
            folder = shlex.quote(source.folder or ".")
            lines.append(f"git -C {folder} ls-files --error-unmatch .ok >/dev/null 2>&1 || rm -f {folder}/.ok")
    return tuple(lines)


# The command of each interpreter, by its names in recipe.yaml, and the interpreters of files by their suffixes.
COMMANDS = {
    "bash": "bash -e",
    "python": "python",
    "perl": "perl",
    "rscript": "Rscript",
    "ruby": "ruby",
    "node": "node",
    "nodejs": "node",
    "nu": "nu",
    "nushell": "nu",
}
SUFFIXES = {".py": "python", ".pl": "perl", ".r": "rscript", ".rb": "ruby", ".js": "nodejs", ".nu": "nushell"}
_INLINE, _END = ".kiln-script", "KILN_END_OF_SCRIPT"
_UNTRACE = "{ case $- in *x*) kiln_trace=-x ;; *) kiln_trace=+x ;; esac; set +x; } 2>/dev/null"
_TRACE = 'set "$kiln_trace"; { unset kiln_trace; } 2>/dev/null'


def export_lines(environment: Mapping[str, str]) -> list[str]:
    """Return the shell lines that set variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def lines_without_shell_trace(lines: Iterable[str]) -> tuple[str, ...]:
    """Return shell lines that leave no trace of `set -x` in a build's output, which is the recipe's script alone."""
    content = tuple(lines)
    return (_UNTRACE, *content, _TRACE) if content else ()


def script_run_lines(script: Script, recipe_folder: Path) -> tuple[str, ...]:
    """Return the shell lines that run a script: a file of the recipe by its kind, or its lines."""
    entrance = export_lines(script.environment)
    if script.folder is not None:
        prefix = "" if PurePosixPath(script.folder).is_absolute() else '"$PREFIX"/'
        entrance.append(f"cd {prefix}{shlex.quote(script.folder)}")
    return (*entrance, *_script_commands(script, recipe_folder))


def _script_commands(script: Script, recipe_folder: Path) -> tuple[str, ...]:
    suffix = PurePosixPath(script.file or "").suffix.lower()
    interpreter = script.interpreter or SUFFIXES.get(suffix, "bash")
    command = shlex.join(script.program.split()) if script.program else COMMANDS[interpreter]
    if script.file is not None:
        return (f"{command} {shlex.quote(str(recipe_folder / script.file))}",)
    if interpreter == "bash" or not script.lines:
        return script.lines
    inline = "\n".join((f"cat >{_INLINE} <<'{_END}'", *script.lines, _END))
    # One item for each step: those of a test are counted.
    return (
        "\n".join(lines_without_shell_trace((inline,))),
        f"{command} {_INLINE}",
        "\n".join(lines_without_shell_trace((f"rm {_INLINE}",))),
    )


WORK, PREFIX, INSTALLED = "work_directory", "prefix", "installed.tar"
_LIST = "find . -mindepth 1 ! -type d | LC_ALL=C sort"


def record_compile_workdir_lines(folder: Path) -> tuple[str, ...]:
    """Return the lines that record the compile step's work directory, and the files of its prefix beforehand."""
    place = shlex.quote(str(folder))
    return (
        f'printf "%s\\n" "$SRC_DIR" >{place}/{WORK}',
        f'printf "%s\\n" "$PREFIX" >{place}/{PREFIX}',
        f'(cd "$PREFIX" && {_LIST}) >{place}/before',
    )


def archive_installed_files_lines(folder: Path) -> tuple[str, ...]:
    """Return the lines that archive the compile step's installed files, for outputs that only pick files."""
    place = shlex.quote(str(folder))
    return (
        f'(cd "$PREFIX" && {_LIST}) >{place}/after',
        f"LC_ALL=C comm -13 {place}/before {place}/after >{place}/new",
        f'tar -C "$PREFIX" -cf {place}/{INSTALLED} -T {place}/new',
    )


def enter_compile_workdir_lines(folder: Path, output: Output, top: str) -> tuple[str, ...]:
    """Return the lines that change to the work directory of the compile step in ``folder``, before an output's script.

    ``top`` is the name of the recipe itself.
    """
    place = shlex.quote(str(folder))
    enter = ('kiln_own="$PWD"', f'export SRC_DIR="$(cat {place}/{WORK})"', 'cd "$SRC_DIR"')
    return (*enter, *(_unpack_installed_files_lines(place) if packs_files_without_script(output, top) else ()))


def packs_files_without_script(output: Output, top: str) -> bool:
    """Return whether an output has no script, and takes files that the compile step installed.

    These are the files that it names, or all for the output named like the recipe (conda-build's ``build.build``).
    """
    return (bool(output.files) or output.name == top) and output.script.file is None and not output.script.lines


def copy_staging_workdir_lines(folder: Path, output: Output, licenses: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that bring an output a copy of a staging output's work directory, and its installed files.

    The paths of the staging output's prefix and work directory become the output's, with unchanged times of files, so
    that a build tool finds nothing to do again. Sources of the output's own stay.
    """
    place = shlex.quote(str(folder))
    enter = (
        'kiln_own="$PWD"',
        f'kiln_work="$(cat {place}/{WORK})"',
        *_unpack_installed_files_lines(place, "--skip-old-files "),
    )
    tested = any(test.source_files for test in output.tests)
    if output.script.file is None and not output.script.lines and not tested:
        patterns = [shell_quoted_glob(pattern) for pattern in licenses]
        copies = (f"for kiln_file in {pattern}; do {_COPY_ONE}; done" for pattern in patterns)
        return (*enter, 'cd "$kiln_work"', *copies, 'cd "$SRC_DIR"')
    copied = _COPY_BESIDE if output.sources else _COPY
    return (*enter, copied, *_RELOCATE)


# The engine's own files in each work directory.
_ENGINES = ("conda_build.sh", "build_env.sh", "conda_build.log", ".source_info.json")
_COPY_ONE = 'if [ -e "$kiln_file" ]; then cp -r --parents -- "$kiln_file" "$kiln_own/"; fi'
_COPY = (
    f'find "$kiln_work" -mindepth 1 -maxdepth 1 {" ".join(f"! -name {name}" for name in _ENGINES)} '
    '-exec cp -a --reflink=auto -t "$SRC_DIR" {} +'
)
_COPY_BESIDE = (
    f'tar -C "$kiln_work" {" ".join(f"--exclude=./{name}" for name in _ENGINES)} -cf - . '
    '| tar -C "$SRC_DIR" --skip-old-files -xf -'
)
_RELOCATE = (
    "kiln_replace() {",
    '  while IFS= read -r -d "" kiln_file; do',
    '    touch -r "$kiln_file" "$kiln_own/.kiln-time"',
    '    LC_ALL=C sed -i "s|$1|$2|g" "$kiln_file"',
    '    touch -r "$kiln_own/.kiln-time" "$kiln_file"',
    "  done",
    "}",
    f'kiln_skip="{" ".join(f"--exclude={name}" for name in _ENGINES)}"',
    '{ grep -rlFZ $kiln_skip -e "$kiln_old" . || true; } | kiln_replace "$kiln_old" "$PREFIX"',
    '{ grep -rlIFZ $kiln_skip -e "$kiln_work" . || true; } | kiln_replace "$kiln_work" "$SRC_DIR"',
    'kiln_relink . "$kiln_work" "$SRC_DIR"',
    'kiln_relink . "$kiln_old" "$PREFIX"',
    'rm -f "$kiln_own/.kiln-time" "$kiln_own/.kiln-relocated"',
)
# Have the absolute links of a folder that lead into an old folder lead into a new one.
_RELINK = (
    "kiln_relink() {",
    '  find "$1" -type l -lname "$2/*" -print0 | while IFS= read -r -d "" kiln_file; do',
    '    kiln_aim="$(readlink "$kiln_file")"',
    '    ln -sfn "$3${kiln_aim#"$2"}" "$kiln_file"',
    "  done",
    "}",
)


def copy_test_sources_lines(patterns: Iterable[str], place: Path) -> tuple[str, ...]:
    """Return the lines that copy the source files of a test to ``place``; globs are the shell's.

    The engine's own files among them hold paths of this machine.
    """
    target = shlex.quote(str(place))
    copies = (f"cp -r --parents -- {shell_quoted_glob(pattern)} {target}/" for pattern in patterns)
    return (f"rm -rf {target}", f"mkdir -p {target}", *copies, f"(cd {target} && rm -f {' '.join(_ENGINES)})")


def shell_quoted_glob(pattern: str) -> str:
    """Return a pattern as the shell expands it, all but its wildcards quoted."""
    return re.sub(r"[^*?\[\]]+", lambda part: shlex.quote(part[0]), pattern)


def copy_licenses_to_engine_lines(licenses: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that copy licenses to the engine's own work directory, where it looks for them."""
    return tuple(
        f'if [ -e {name} ] && [ "$kiln_own" != "$PWD" ]; then cp -r --parents {name} "$kiln_own/"; fi'
        for name in map(shlex.quote, licenses)
    )


def _unpack_installed_files_lines(place: str, options: str = "") -> tuple[str, ...]:
    """Return the lines that unpack the compile step's files and relocate them; prefixes are padded to equal length.

    ``options`` are tar's: with ``--skip-old-files``, files of the packages in the prefix stay.
    """
    return (
        f'kiln_old="$(cat {place}/{PREFIX})"',
        f'tar -C "$PREFIX" {options}-xf {place}/{INSTALLED}',
        'cd "$PREFIX"',
        f'{{ xargs -r -d "\\n" grep -lF -e "$kiln_old" -- <{place}/new || true; }} >"$kiln_own/.kiln-relocated"',
        'xargs -r -d "\\n" sed -i --follow-symlinks "s|$kiln_old|$PREFIX|g" <"$kiln_own/.kiln-relocated"',
        *_RELINK,
        'kiln_relink "$PREFIX" "$kiln_old" "$PREFIX"',
        'cd "$SRC_DIR"',
    )


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
