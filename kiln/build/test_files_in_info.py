"""The tests that a package carries in ``info/test``, in conda-build's layout: a package can be tested from itself.

Source: conda_build/create_test.py, and copy_test_source_files in conda_build/build.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.build.recipe_files_in_info import file_part_within_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kiln.model.rendered import Output, OutputTest

    Part = str | dict[str, str]

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
