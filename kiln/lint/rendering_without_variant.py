"""Recipes rendered without a variant: functions and unknown names become their own names.

The texts that stand for functions are conda-smithy's (``render_meta_yaml`` in its utils.py) and, for recipe.yaml, those
of rattler-build-conda-compat: rules recognize them. All selectors and all branches stay.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2

from kiln import limits
from kiln.errors import KilnError
from kiln.lazy_pattern import lazy_pattern
from kiln.lint.located_yaml import typed_scalar
from kiln.recipe.template_functions import DATETIME, TIME
from kiln.recipe_v1.filters_and_tests import short_version_without_dots
from kiln.template.sandboxed_jinja import StepLimitedEnvironment, Template
from kiln.template.selectors import SelectedText
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        return f"{self}.{name}"

    def __getitem__(self, name: Any) -> Any:
        return f'{self}["{name}"]'


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
    """Return a meta.yaml without Jinja, with the line of the file for each line.

    Raises:
        TemplateFault: the template is malformed, or fails without a variant.
        UnsafeTemplate: it does what the sandbox does not allow.
    """
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
        limits.record_place(self._file, getattr(text, "line", 0))
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
