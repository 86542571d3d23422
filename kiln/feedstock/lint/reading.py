"""Values of YAML 1.2 with their places, and recipes rendered without a variant."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2

from kiln.base.errors import KilnError
from kiln.base.limits import errors
from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import list_or_empty, mapping_or_empty
from kiln.base.yaml import NULLS, SPELLINGS_OF_TRUTH, PlacedText, ScalarInterpretation, parse_document, read_text
from kiln.recipe.template.jinja import StepLimitedEnvironment, Template
from kiln.recipe.template.selectors import SelectedText
from kiln.recipe.v0.functions import DATETIME, TIME
from kiln.recipe.v1.values import short_version_without_dots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


_INTEGER = lazy_pattern(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = lazy_pattern(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?"
)
_MERGE = "<<"


def read_values(text: str, file: str, line_of: Callable[[int], int] | None = None) -> Any:
    """Return the values of a YAML document: keys and texts are PlacedText, other scalars have their YAML 1.2 types.

    Of a repeated key the first value counts.
    """
    return _typed_values(parse_document(text, file, ScalarInterpretation.PLACED, line_of, first_counts=True).value)


def outermost_keys_of_file(path: Path, file: str) -> set[str]:
    """Return the outermost keys of a YAML file; ``file`` is its name in errors."""
    return {str(key) for key in mapping_or_empty(read_values(read_text(path, file), file))}


def repeated_keys(text: str, file: str, line_of: Callable[[int], int] | None = None) -> tuple[PlacedText, ...]:
    """Return the keys of a YAML document that stand in their mapping for a second time."""
    return parse_document(text, file, ScalarInterpretation.PLACED, line_of, first_counts=True).repeated


def _typed_values(node: Any) -> Any:
    if isinstance(node, PlacedText):
        return typed_scalar(node)
    if isinstance(node, list):
        return [_typed_values(item) for item in node]
    if not isinstance(node, dict):
        return node
    values = {key: _typed_values(value) for key, value in node.items() if key != _MERGE}
    merged = node.get(_MERGE)
    for part in merged if isinstance(merged, list) else [merged]:
        for key, value in part.items() if isinstance(part, dict) else ():
            values.setdefault(key, _typed_values(value))
    return values


def typed_scalar(node: PlacedText) -> Any:
    """Return a scalar's value; text stays placed."""
    if not node.plain:
        return node
    if node in NULLS:
        return None
    if node in SPELLINGS_OF_TRUTH:
        return SPELLINGS_OF_TRUTH[node]
    if _FLOAT.fullmatch(node):
        return float(node.replace("_", ""))
    if _INTEGER.fullmatch(node):
        base = {"0o": 8, "0x": 16}.get(node[:2], 10)
        # Python refuses to read very long numbers; no rule needs their value.
        return int(node.replace("_", ""), base) if len(node) < 100 else str(node)
    return node


def texts_in_list(value: Any) -> list[str]:
    """Return the texts in a list; empty for other values."""
    return [item for item in list_or_empty(value) if isinstance(item, str)]


def key_with_place(values: dict[Any, Any], name: str) -> str:
    """Return the key of this name, with its place if it is in the document."""
    return next((key for key in values if key == name), name)


def first_placed_text(node: Any) -> PlacedText | None:
    """Return the first text of a value, which shows where the value begins."""
    if isinstance(node, PlacedText):
        return node
    children = [*node.keys(), *node.values()] if isinstance(node, dict) else list_or_empty(node)
    return next((text for child in children if (text := first_placed_text(child)) is not None), None)


def branch_items(value: Any) -> Iterator[Any]:
    """Yield the items of a recipe.yaml list with those of all branches of its conditions; a single item as well."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and item.get("if") is not None:
            yield from branch_items(item.get("then"))
            if item.get("else"):
                yield from branch_items(item["else"])
        else:
            yield item


def branch_texts(value: Any) -> list[str]:
    """Return the texts of a recipe.yaml list, of all branches of its conditions."""
    return [] if value is None else [item for item in branch_items(value) if isinstance(item, str)]


COMPATIBLE_PIN = "compatible_pin "
SUBPACKAGE_PIN = "subpackage_pin "
COMPILER = "_compiler_stub"
STDLIB = "_stdlib_stub"
PYTHON_MIN = "9999"  # the value of python_min, which rules look for
_SETS_PYTHON_MIN = lazy_pattern(r"{%\s+set\s+python_min\s+=")


class UndefinedAsName(jinja2.Undefined):
    """An undefined name of a meta.yaml, which renders as itself."""

    def __str__(self) -> str:
        return str(self._undefined_name)

    def __getattr__(self, name: str) -> Any:
        return _NameOfMethod(f"{self}.{name}")

    def __getitem__(self, name: Any) -> Any:
        return f'{self}["{name}"]'


class _NameOfMethod(str):
    """The attribute of an undefined name, which may be a method: its result renders as the call without arguments."""

    __slots__ = ()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return f"{self}()"


class UndefinedAsExpression(jinja2.DebugUndefined):
    """An undefined name of a recipe.yaml, which renders as the expression that it is."""

    def __str__(self) -> str:
        return f"${super().__str__()}"


def _refuse_template_file(name: str) -> NoReturn:
    raise jinja2.TemplateNotFound(name)


def _stub_environment(undefined: type[jinja2.Undefined]) -> StepLimitedEnvironment:
    environment = StepLimitedEnvironment(_refuse_template_file)
    environment.undefined = undefined
    return environment


def _pin_stub(prefix: str) -> Any:
    return lambda *names, **_: f"{prefix}{names[0]}"


def _empty_text_mapping(*_: Any, **__: Any) -> Mapping[str, str]:
    return defaultdict(str)


_NAMES_OF_BOTH_FORMATS = {
    "compiler": lambda language: f"{language}{COMPILER}",
    "stdlib": lambda language: f"{language}{STDLIB}",
    "pin_subpackage": _pin_stub(SUBPACKAGE_PIN),
    "pin_compatible": _pin_stub(COMPATIBLE_PIN),
    "target_platform": "linux-64",
    "build_platform": "linux-64",
    "mpi": "mpi",
}


def render_meta_yaml(text: str, file: str) -> SelectedText:
    """Return a meta.yaml without Jinja, with the line of the file for each line."""
    lines = [
        f"{{% set python_min = '{PYTHON_MIN}' %}}" if _SETS_PYTHON_MIN.match(line) else line
        for line in text.split("\n")
    ]
    source = SelectedText(text="\n".join(lines), numbers=tuple(range(1, len(lines) + 1)))
    environment = _stub_environment(UndefinedAsName)
    variables = defaultdict(str)  # type: defaultdict[str, str]
    return Template(source, file, environment).render_with_line_numbers(
        {
            **_NAMES_OF_BOTH_FORMATS,
            "cdt": lambda name: str(name).replace("-", "_") + "_cdt_stub",
            "load_file_regex": _empty_text_mapping,
            "load_file_data": _empty_text_mapping,
            "load_setup_py_data": _empty_text_mapping,
            "load_str_data": _empty_text_mapping,
            "datetime": DATETIME,
            "time": TIME,
            "python_min": PYTHON_MIN,
            "os": {"environ": variables, "sep": "/"},
            "environ": variables,
            "PY_VER": "3.7",
        }
    )


class RecipeYamlRenderer:
    """The expressions of a recipe.yaml, evaluated with its context; what has no value stays as it is."""

    def __init__(self, context: Mapping[str, Any], file: str) -> None:
        self._file = file
        self._environment = _stub_environment(UndefinedAsExpression)
        self._environment.variable_start_string = "${{"
        self._environment.filters |= {
            "version_to_buildstring": _version_to_buildstring,
            "split": lambda text, separator=None: str(text).split(separator),
            "bool": bool,
        }
        self._names: dict[str, Any] = {
            **_NAMES_OF_BOTH_FORMATS,
            "cdt": lambda *_, **__: "cdt_stub",
            "match": lambda *values, **_: f"match {values[0]}",
            "env": SimpleNamespace(get=lambda name, default=None: f'env_"{name}" ', exists=lambda name: f"env_{name}"),  # noqa: ARG005
            "is_unix": lambda platform: not platform.startswith("win"),
            "is_win": lambda platform: platform.startswith("win"),
            "is_linux": lambda platform: platform.startswith("linux"),
            "linux": True,
            "unix": True,
            "x86_64": True,
        }
        self._names |= context
        for key, value in context.items():
            if isinstance(value, str):
                text = self.render_text(value)
                plain = not isinstance(value, PlacedText) or value.plain
                self._names[key] = _yaml_value_of_context(text) if plain else text

    def render_text(self, text: str) -> str:
        """Return a text with its expressions evaluated; unchanged if that fails."""
        if "${{" not in text:
            return text
        errors.record_place(self._file, getattr(text, "line", 0))
        source = SelectedText(text=str(text), numbers=(1,) * (text.count("\n") + 1))
        try:
            rendered = Template(source, self._file, self._environment).render_with_line_numbers(self._names).text
        except KilnError:  # rules that need the value do not apply then
            return text
        rendered = rendered.removesuffix("\n")
        if isinstance(text, PlacedText):
            return PlacedText(rendered, text.line, text.column, plain=text.plain)
        return rendered

    def render_value(self, value: Any) -> Any:
        """Return a value with the expressions in all its texts evaluated."""
        if isinstance(value, str):
            return self.render_text(value)
        if isinstance(value, list):
            return [self.render_value(item) for item in value]
        return {key: self.render_value(item) for key, item in value.items()} if isinstance(value, dict) else value


def _yaml_value_of_context(text: str) -> Any:
    """Return the YAML value of a text; a version such as 1.10 stays text."""
    value = typed_scalar(PlacedText(text, 0, 0, plain=True))
    return text if isinstance(value, (str, float)) else value


def _version_to_buildstring(version: Any) -> str:
    if isinstance(version, jinja2.Undefined):
        return f"{version._undefined_name}_version_to_build_string"  # noqa: SLF001 - it has no public name
    return short_version_without_dots((str(version).split() or [""])[0], 2)
