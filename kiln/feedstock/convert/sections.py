"""The sections of one package of a meta.yaml, its tests included, converted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kiln.feedstock.convert import composition
from kiln.feedstock.convert.composition import (
    ExpressionText,
    HashKeysToUseOrIgnore,
    conjunction,
    negation,
    unparenthesized,
)
from kiln.feedstock.convert.conditions import (
    IfThenElsePart,
    conditional_list,
    conditional_list_or_text,
    conditional_text,
    flattened_items_with_conditions,
    grouped_by_condition,
    is_empty_part,
    literal_text_part,
    pieces_with_rewritten_text,
    require_unconditional,
    strict_match_spec,
)
from kiln.feedstock.convert.packages import IMPLICIT, PIP_CHECK
from kiln.feedstock.convert.tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart
from kiln.recipe.rendered import RUN_EXPORTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kiln.feedstock.convert.conditions import SpecConverter

    Result = TypeVar("Result")


_KNOWN = frozenset({"imports", "commands", "requires", "files", "source_files", "downstreams", "script"})


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


_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})
_SOURCE_LIST_CONVERSIONS = {"patches": conditional_list, "url": conditional_list_or_text}
_HINT = "kiln convert --leave-out {}, if the packages may do without"
_ORDER = ("number", "string", "noarch", "skip", "script")


@dataclass(frozen=True, kw_only=True)
class FeedstockFacts:
    """Facts of the feedstock that a conversion needs besides its meta.yaml.

    ``always`` are the keys that every config has, ``values`` all values of each key, ``files`` the names of the files
    in the recipe's folder, ``run_pins`` the variant's ``pin_run_as_build``. ``top_is_package``: the top level is a
    package in addition to its outputs. ``hash_keys`` are, by output, keys to count, or not to count, in hashes.
    ``leave_out`` are keys without equivalent that may be lost, ``compile_keys`` keys that the script of a compile
    reads, and variables of the package (``PKG_NAME``).
    """

    always: frozenset[str]
    values: Mapping[str, frozenset[str]]
    files: frozenset[str]
    top_is_package: bool = False
    hash_keys: HashKeysToUseOrIgnore = field(default_factory=HashKeysToUseOrIgnore)
    run_pins: Mapping[str, Mapping[str, str] | str] = field(default_factory=dict)
    leave_out: frozenset[str] = frozenset()
    compile_keys: tuple[str, ...] = ()


class SectionConverter:
    """Converts sections."""

    def __init__(self, specs: SpecConverter, facts: FeedstockFacts) -> None:
        self._specs = specs
        self.facts = facts
        self.faults: list[UnconvertiblePart] = []

    def try_conversion(self, convert: Callable[[], Result]) -> Result | None:
        """Return what a conversion returns; one that is refused is collected, so that all are reported at once."""
        try:
            return convert()
        except UnconvertiblePart as refused:
            self.faults.append(refused)
            return None

    # -- build ----------------------------------------------------------------------------------------------

    def convert_build(self, given: DictPart, package: DictPart, script: RecipePart | None) -> None:
        """Convert a build section; ``script`` is the script's part, which may come from elsewhere."""
        names = given.names
        for name in sorted(names, key=lambda each: _ORDER.index(each) if each in _ORDER else len(_ORDER)):
            if name not in {"script", "script_env"}:
                self.try_conversion(partial(self._convert_build_key, name, given.values_of_key(name), package))
            elif name == "script" or "script" not in names:
                package.add(("build", "script"), script)
                script = None
        package.add(("build", "script"), script)

    def _convert_build_key(self, name: str, parts: list[RecipePart], package: DictPart) -> None:
        special: dict[str, Callable[[list[RecipePart], DictPart], None]] = {
            "skip": self._convert_skip,
            "run_exports": self._convert_run_exports,
            "track_features": self._convert_track_features,
            "detect_binary_files_with_prefix": self._convert_prefix_detection,
            "noarch_python": self._convert_noarch_python,
        }
        if name in special:
            special[name](parts, package)
        elif name in composition.TEXTS:
            package.add(composition.TEXTS[name], conditional_text(parts))
        elif name in composition.LISTS:
            package.add(composition.LISTS[name], conditional_list(parts))
        elif name in composition.FLAGS_OR_LISTS:
            package.add(composition.FLAGS_OR_LISTS[name], conditional_list_or_text(parts))
        elif not all(map(is_empty_part, parts)) and f"build/{name}" not in self.facts.leave_out:
            raise _no_equivalent_error("build", name, parts, _HINT)

    def _convert_skip(self, parts: list[RecipePart], package: DictPart) -> None:
        tests = []
        for part in parts:
            if not isinstance(part, ScalarPart) or (value := part.template_text.lower()) in _FALSE:
                raise UnconvertiblePart(part.number, "only 'skip: true' can be carried over")
            test = conjunction(part.guards)
            if value not in _TRUE:
                own = part.sole_expression
                if own is None:
                    raise UnconvertiblePart(part.number, "'skip' is neither true nor an expression")
                test = own if test is None else conjunction((*part.guards, own))
            condition = "true" if test is None else unparenthesized(test.text)
            tests.append(ScalarPart(number=part.number, pieces=(condition,), above=part.above, behind=part.behind))
        if tests:
            package.add(("build", "skip"), ListPart(items=list(tests)))

    def _convert_noarch_python(self, parts: list[RecipePart], package: DictPart) -> None:
        value = conditional_text(parts)
        if value is not None and value.template_text.lower() in _TRUE:
            package.add(("build", "noarch"), literal_text_part("python"))
        elif value is not None and value.template_text.lower() not in _FALSE:
            raise UnconvertiblePart(value.number, "'noarch_python' depends on conditions")

    def _convert_prefix_detection(self, parts: list[RecipePart], package: DictPart) -> None:
        value = conditional_text(parts)
        if value is None:
            return
        words = value.template_text.lower()
        if words not in _TRUE | _FALSE:
            own = value.sole_expression
            if own is None:
                raise UnconvertiblePart(value.number, "it is neither true nor false")
            package.add(composition.DETECTION, replace(value, pieces=(negation(own),)))
        elif words in _FALSE:
            package.add(composition.DETECTION, replace(value, pieces=("true",)))

    def _convert_track_features(self, parts: list[RecipePart], package: DictPart) -> None:
        """Convert features, each of which makes solvers avoid the package: what counts is how many there are."""
        items = flattened_items_with_conditions(parts)
        if not items:
            return
        tests = [conjunction(item.guards) for item in items]
        first = tests[0]
        if any((test and test.text) != (first and first.text) for test in tests):
            raise UnconvertiblePart(items[0].number, "features under different conditions have no equivalent")
        count = str(len(items))
        above = [comment for part in parts for comment in part.above]
        value = ScalarPart(
            pieces=(count,) if first is None else (ExpressionText(f"{count} if {first.text} else 0"),), above=above
        )
        package.add(("build", "variant", "down_prioritize_variant"), value)

    def _convert_run_exports(self, parts: list[RecipePart], package: DictPart) -> None:
        path = ("requirements", "run_exports")
        mappings = [part for part in parts if isinstance(part, DictPart)]
        if not mappings:
            package.add(path, self.convert_specs(parts, "run_exports"))
            return
        for mapping in mappings:
            require_unconditional(mapping)
            for kind in mapping.names:
                if kind not in RUN_EXPORTS:
                    raise UnconvertiblePart(
                        mapping.values_of_key(kind)[0].number, f"run exports of the kind {kind!r} have no equivalent"
                    )
                package.add((*path, RUN_EXPORTS[kind]), self.convert_specs(mapping.values_of_key(kind), "run_exports"))

    # -- scripts --------------------------------------------------------------------------------------------

    def convert_script(
        self, parts: list[RecipePart], variables: list[RecipePart], *, of_file: bool = False
    ) -> RecipePart | None:
        """Return a script with its environment; ``of_file`` says that its text is the name of a file."""
        env = self._script_env_and_secrets(variables)
        if of_file:
            file = conditional_text(parts)
            body: list[tuple[str, RecipePart]] = [("file", file)] if file else []
        else:
            lines = conditional_list(parts)
            if lines is not None and not env:
                return lines
            body = [("content", lines)] if lines else []
        return DictPart(pairs=[*body, *env]) if body or env else None

    def _script_env_and_secrets(self, parts: list[RecipePart]) -> list[tuple[str, RecipePart]]:
        values, secrets = DictPart(), ListPart()
        for part in flattened_items_with_conditions(parts):
            name, equals, _ = part.template_text.partition("=") if isinstance(part, ScalarPart) else ("", "", "")
            if not isinstance(part, ScalarPart) or not name.isidentifier():
                raise UnconvertiblePart(part.number, "'script_env' holds NAME or NAME=value")
            if not equals:
                require_unconditional(part)
                secrets.items.append(part)
                continue
            pieces = list(part.pieces)
            pieces[0] = str(pieces[0])[len(name) + 1 :]
            result = tuple(piece for piece in pieces if piece != "")
            values.pairs.append((name, replace(part, pieces=result, plain=False)))
        merged = {name: conditional_text(values.values_of_key(name)) for name in values.names}
        env = DictPart(pairs=[(name, value) for name, value in merged.items() if value])
        return [*([("env", env)] if values.pairs else []), *([("secrets", secrets)] if secrets.items else [])]

    # -- requirements, about, source ------------------------------------------------------------------------

    def convert_requirements(self, parts: list[RecipePart], package: DictPart) -> None:
        """Convert a requirements section; a bare list counts for host and run."""
        for part in parts:
            if isinstance(part, ListPart):
                for name in ("host", "run"):
                    package.add(("requirements", name), self.convert_specs([part], name))
            elif isinstance(part, DictPart):
                require_unconditional(part)
                self._convert_requirement_sections(part, package)
            elif not is_empty_part(part):
                raise UnconvertiblePart(part.number, "requirements are a mapping of sections")

    def _convert_requirement_sections(self, given: DictPart, package: DictPart) -> None:
        for name in given.names:
            if name not in composition.REQUIREMENTS:
                raise _no_equivalent_error("requirements", name, given.values_of_key(name))
        for name, new in composition.REQUIREMENTS.items():
            package.add(("requirements", new), self.convert_specs(given.values_of_key(name), name))

    def convert_specs(self, parts: list[RecipePart], section: str) -> ListPart | None:
        """Return the requirements of a section, or of a test."""
        return self._converted_items(parts, lambda item: self._specs.convert(item, section))

    def _converted_items(self, parts: list[RecipePart], convert: Callable[[RecipePart], RecipePart]) -> ListPart | None:
        tried = [self.try_conversion(partial(convert, item)) for item in flattened_items_with_conditions(parts)]
        return conditional_list(parts, (item for item in tried if item is not None))

    def convert_about(self, given: DictPart) -> DictPart | None:
        """Convert an about section."""
        result = DictPart(above=given.above)
        for name in given.names:
            value = self.try_conversion(partial(self._convert_about_key, name, given.values_of_key(name)))
            if value is not None:
                result.pairs.append((composition.ABOUT[name], value))
        return result if result.pairs else None

    def _convert_about_key(self, name: str, parts: list[RecipePart]) -> RecipePart | None:
        if name not in composition.ABOUT and f"about/{name}" in self.facts.leave_out:
            return None
        if name not in composition.ABOUT:
            raise _no_equivalent_error("about", name, parts, _HINT)
        value = conditional_list_or_text(parts)
        if isinstance(value, ListPart) and name != "license_file":
            raise UnconvertiblePart(parts[0].number, f"about/{name} is one text in recipe.yaml")
        return value

    def convert_sources(self, parts: list[RecipePart]) -> RecipePart | None:
        """Convert the sources."""
        sources = self._converted_items(parts, self._convert_source)
        is_one = sources is not None and len(sources.items) == 1 and isinstance(sources.items[0], DictPart)
        return sources.items[0] if sources and is_one else sources

    def _convert_source(self, given: RecipePart) -> DictPart:
        if not isinstance(given, DictPart):
            raise UnconvertiblePart(given.number, "a source is a mapping")
        result = replace(given, pairs=[])
        for name in given.names:
            parts = given.values_of_key(name)
            if name not in composition.SOURCE:
                raise _no_equivalent_error("source", name, parts)
            value = _SOURCE_LIST_CONVERSIONS.get(name, conditional_text)(parts)
            if value is not None:
                result.pairs.append((composition.SOURCE[name], value))
        return result


def _no_equivalent_error(section: str, name: str, parts: list[RecipePart], hint: str = "") -> UnconvertiblePart:
    path = f"{section}/{name}"
    return UnconvertiblePart(parts[0].number, f"{path} has no equivalent in recipe.yaml", hint.format(path))


def require_no_conditions(part: RecipePart) -> None:
    """Refuse conditions on a part whose meaning recipe.yaml does not define, and in it."""
    require_unconditional(part)
    values = [value for _, value in part.pairs] if isinstance(part, DictPart) else []
    for inner in part.items if isinstance(part, ListPart) else values:
        require_no_conditions(inner)
