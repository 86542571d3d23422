"""Rules for feedstocks of conda-forge only."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern
from kiln.lint import conda_forge_yml_rules, macos_rules, python_rules
from kiln.lint.linted_feedstock import SETTINGS, LintedFeedstock
from kiln.lint.located_yaml import outermost_keys_of_file, repeated_keys
from kiln.lint.match_spec_parts import spec_fields
from kiln.lint.package_metadata_rules import feedstock_name
from kiln.lint.rule_model import Problem, hint_rule, lint_rule
from kiln.model.source_position import Place
from kiln.serialization import mapping_or_empty
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from collections.abc import Iterator


_WORKFLOW = "conda-build.yml"
_REPLACED = {
    "CONDA_BLD_PATH": "workflow_settings.build_workspace_dir",
    "CONDA_FORGE_DOCKER_RUN_ARGS": "docker.run_args",
    "MINIFORGE_HOME": "workflow_settings.tools_install_dir",
    "SET_PAGEFILE": "workflow_settings.pagefile_size",
}
_REMOTE = lazy_pattern(r'\[remote "(upstream|origin)"\][^\[]*?\n\s*url\s*=\s*(\S+)')
_MAX_CONFIG = 1 << 20  # bytes of .git/config


def no_configs(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a feedstock that builds nothing."""
    if not subject.feedstock.config_names:
        yield Problem(text="no configs, so nothing is built", at=Place(file=".ci_support"))


def empty_variant_file(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a variant file without content."""
    path = subject.feedstock.recipe / "conda_build_config.yaml"
    if path.is_file() and not read_text(path, "recipe/conda_build_config.yaml").strip():
        yield Problem(text="the variant file is empty", at=Place(file="recipe/conda_build_config.yaml"))


def additional_workflows(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield workflows of GitHub Actions other than conda-smithy's."""
    folder = subject.feedstock.root / ".github" / "workflows"
    for path in sorted([*folder.glob("*.yml"), *folder.glob("*.yaml")]):
        if path.name != _WORKFLOW:
            text = f"{path.name} is not the workflow of conda-forge"
            yield Problem(text=text, at=Place(file=f".github/workflows/{path.name}"))


def overridden_pins(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield requirements whose version overrides that of the variant."""
    recipe = subject.recipe
    pins = {
        key
        for path in sorted(subject.feedstock.config_folder.glob("*.yaml"))
        for key in outermost_keys_of_file(path, f".ci_support/{path.name}")
    }
    for requirements in (recipe.section("requirements"), *(output.get("requirements") for output in recipe.outputs)):
        host = mapping_or_empty(requirements).get("host")
        named: dict[str, list[tuple[str, bool]]] = {}
        for spec in recipe.texts_of_all_branches(host):
            fields = spec_fields(spec.partition("#")[0].strip())
            if fields and fields.name:
                named.setdefault(fields.name, []).append((spec, fields.versioned))
        for name, specs in named.items():
            # A second requirement of the same package may refine the first one.
            if name in pins and len(specs) == 1 and specs[0][1]:
                text = f"{str(specs[0][0])!r} overrides the version of the variant"
                yield Problem(text=text, at=recipe.place_of(specs[0][0]), cure=f"write {name}")


def replaced_azure_variables(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield variables of Azure that settings replace."""
    azure = mapping_or_empty(subject.settings.get("azure"))
    for system in ("linux", "osx", "win"):
        variables = mapping_or_empty(mapping_or_empty(azure.get(f"settings_{system}")).get("variables"))
        for name in variables:
            if name in _REPLACED:
                at = subject.setting_place("azure", f"settings_{system}", "variables", str(name))
                yield Problem(text=f"the variable {name} is deprecated", at=at, cure=f"use {_REPLACED[name]}")


def repeated_settings(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that conda-forge.yml has twice."""
    path = subject.feedstock.root / SETTINGS
    if path.is_file():
        for key in repeated_keys(read_text(path, SETTINGS), SETTINGS):
            at = Place(file=SETTINGS, line=key.line, column=key.column)
            yield Problem(text=f"{str(key)!r} stands there twice", at=at)


def repeated_recipe_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that a mapping of a recipe.yaml has twice, so that parsers refuse the recipe."""
    recipe = subject.recipe
    for key in recipe.repeated_keys if recipe.version else ():
        yield Problem(text=f"{str(key)!r} stands there twice", at=recipe.place_of(key))


def mismatched_feedstock_name(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a name of the feedstock that differs from the name of its repository."""
    name = feedstock_name(subject)
    if not name:
        return
    owner = mapping_or_empty(subject.settings.get("github")).get("user_or_org", "conda-forge")
    pattern = rf"(?:https?://|git\+ssh://|ssh://|git@)(?:[^@/]*@)?github\.com[:/]/?{re.escape(str(owner))}/([^/]+)-feedstock(?:\.git)?/?"
    match = re.fullmatch(pattern, _git_remote_url(subject))
    if match and match[1] != name:
        text = f"the recipe's feedstock is {name!r}, the repository's {match[1]!r}"
        at = subject.recipe.place_of_key(subject.recipe.section("extra"), "feedstock-name")
        yield Problem(text=text, at=at, cure=f"write feedstock-name: {match[1]} in the extra section")


def _git_remote_url(subject: LintedFeedstock) -> str:
    """Return the URL of the repository's remote upstream, or origin; empty without."""
    try:
        with (subject.feedstock.root / ".git" / "config").open("rb") as file:
            text = file.read(_MAX_CONFIG).decode("utf-8", "replace")
    except OSError:
        return ""
    urls = dict(_REMOTE.findall(text))
    return urls.get("upstream") or urls.get("origin") or ""


RULES = tuple(
    replace(rule, conda_forge=True)
    for rule in (
        lint_rule("CF-003", no_configs, "run kiln rerender"),
        lint_rule("CF-004", empty_variant_file, "remove the file"),
        lint_rule(
            "CF-005", additional_workflows, "remove the workflow: conda-forge's services are for building packages"
        ),
        hint_rule("CF-006", overridden_pins, "require the package without a version, or set it in the variant file"),
        hint_rule("CF-007", replaced_azure_variables, "use the setting"),
        lint_rule("CF-013", mismatched_feedstock_name, "set feedstock-name in the extra section"),
        lint_rule("FC-001", repeated_settings, "keep one of them"),
        lint_rule("R-036", repeated_recipe_keys, "keep one of them"),
        hint_rule("R-037", repeated_recipe_keys, "keep one of them"),
        *python_rules.RULES,
        *macos_rules.RULES,
        *conda_forge_yml_rules.WORKFLOW_RULES,
    )
)
