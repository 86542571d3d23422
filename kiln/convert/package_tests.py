"""The ``test`` section of a package, converted to the ``tests`` of recipe.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.convert.conditional_parts import (
    IfThenElsePart,
    conditional_list,
    conditional_text,
    flattened_items_with_conditions,
    grouped_by_condition,
    literal_text_part,
)
from kiln.convert.meta_yaml_tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart
from kiln.convert.specs import pieces_with_rewritten_text, strict_match_spec

if TYPE_CHECKING:
    from kiln.convert.sections import SectionConverter

PIP_CHECK = "pip check"
_KNOWN = frozenset({"imports", "commands", "requires", "files", "source_files", "downstreams", "script"})
# The files of a recipe that test its only package, whether or not the section says so: how each is run.
IMPLICIT = {
    "run_test.sh": ("unix", "bash -e ./run_test.sh"),
    "run_test.bat": ("win", "call run_test.bat"),
    "run_test.py": (None, "python run_test.py"),
    "run_test.pl": (None, "perl run_test.pl"),
    "run_test.r": (None, "Rscript run_test.r"),
}


class PackageTestConverter:
    """Converts the tests of packages."""

    def __init__(self, sections: SectionConverter) -> None:
        self._sections = sections

    def convert(self, parts: list[RecipePart], *, implicit: bool) -> ListPart | None:
        """Return the tests; ``implicit`` adds the files that conda-build runs by their names.

        Raises:
            UnconvertiblePart: a key has no equivalent.
        """
        result: list[RecipePart] = []
        for part in parts:
            if isinstance(part, DictPart):
                tests = self._converted_tests(part, implicit=implicit)
                result.extend(replace(item, guards=part.guards) for item in tests)
            elif isinstance(part, ListPart) and part.items:
                raise UnconvertiblePart(part.number, "the section 'test' is a mapping")
        if not parts and implicit:
            result.extend(self._converted_tests(DictPart(), implicit=True))
        return ListPart(items=grouped_by_condition(result)) if result else None

    def _converted_tests(self, given: DictPart, *, implicit: bool) -> list[RecipePart]:
        for name, part in given.pairs:
            if name not in _KNOWN:
                raise UnconvertiblePart(part.number, f"test/{name} has no equivalent in recipe.yaml")
        requires = flattened_items_with_conditions(given.values_of_key("requires"))
        commands = flattened_items_with_conditions(given.values_of_key("commands"))
        imports = flattened_items_with_conditions(given.values_of_key("imports"))
        names = self._test_file_names(given, implicit=implicit)
        lines = [*map(_test_file_command, names), *commands]
        tests: list[RecipePart] = []
        checked = any(_is_pip_check(item) for item in lines)
        if imports and _fits_python_test(requires, checked=checked):
            tests.append(self._python_import_test(given, requires, checked=checked))
            lines = [item for item in lines if not _is_pip_check(item)]
        else:
            lines = [*map(_import_command, imports), *lines]
        if lines:
            tests.append(self._script_test(given, lines, names))
        downstream = [
            DictPart(pairs=[("downstream", replace(item, guards=()))], guards=item.guards)
            for item in flattened_items_with_conditions(given.values_of_key("downstreams"))
        ]
        return [*tests, *downstream]

    def _python_import_test(self, given: DictPart, requires: list[RecipePart], *, checked: bool) -> DictPart:
        body: list[tuple[str, RecipePart]] = [
            ("imports", conditional_list(given.values_of_key("imports")) or ListPart())
        ]
        if not checked:
            body.append(("pip_check", literal_text_part("false")))
        if version := next((item for item in requires if _words_of_scalar(item)[0] == "python"), None):
            body.append(("python_version", _python_version_requirement(version)))
        return DictPart(pairs=[("python", DictPart(pairs=body))])

    def _test_file_names(self, given: DictPart, *, implicit: bool) -> list[str]:
        named = conditional_text(given.values_of_key("script"))
        if named and named.template_text not in IMPLICIT:
            raise UnconvertiblePart(named.number, f"the test's script {named.template_text!r} has an unknown kind")
        own = [name for name in IMPLICIT if implicit and name in self._sections.facts.files]
        return list(dict.fromkeys([*([named.template_text] if named else []), *own]))

    def _script_test(self, given: DictPart, lines: list[RecipePart], names: list[str]) -> DictPart:
        body: list[tuple[str, RecipePart]] = []
        if requires := self._sections.convert_specs(given.values_of_key("requires"), "test"):
            body.append(("requirements", DictPart(pairs=[("run", requires)])))
        extra = [literal_text_part(name) for name in names]
        files: list[tuple[str, RecipePart]] = []
        for key, name in (("source_files", "source"), ("files", "recipe")):
            items = [*flattened_items_with_conditions(given.values_of_key(key)), *(extra if name == "recipe" else [])]
            if items:
                files.append((name, ListPart(items=grouped_by_condition(items))))
        if files:
            body.append(("files", DictPart(pairs=files)))
        above = [comment for part in given.values_of_key("commands") for comment in part.above]
        return DictPart(pairs=[("script", ListPart(items=_conditional_commands_first(lines), above=above)), *body])


def _test_file_command(name: str) -> RecipePart:
    platform, command = IMPLICIT[name]
    text = literal_text_part(command)
    return IfThenElsePart(condition=platform, then=[text]) if platform else text


def _conditional_commands_first(lines: list[RecipePart]) -> list[RecipePart]:
    whole = [item for item in lines if isinstance(item, IfThenElsePart)]
    return [*whole, *grouped_by_condition(item for item in lines if not isinstance(item, IfThenElsePart))]


def _words_of_scalar(part: RecipePart) -> list[str]:
    return part.template_text.split() if isinstance(part, ScalarPart) and part.template_text.split() else [""]


def _fits_python_test(requires: list[RecipePart], *, checked: bool) -> bool:
    """Return whether a test of imports brings all that is required: pip for its check, and a version of Python."""
    pip = any(_words_of_scalar(item) == ["pip"] for item in requires)
    return pip is checked and all(
        _words_of_scalar(item)[0] in {"pip", "python"} and not item.guards for item in requires
    )


def _is_pip_check(part: RecipePart) -> bool:
    return isinstance(part, ScalarPart) and not part.guards and part.template_text == PIP_CHECK


def _import_command(part: RecipePart) -> RecipePart:
    if not isinstance(part, ScalarPart):
        raise UnconvertiblePart(part.number, "an import is text")
    return replace(part, pieces=('python -c "import ', *part.pieces, '"'))


def _python_version_requirement(part: RecipePart) -> ScalarPart:
    assert isinstance(part, ScalarPart)
    return ScalarPart(
        pieces=pieces_with_rewritten_text(part.pieces, lambda text: strict_match_spec(text, "test").partition(" ")[2])
    )
