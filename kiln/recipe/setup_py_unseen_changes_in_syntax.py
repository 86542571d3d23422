"""The ways in which a setup.py may change a value that its reader does not follow, such as aliases and ``exec``."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# With any of these, a script can change each of its names.
_OPAQUE = frozenset({
    "exec", "eval", "execfile", "globals", "locals", "vars", "setattr", "delattr", "__dict__", "__globals__",
    "__builtins__", "__setattr__", "modules", "f_globals", "f_locals", "f_back", "_getframe", "currentframe",
    "import_module", "__import__",
})  # fmt: skip
_BUILTINS = frozenset({"int", "float", "len", "str", "list", "dict", "tuple", "open", "__file__", "__name__"})
WORDS_OF_SCRIPT_FOLDER = frozenset({"os", "path", "dirname", "abspath", "realpath", "__file__"})
_READING = frozenset({"get", "items", "keys", "values", "index", "copy"})
_COPYING = frozenset({"len", "str", "list", "dict", "tuple", "sorted", "print"})


@dataclass(frozen=True, slots=True)
class UnseenChanges:
    """The changes that a script may make unseen.

    ``names`` are never known. The lists and dicts of ``shared`` may be changed by another name, or by a function; those
    outside of ``used`` are arguments of ``setup`` alone, and all their parts are known, too.
    ``files`` is true if it may write files or change its folder, ``environment`` if it may change the environment, and
    ``setup`` if it may call ``setup`` in a way that is not followed.
    """

    opaque: bool
    names: frozenset[str]
    shared: frozenset[str]
    used: frozenset[str]
    files: bool
    environment: bool
    setup: bool


def unseen_changes(tree: ast.Module) -> UnseenChanges:
    """Return the changes that a script may make unseen."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    nodes = list(ast.walk(tree))
    loads = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    stored = {name for node in nodes if not isinstance(node, ast.alias) for name in bound_names(node)}
    imports = [alias for alias in nodes if isinstance(alias, ast.alias)]
    words = {name_or_attribute(node) for node in nodes}
    changed = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
    changed |= {node.target.id for node in nodes if isinstance(node, ast.NamedExpr)}
    return UnseenChanges(
        opaque=bool(
            words & _OPAQUE or stored & (_BUILTINS | _COPYING) or any(node.name in _OPAQUE for node in imports)
        ),
        names=frozenset(changed),
        shared=frozenset(node.id for node in loads if not _is_read_only_use(node, parents)),
        used=frozenset(node.id for node in loads if not _is_setup_argument(node, parents)),
        files=any(_may_change_files(node) for node in nodes),
        environment=bool(words & {"putenv", "unsetenv"})
        or any(node.name in {"environ", "putenv", "unsetenv"} for node in imports)
        or any(name_or_attribute(node) == "environ" and not _is_read_only_use(node, parents) for node in nodes),
        setup="setup" in stored
        or any(node.name == "setup" and node.asname not in {None, "setup"} for node in imports)
        or any(name_or_attribute(node) == "setup" and not _is_called_at_top_level(node, parents) for node in nodes),
    )


def bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node itself binds or removes."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case (
            ast.ExceptHandler(name=str() as name)
            | ast.MatchAs(name=str() as name)
            | ast.MatchStar(name=str() as name)
            | ast.MatchMapping(rest=str() as name)
        ):
            yield name


def name_or_attribute(node: ast.AST) -> str:
    """Return the name of a node, or that of the attribute that it reads; empty for other nodes."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_called_at_top_level(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a name is called by a statement that is only this call, outside of all functions."""
    call = parents[node]
    if not (isinstance(call, ast.Call) and call.func is node and isinstance(parents[call], ast.Expr)):
        return False
    above = parents[call]
    while above in parents:
        above = parents[above]
        if isinstance(above, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
    return True


def _is_setup_argument(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    argument = parents[node]
    call = parents[argument] if isinstance(argument, ast.keyword) else None
    return isinstance(call, ast.Call) and name_or_attribute(call.func) == "setup"


def _is_read_only_use(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Return whether the use of a list or dict neither changes it nor gives it another name."""
    match parents[node]:
        case ast.Subscript(ctx=ast.Load()) | ast.Compare() | ast.BinOp() | ast.FormattedValue() | ast.Expr():
            return True
        case ast.Attribute(attr=attribute) as method:
            return attribute in _READING and isinstance(parents[method], ast.Call)
        case ast.Call(func=function) as call:
            return function is not node and not call.keywords and name_or_attribute(function) in _COPYING | {"join"}
        case ast.For(iter=use) | ast.comprehension(iter=use) | ast.If(test=use) | ast.IfExp(test=use):
            return use is node
        case _:
            return _is_setup_argument(node, parents)


def _may_change_files(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    words = {word for part in ast.walk(node) if (word := name_or_attribute(part))}
    if name_or_attribute(node.func) == "chdir":
        return not {"dirname", "__file__"} <= words <= WORDS_OF_SCRIPT_FOLDER | {"chdir"}
    if name_or_attribute(node.func) in {"write_text", "write_bytes"}:
        return True
    modes = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
    return name_or_attribute(node.func) == "open" and not all(
        isinstance(mode, ast.Constant) and not set(str(mode.value)) & set("wax+") for mode in modes
    )
