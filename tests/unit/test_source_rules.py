"""Rules of the source code, read from each module's syntax tree.

The layers of the architecture: an import points down, never sideways between stages, never up. Systems differ in one
package alone, and no message names a page that an installed kiln lacks.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.source_files import FILES, PACKAGE, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

LAYERS = tuple(
    set(parts.split())
    for parts in (
        "errors interprocess_messages lazy_exports lazy_pattern masking model bootstrap serialization operating_system",
        """yamltext template versions variants recipe recipe_v1 matchspec_notation conda_package repodata process_runner
        bazel container local_channel console files zstd system_package_advice ledger limits provenance
        compat package_safety name_rules channel_url_credentials rattler_process process_table
        conda_forge_yml signals folder_lock http_client source_download archive_kinds recipe_script_launch_commands
        emulation git version_spec plain_yaml_loading package_cache solve_and_install virtual_packages""",
        "feedstock_folder_check lint expand render build package_test publish rehearse image report",
        "store job executor builder scheduling run install release fleet bump convert init",
        "cli __main__",
    )
)
LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}
STAGES = 2  # the one layer whose parts never import each other
ACYCLIC = (1, 3)  # layers whose parts may import each other, without a cycle


def part_of(file: Path) -> str:
    """Return the first name below kiln/: a module or a package."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


class ModuleContents(NamedTuple):
    """What the rules are about: a module's imports, the names that it uses, its texts, and lines without encoding."""

    imports: set[str]
    names: set[str]
    texts: set[str]
    lines_without_encoding: list[int]


@functools.cache
def contents_of(file: Path) -> ModuleContents:
    """Return what a module contains, without its syntax tree: all trees together slow the garbage collection down."""
    nodes = tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return ModuleContents(imports_in(nodes), names_in(nodes), texts_in(nodes), lines_without_encoding(nodes))


def imports_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return every module that is imported, inside functions and type-checking blocks too."""
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules.update(f"{node.module}.{alias.name}" for alias in node.names if node.module == "kiln")
    return modules


def parts_imported_by(file: Path) -> set[str]:
    """Return the other parts of kiln that a module imports."""
    return {name.split(".")[1] for name in contents_of(file).imports if name.startswith("kiln.")} - {part_of(file)}


def test_every_part_belongs_to_a_layer() -> None:
    missing = {part_of(file) for file in FILES} - LAYER_OF.keys()
    assert not missing, "give each a layer here and in docs/explanation/design.md"


def test_imports_point_down() -> None:
    """To a lower layer or within one; but stages meet only in model types."""
    wrong = [
        f"{name_of(file)} imports {other}"
        for file in FILES
        for part in [part_of(file)]
        for other in sorted(parts_imported_by(file) - {"__version__"})
        if LAYER_OF[other] > LAYER_OF[part] or LAYER_OF[other] == LAYER_OF[part] == STAGES
    ]
    assert wrong == []


@pytest.mark.parametrize("layer", ACYCLIC)
def test_imports_within_a_layer_make_no_cycle(layer: int) -> None:
    uses: dict[str, set[str]] = {}
    for file in FILES:
        if LAYER_OF.get(part_of(file)) == layer:
            uses.setdefault(part_of(file), set()).update(parts_imported_by(file) & LAYERS[layer])
    while uses:
        free = {part for part, others in uses.items() if not others & uses.keys()}
        assert free, f"these import each other in a cycle: {sorted(uses)}"
        uses = {part: others for part, others in uses.items() if part not in free}


DESTROYS = re.compile(
    r"\brm -[rf]|\b(?:remove|delete) (?:it|them|\{)|\bgit (?:clean|reset|checkout --)|\bkill -9|prune"
)


def test_no_hint_destroys_what_a_user_has_made() -> None:
    """Who pastes a hint loses nothing: files are moved or renamed; options, settings and links are removed."""
    found = [
        f"{name_of(file)}: {text}"
        for file in FILES
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.keyword) and call.arg == "hint"
        if DESTROYS.search(text := ast.unparse(call.value))
    ]
    allowed = {  # settings of conda-forge.yml, a hash in a recipe, and packages in a label of a server
        *("expand/publishing_job_settings.py", "bump/source_hash_literals.py", "publish/servers/server_publication.py"),
        *("run/unsupported_recipe_yaml_keys.py", "build/rattler_build_failure_kinds.py"),
        "cli/build_continued_over_ci_jobs.py",  # an option
    }
    assert [line for line in found if line.partition(":")[0] not in allowed] == []


def test_git_is_called_by_one_module() -> None:
    """But for sources, which are checked out where the build runs."""
    callers = {name_of(file) for file in FILES if re.search(r"""(?<!get)[(\[]\s*["']git["'],""", file.read_text())}
    assert callers == {"git.py", "build/source_repository_checkout.py"}


def test_the_lowest_layer_needs_only_the_standard_library() -> None:
    roots = {
        name.split(".")[0] for file in FILES if LAYER_OF.get(part_of(file)) == 0 for name in contents_of(file).imports
    }
    assert roots <= {*sys.stdlib_module_names, "kiln"}


# What reads recipes of one format; the others get what is rendered, and do not know which format it was.
FORMATS = {"recipe", "recipe_v1"}
READERS = {
    "bump",
    "convert",
    "expand",
    "lint",
    "render",
    "run/recipe_support.py",
    "run/unsupported_recipe_yaml_keys.py",
}


def test_what_comes_after_rendering_does_not_know_the_format_of_the_recipe() -> None:
    users = {
        file.relative_to(PACKAGE)
        for file in FILES
        if part_of(file) not in FORMATS and parts_imported_by(file) & FORMATS
    }
    assert {str(file) if file.parts[0] == "run" else file.parts[0] for file in users} == READERS


UNIX_MODULES = frozenset({"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"})
UNIX_NAMES = frozenset(
    {
        *("os.fork", "os.getuid", "os.getgid", "os.geteuid", "os.chown", "os.mkfifo", "os.killpg", "os.statvfs"),
        *("os.sysconf", "os.pread", "os.pwrite", "os.memfd_create", "os.posix_fallocate", "os.O_NOFOLLOW"),
        *("os.O_CLOEXEC", "os.O_NONBLOCK", "os.O_DIRECTORY", "signal.SIGKILL", "signal.SIGHUP", "sys.platform"),
    }
)
ALLOWED = {
    "limits/forked.py",
    "limits/__init__.py",
    "rehearse/interpreter_facts_script.py",
    "system_package_advice.py",
}  # the last two only read its name


def is_portable(file: Path) -> bool:
    return name_of(file) not in ALLOWED and not name_of(file).startswith("operating_system/")


def names_in(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the imported modules, and the uses of ``module.name``."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            names.add(f"{node.value.id}.{node.attr}")
    return names


def test_no_other_module_needs_unix() -> None:
    needs = {
        name_of(file): contents_of(file).names & (UNIX_MODULES | UNIX_NAMES) for file in FILES if is_portable(file)
    }
    assert {file: names for file, names in needs.items() if names} == {}


def lines_without_encoding(nodes: Sequence[ast.AST]) -> list[int]:
    """Return the lines that open text in the system's encoding, which is not UTF-8 on Windows; archives have none."""
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
        reads = is_method and name in {"read_text", "write_text"} and owner not in {"files", "yamltext", "installed"}
        if reads or (name == "open" and is_text):
            lines.append(node.lineno)
    return lines


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
