"""The files that a package carries in ``info``: its recipe, tests, readme and messages."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yaml

from kiln import __version__
from kiln.base import files as base_files
from kiln.base import http
from kiln.base.errors import BuildFailed, RecipeFault
from kiln.base.yaml import typed_variant_value
from kiln.conda.package_reader import InfoFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.recipe.rendered import Output, OutputTest

    Part = str | dict[str, str]


MESSAGES, LOG = "prelink_messages", "recipe_log.json"
# The names in ``info`` that have a meaning of their own, which no readme may have.
_RESERVED = frozenset(
    {
        *("about.json", "files", "git", "has_prefix", "hash_input.json", "index.json", "link.json", "no_link"),
        *("paths.json", "run_exports.json", "licenses", "recipe", "repodata_record.json", "test", "tests"),
        *(MESSAGES, LOG),
    }
)


def copy_about_files_lines(output: Output, recipe_folder: Path, place: Path) -> tuple[str, ...]:
    """Return the lines that copy the files of ``about`` to a folder, from the work directory or from the recipe."""
    target, lines = (
        shlex.quote(str(place)),
        [*_copy_readme_lines(output), *_copy_prelink_message_lines(output, recipe_folder)],
    )
    log = output.about_texts("recipe_log_file") or (LOG,)
    lines += [
        f"for kiln_file in {shlex.quote(str(recipe_folder / log[0]))} {shlex.quote(log[0])}; do",
        f'  if [ -f "$kiln_file" ]; then cp "$kiln_file" "$kiln_about/{LOG}"; break; fi',
        "done",
    ]
    return (f"kiln_about={target}", 'rm -rf "$kiln_about"; mkdir -p "$kiln_about"', *lines)


def _copy_readme_lines(output: Output) -> Iterator[str]:
    for name in output.about_texts("readme"):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or {*path.parts[:1]} <= _RESERVED:
            raise RecipeFault(
                f"{output.name}: about/readme is {name[:80]!r}",
                why="the file gets this name in the package's metadata, next to its own files",
                hint="README.md, README.rst or README, a file of the sources",
            )
        quoted = shlex.quote(name)
        yield f'[ -f {quoted} ] || {{ echo "about/readme is not in the sources: "{quoted} >&2; exit 1; }}'
        yield f'cp --parents {quoted} "$kiln_about/"'


def _copy_prelink_message_lines(output: Output, recipe_folder: Path) -> Iterator[str]:
    """Yield the lines for messages, files or folders; one by an absolute path, or a dotted one, is numbered."""
    number = 0
    for name in output.about_texts("prelink_message"):
        own, target = shlex.quote(name), f'"$kiln_about"/{MESSAGES}/{shlex.quote(name)}'
        yield f"kiln_file={own}; [ -e {own} ] || kiln_file={shlex.quote(str(recipe_folder / name))}"
        missing = f'echo "about/prelink_message is neither in the sources nor in the recipe: "{own} >&2'
        yield f'[ -e "$kiln_file" ] || {{ {missing}; exit 1; }}'
        if name.startswith(("/", ".")) or ".." in PurePosixPath(name).parts:
            target = f'"$kiln_about"/{MESSAGES}/PRELINK_MESSAGE{number}"$([ -d "$kiln_file" ] || echo .txt)"'
            number += 1
        yield f'mkdir -p "$(dirname {target})"; cp -RL "$kiln_file" {target}'


LARGEST = 1 << 27  # bytes of all files; readers of packages refuse more metadata than twice that
# Folders and files that are not part of a recipe: of version control, of desktops, and of running modules from it.
FOREIGN = frozenset((".git", ".hg", ".svn", ".DS_Store", "__pycache__"))


def collect_info_files(entries: Iterable[dict[str, Any]]) -> dict[str, InfoFile]:
    """Return the files of planned entries by their names below ``info/``; a later entry replaces an earlier one."""
    files: dict[str, InfoFile] = {}
    left = LARGEST
    for entry in entries:
        for name, parts in _files_of_tree(entry) if "tree" in entry else _file_made_of_parts(entry):
            data, mode = b"", 0o644
            for part in parts:  # a file can be executed if its last part can
                limit = left - len(data)
                more = _read_within_limit(part, name, limit) if isinstance(part, Path) else part.encode()
                if more is None or len(more) > limit:
                    raise BuildFailed(
                        f"info/{name} and the files before it have more than {LARGEST:,} bytes",
                        why="the package contains its recipe and the files of its tests",
                        hint="keep sources out of the recipe's folder, or set build/include_recipe to false",
                    )
                data += more
                mode = mode if isinstance(part, str) else 0o755 if part.stat().st_mode & 0o111 else 0o644
            left -= len(data)
            files[name] = InfoFile(data=data, mode=mode)
    return files


def _read_within_limit(file: Path, name: str, limit: int) -> bytes | None:
    """Return the bytes of a file; None, without reading it, where it has more than the limit."""
    try:
        size = file.stat().st_size if file.is_file() else -1
        data = file.read_bytes() if 0 <= size <= limit else None
    except OSError as error:
        raise BuildFailed(f"{file.name}, for info/{name}, cannot be read", why=str(error)) from error
    if size < 0:
        raise BuildFailed(f"{file.name}, for info/{name}, cannot be read", why="it is missing, or not a regular file")
    return data


def _file_made_of_parts(entry: dict[str, Any]) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the one file of an entry: texts and files, which must be in the folder that the entry gives for them."""
    parts: list[str | Path] = []
    for part in entry["parts"]:
        file = None if isinstance(part, str) else Path(part["file"])
        if file is not None and not file.resolve().is_relative_to(Path(part["within"]).resolve()):
            raise BuildFailed(
                f"{file.name}, for info/{entry['to']}, is outside the recipe's folder",
                why="a package contains files of its recipe alone, and links do not lead out of it",
                hint="put the file itself into the recipe's folder",
            )
        parts.append(part if file is None else file)
    yield _validated_info_name(entry["to"]), parts


def _files_of_tree(entry: dict[str, Any]) -> Iterator[tuple[str, list[str | Path]]]:
    """Yield the files of a folder that match an entry's patterns, and all files in folders that do.

    With ``below``, a pattern matches at any depth. A link that leads out of the folder is left out: what it leads to is
    not the recipe's. So is a pattern that leads out of it.
    """
    top = Path(entry["tree"])
    root, without = top.resolve(), {top / name for name in entry.get("without", ())}
    for pattern in (pattern for pattern in entry["patterns"] if ".." not in PurePosixPath(pattern).parts):
        for match in base_files.files_matching(top, pattern, below=bool(entry.get("below"))):
            for file in sorted(match.rglob("*")) if match.is_dir() and not match.is_symlink() else [match]:
                place = file.relative_to(top)
                if file in without or FOREIGN.intersection(place.parts) or not file.is_file():
                    continue
                if not file.resolve().is_relative_to(root):
                    text = f"info/{entry['to']}: {place} is left out, a link that leads out of the folder\n"
                    sys.stdout.write(text)
                    continue
                yield _validated_info_name(f"{entry['to']}/{place.as_posix()}"), [file]


def _validated_info_name(text: str) -> str:
    """Return the name of a file below ``info/``."""
    name = PurePosixPath(text)
    if name.is_absolute() or ".." in name.parts:
        raise BuildFailed(f"info/{text} is outside the package's metadata")
    return str(name)


META, TEMPLATE, VARIANT = "meta.yaml", "meta.yaml.template", "conda_build_config.yaml"
VARIANT_V1 = "variant_config.yaml"
# The order of the sections of a rendered recipe, by FIELDS in conda_build/metadata.py; outputs are not shown in it.
SECTIONS = ("package", "source", "build", "requirements", "app", "test", "about", "extra")
# Marks that have conda-build test the package as it is, with the files in info/test.
FINAL = {"final": True, "copy_test_source_files": True}
LOCAL = "file:"
_HEADER = f"""# This file created by kiln {__version__}
# The recipe before rendering: {TEMPLATE}, or parent/{META}
# ------------------------------------------------

"""


def recipe_file_entries(output: Output, recipe_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the files in ``info/recipe``, but for the rendered recipe, which needs the solved packages.

    They are the variant and the recipe's own files: in its folder, or in ``parent`` for an output of another name, with
    the output's script in the folder of the rendered recipe.
    """
    variant = {
        "to": f"recipe/{VARIANT}",
        "parts": [_yaml_text(variant_without_credentials(output.all_keys), in_order=False)],
    }
    if not output.is_output:
        files = {"to": "recipe", "tree": str(recipe_folder), "patterns": ["*"], "without": [META, VARIANT]}
        template = {"to": f"recipe/{TEMPLATE}", "parts": [file_part_within_folder(recipe_folder / META, recipe_folder)]}
        return [files, template, variant]
    files = {"to": "recipe/parent", "tree": str(recipe_folder), "patterns": ["*"]}
    scripts = [
        {"to": f"recipe/{script}", "parts": [file_part_within_folder(recipe_folder / script, recipe_folder)]}
        for script in filter(None, [output.script.file])
    ]
    return [files, *scripts, variant]


def file_part_within_folder(file: Path, folder: Path) -> dict[str, str]:
    """Return the part of an entry that is a file in a folder, out of which no link may lead."""
    return {"file": str(file), "within": str(folder)}


def recipe_yaml_file_entries(output: Output, recipe_folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the files in ``info/recipe`` of a recipe.yaml, in rattler-build's layout.

    Its own record is of the recipe that kiln gives it; it keeps its rendered recipe, with the solved packages.
    """
    variant = {"to": f"recipe/{VARIANT_V1}", "parts": [_yaml_text(to_builtin_types(output.used), in_order=False)]}
    return [{"to": "recipe", "tree": str(recipe_folder), "patterns": ["*"]}, variant]


def variant_without_credentials(variant: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all variant keys, without credentials and without channels on the building machine."""
    values: dict[str, Any] = to_builtin_types(dict(variant))
    channels = values.get("channel_sources")
    if isinstance(channels, str):
        others = (channel for channel in channels.split(",") if not channel.startswith(LOCAL))
        values["channel_sources"] = ",".join(map(http.url_without_credentials, others))
    return {key: value for key, value in values.items() if key != "channel_sources" or value}


def evaluated_recipe_sections(output: Output) -> dict[str, Any]:
    """Return the evaluated sections of a recipe for its rendered form, before anything is solved."""
    given = {key: output.sections[key] for key in SECTIONS if key in output.sections}
    if "source" in given:
        given["source"] = _sources_without_passwords(given["source"])
    build = {**(given.get("build") or {}), "number": output.build_number, "string": output.build_string}
    package = {"name": output.name, "version": output.version}
    extra = {**(given.get("extra") or {}), **FINAL}
    values: dict[str, Any] = to_builtin_types({**given, "package": package, "build": build, "extra": extra})
    return values


def _sources_without_passwords(sources: Any) -> Any:
    """Return the source section without the passwords of Subversion, which may come from the environment."""
    if isinstance(sources, list):
        return [_sources_without_passwords(entry) for entry in sources]
    return {k: v for k, v in sources.items() if k != "svn_password"} if isinstance(sources, dict) else sources


def to_builtin_types(value: Any) -> Any:
    """Return a value of a recipe with built-in types, for JSON and YAML."""
    value = typed_variant_value(value)
    if isinstance(value, dict):
        return {str(key): to_builtin_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin_types(item) for item in value]
    return value if isinstance(value, bool | int | float) or value is None else str(value)


def rendered_meta_yaml(
    sections: Mapping[str, Any],
    *,
    resolved: Mapping[str, Iterable[tuple[str, str, str]]],
    index: Mapping[str, Any],
    run_exports: Mapping[str, Any],
) -> str:
    """Return the rendered meta.yaml of a finished package.

    ``resolved`` are names, versions and build strings of the packages in ``build`` and ``host``; ``index`` and
    ``run_exports`` are the package's metadata.
    """
    given = sections.get("requirements")
    names = set(given) if isinstance(given, dict) else set()
    merged = "build" in names and "host" not in names and not resolved.get("build")
    solved = {"build": resolved.get("host", ())} if merged else resolved
    requirements = {
        **{name: sorted(map(" ".join, solved.get(name, ()))) for name in ("build", "host")},
        "run": list(index.get("depends", ())),
        "run_constrained": list(index.get("constrains", ())),
    }
    needs = {name: specs for name, specs in requirements.items() if specs or name in names or name == "run"}
    build = {**sections["build"], **_run_exports_with_bounds(sections["build"], run_exports)}
    values = {**sections, "build": build, "requirements": needs}
    ordered = {key: values[key] for key in SECTIONS if values.get(key)}
    return _HEADER + _yaml_text(ordered, in_order=True)


def _run_exports_with_bounds(build: Mapping[str, Any], run_exports: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run exports with their bounds, as a list where the recipe has one."""
    if not run_exports:
        return {}
    by_kind = isinstance(build.get("run_exports"), dict)
    return {"run_exports": dict(run_exports) if by_kind else list(run_exports.get("weak", ()))}


def _yaml_text(value: Mapping[str, Any], *, in_order: bool) -> str:
    return str(yaml.safe_dump(dict(value), sort_keys=not in_order, default_flow_style=False, allow_unicode=True))


SHELL, BATCH = "run_test.sh", "run_test.bat"
# The lines that load a module, by the language of imports and the file of its tests.
IMPORTS = {
    "python": ("run_test.py", "import {}"),
    "perl": ("run_test.pl", "use {};"),
    "r": ("run_test.r", "library({})"),
    "lua": ("run_test.lua", 'require "{}"'),
}


def test_file_entries(output: Output, recipe_folder: Path, sources: Path) -> list[dict[str, Any]]:
    """Return the entries of the files in ``info/test``; ``sources`` is the folder of the tests' source files.

    An entry is a file of parts, which are texts and other files, or a tree of files that match patterns.
    """
    return [entry for test in output.tests for entry in _file_entries_of_test(test, output, recipe_folder, sources)]


def _file_entries_of_test(
    test: OutputTest, output: Output, recipe_folder: Path, sources: Path
) -> Iterator[dict[str, Any]]:
    if test.requires:
        yield _test_file_entry("test_time_dependencies.json", [json.dumps(list(test.requires))])
    scripts = {name: recipe_folder / file for name, file in test.scripts.items()}
    for name in dict.fromkeys((*(file for file, _ in IMPORTS.values()), SHELL)):
        script = [file_part_within_folder(scripts[name], recipe_folder)] if name in scripts else []
        parts = [*script, *_import_lines(test, name)]
        if name == SHELL and test.script.lines:
            parts.append("\n".join(("", "set -ex", *test.script.lines, "exit 0", "")))
        if parts:
            yield _test_file_entry(name, parts)
    if output.noarch and test.script.lines:
        steps = (text for line in test.script.lines for text in (line, "IF %ERRORLEVEL% NEQ 0 exit /B 1"))
        yield _test_file_entry(BATCH, ["\n".join(("@echo on", *steps, "exit /B 0", ""))])
    if test.files:
        yield {"to": "test", "tree": str(recipe_folder), "patterns": list(test.files), "below": True}
    if test.source_files:
        yield {"to": "test", "tree": str(sources), "patterns": ["*"], "below": False}


def _test_file_entry(name: str, parts: Iterable[Part]) -> dict[str, Any]:
    return {"to": f"test/{name}", "parts": list(parts)}


def _import_lines(test: OutputTest, name: str) -> list[Part]:
    """Return the lines that load the modules of the language whose tests are in a file."""
    languages = [language for language, (file, _) in IMPORTS.items() if file == name]
    modules = [
        (language, module)
        for language in languages
        for module in (*(test.imports if language == test.language else ()), *test.modules.get(language, ()))
    ]
    return ["\n" + IMPORTS[language][1].format(module) + "\n" for language, module in modules]
