"""A whole recipe converted: its context, its one package or its outputs, and the compile that outputs share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from kiln.feedstock.convert import composition
from kiln.feedstock.convert.composition import FILTER, ExpressionText, conjunction, negation, unparenthesized
from kiln.feedstock.convert.conditions import (
    conditional_list,
    conditional_text,
    is_empty_part,
    literal_text_part,
    require_unconditional,
    scalar_as_expression,
    unconditional_section,
    with_names_substituted,
)
from kiln.feedstock.convert.sections import PackageTestConverter, SectionConverter, require_no_conditions
from kiln.feedstock.convert.tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kiln.feedstock.convert.composition import ExpandedRecipe

    Kind = TypeVar("Kind", bound=RecipePart)

_SECTIONS = frozenset({"package", "source", "build", "requirements", "test", "about", "extra", "outputs"})
_OUTPUT = composition.OUTPUT_BUILD | {
    "name", "version", "type", "script", "files", "build", "requirements", "test", "about",
}  # fmt: skip
_FILES = frozenset({"script", "files"})
_NOT_INHERITED = frozenset({"number", "skip", "entry_points", "run_exports", "script", "noarch", "noarch_python"})
_ABOVE_STAGING = "# The compile that the outputs share."


class RecipeConverter:
    """Converts the tree of one meta.yaml."""

    def __init__(self, expanded: ExpandedRecipe, tree: DictPart, sections: SectionConverter) -> None:
        self._expanded = expanded
        self._tree = tree
        self._sections = sections
        self._tests = PackageTestConverter(sections)
        self._facts = sections.facts
        self._attempt = sections.try_conversion
        self._faults = sections.faults

    def converted_recipe(self) -> DictPart:
        """Return the tree of the recipe.yaml; what cannot be carried over is in the faults of the sections."""
        self._collect_unknown_key_faults(self._tree, _SECTIONS, "the section {!r}")
        result = DictPart(below=self._tree.below)
        if self._expanded.settings:
            result.pairs.append(("context", self._context_section()))
        outputs = [part for part in self._tree.values_of_key("outputs") if not is_empty_part(part)]
        result.pairs.extend(self._multiple_output_sections(outputs[0]) if outputs else self._single_package_sections())
        extra = self._tree.values_of_key("extra")
        if extra and not is_empty_part(extra[0]):
            require_no_conditions(extra[0])
            result.pairs.append(("extra", extra[0]))
        return result

    def _collect_unknown_key_faults(self, given: DictPart, known: Collection[str], what: str) -> None:
        for name, part in given.pairs:
            if name not in known:
                why = f"{what.format(name)} has no equivalent in recipe.yaml"
                self._faults.append(UnconvertiblePart(part.number, why))

    # -- parts of both kinds --------------------------------------------------------------------------------

    def _context_section(self) -> DictPart:
        pairs: list[tuple[str, RecipePart]] = []
        for element in self._expanded.settings:
            above = list(self._expanded.above.get(element.last_line_number, ()))
            value = element.value.constant
            if isinstance(value, list):
                part: RecipePart = ListPart(items=[literal_text_part(str(item)) for item in value], above=above)
            elif element.value.is_constant:
                words = str(value).lower() if isinstance(value, bool) else str(value)
                part = ScalarPart(pieces=(words,), plain=not isinstance(value, str), above=above)
            else:
                part = ScalarPart(pieces=(element.value,), above=above)
            part.behind = self._expanded.remarks.get(element.last_line_number, "")
            pairs.append((element.name, part))
        return DictPart(pairs=pairs)

    def _package_section(self, given: DictPart) -> DictPart:
        self._collect_unknown_key_faults(given, {"name", "version"}, "package/{}")
        return replace(_name_and_version(given), above=given.above)

    def _with_package_variables_replaced(self, part: DictPart, whole: DictPart) -> DictPart:
        """Return a package with its name, version and build number in the place of conda-build's names for them."""
        package, build = unconditional_section(whole, "package"), unconditional_section(whole, "build")
        places = {
            "PKG_NAME": (part.values_of_key("name"), package.values_of_key("name")),
            "PKG_VERSION": (part.values_of_key("version"), package.values_of_key("version")),
            "build_number": (
                _first_mapping_of_key(part, "build").values_of_key("number"),
                part.values_of_key("number"),
                build.values_of_key("number"),
            ),
        }
        values = {}
        for name, alternatives in places.items():
            given = next((result for parts in alternatives if (result := conditional_text(parts))), None)
            values[name] = ExpressionText("0") if given is None else scalar_as_expression(given)
        pairs = [
            (key, element if key == "outputs" else with_names_substituted(element, values, key))
            for key, element in part.pairs
        ]
        return replace(part, pairs=pairs)

    def _default_script(self) -> list[RecipePart]:
        """Return the file that conda-build runs where a recipe names no script."""
        has = [name for name in ("build.sh", "bld.bat") if name in self._facts.files]
        if len(has) == 2:
            return [ScalarPart(pieces=(ExpressionText('"bld.bat" if win else "build.sh"'),))]
        return [literal_text_part(has[0])] if has else []

    def _top_level_script(self, build: DictPart) -> RecipePart | None:
        variables, lines = build.values_of_key("script_env"), build.values_of_key("script")
        own = not all(map(is_empty_part, lines))
        lines = lines if own else self._default_script()
        return self._attempt(lambda: self._sections.convert_script(lines, variables, of_file=not own))

    def _add_hash_keys(self, name: str, package: DictPart) -> None:
        """Add the keys that the rendering of the package needs for an equal hash."""
        hash_keys = self._facts.hash_keys
        for key, names in (("use_keys", hash_keys.use), ("ignore_keys", hash_keys.ignore)):
            if name in names:
                items: list[RecipePart] = [literal_text_part(element) for element in sorted(names[name])]
                package.add(("build", "variant", key), ListPart(items=items))
        for text in hash_keys.strings.get(name, ()):
            package.add(("build", "string"), literal_text_part(text))

    # -- one package ----------------------------------------------------------------------------------------

    def _single_package_sections(self) -> list[tuple[str, RecipePart]]:
        tree, package = self._with_package_variables_replaced(self._tree, self._tree), DictPart()
        identity = unconditional_section(tree, "package")
        package.add(("package",), self._package_section(identity))
        package.add(("source",), self._sections.convert_sources(tree.values_of_key("source")))
        build = unconditional_section(tree, "build")
        self._sections.convert_build(build, package, self._top_level_script(build))
        self._add_hash_keys(_package_name(identity), package)
        self._sections.convert_requirements(tree.values_of_key("requirements"), package)
        package.add(("tests",), self._attempt(lambda: self._tests.convert(tree.values_of_key("test"), implicit=True)))
        package.add(("about",), self._sections.convert_about(unconditional_section(tree, "about")))
        return _ordered_sections_with_comments(package, build, tree.values_of_key("requirements"))

    # -- outputs --------------------------------------------------------------------------------------------

    def _multiple_output_sections(self, outputs: RecipePart) -> list[tuple[str, RecipePart]]:
        self._tree = tree = self._with_package_variables_replaced(self._tree, self._tree)
        top = DictPart()
        if not isinstance(outputs, ListPart):
            raise UnconvertiblePart(outputs.number, "'outputs' is a list")
        entries = [
            self._with_package_variables_replaced(self._require_convertible_output(element), tree)
            for element in outputs.items
        ]
        identity, build = unconditional_section(tree, "package"), unconditional_section(tree, "build")
        name = _package_name(identity)
        if not any(_package_name(element) == name for element in entries) and self._facts.top_is_package:
            entries.append(DictPart(pairs=[("name", part) for part in identity.values_of_key("name")]))
        staging = self._staging_output(identity, build)
        top.add(("recipe",), self._package_section(identity))
        if staging is None:
            top.add(("source",), self._sections.convert_sources(tree.values_of_key("source")))
        shared = DictPart(
            pairs=[(key, part) for key, part in build.pairs if key in {"number", "skip"}], above=build.above
        )
        self._sections.convert_build(shared, top, None)
        whole_about = unconditional_section(tree, "about")
        shares_about = all(
            whole_about.names <= unconditional_section(element, "about").names
            for element in entries
            if element.values_of_key("about")
        )
        if shares_about:
            top.add(("about",), self._sections.convert_about(whole_about))
        parts: list[RecipePart] = [] if staging is None else [staging]
        parts.extend(
            self._convert_output(element, name, staging, None if shares_about else whole_about) for element in entries
        )
        pairs = _ordered_sections_with_comments(top, build)
        about = [pair for pair in pairs if pair[0] == "about"]
        return [
            *(pair for pair in pairs if pair[0] != "about"),
            ("outputs", ListPart(items=parts, above=outputs.above)),
            *about,
        ]

    def _require_convertible_output(self, given: RecipePart) -> DictPart:
        if not isinstance(given, DictPart):
            raise UnconvertiblePart(given.number, "an output is a mapping")
        self._collect_unknown_key_faults(given, _OUTPUT, "outputs/{}")
        kind = conditional_text(given.values_of_key("type"))
        if kind is not None and kind.template_text not in {"conda", "conda_v2"}:
            raise UnconvertiblePart(kind.number, f"an output of the type {kind.template_text!r} has no equivalent")
        return given

    def _staging_output(self, identity: DictPart, build: DictPart) -> DictPart | None:
        """Return the staging output that does what the recipe's top level does; None where that has no script."""
        script = self._top_level_script(build)
        has_script = not all(map(is_empty_part, build.values_of_key("script"))) or bool(self._default_script())
        name = conditional_text(identity.values_of_key("name"))
        if script is None or not has_script or name is None:
            return None
        result = DictPart()
        result.add(("staging",), DictPart(pairs=[("name", replace(name, pieces=(*name.pieces, "-build"), above=[]))]))
        result.add(("source",), self._sections.convert_sources(self._tree.values_of_key("source")))
        result.add(("build", "script"), self._with_compile_keys_in_env(script, identity, build))
        requirements = [_with_only_keys(part, ("build", "host")) for part in self._tree.values_of_key("requirements")]
        self._sections.convert_requirements(requirements, result)
        for key in ("ignore_run_exports", "ignore_run_exports_from"):
            result.add(composition.LISTS[key], conditional_list(build.values_of_key(key)))
        pairs = _ordered_sections_with_comments(result, build, self._tree.values_of_key("requirements"))
        return DictPart(pairs=pairs, above=[_ABOVE_STAGING])

    def _with_compile_keys_in_env(self, script: RecipePart, identity: DictPart, build: DictPart) -> RecipePart:
        """Return the script of a compile with the keys that it reads, which it would only have if they were counted."""
        if not self._facts.compile_keys:
            return script
        given = script if isinstance(script, DictPart) else DictPart(pairs=[("content", script)])
        env = _first_mapping_of_key(given, "env")
        own = {
            "PKG_NAME": identity.values_of_key("name"),
            "PKG_VERSION": identity.values_of_key("version"),
            "PKG_BUILDNUM": build.values_of_key("number"),
        }
        pairs = [
            (key, self._package_variable_text(own[key]) if key in own else self._variant_key_expression(key))
            for key in self._facts.compile_keys
            if key not in env.names
        ]
        rest = [pair for pair in given.pairs if pair[0] != "env"]
        return DictPart(pairs=[*rest, ("env", DictPart(pairs=[*env.pairs, *pairs]))])

    def _variant_key_expression(self, key: str) -> RecipePart:
        is_defined = key in self._facts.always
        return ScalarPart(
            pieces=(ExpressionText(key) if is_defined else ExpressionText(f'{key} | default("")', FILTER),)
        )

    def _package_variable_text(self, parts: list[RecipePart]) -> RecipePart:
        """Return a variable of the package as text, as variables are; without a value it is 0, as a build number is."""
        value = conditional_text(parts)
        return literal_text_part("0") if value is None else replace(value, plain=False, above=[], behind="")

    def _convert_output(self, entry: DictPart, top: str, staging: DictPart | None, about: DictPart | None) -> DictPart:
        tree, package = self._tree, DictPart()
        is_top = _package_name(entry) == top
        own_files = any(not is_empty_part(part) for key in _FILES for part in entry.values_of_key(key))
        package.add(("package",), _name_and_version(entry))
        build = self._output_build_section(entry, is_top=is_top)
        runs = own_files or not all(map(is_empty_part, build.values_of_key("script")))
        if staging is not None and runs:
            named = staging.pairs[0][1]
            assert isinstance(named, DictPart)
            pairs = [("from", named.pairs[0][1]), ("run_exports", literal_text_part("false"))]
            package.add(("inherit",), DictPart(pairs=pairs))
        self._sections.convert_build(build, package, self._output_script(entry, build))
        self._add_hash_keys(_package_name(entry), package)
        package.add(("build", "files"), _output_files(entry.values_of_key("files")))
        requirements = entry.values_of_key("requirements")
        if is_top:
            requirements = [_merged_requirements(requirements, tree.values_of_key("requirements"))]
        self._sections.convert_requirements(requirements, package)
        tests = tree.values_of_key("test") if is_top else entry.values_of_key("test")
        package.add(("tests",), self._attempt(lambda: self._tests.convert(tests, implicit=is_top)))
        package.add(("about",), self._output_about_section(entry, about, is_top=is_top))
        pairs = _ordered_sections_with_comments(package, build, entry.values_of_key("requirements"))
        return DictPart(pairs=pairs, above=entry.above)

    def _output_build_section(self, entry: DictPart, *, is_top: bool) -> DictPart:
        """Return an output's build section with what it inherits from the top level, as conda-build has it."""
        whole, own = unconditional_section(self._tree, "build"), unconditional_section(entry, "build")
        direct_keys = [(key, part) for key, part in entry.pairs if key in composition.OUTPUT_BUILD]
        if is_top:
            excluded = own.names | {"number", "skip", "script", "script_env"}
            pairs = [*own.pairs, *((key, part) for key, part in whole.pairs if key not in excluded)]
        elif entry.values_of_key("build"):
            pairs = own.pairs
        else:
            excluded = {key for key, _ in direct_keys} | _NOT_INHERITED | {"script_env"}
            pairs = [
                *direct_keys,
                *((key, _without_comments(part)) for key, part in whole.pairs if key not in excluded),
            ]
        condition = conjunction(entry.guards)
        if condition is not None:
            test = negation(condition)
            pairs = [*pairs, ("skip", ScalarPart(number=entry.number, pieces=("true",), guards=(test,)))]
        return DictPart(pairs=list(pairs), above=own.above)

    def _output_script(self, entry: DictPart, build: DictPart) -> RecipePart | None:
        named = [part for part in entry.values_of_key("script") if not is_empty_part(part)]
        variables = build.values_of_key("script_env")
        if named:
            return self._sections.convert_script(
                named, variables, of_file=all(isinstance(part, ScalarPart) for part in named)
            )
        return self._sections.convert_script(build.values_of_key("script"), variables)

    def _output_about_section(self, entry: DictPart, whole: DictPart | None, *, is_top: bool) -> DictPart | None:
        own = unconditional_section(entry, "about")
        if is_top:
            top = unconditional_section(self._tree, "about")
            rest = [(key, _without_comments(part)) for key, part in top.pairs if key not in own.names]
            own = DictPart(pairs=[*own.pairs, *rest])
            return self._sections.convert_about(own) if whole is not None or entry.values_of_key("about") else None
        if own.pairs:
            return self._sections.convert_about(own)
        return None if whole is None else self._sections.convert_about(_without_comments(whole))


def _first_mapping_of_key(parent: DictPart, key: str) -> DictPart:
    result = parent.values_of_key(key)
    return result[0] if result and isinstance(result[0], DictPart) else DictPart()


def _package_name(given: DictPart) -> str:
    name = conditional_text(given.values_of_key("name"))
    return "" if name is None else unparenthesized(name.template_text)


def _name_and_version(given: DictPart) -> DictPart:
    return DictPart(
        pairs=[(key, text) for key in ("name", "version") if (text := conditional_text(given.values_of_key(key)))]
    )


def _output_files(parts: list[RecipePart]) -> RecipePart | None:
    """Return the files of an output: a list of globs, or lists of those to include and to exclude."""
    if len(parts) != 1 or not isinstance(parts[0], DictPart):
        return conditional_list(parts)
    require_unconditional(parts[0])
    given = parts[0]
    return replace(
        given, pairs=[(name, items) for name in given.names if (items := conditional_list(given.values_of_key(name)))]
    )


def _with_only_keys(part: RecipePart, names: tuple[str, ...]) -> RecipePart:
    return (
        replace(part, pairs=[pair for pair in part.pairs if pair[0] in names]) if isinstance(part, DictPart) else part
    )


def _merged_requirements(own: list[RecipePart], whole: list[RecipePart]) -> DictPart:
    """Return an output's requirements with those sections of the top level that it has not."""
    parts = [part for part in (*own, *whole) if not is_empty_part(part)]
    result = DictPart()
    for part in parts:
        if not isinstance(part, DictPart):
            raise UnconvertiblePart(part.number, "requirements are a mapping of sections")
        names = result.names
        result.pairs.extend((key, value) for key, value in part.pairs if key not in names)
    return result


def _without_comments(part: Kind) -> Kind:
    """Return a part without comments, for a second place."""
    bare = replace(part, above=[], behind="", below=[])
    if isinstance(bare, ListPart):
        bare.items = [_without_comments(element) for element in bare.items]
    elif isinstance(bare, DictPart):
        bare.pairs = [(key, _without_comments(element)) for key, element in bare.pairs]
    return bare


_REQUIREMENTS = ("build", "host", "run", "run_constraints", "run_exports", "ignore_run_exports")
_ORDER = ("package", "recipe", "staging", "inherit", "source", "build", "requirements", "tests", "about")


def _ordered_sections_with_comments(
    package: DictPart, build: DictPart, requirements: Sequence[RecipePart] = ()
) -> list[tuple[str, RecipePart]]:
    """Return the sections in their usual order, with the comments of the sections that they come from."""
    origins = {"build": [build], "requirements": requirements}
    for name, part in package.pairs:
        if isinstance(part, DictPart):
            part.above = [*(comment for origin in origins.get(name, ()) for comment in origin.above), *part.above]
            if name == "requirements":
                part.pairs.sort(key=lambda pair: _REQUIREMENTS.index(pair[0]))
    return sorted(package.pairs, key=lambda pair: _ORDER.index(pair[0]))
