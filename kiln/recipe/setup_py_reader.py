"""The arguments of a setup.py and the values of a setup.cfg, as far as they follow without running any code.

conda-build runs the file. Here its syntax tree is read: assignments, conditions, functions that only return a value,
and files that it opens; see `kiln.template.python_expression` for the operations. Everything else is unknown, and a
template that reads an unknown value is refused.
"""

from __future__ import annotations

import ast
import configparser
import copy
import posixpath
import re
from typing import TYPE_CHECKING, Any

from kiln.errors import TemplateFault
from kiln.model.source_position import Place
from kiln.recipe.setup_py_unseen_changes_in_syntax import (
    WORDS_OF_SCRIPT_FOLDER,
    bound_names,
    name_or_attribute,
    unseen_changes,
)
from kiln.recipe.setup_py_values_mapping import SetupData
from kiln.template.python_expression import ExpressionError, MissingName, evaluate_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping

    from kiln.template.namespace import RestrictedOs

    Read = Callable[[str], str | None]

_MAX_LENGTH = 200_000
_DEPTH = 20
_LISTS = frozenset({"keywords", "classifiers", "platforms", "provides", "requires", "obsoletes"})
_LINES = frozenset({"install_requires", "setup_requires", "tests_require", "scripts", "py_modules", "packages"})
_FLAGS = frozenset({"zip_safe", "include_package_data"})
_TEXTS = frozenset({
    "name", "version", "author", "author_email", "maintainer", "maintainer_email", "license", "description",
    "long_description", "long_description_content_type", "url", "download_url",
})  # fmt: skip
_ALIASES = {"home_page": "url", "home-page": "url", "summary": "description", "classifier": "classifiers"}


def read_setup_data(name: str, read: Read, os: RestrictedOs) -> SetupData:
    """Return the data of a setup.py and of the setup.cfg in its folder; empty without both.

    ``read`` returns the text of a file, or None; ``os`` is what a script sees as the module of this name.

    Raises:
        TemplateFault: a file is malformed.
    """
    folder = posixpath.dirname(name)
    script = _SetupScriptReader(name, folder, read, os)
    text = read(name)
    if text is not None:
        script.read_script(text)
    values, unknown = dict(script.values), dict(script.unknown)
    configured = read(posixpath.join(folder, "setup.cfg"))
    if configured is not None:
        for key, value in _setup_cfg_values(configured, folder, read):
            values.pop(key, None)
            unknown.pop(key, None)
            if value is None:
                unknown[key] = Place(file="setup.cfg")
            else:
                values[key] = value
    return SetupData(values, unknown, complete=script.complete)


_NONE = unseen_changes(ast.Module(body=[], type_ignores=[]))


class _SetupScriptReader:
    """The known values of a script's names, and of the arguments of its call of ``setup``."""

    def __init__(self, file: str, folder: str, read: Read, os: RestrictedOs) -> None:
        self._file, self._folder, self._read, self._os = file, folder, read, os
        self._names: dict[str, Any] = {"__file__": file, "__name__": "__main__"}
        self._effects, self._calls = _NONE, False
        self._functions: dict[str, ast.expr] = {}
        self._folders: set[str] = set()
        self.values: dict[str, Any] = {}
        self.unknown: dict[str, Place] = {}
        self.complete = True

    def read_script(self, text: str) -> None:
        if len(text) > _MAX_LENGTH:
            raise TemplateFault(f"{self._file} has {len(text):,} characters", why=f"the limit is {_MAX_LENGTH:,}")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            at = Place(file=self._file, line=getattr(error, "lineno", 0) or 0)
            raise TemplateFault("malformed Python", at=at, why=getattr(error, "msg", "") or str(error)) from error
        self._effects = unseen_changes(tree)
        self._read_statements(tree.body)
        if self._effects.setup:
            self._forget_all_arguments()
        self.complete = self.complete and self._calls

    def _forget_all_arguments(self) -> None:
        self.values, self.unknown, self.complete = {}, {}, False

    def _read_statements(self, statements: Iterable[ast.stmt]) -> None:
        for statement in statements:
            self._read_statement(statement)

    def _read_statement(self, statement: ast.stmt) -> None:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                self._record_assignment(name, value)
            case ast.FunctionDef(name=name):
                self._record_function(statement)
            case ast.Expr(value=ast.Call(func=function) as call) if name_or_attribute(function) == "setup":
                self._read_setup_call(call)
            case ast.If(test=test) if (result := self._known_value(test)) is not None:
                self._read_statements(statement.body if result[0] else statement.orelse)
            case ast.With(items=[ast.withitem(context_expr=opened, optional_vars=ast.Name(id=name))]):
                used = [node for part in statement.body for node in ast.walk(part) if isinstance(node, ast.Name)]
                self._record_opened_file(name, opened, sum(node.id == name for node in used))
                self._read_statements(statement.body)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                self._record_import(names, plain=isinstance(statement, ast.Import))
            case _:
                self._drop_changed_names(statement)

    def _record_assignment(self, name: str, node: ast.expr) -> None:
        value = self._known_value(node)
        self._drop_name(name)
        if _is_script_folder(node):
            self._folders.add(name)
        if value is not None and self._is_never_changed_unseen(name, value[0]):
            self._names[name] = value[0]

    def _is_never_changed_unseen(self, name: str, value: Any) -> bool:
        """Return whether nothing that is not followed may change the value of a name."""
        if self._effects.opaque or name in self._effects.names:
            return False
        if _is_immutable(value):
            return True
        parts = value.values() if isinstance(value, dict) else value
        flat = name not in self._effects.shared and all(map(_is_immutable, parts))
        return flat or name not in self._effects.used

    def _drop_name(self, name: str) -> None:
        for record in (self._names, self._functions):
            record.pop(name, None)
        self._functions.pop(f"{name}.read", None)
        self._folders.discard(name)

    def _record_import(self, names: Iterable[ast.alias], *, plain: bool) -> None:
        for alias in names:
            if alias.name == "*":
                self._drop_all_names()
            name = alias.asname or alias.name.partition(".")[0]
            self._drop_name(name)
            if plain and alias.name == "os" and not (self._effects.environment or self._effects.opaque):
                self._names[name] = self._os

    def _drop_all_names(self) -> None:
        for record in (self._names, self._functions, self._folders):
            record.clear()

    def _record_function(self, function: ast.FunctionDef) -> None:
        body = [line for line in function.body if not (isinstance(line, ast.Expr) and _is_text_literal(line.value))]
        self._drop_name(function.name)
        plain = not self._effects.opaque and function.name not in self._effects.names
        plain = plain and not ast.unparse(function.args) and not function.decorator_list and len(body) == 1
        if plain and isinstance(body[0], ast.Return) and body[0].value is not None:
            self._functions[function.name] = body[0].value

    def _record_opened_file(self, name: str, node: ast.expr, uses: int) -> None:
        """Record the file that a ``with`` statement opens and uses once, as a call that `_CallInliner` replaces."""
        self._drop_name(name)
        if isinstance(node, ast.Call) and uses == 1:
            self._functions[f"{name}.read"] = node

    def _read_setup_call(self, call: ast.Call) -> None:
        self._calls = True
        for keyword in call.keywords:
            value = self._known_value(keyword.value)
            if keyword.arg is None:
                if value is None or not isinstance(value[0], dict):
                    self.complete = False
                else:
                    self._record_arguments({str(key): item for key, item in value[0].items()})
            elif value is None:
                self.values.pop(keyword.arg, None)
                self.unknown[keyword.arg] = Place(file=self._file, line=keyword.value.lineno)
            else:
                self._record_arguments({keyword.arg: value[0]})

    def _record_arguments(self, values: Mapping[str, Any]) -> None:
        self.values |= values
        self.unknown = {key: place for key, place in self.unknown.items() if key not in values}

    def _drop_changed_names(self, statement: ast.stmt) -> None:
        """Make all names unknown that a statement may change; one that may call ``setup`` makes all values unknown."""
        for node in ast.walk(statement):
            for name in bound_names(node):
                self._drop_all_names() if name == "*" else self._drop_name(name)
            if isinstance(node, ast.Name) and isinstance(self._names.get(node.id), (list, dict)):
                self._drop_name(node.id)
            elif isinstance(node, ast.Call) and name_or_attribute(node.func) == "setup":
                self._forget_all_arguments()

    def _known_value(self, node: ast.expr) -> tuple[Any] | None:
        """Return the value of an expression in a tuple; None when it is unknown."""
        try:
            inlined = _CallInliner(self._functions, self._text_of_named_file).visit(copy.deepcopy(node))
            try:
                return (ast.literal_eval(inlined),)
            except (ValueError, TypeError, SyntaxError):
                return (evaluate_expression(ast.unparse(ast.fix_missing_locations(inlined)), self._look_up_name),)
        except (ExpressionError, RecursionError):
            return None

    def _look_up_name(self, name: str) -> Any:
        try:
            return self._names[name]
        except KeyError as error:
            raise MissingName(name) from error

    def _text_of_named_file(self, node: ast.expr) -> str | None:
        """Return the text of the file that an expression names, relative to the folder of the script."""
        words = list(_parts_of_path_expression(node, self._names, self._folders))
        if self._effects.files or not words or None in words:
            return None
        path = posixpath.normpath(posixpath.join(self._folder, *(word for word in words if word)))
        return None if path.startswith(("..", "/")) else self._read(path)


def _is_immutable(value: Any) -> bool:
    """Return whether a value has no part that can be changed."""
    return all(map(_is_immutable, value)) if isinstance(value, tuple) else not isinstance(value, (list, dict))


def _is_text_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_script_folder(node: ast.expr) -> bool:
    words = re.findall(r"\w+", ast.unparse(node))
    return {"dirname", "__file__"} <= set(words) <= WORDS_OF_SCRIPT_FOLDER and words.count("dirname") == 1


def _parts_of_path_expression(
    node: ast.expr, names: Mapping[str, Any], folders: Container[str]
) -> Iterator[str | None]:
    """Yield the parts of a path below the script's folder; None for one that is unknown."""
    match node:
        case ast.Constant(value=str() as word):
            yield word
        case ast.Name(id=name) if isinstance(names.get(name), str):
            yield names[name]
        case ast.Call(func=ast.Attribute(attr="join"), args=[first, *rest]) if _is_script_folder(first) or (
            isinstance(first, ast.Name) and first.id in folders
        ):
            for part in rest:
                yield from _parts_of_path_expression(part, names, folders)
        case _:
            yield None


class _CallInliner(ast.NodeTransformer):
    """Replaces calls of functions without arguments by what they return, and reads of files by their texts."""

    def __init__(self, functions: Mapping[str, ast.expr], read: Callable[[ast.expr], str | None]) -> None:
        self._functions, self._read, self._depth = functions, read, 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Replace a call."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in self._functions:
                return self._inline_function(self._functions[name])
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="read"), args=[]) if (
                opened := self._functions.get(f"{name}.read")
            ):
                return self._inline_file_text(opened) or node
            case ast.Call(func=ast.Attribute(value=ast.Call() as opened, attr="read"), args=[]):
                return self._inline_file_text(opened) or self.generic_visit(node)
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Replace a formatted text by a sum of its parts."""
        parts: list[ast.expr] = []
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if part.conversion != -1 or part.format_spec is not None:
                    return node
                inner = self.visit(part.value)
                parts.append(ast.Call(func=ast.Name(id="str", ctx=ast.Load()), args=[inner], keywords=[]))
            else:
                parts.append(part)
        total: ast.expr = ast.Constant(value="")
        for part in parts:
            total = ast.BinOp(left=total, op=ast.Add(), right=part)
        return total

    def _inline_function(self, value: ast.expr) -> ast.AST:
        self._depth += 1
        if self._depth > _DEPTH:
            raise RecursionError
        result: ast.AST = self.visit(copy.deepcopy(value))
        self._depth -= 1
        return result

    def _inline_file_text(self, call: ast.expr) -> ast.AST | None:
        if not (isinstance(call, ast.Call) and name_or_attribute(call.func) == "open" and call.args):
            return None
        text = self._read(call.args[0])
        return None if text is None else ast.Constant(value=text)


def _setup_cfg_values(text: str, folder: str, read: Read) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a setup.cfg with their values; None for a value that is unknown."""
    parser = configparser.RawConfigParser(delimiters=("=",), comment_prefixes=("#", ";"))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text, "setup.cfg")
    except configparser.Error as error:
        raise TemplateFault("malformed setup.cfg", why=str(error).replace("\n", " ")) from error
    for section in ("metadata", "options"):
        for key, raw in parser.items(section) if parser.has_section(section) else ():
            name = _ALIASES.get(key, key).replace("-", "_")
            yield name, _setup_cfg_value(name, raw, folder, read)
    for section, key in (("options.entry_points", "entry_points"), ("options.extras_require", "extras_require")):
        if parser.has_section(section):
            yield key, {name: _split_setup_cfg_list(value, lines=True) for name, value in parser.items(section)}


def _setup_cfg_value(name: str, raw: str, folder: str, read: Read) -> Any:
    value = raw.strip()
    if value.startswith("attr:") or value in {"find:", "find_namespace:"}:
        return None
    if value.startswith("file:"):
        texts = [read(posixpath.join(folder, file.strip())) for file in value[5:].split(",")]
        whole = None if None in texts else "\n".join(text or "" for text in texts)
        return whole.strip() if whole is not None and name == "version" else whole
    if name in _TEXTS:
        return value
    if name in _LISTS or name in _LINES:
        return _split_setup_cfg_list(
            value, lines="\n" in value or name in _LINES - {"scripts", "py_modules", "packages"}
        )
    if name in _FLAGS:
        return value.lower() in {"1", "true", "yes"}
    return None


def _split_setup_cfg_list(value: str, *, lines: bool) -> list[str]:
    parts = value.splitlines() if lines else value.split(",")
    return [part.strip() for part in parts if part.strip()]
