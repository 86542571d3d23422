"""The values of a setup.py and a setup.cfg, as far as they follow without running any code."""

from __future__ import annotations

import ast
import configparser
import copy
import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.errors import TemplateFault
from kiln.base.position import Place
from kiln.recipe.template.expression import ExpressionError, MissingName, evaluate_expression

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from kiln.recipe.template.names import RestrictedOs

    Read = Callable[[str], str | None]


class SetupData(Mapping[str, Any]):
    """The values of a setup.py; reading one that only running the file would give is an error."""

    def __init__(self, values: Mapping[str, Any], unknown: Mapping[str, Place], *, complete: bool) -> None:
        self._values = values
        self._unknown = unknown
        self._complete = complete

    def __getitem__(self, key: str) -> Any:
        """Return the value of an argument."""
        self._require_known(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        """Return whether the file gives an argument."""
        return key in self._unknown or super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the arguments, which must all be known."""
        self._require_all_known()
        return iter(self._values)

    def __len__(self) -> int:
        """Return the number of arguments, which must all be known."""
        self._require_all_known()
        return len(self._values)

    def __bool__(self) -> bool:
        """Return whether there is an argument."""
        return bool(self._values or self._unknown or len(self))

    def __repr__(self) -> str:
        """Return the arguments with their values, which must all be known."""
        return repr(self.copy())

    def copy(self) -> dict[str, Any]:
        """Return the arguments, which must all be known."""
        return dict(self)

    def known_values(self) -> dict[str, Any]:
        """Return the known values alone, in which a template may read any key."""
        return dict(self._values)

    def _require_all_known(self) -> None:
        for key in self._unknown if self._unknown or self._complete else ("its arguments",):
            self._require_known(key)

    def _require_known(self, key: str) -> None:
        if key in self._unknown or not (self._complete or key in self._values):
            raise TemplateFault(
                f"the template reads {str(key)[:40]!r} of setup.py, which only running that file would give",
                why=f"{self._unknown.get(key) or 'its arguments'}: kiln runs no code while rendering",
                hint="write the value into the recipe",
            )


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
