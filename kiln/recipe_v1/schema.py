"""The fields of each section of recipe.yaml, and how they are evaluated.

The sections are those of rattler-build's reference; a key that is not listed here is refused by name and line. What
rattler-build calls experimental is listed in ``_EXPERIMENTAL`` and refused as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import matchspec_notation
from kiln.errors import KilnError
from kiln.recipe_v1.compiled_expression import compile_expression, compile_template, is_template
from kiln.recipe_v1.node_evaluation import (
    compiled,
    condition,
    fault,
    is_empty,
    items,
    require_known_keys,
    require_mapping,
    require_scalar,
    text_of,
    texts,
)
from kiln.recipe_v1.requirement import requirement
from kiln.recipe_v1.scope import LATE
from kiln.recipe_v1.scripts import environment, lines, record_reads, tested_lines, values_of_names
from kiln.yamltext import PlacedText
from kiln.yamltext.typed_text import scalar_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from kiln.recipe_v1.requirement import Requirement
    from kiln.recipe_v1.scope import VariantScope

    Kind = Callable[[Any, VariantScope], Any]

_EXPERIMENTAL = {
    ("build", "steps"): "build.steps",
    ("build", "flags"): "build.flags",
    ("requirements", "extras"): "requirements.extras",
    ("source", "attestation"): "source attestations",
}


@dataclass(frozen=True, slots=True)
class SectionKind:
    """The kind of a mapping with these keys."""

    name: str
    kinds: Mapping[str, Kind]

    def __call__(self, node: Any, scope: VariantScope) -> dict[str, Any]:
        """Evaluate the mapping's values."""
        fields = require_mapping(node, self.name)
        for key in fields:
            if self.is_experimental(key):
                what = f"{_EXPERIMENTAL[(self.name, str(key))]} are experimental in rattler-build, and not supported"
                raise fault(key, what)
        require_known_keys(fields, self.kinds, self.name)
        return {str(key): self.kinds[str(key)](value, scope) for key, value in fields.items() if not is_empty(value)}

    def is_experimental(self, key: object) -> bool:
        """Return whether rattler-build has the key as an experiment."""
        return (self.name, str(key)) in _EXPERIMENTAL


@dataclass(frozen=True, slots=True)
class ListKind:
    """The kind of a conditional list whose items are of a kind."""

    kind: Kind

    def __call__(self, node: Any, scope: VariantScope) -> list[Any]:
        """Evaluate the items."""
        return [self.kind(item, scope) for item in items(node, scope)]


@dataclass(frozen=True, slots=True)
class EitherKind:
    """The kind of a node that is a mapping or something else."""

    of_mapping: Kind
    other: Kind

    def __call__(self, node: Any, scope: VariantScope) -> Any:
        """Evaluate the node."""
        return (self.of_mapping if isinstance(node, dict) and "if" not in node else self.other)(node, scope)


# Kinds of single nodes


def flag(node: Any, scope: VariantScope) -> bool | None:
    """Evaluate a truth value; one that renders to nothing is not given."""
    word = text_of(node, scope).strip().lower()
    if word not in {"true", "false", ""}:
        raise fault(node, f"{word!r} is neither true nor false")
    return word == "true" if word else None


def flag_or_texts(node: Any, scope: VariantScope) -> Any:
    """Evaluate a truth value, or a list of globs in its place."""
    if isinstance(node, PlacedText) and (is_template(node) or isinstance(scalar_value(node), bool)):
        return flag(node, scope)
    return texts(node, scope)


def number(node: Any, scope: VariantScope) -> int:
    """Evaluate a whole number that is not negative."""
    word = text_of(node, scope).strip()
    if word and not (word.isascii() and word.isdigit()):
        raise fault(node, f"{word!r} is not a whole number")
    return int(word or 0)


def optional_number(node: Any, scope: VariantScope) -> int | None:
    """Evaluate a whole number, perhaps negative; one that renders to nothing is not given."""
    word = text_of(node, scope).strip()
    try:
        return int(word) if word else None
    except ValueError as error:
        raise fault(node, f"{word!r} is not a whole number") from error


def noarch(node: Any, scope: VariantScope) -> str | None:
    """Evaluate ``noarch``: python, generic, or nothing."""
    word = text_of(node, scope).strip()
    if word in {"", "~", "null", "none", "None"}:
        return None
    if word not in {"python", "generic"}:
        raise fault(node, f"noarch is {word!r}", hint="python or generic")
    return word


def requirements(node: Any, scope: VariantScope) -> list[Requirement]:
    """Evaluate a conditional list of requirements."""
    result = ((item, text_of(item, scope)) for item in items(node, scope))
    return [_requirement(item, text) for item, text in result if text]


def _requirement(node: Any, text: str) -> Requirement:
    try:
        return requirement(text)
    except ValueError as error:
        raise fault(node, f"{text[:80]!r} is not a requirement", why=str(error)) from error


def match_spec(node: Any, scope: VariantScope) -> str:
    """Evaluate a match spec, in which a bare version may stand, as in those of tests."""
    given = text_of(node, scope).strip()
    if why := matchspec_notation.fault(given):
        raise fault(node, f"{given[:80]!r} is not a match spec", why=why)
    return given


def raw_texts(node: Any, _: VariantScope) -> list[str]:
    """Take a list of texts as it stands."""
    return [str(require_scalar(item)) for item in (node if isinstance(node, list) else [node])]


def stripped(node: Any, scope: VariantScope) -> str:
    """Evaluate a text, without blanks around it."""
    return text_of(node, scope).strip()


def evaluate_except_folders(node: Any, scope: VariantScope) -> list[str]:
    """Evaluate texts in which folders of the build may stand, which stay expressions."""
    with scope.standing(LATE):
        return texts(node, scope)


def build_string(node: Any, scope: VariantScope) -> PlacedText:
    """Take the build string as a template: what it is follows once the hash is known."""
    text = require_scalar(node)
    if is_template(text):
        record_reads(compiled(text, compile_template).names, scope)
    return text


def skip(node: Any, scope: VariantScope) -> bool:
    """Evaluate ``skip``: whether any of its conditions holds; one that cannot be evaluated does not."""
    conditions = [_skips(item, scope) for item in items(node, scope)]  # all of them, for the names that they read
    return any(conditions)


def _skips(node: Any, scope: VariantScope) -> bool:
    text = require_scalar(node)
    if is_template(text):
        rendered = text_of(text, scope)
        text = PlacedText(rendered, text.line, text.column, plain=False)
    compiled(text, compile_expression)
    try:
        return bool(text) and condition(text, scope)
    except KilnError:
        return False  # as rattler-build has it


@dataclass(frozen=True, slots=True)
class ScriptKind:
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
        return {**fields, "names": values_of_names(of_lines, scope)}


def evaluate_all_texts(node: Any, scope: VariantScope) -> Any:
    """Evaluate every text of a part whose keys are the feedstock's own."""
    if isinstance(node, dict):
        return {str(key): evaluate_all_texts(value, scope) for key, value in node.items()}
    if isinstance(node, list):
        return [evaluate_all_texts(item, scope) for item in node]
    return text_of(node, scope) if is_template(node) else scalar_value(node)


# Sections

_PATTERNS = EitherKind(SectionKind("files", {"include": texts, "exclude": texts}), texts)
_SETTINGS_OF_SCRIPT: dict[str, Kind] = {
    "interpreter": text_of,
    "env": environment,
    "secrets": raw_texts,
    "content": lines,
    "file": text_of,
    "cwd": text_of,
}
_SCRIPT = ScriptKind(SectionKind("script", _SETTINGS_OF_SCRIPT), lines)
_SCRIPT_OF_TEST = ScriptKind(SectionKind("script", {**_SETTINGS_OF_SCRIPT, "content": tested_lines}), tested_lines)
SOURCE = ListKind(
    SectionKind(
        "source",
        {
            "url": texts,
            "sha256": text_of,
            "md5": text_of,
            "file_name": text_of,
            "patches": evaluate_except_folders,
            "target_directory": text_of,
            "filter": _PATTERNS,
            "git": text_of,
            "rev": text_of,
            "tag": text_of,
            "branch": text_of,
            "depth": number,
            "lfs": flag,
            "submodules": flag,
            "expected_commit": text_of,
            "path": text_of,
            "use_gitignore": flag,
        },
    )
)
BUILD = SectionKind(
    "build",
    {
        "number": number,
        "string": build_string,
        "script": _SCRIPT,
        "noarch": noarch,
        "python": SectionKind(
            "python",
            {
                "entry_points": texts,
                "skip_pyc_compilation": texts,
                "use_python_app_entrypoint": flag,
                "version_independent": flag,
                "site_packages_path": text_of,
            },
        ),
        "skip": skip,
        "always_copy_files": texts,
        "always_include_files": texts,
        "merge_build_and_host_envs": flag,
        "files": _PATTERNS,
        "dynamic_linking": SectionKind(
            "dynamic_linking",
            {
                "rpaths": texts,
                "binary_relocation": flag_or_texts,
                "missing_dso_allowlist": texts,
                "rpath_allowlist": texts,
                "overdepending_behavior": text_of,
                "overlinking_behavior": text_of,
            },
        ),
        "variant": SectionKind(
            "variant",
            {"use_keys": texts, "ignore_keys": texts, "down_prioritize_variant": optional_number},
        ),
        "prefix_detection": SectionKind(
            "prefix_detection",
            {
                "force_file_type": SectionKind("force_file_type", {"text": texts, "binary": texts}),
                "ignore": flag_or_texts,
                "ignore_binary_files": flag_or_texts,
            },
        ),
        "post_process": ListKind(
            SectionKind("post_process", {"files": texts, "regex": text_of, "replacement": text_of})
        ),
    },
)
STAGING_BUILD = SectionKind("build of a staging output", {"script": _SCRIPT})
_IGNORED = SectionKind("ignore_run_exports", {"by_name": texts, "from_package": texts})
_RUN_EXPORTS = EitherKind(
    SectionKind(
        "run_exports",
        dict.fromkeys(("noarch", "strong", "strong_constraints", "weak", "weak_constraints"), requirements),
    ),
    requirements,
)
REQUIREMENTS = SectionKind(
    "requirements",
    {
        "build": requirements,
        "host": requirements,
        "run": requirements,
        "run_constraints": requirements,
        "run_exports": _RUN_EXPORTS,
        "ignore_run_exports": _IGNORED,
    },
)
STAGING_REQUIREMENTS = SectionKind(
    "requirements of a staging output", {"build": requirements, "host": requirements, "ignore_run_exports": _IGNORED}
)
_EXISTENCE = EitherKind(SectionKind("files", {"exists": texts, "not_exists": texts}), texts)
TESTS = ListKind(
    SectionKind(
        "test",
        {
            "python": SectionKind("python", {"imports": texts, "pip_check": flag, "python_version": texts}),
            "perl": SectionKind("perl", {"uses": texts}),
            "r": SectionKind("r", {"libraries": texts}),
            "ruby": SectionKind("ruby", {"requires": texts}),
            "script": _SCRIPT_OF_TEST,
            "requirements": SectionKind("requirements of a test", {"run": requirements, "build": requirements}),
            "files": SectionKind("files", {"source": texts, "recipe": texts}),
            "downstream": match_spec,
            "package_contents": SectionKind(
                "package_contents",
                {
                    **dict.fromkeys(("files", "site_packages", "bin", "lib", "include"), _EXISTENCE),
                    "strict": flag,
                },
            ),
        },
    )
)


def tests(node: Any, scope: VariantScope) -> list[dict[str, Any]]:
    """Evaluate the list of tests, for which no single test stands."""
    if not isinstance(node, list) and not is_empty(node):
        raise fault(node, "tests are a list", hint="begin each with '- '")
    result: list[dict[str, Any]] = TESTS(node, scope)
    return result


ABOUT = SectionKind(
    "about",
    {
        "homepage": stripped,
        "repository": stripped,
        "documentation": stripped,
        "license": stripped,
        "license_family": stripped,
        "license_file": evaluate_except_folders,
        "summary": stripped,
        "description": stripped,
    },
)
PACKAGE = SectionKind("package", {"name": text_of, "version": text_of})
SINGLE = (
    "schema_version", "context", "package", "source", "build", "requirements", "tests", "about", "extra",
)  # fmt: skip
SEVERAL = (
    "schema_version", "context", "recipe", "source", "build", "tests", "about", "extra", "outputs",
)  # fmt: skip
OUTPUT = ("package", "inherit", "source", "build", "requirements", "tests", "about")
STAGING = ("staging", "source", "build", "requirements")
KEYS_OF_STAGING = {"build": ("script",), "requirements": ("build", "host", "ignore_run_exports")}
