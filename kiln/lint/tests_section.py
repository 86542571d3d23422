"""Rules for tests of packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lint.model import Problem, hint_rule, lint_rule
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from kiln.lint.subject import LintedFeedstock

_KEYS = frozenset({"imports", "commands"})
_FILES = ("run_test.py", "run_test.sh", "run_test.bat", "run_test.pl")
_SCRIPTS = (".bat", ".sh")


def _untested(subject: LintedFeedstock) -> tuple[bool, list[dict[Any, Any]]]:
    """Return whether anything is tested, and the outputs that are not, if the recipe has no test of its own."""
    recipe = subject.recipe
    if recipe.version:
        if recipe.tests:
            return True, []
        packages = [output for output in recipe.outputs if "package" in output or "staging" not in output]
        untested = [output for output in packages if not output.get("tests")]
        return len(untested) < len(packages), untested
    if _KEYS & recipe.section("test").keys() or any((subject.feedstock.recipe / name).exists() for name in _FILES):
        return True, []
    untested = [output for output in recipe.outputs if not _is_tested(output)]
    return len(untested) < len(recipe.outputs), untested


def _is_tested(output: Mapping[Any, Any]) -> bool:
    tests = mapping_or_empty(output.get("test"))
    return bool(_KEYS & tests.keys()) or str(tests.get("script", "")).endswith(_SCRIPTS)


def no_tests(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a recipe without any test."""
    tested, _ = _untested(subject)
    if not tested:
        at = subject.recipe.at_key(subject.recipe.root, "test", "tests", "outputs")
        yield Problem(text="the recipe has no test", at=at)


def untested_outputs(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield outputs without a test, in a recipe that tests others."""
    tested, outputs = _untested(subject)
    for output in outputs if tested else ():
        name = mapping_or_empty(output.get("package")).get("name") if subject.recipe.version else output.get("name")
        yield Problem(text=f"the output {str(name or '?')!r} has no test", at=subject.recipe.at(output))


def installs_without_pip(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield scripts that install a Python package without pip."""
    recipe = subject.recipe
    script = recipe.section("build").get("script")
    for command in script if isinstance(script, list) else [script]:
        if isinstance(command, str) and "python setup.py install" in command:
            yield Problem(text="'python setup.py install' is deprecated", at=recipe.at(command))


RULES = (
    lint_rule("R-005", no_tests, "add imports: or commands: (recipe.yaml: tests:) that use the package"),
    hint_rule("R-006", untested_outputs, "add a test to the output"),
    hint_rule("R-049", installs_without_pip, "write '{{ PYTHON }} -m pip install . --no-deps --no-build-isolation'"),
)
