"""Rules of the source code, read from each module's syntax tree.

The packages stand in one order: an import points to a package before its own, and no modules import each other in a
cycle. Systems differ in one package alone, and no message names a page that an installed kiln lacks.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kiln.base.process import Program
from tests.source_files import FILES, PACKAGE, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Each package imports only those before it. docs/explanation/design.md has the same list.
ORDER = (
    *("base", "container", "compat", "conda", "recipe", "feedstock", "image"),
    *("state", "build", "run", "publish", "fleet", "cli"),
)
RANK = {package: place for place, package in enumerate(ORDER)}


def part_of(file: Path) -> str:
    """Return the first name below kiln/: a package, or a module such as the entry point."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module_of(file: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(("kiln", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


class ModuleContents(NamedTuple):
    """What the rules are about: a module's imports, texts, lines without encoding, and names bound twice."""

    imports: set[str]
    texts: set[str]
    lines_without_encoding: list[int]
    bound_twice: list[str]


@functools.cache
def contents_of(file: Path) -> ModuleContents:
    """Return what a module contains, without its syntax tree: all trees together slow the garbage collection down."""
    nodes = tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return ModuleContents(
        imports_in(nodes), texts_in(nodes), lines_without_encoding(nodes), names_bound_twice(nodes[0])
    )


def imports_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return every module that is imported, inside functions and type-checking blocks too."""
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= {name if name in MODULES else node.module for name in names}
    return modules


def modules_imported_by(file: Path) -> set[str]:
    """Return the other modules of kiln that a module imports."""
    return contents_of(file).imports & MODULES.keys() - {module_of(file)}


def parts_imported_by(file: Path) -> set[str]:
    """Return the other parts of kiln that a module imports."""
    return {name.split(".")[1] for name in modules_imported_by(file)} - {part_of(file)}


def test_every_package_has_a_place_in_the_order() -> None:
    assert {part_of(file) for file in FILES} - {"__main__"} == set(ORDER), "and in docs/explanation/design.md"


def test_no_package_is_nested_deeper_than_two_levels() -> None:
    assert [name_of(file) for file in FILES if len(file.relative_to(PACKAGE).parts) > 3] == []


def test_imports_point_to_earlier_packages() -> None:
    wrong = [
        f"{name_of(file)} imports {other}"
        for file in FILES
        if part_of(file) in RANK
        for other in sorted(parts_imported_by(file))
        if RANK.get(other, len(ORDER)) > RANK[part_of(file)]
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    uses = {module: modules_imported_by(file) for module, file in MODULES.items()}
    while uses:
        free = {module for module, others in uses.items() if not others & uses.keys()}
        assert free, f"these import each other in a cycle, or modules of one: {sorted(uses)}"
        uses = {module: others for module, others in uses.items() if module not in free}


def test_the_set_up_of_the_environment_needs_only_the_standard_library() -> None:
    modules, left = set(), {"kiln.base.bootstrap"}
    while left:
        modules |= left
        left = {name for module in left for name in modules_imported_by(MODULES[module])} - modules
    roots = {name.split(".")[0] for module in modules for name in contents_of(MODULES[module]).imports}
    assert roots <= {*sys.stdlib_module_names, "kiln"}


# What reads recipes of one format; the others get what is rendered, and do not know which format it was.
FORMATS = ("kiln.recipe.v0", "kiln.recipe.v1")
READERS = {"feedstock", "recipe", "run/recipe_checks.py"}


def test_what_comes_after_rendering_does_not_know_the_format_of_the_recipe() -> None:
    users = {
        file
        for file in FILES
        if not module_of(file).startswith(FORMATS)
        and any(name.startswith(FORMATS) for name in modules_imported_by(file))
    }
    assert {name_of(file) if part_of(file) == "run" else part_of(file) for file in users} == READERS


def lines_without_encoding(nodes: Sequence[ast.AST]) -> list[int]:
    """Return the lines that open text in the locale's encoding; archives have none."""
    lines = []
    for node in nodes:
        if not isinstance(node, ast.Call) or {"encoding", "fileobj", None} & {keyword.arg for keyword in node.keywords}:
            continue
        is_method = isinstance(node.func, ast.Attribute)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(node.func.value, "id", "") if isinstance(node.func, ast.Attribute) else ""
        modes = [*node.args[0 if is_method else 1 :][:1], *(key.value for key in node.keywords if key.arg == "mode")]
        mode = next((mode.value for mode in modes if isinstance(mode, ast.Constant)), None)
        is_text = mode in {"r", "w", "a", "x", "r+", "w+"} or any(key.arg == "newline" for key in node.keywords)
        reads = (
            is_method
            and name in {"read_text", "write_text"}
            and owner not in {"files", "base_files", "yaml", "installed"}
        )
        if reads or (name == "open" and is_text):
            lines.append(node.lineno)
    return lines


def names_bound_twice(module: ast.AST) -> list[str]:
    """Return the names that a module assigns twice: one of another module, merged into it, replaced a safe loader."""
    statements = [node for node in ast.iter_child_nodes(module) if isinstance(node, ast.Assign)]
    names = [target.id for node in statements for target in node.targets if isinstance(target, ast.Name)]
    return sorted({name for name in names if names.count(name) > 1})


def test_no_module_binds_a_name_twice() -> None:
    assert [(name_of(file), names) for file in FILES if (names := contents_of(file).bound_twice)] == []


def test_text_files_have_an_encoding() -> None:
    assert [(name_of(file), lines) for file in FILES if (lines := contents_of(file).lines_without_encoding)] == []


@pytest.mark.parametrize(
    "line", ["p.open(newline='')", "open(p, 'w')", "p.open('r')", "p.read_text()", "q.write_text(a)"]
)
def test_a_text_file_without_encoding_is_noticed(line: str) -> None:
    assert lines_without_encoding(tuple(ast.walk(ast.parse(line)))) == [1]


def texts_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the string constants without the docstrings."""
    docstrings: set[str | None] = set()
    texts: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            docstrings.add(ast.get_docstring(node, clean=False))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
    return texts - docstrings


def test_no_message_names_a_page_that_an_installed_kiln_lacks() -> None:
    texts = {(name_of(file), text) for file in FILES for text in contents_of(file).texts}
    assert [(file, text) for file, text in texts if re.search(r"(?<![\w./])docs/[a-z-]+/", text)] == []


def test_each_program_of_kiln_is_in_one_list() -> None:
    sources = {module: file.read_text(encoding="utf-8") for module, file in MODULES.items()}
    programs = {module for module, text in sources.items() if "\ndef main(" in text or '== "__main__"' in text}
    listed = {program.value for program in Program}
    assert listed - programs == {"kiln"}, "whose main is in kiln.__main__"
    elsewhere = {
        (module, text)
        for module, file in MODULES.items()
        if module != "kiln.base.process"
        for text in contents_of(file).texts & (programs | listed) - {"kiln"}
    }
    assert not elsewhere, "a rename would miss these"
    controller = PACKAGE.parent / "ansible/roles/kiln_controller/files/root/usr/local/sbin/kiln-controller"
    assert set(re.findall(r'"(kiln\.[\w.]+)"', controller.read_text(encoding="utf-8"))) == {Program.CONTROLLER.value}
