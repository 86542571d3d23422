"""Rules for the text of a recipe: selectors, Jinja, URLs of wheels, the end of the file."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from kiln.base.patterns import lazy_pattern
from kiln.feedstock.lint.model import Problem, hint_rule, lint_rule
from kiln.recipe.template.selectors import SelectableText

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.feedstock.lint.model import LintedFeedstock, LintedRecipe

# PyPI's address and its former one, put together: no file of the project names a registry.
INDEX, FORMER_INDEX = (f"https://pypi.{end}/" for end in ("org", "io"))
# conda-build's pattern of a selector: with a comment sign, or alone at the end of a line.
SELECTOR = lazy_pattern(r"(?P<text>.+?)\s*(?P<sign>#.*)?\[(?P<expression>[^\[\]]+)\](?(sign).*)$")
TIDY_SELECTOR = lazy_pattern(r"(.+?)\s{2,}#\s\[(.+)\](?(2).*)$")
OLD_PYTHON = lazy_pattern(r".+#\s*\[.*?(py\d{2,3}).*\]")
STILL_DEFINED = frozenset({27, 34, 35, 36})  # Python versions whose old selector conda-build still defines
JINJA_SET = lazy_pattern(r"\s*\{%\s*(set)\s+[^\s]+\s*=\s*[^\s]+\s*%\}")
TIDY_SET = lazy_pattern(r"\s*\{%\s(set)\s[^\s]+\s=\s[^\s]+\s%\}")
EXPRESSIONS = (re.compile(r"{{(.*?)}}"), re.compile(r"\${{(.*?)}}"))  # of meta.yaml and recipe.yaml
_PURE_WHEEL = lazy_pattern(r"[:-]\s+(http.*-none-any\.whl)\s")
_WHEEL = lazy_pattern(r"[:-]\s+(http.*\.whl)\s")
_ABI3_TEXT = lazy_pattern(r"is_abi3\s*(==|!=)\s*('|\")(true|false)('|\")")
_SP_DIR = lazy_pattern(r"\s*(?:-\s+)?(?:then:\s+)?(?:export\s+)?SP_DIR\s*=")
_SITE_PACKAGES = lazy_pattern(r"%PREFIX%[\\/]+Lib[\\/]+site-packages", re.IGNORECASE)
PLATFORMS = frozenset({"win", "linux", "osx", "unix"})
LOGIC = frozenset({"not", "and", "or"})
_MAX_LINE = 4_000  # characters; longer lines are data, and patterns would take long


def numbered_lines(recipe: LintedRecipe) -> Iterator[tuple[int, str]]:
    """Yield the lines of a recipe with their numbers from 1, as a file is read: without an empty last one."""
    texts = recipe.lines[:-1] if recipe.lines[-1] == "" else recipe.lines
    yield from ((number, line) for number, line in enumerate(texts, 1) if len(line) <= _MAX_LINE)


def selector_of_line(line: str, keys: frozenset[str] | set[str] = frozenset(), *, commented_only: bool = False) -> str:
    """Return the selector of a line; empty if it has none, or one of these names alone."""
    line = line.rstrip()
    if line.lstrip().startswith("#") or "[" not in line:
        return ""
    match = SELECTOR.match(line)
    if not match or (commented_only and not match["sign"]):
        return ""
    names = {word for word in match["expression"].split() if word not in LOGIC}
    return "" if names <= keys else match["expression"]


def untidy_selectors(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield selectors of a meta.yaml that are not written as '  # [selector]'."""
    recipe = subject.recipe
    if recipe.version == 0:
        lists = {at.line: fault for at, fault in SelectableText(recipe.text, recipe.file).lists_as_selectors.items()}
        for number, line in numbered_lines(recipe):
            if number in lists:
                yield Problem(text=lists[number].what, at=recipe.place_of_line(number), cure=lists[number].hint)
            elif selector_of_line(line) and not TIDY_SELECTOR.match(line.rstrip()):
                text = "the selector is not written as two spaces, '#', one space, '[selector]'"
                yield Problem(text=text, at=recipe.place_of_line(number))


def old_python_selectors(subject: LintedFeedstock, *, defined: bool) -> Iterator[Problem]:
    """Yield selectors such as py36, which are deprecated; or those such as py37, which conda-build does not define."""
    for number, line in numbered_lines(subject.recipe) if subject.recipe.version == 0 else ():
        match = OLD_PYTHON.match(line.rstrip()) if selector_of_line(line) else None
        version = int(match[1][2:]) if match else 0
        if match and (version in STILL_DEFINED) is defined:
            text = f"the selector {match[1]} is {'deprecated' if defined else 'not defined'}"
            yield Problem(text=text, at=subject.recipe.place_of_line(number), cure=f"write py=={version}")


def selectors_without_effect(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield selectors in comments of a recipe.yaml, which have no effect there."""
    if subject.recipe.version:
        for number, line in numbered_lines(subject.recipe):
            if selector := selector_of_line(line, commented_only=True):
                text = f"the selector [{selector}] has no effect in recipe.yaml"
                yield Problem(text=text, at=subject.recipe.place_of_line(number))


def selectors_in_noarch_recipe(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the first selector on a skip or a requirement of a noarch meta.yaml, which is built once."""
    recipe = subject.recipe
    if recipe.version or recipe.noarch is None:
        return
    allowed = subject.variant_keys() | (PLATFORMS if subject.has_several_noarch_platforms else set())
    if match := first_disallowed_selector(recipe, allowed):
        number, what = match
        yield Problem(text=f"a noarch package has a {what} with a selector", at=recipe.place_of_line(number))


def first_disallowed_selector(
    recipe: LintedRecipe, allowed: frozenset[str] | set[str] = frozenset()
) -> tuple[int, str] | None:
    """Return the line of the first selector on a skip or, unless it is ``allowed``, a requirement, and on which."""
    inside = None  # the indentation of the list of requirements around the line
    for number, line in numbered_lines(recipe):
        stripped = line.strip()
        indentation = line[: len(line) - len(line.lstrip())] if stripped else ""
        if stripped in {"host:", "run:"}:
            inside = indentation
        elif stripped.startswith("skip:") and selector_of_line(line):
            return number, "skip"
        elif inside is not None and indentation == inside:
            inside = None
        elif inside is not None and selector_of_line(line, allowed):
            return number, "requirement"
    return None


def untidy_jinja_definitions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield Jinja definitions without the usual spaces."""
    for number, line in numbered_lines(subject.recipe):
        if JINJA_SET.match(line.rstrip()) and not TIDY_SET.match(line.rstrip()):
            yield Problem(text="the Jinja definition has unusual spaces", at=subject.recipe.place_of_line(number))


def untidy_jinja_expressions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield Jinja expressions without one space inside each brace."""
    sign = "$" * subject.recipe.version
    for number, line in numbered_lines(subject.recipe):
        for match in EXPRESSIONS[subject.recipe.version].finditer(line):
            name = match[1].strip()
            if match[1] != f" {name} ":
                at = subject.recipe.place_of_line(number, match.start() + 1)
                yield Problem(text=f"write {sign}{{{{ {name} }}}}, with single spaces", at=at)


def extra_final_line_breaks(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield empty lines at the end of the file."""
    extra = _final_line_break_count(subject) - 1
    if extra > 0:
        at = subject.recipe.place_of_line(len(subject.recipe.lines) - extra)
        yield Problem(text=f"{extra} empty line{'s' * (extra > 1)} at the end of the file", at=at)


def missing_final_line_break(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a last line that does not end."""
    if _final_line_break_count(subject) < 1:
        at = subject.recipe.place_of_line(len(subject.recipe.lines))
        yield Problem(text="the last line has no line break", at=at)


def _final_line_break_count(subject: LintedFeedstock) -> int:
    text = subject.recipe.text
    return len(text) - len(text.rstrip("\n"))


def compiled_wheel_sources(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield compiled wheels as sources."""
    for number, line in numbered_lines(subject.recipe):
        if not _PURE_WHEEL.search(f"{line}\n") and (match := _WHEEL.search(f"{line}\n")):
            yield Problem(text=f"the source {match[1]} is a compiled wheel", at=subject.recipe.place_of_line(number))


def pure_python_wheel_sources(subject: LintedFeedstock, *, noarch: bool) -> Iterator[Problem]:
    """Yield wheels as sources of a noarch Python package, or of another one."""
    for number, line in numbered_lines(subject.recipe) if (subject.recipe.noarch == "python") is noarch else ():
        if match := _PURE_WHEEL.search(f"{line}\n"):
            yield Problem(text=f"the source {match[1]} is a wheel", at=subject.recipe.place_of_line(number))


def abi3_comparisons(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield comparisons of is_abi3 with a text; it is a truth value."""
    for number, line in numbered_lines(subject.recipe):
        if match := _ABI3_TEXT.search(line):
            at = subject.recipe.place_of_line(number, match.start() + 1)
            yield Problem(text=f"is_abi3 is a truth value, compared with the text {match[3]!r}", at=at)


def sp_dir_definitions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield definitions of SP_DIR in a recipe.yaml, which rattler-build defines."""
    for number, line in numbered_lines(subject.recipe) if subject.recipe.version else ():
        if _SP_DIR.match(line) or _SITE_PACKAGES.search(line):
            text = "rattler-build defines SP_DIR, the folder of site-packages"
            yield Problem(text=text, at=subject.recipe.place_of_line(number))


_SDIST = "build from the source distribution (sdist)"

RULES = (
    lint_rule("R0-001", untidy_selectors, "write the selector as in 'skip: true  # [win]'", fixable=True),
    lint_rule("R0-002", partial(old_python_selectors, defined=False), "compare py, as in '# [py==37]'", fixable=True),
    hint_rule("R0-003", partial(old_python_selectors, defined=True), "compare py, as in '# [py==36]'", fixable=True),
    lint_rule("R1-001", selectors_without_effect, "write the item as '- if: ...' with 'then: ...'"),
    lint_rule(
        "R0-004",
        selectors_in_noarch_recipe,
        "remove noarch:, or the selector; or list several noarch_platforms: in conda-forge.yml",
        skip="lint_noarch_selectors",
    ),
    lint_rule("R0-005", untidy_jinja_definitions, 'write {% set name = "value" %}', fixable=True),
    hint_rule("R-025", untidy_jinja_expressions, "put one space inside each brace", fixable=True),
    lint_rule("R-011", extra_final_line_breaks, "remove the empty lines", fixable=True),
    lint_rule("R-012", missing_final_line_break, "end the last line", fixable=True),
    lint_rule("R-028", compiled_wheel_sources, _SDIST),
    lint_rule("R-029", partial(pure_python_wheel_sources, noarch=False), _SDIST),
    hint_rule("R-030", partial(pure_python_wheel_sources, noarch=True), f"{_SDIST} if there is one"),
    lint_rule("R-038", abi3_comparisons, "write is_abi3 or not is_abi3", fixable=True, conda_forge=True),
    hint_rule("R1-006", sp_dir_definitions, "remove the definition, and use $SP_DIR or %SP_DIR%", conda_forge=True),
)
