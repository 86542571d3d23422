"""Rules for versions of macOS in variant files: the minimum that a package runs on, and the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.lazy_pattern import lazy_pattern
from kiln.lint.linted_feedstock import VARIANT_FILES, LintedFeedstock
from kiln.lint.located_yaml import branch_items, read_values
from kiln.lint.rule_model import Problem, lint_rule
from kiln.serialization import mapping_or_empty
from kiln.template.python_expression import ExpressionError, evaluate_expression
from kiln.variants.files import as_list
from kiln.versions import version_or_none
from kiln.yamltext import place_of_key_path, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BASELINE = "11.0"  # conda-forge's minimum for both processors
_TARGET, _STDLIB, _SDK = "MACOSX_DEPLOYMENT_TARGET", "c_stdlib_version", "MACOSX_SDK_VERSION"
# A value for another system, by its selector; keys stay, or their values would have none.
_OTHER_SYSTEM = lazy_pattern(r"^([^:\#]*?)\s+\#\s\[.*(not\s(osx|unix)|(?<!not\s)(linux|win)).*\]\s*$")
_NAMES = {"unix": True, "osx": True, "linux": False, "win": False}


def _variant_files_on_macos(subject: LintedFeedstock) -> Iterator[tuple[str, dict[Any, Any]]]:
    for name in VARIANT_FILES:
        path = subject.feedstock.recipe / name
        if not path.is_file():
            continue
        file = f"recipe/{name}"
        text = read_text(path, file)
        if name == VARIANT_FILES[0]:
            text = "\n".join(_OTHER_SYSTEM.sub("", line) for line in text.split("\n"))
        values = mapping_or_empty(read_values(text, file))
        if name == VARIANT_FILES[1]:
            values = {key: items_of_key for key, value in values.items() if (items_of_key := [*_macos_items(value)])}
        yield file, {key: value for key, value in values.items() if value is not None}


def _macos_items(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and "if" in item:
            branch = item.get("then") if _holds_on_macos(str(item["if"])) else item.get("else")
            yield from branch_items(branch) if branch is not None else ()
        else:
            yield item


def _holds_on_macos(condition: str) -> bool:
    """Return whether a condition holds for macOS; unknown names count as true."""
    try:
        return bool(evaluate_expression(condition, lambda name: _NAMES.get(name, True)))
    except ExpressionError:
        return False


def deprecated_deployment_target(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the former key for the minimum version."""
    for file, values in _variant_files_on_macos(subject):
        if _TARGET in values:
            yield Problem(text=f"{_TARGET} is deprecated", at=place_of_key_path(values, file, _TARGET))


def macos_minimum_below_baseline(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a minimum version below conda-forge's."""
    for file, values in _variant_files_on_macos(subject):
        versions = _versions_of_key(values, _STDLIB)
        if (
            _STDLIB in values
            and len(versions) <= 2
            and any(_is_older_version(version, BASELINE) for version in versions)
        ):
            text = f"{_STDLIB} {', '.join(versions)} is below conda-forge's minimum for macOS, {BASELINE}"
            yield Problem(text=text, at=place_of_key_path(values, file, _STDLIB))


def macos_sdk_below_minimum(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield an SDK that is older than the minimum version."""
    for file, values in _variant_files_on_macos(subject):
        if not values:
            continue
        sdks, minimums = _versions_of_key(values, _SDK), _versions_of_key(values, _STDLIB)
        compare: Callable[..., bool] = any
        if len(sdks) != len(minimums):
            if len(sdks) != 1:
                continue
            sdks, compare = sdks * len(minimums), all
        if compare(_is_older_version(sdk, minimum) for sdk, minimum in zip(sdks, minimums, strict=True)):
            text = f"{_SDK} {', '.join(sdks)} is below {_STDLIB} {', '.join(minimums)}"
            yield Problem(text=text, at=place_of_key_path(values, file, _SDK if _SDK in values else _STDLIB))


def _versions_of_key(values: dict[Any, Any], key: str) -> list[str]:
    """Return the versions of a key, of two the lower first: those of x86-64 and of arm64; without it the baseline."""
    value = values.get(key, [BASELINE, BASELINE])
    versions = [str(item) for item in as_list(value) if item is not None]
    return versions[::-1] if len(versions) == 2 and _is_older_version(versions[1], versions[0]) else versions


def _is_older_version(version: str, other: str) -> bool:
    left, right = version_or_none(version), version_or_none(other)
    return left is not None and right is not None and left < right


RULES = (
    lint_rule("RC-000", deprecated_deployment_target, f"write {_STDLIB} for macOS"),
    lint_rule(
        "RC-001", macos_minimum_below_baseline, "remove the value, or add a selector for the system that it is for"
    ),
    lint_rule("CBC-001", macos_sdk_below_minimum, f"raise {_SDK}, or remove it"),
)
