"""The sections of recipe.yaml: their fields, requirements and scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, TemplateFault
from kiln.base.yaml import PlacedText, scalar_value
from kiln.conda import specs
from kiln.conda.specs import require_safe_to_parse
from kiln.recipe.rendered import Pin
from kiln.recipe.v1.expressions import compile_expression, compile_template, is_template, names_in_script_line
from kiln.recipe.v1.nodes import (
    compile_scalar,
    condition_holds,
    is_empty_node,
    items_with_conditions_resolved,
    node_error,
    rendered_text,
    rendered_texts,
    require_known_keys,
    require_mapping,
    require_scalar,
    scalars_of_all_branches,
)
from kiln.recipe.v1.scope import LATE, VariantScope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Kind = Callable[[Any, VariantScope], Any]


_PIN_KINDS = frozenset({"pin_subpackage", "pin_compatible"})


Requirement = str | Pin


def parse_requirement(given: str) -> Requirement:
    """Return a requirement from its text."""
    return _parse_pin(given) if given.lstrip().startswith("{") else canonical_spec(given)


@lru_cache(maxsize=8192)
def canonical_spec(spec: str) -> str:
    """Return a match spec as rattler-build prints it: the name in lower case, ``=1.2`` as ``1.2.*``.

    Raises:
        ValueError: it is malformed, or has a version without an operator.
    """
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    require_safe_to_parse(spec)
    try:
        given = MatchSpec(str(spec), strict=True)
    except InvalidMatchSpecError as error:
        raise ValueError(str(error).partition("\nCaused by")[0]) from error
    text, bracket, keys = str(given).partition("[")
    if bracket and keys != f'build="{given.build}"]':  # which py-rattler writes so without a version
        raise ValueError("only version= and build= are supported in brackets")
    return f"{text} * {given.build}" if bracket else text


def _parse_pin(given: str) -> Pin:
    """Return a pin; a bound of x's says how many parts of the version count, any other is a version itself."""
    try:
        ((kind, fields),) = json.loads(given).items()
    except (ValueError, AttributeError) as error:
        raise ValueError("a pin stands alone in its requirement") from error
    if kind not in _PIN_KINDS or not isinstance(fields, dict) or "name" not in fields:
        raise ValueError("it is neither a match spec nor a pin")
    lower, upper = fields.get("lower_bound"), fields.get("upper_bound")
    return Pin(
        name=str(fields["name"]).lower(),
        subpackage=kind == "pin_subpackage",
        min_pin=lower if _is_component_pattern(lower) else None,
        max_pin=upper if _is_component_pattern(upper) else None,
        lower=None if _is_component_pattern(lower) else lower,
        upper=None if _is_component_pattern(upper) else upper,
        exact=bool(fields.get("exact")),
        by_engine=kind == "pin_compatible",
        build=fields.get("build"),
    )


def _is_component_pattern(bound: str | None) -> bool:
    return bound is not None and set(bound) <= {"x", "."}


def name_of_bare_requirement(given: Requirement) -> str:
    """Return the name of a requirement that is nothing else, or nothing."""
    return given if isinstance(given, str) and " " not in given and "::" not in given else ""


def evaluate_environment(node: Any, scope: VariantScope) -> dict[str, str]:
    """Evaluate variables of a script's environment."""
    result = {str(key): rendered_text(value, scope) for key, value in require_mapping(node, "env").items()}
    for key, value in require_mapping(node, "env").items():
        if "\n" in result[str(key)]:
            raise node_error(value, f"the variable {str(key)!r} has a line break", hint="set it in the script")
    return {key: value for key, value in result.items() if value}


def unevaluated_script_lines(node: Any, scope: VariantScope) -> list[str]:
    """Take a script's lines: conditions are evaluated, expressions stay for the build, their names count as read."""
    for setting, is_condition in scalars_of_all_branches(node):
        if is_condition:
            scope.record_name_reads(compile_scalar(setting, compile_expression).names)
        elif is_template(setting):
            scope.record_name_reads(compile_scalar(setting, names_in_script_line))
    return [str(require_scalar(item)) for item in items_with_conditions_resolved(node, scope) if item]


def evaluate_test_script_lines(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate the lines of a test's script; one that cannot be evaluated stays as it is."""
    unevaluated_script_lines(node, scope)  # for the names that they read
    return [_rendered_or_source_text(item, scope) for item in items_with_conditions_resolved(node, scope) if item]


def _rendered_or_source_text(item: Any, scope: VariantScope) -> str:
    try:
        return rendered_text(item, scope)
    except TemplateFault:
        return str(require_scalar(item))


def values_of_names_in_script(node: Any, scope: VariantScope) -> dict[str, Any]:
    """Return the values of the names in a script's expressions that the context or the variant gives."""
    lines = [line for line, _ in scalars_of_all_branches(node) if is_template(line)]
    names = frozenset[str]().union(*(compile_scalar(line, names_in_script_line) for line in lines))
    values = {name: scope.value(name) for name in sorted(names) if name in scope.context or name in scope.variant}
    return {name: value for name, value in values.items() if isinstance(value, str | int | list)}


@dataclass(frozen=True, slots=True)
class ScriptSchema:
    """The kind of a script: its settings, or its lines alone, with the values of the names in their expressions.

    The field ``bare`` is set for lines alone, which may be the name of a file.
    """

    of_mapping: Kind
    content: Kind

    def __call__(self, node: Any, scope: VariantScope) -> dict[str, Any]:
        """Evaluate the script."""
        if isinstance(node, dict) and "if" not in node:
            fields, of_lines = self.of_mapping(node, scope), node.get("content")
        else:
            fields, of_lines = {"content": self.content(node, scope), "bare": True}, node
        return {**fields, "names": values_of_names_in_script(of_lines, scope)}


_EXPERIMENTAL = {
    ("build", "steps"): "build.steps",
    ("build", "flags"): "build.flags",
    ("requirements", "extras"): "requirements.extras",
    ("source", "attestation"): "source attestations",
}


@dataclass(frozen=True, slots=True)
class SectionSchema:
    """The kind of a mapping with these keys."""

    name: str
    kinds: Mapping[str, Kind]

    def __call__(self, node: Any, scope: VariantScope) -> dict[str, Any]:
        """Evaluate the mapping's values."""
        fields = require_mapping(node, self.name)
        for key in fields:
            if self.is_experimental_key(key):
                what = f"{_EXPERIMENTAL[(self.name, str(key))]} are experimental in rattler-build, and not supported"
                raise node_error(key, what)
        require_known_keys(fields, self.kinds, self.name)
        kinds = ((str(key), self.kinds[str(key)], value) for key, value in fields.items())
        return {
            key: kind(value, scope)
            for key, kind, value in kinds
            # A list that is written out and empty has a meaning of its own: it takes the place of an inherited one.
            if not is_empty_node(value) or (value == [] and kind in (rendered_texts, evaluate_texts_keeping_folders))
        }

    def is_experimental_key(self, key: object) -> bool:
        """Return whether rattler-build has the key as an experiment."""
        return (self.name, str(key)) in _EXPERIMENTAL


@dataclass(frozen=True, slots=True)
class ListSchema:
    """The kind of a conditional list whose items are of a kind."""

    kind: Kind

    def __call__(self, node: Any, scope: VariantScope) -> list[Any]:
        """Evaluate the items."""
        return [self.kind(item, scope) for item in items_with_conditions_resolved(node, scope)]


@dataclass(frozen=True, slots=True)
class MappingOrOtherSchema:
    """The kind of a node that is a mapping or something else."""

    of_mapping: Kind
    other: Kind

    def __call__(self, node: Any, scope: VariantScope) -> Any:
        """Evaluate the node."""
        return (self.of_mapping if isinstance(node, dict) and "if" not in node else self.other)(node, scope)


def evaluate_flag(node: Any, scope: VariantScope) -> bool | None:
    """Evaluate a truth value; one that renders to nothing is not given."""
    word = rendered_text(node, scope).strip().lower()
    if word not in {"true", "false", ""}:
        raise node_error(node, f"{word!r} is neither true nor false")
    return word == "true" if word else None


def evaluate_flag_or_texts(node: Any, scope: VariantScope) -> Any:
    """Evaluate a truth value, or a list of globs in its place."""
    if isinstance(node, PlacedText) and (is_template(node) or isinstance(scalar_value(node), bool)):
        return evaluate_flag(node, scope)
    return rendered_texts(node, scope)


def _linking_behavior(key: str) -> Kind:
    def evaluate(node: Any, scope: VariantScope) -> str:
        word = rendered_text(node, scope)
        if word not in {"error", "ignore"}:
            raise node_error(node, f"dynamic_linking/{key} is {word[:40]!r}", hint="'error' or 'ignore'")
        return word

    return evaluate


def evaluate_number(node: Any, scope: VariantScope) -> int:
    """Evaluate a whole number that is not negative."""
    word = rendered_text(node, scope).strip()
    if word and not (word.isascii() and word.isdigit()):
        raise node_error(node, f"{word!r} is not a whole number")
    return int(word or 0)


def evaluate_optional_number(node: Any, scope: VariantScope) -> int | None:
    """Evaluate a whole number, perhaps negative; one that renders to nothing is not given."""
    word = rendered_text(node, scope).strip()
    try:
        return int(word) if word else None
    except ValueError as error:
        raise node_error(node, f"{word!r} is not a whole number") from error


def evaluate_noarch(node: Any, scope: VariantScope) -> str | None:
    """Evaluate ``noarch``: python, generic, or nothing."""
    word = rendered_text(node, scope).strip()
    if word in {"", "~", "null", "none", "None"}:
        return None
    if word not in {"python", "generic"}:
        raise node_error(node, f"noarch is {word!r}", hint="python or generic")
    return word


def evaluate_requirements(node: Any, scope: VariantScope) -> list[Requirement]:
    """Evaluate a conditional list of requirements."""
    result = ((item, rendered_text(item, scope)) for item in items_with_conditions_resolved(node, scope))
    return [_parse_requirement_node(item, text) for item, text in result if text]


def _parse_requirement_node(node: Any, text: str) -> Requirement:
    try:
        return parse_requirement(text)
    except ValueError as error:
        raise node_error(node, f"{text[:80]!r} is not a requirement", why=str(error)) from error


def evaluate_match_spec(node: Any, scope: VariantScope) -> str:
    """Evaluate a match spec, in which a bare version may stand, as in those of tests."""
    given = rendered_text(node, scope).strip()
    if why := specs.invalid_spec_reason(given):
        raise node_error(node, f"{given[:80]!r} is not a match spec", why=why)
    return given


def evaluate_python_versions(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate the versions of Python that a test is run with."""
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    result = []
    for item in items_with_conditions_resolved(node, scope):
        version = rendered_text(item, scope)
        try:
            require_safe_to_parse(version)
            MatchSpec(f"python {version}")
        except (ValueError, InvalidMatchSpecError) as error:
            why = str(error).partition("\nCaused by")[0]
            raise node_error(item, f"{version[:80]!r} is not a version of Python", why=why) from error
        result += [version] if version else []
    return result


def unevaluated_texts(node: Any, _: VariantScope) -> list[str]:
    """Take a list of texts as it stands."""
    return [str(require_scalar(item)) for item in (node if isinstance(node, list) else [node])]


def evaluate_stripped_text(node: Any, scope: VariantScope) -> str:
    """Evaluate a text, without blanks around it."""
    return rendered_text(node, scope).strip()


def evaluate_texts_keeping_folders(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate texts in which folders of the build may stand, which stay expressions."""
    with scope.leave_names_unevaluated(LATE):
        return rendered_texts(node, scope)


def build_string_template(node: Any, scope: VariantScope) -> PlacedText:
    """Take the build string as a template: what it is follows once the hash is known."""
    text = require_scalar(node)
    if is_template(text):
        scope.record_name_reads(compile_scalar(text, compile_template).names)
    return text


def evaluate_skip(node: Any, scope: VariantScope) -> bool:
    """Evaluate ``skip``: whether any of its conditions holds; one that is malformed, or has no value, does not."""
    items = items_with_conditions_resolved(node, scope)
    conditions = [_skip_condition_holds(item, scope) for item in items]  # all of them, for the names that they read
    return any(conditions)


def _skip_condition_holds(node: Any, scope: VariantScope) -> bool:
    text = require_scalar(node)
    if is_template(text):
        rendered = rendered_text(text, scope)
        text = PlacedText(rendered, text.line, text.column, plain=False)
    try:
        return bool(text) and condition_holds(text, scope)
    except KilnError:
        return False  # as rattler-build has it


def evaluate_nested_texts(node: Any, scope: VariantScope) -> Any:
    """Evaluate every text of a part whose keys are the feedstock's own."""
    if isinstance(node, dict):
        return {str(key): evaluate_nested_texts(value, scope) for key, value in node.items()}
    if isinstance(node, list):
        return [evaluate_nested_texts(item, scope) for item in node]
    return rendered_text(node, scope) if is_template(node) else scalar_value(node)


_PATTERNS = MappingOrOtherSchema(
    SectionSchema("files", {"include": rendered_texts, "exclude": rendered_texts}), rendered_texts
)
_SETTINGS_OF_SCRIPT: dict[str, Kind] = {
    "interpreter": rendered_text,
    "env": evaluate_environment,
    "secrets": unevaluated_texts,
    "content": unevaluated_script_lines,
    "file": rendered_text,
    "cwd": rendered_text,
}
_SCRIPT = ScriptSchema(SectionSchema("script", _SETTINGS_OF_SCRIPT), unevaluated_script_lines)
_SCRIPT_OF_TEST = ScriptSchema(
    SectionSchema("script", {**_SETTINGS_OF_SCRIPT, "content": evaluate_test_script_lines}), evaluate_test_script_lines
)
SOURCE = ListSchema(
    SectionSchema(
        "source",
        {
            "url": rendered_texts,
            "sha256": rendered_text,
            "md5": rendered_text,
            "file_name": rendered_text,
            "patches": evaluate_texts_keeping_folders,
            "target_directory": rendered_text,
            "filter": _PATTERNS,
            "git": rendered_text,
            "rev": rendered_text,
            "tag": rendered_text,
            "branch": rendered_text,
            "depth": evaluate_number,
            "lfs": evaluate_flag,
            "submodules": evaluate_flag,
            "expected_commit": rendered_text,
            "path": rendered_text,
            "use_gitignore": evaluate_flag,
        },
    )
)
BUILD = SectionSchema(
    "build",
    {
        "number": evaluate_number,
        "string": build_string_template,
        "script": _SCRIPT,
        "noarch": evaluate_noarch,
        "python": SectionSchema(
            "python",
            {
                "entry_points": rendered_texts,
                "skip_pyc_compilation": rendered_texts,
                "use_python_app_entrypoint": evaluate_flag,
                "version_independent": evaluate_flag,
                "site_packages_path": rendered_text,
            },
        ),
        "skip": evaluate_skip,
        "always_copy_files": rendered_texts,
        "always_include_files": rendered_texts,
        "merge_build_and_host_envs": evaluate_flag,
        "files": _PATTERNS,
        "dynamic_linking": SectionSchema(
            "dynamic_linking",
            {
                "rpaths": rendered_texts,
                "binary_relocation": evaluate_flag_or_texts,
                "missing_dso_allowlist": rendered_texts,
                "rpath_allowlist": rendered_texts,
                **{key: _linking_behavior(key) for key in ("overdepending_behavior", "overlinking_behavior")},
            },
        ),
        "variant": SectionSchema(
            "variant",
            {
                "use_keys": rendered_texts,
                "ignore_keys": rendered_texts,
                "down_prioritize_variant": evaluate_optional_number,
            },
        ),
        "prefix_detection": SectionSchema(
            "prefix_detection",
            {
                "force_file_type": SectionSchema("force_file_type", {"text": rendered_texts, "binary": rendered_texts}),
                "ignore": evaluate_flag_or_texts,
                "ignore_binary_files": evaluate_flag_or_texts,
            },
        ),
        "post_process": ListSchema(
            SectionSchema(
                "post_process", {"files": rendered_texts, "regex": rendered_text, "replacement": rendered_text}
            )
        ),
    },
)
STAGING_BUILD = SectionSchema("build of a staging output", {"script": _SCRIPT})
_IGNORED = SectionSchema("ignore_run_exports", {"by_name": rendered_texts, "from_package": rendered_texts})
_RUN_EXPORTS = MappingOrOtherSchema(
    SectionSchema(
        "run_exports",
        dict.fromkeys(("noarch", "strong", "strong_constraints", "weak", "weak_constraints"), evaluate_requirements),
    ),
    evaluate_requirements,
)
REQUIREMENTS = SectionSchema(
    "requirements",
    {
        **dict.fromkeys(("build", "host", "run", "run_constraints"), evaluate_requirements),
        "run_exports": _RUN_EXPORTS,
        "ignore_run_exports": _IGNORED,
    },
)
STAGING_REQUIREMENTS = SectionSchema(
    "requirements of a staging output",
    {"build": evaluate_requirements, "host": evaluate_requirements, "ignore_run_exports": _IGNORED},
)
_EXISTENCE = MappingOrOtherSchema(
    SectionSchema("files", {"exists": rendered_texts, "not_exists": rendered_texts}), rendered_texts
)
TESTS = ListSchema(
    SectionSchema(
        "test",
        {
            "python": SectionSchema(
                "python",
                {"imports": rendered_texts, "pip_check": evaluate_flag, "python_version": evaluate_python_versions},
            ),
            "perl": SectionSchema("perl", {"uses": rendered_texts}),
            "r": SectionSchema("r", {"libraries": rendered_texts}),
            "ruby": SectionSchema("ruby", {"requires": rendered_texts}),
            "script": _SCRIPT_OF_TEST,
            "requirements": SectionSchema(
                "requirements of a test", {"run": evaluate_requirements, "build": evaluate_requirements}
            ),
            "files": SectionSchema("files", {"source": rendered_texts, "recipe": rendered_texts}),
            "downstream": evaluate_match_spec,
            "package_contents": SectionSchema(
                "package_contents",
                {
                    **dict.fromkeys(("files", "site_packages", "bin", "lib", "include"), _EXISTENCE),
                    "strict": evaluate_flag,
                },
            ),
        },
    )
)


def evaluate_tests(node: Any, scope: VariantScope) -> list[dict[str, Any]]:
    """Evaluate the list of tests, for which no single test stands."""
    if not isinstance(node, list) and not is_empty_node(node):
        raise node_error(node, "tests are a list", hint="begin each with '- '")
    result: list[dict[str, Any]] = TESTS(node, scope)
    return result


ABOUT = SectionSchema(
    "about",
    {
        "homepage": evaluate_stripped_text,
        "repository": evaluate_stripped_text,
        "documentation": evaluate_stripped_text,
        "license": evaluate_stripped_text,
        "license_family": evaluate_stripped_text,
        "license_file": evaluate_texts_keeping_folders,
        "summary": evaluate_stripped_text,
        "description": evaluate_stripped_text,
    },
)
PACKAGE = SectionSchema("package", {"name": rendered_text, "version": rendered_text})
SINGLE = (
    "schema_version", "context", "package", "source", "build", "requirements", "tests", "about", "extra",
)  # fmt: skip
SEVERAL = (
    "schema_version", "context", "recipe", "source", "build", "tests", "about", "extra", "outputs",
)  # fmt: skip
OUTPUT = ("package", "inherit", "source", "build", "requirements", "tests", "about")
STAGING = ("staging", "source", "build", "requirements")
