"""A whole recipe converted: its context, its one package or its outputs, and the compile that outputs share."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.convert import keys
from kiln.convert.conditional_parts import (
    chosen_text,
    conditional_list,
    expr_of,
    is_empty,
    literal_text,
    require_unconditional,
    section,
    substituted,
)
from kiln.convert.recipe_yaml_expressions import FILTER, Expr, conjunction, negated, unparenthesized
from kiln.convert.sections import ConvertedPackage, SectionConverter, require_no_conditions
from kiln.convert.tree import DictPart, ListPart, Part, Refused, ScalarPart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeVar

    from kiln.convert.package_tests import PackageTestConverter
    from kiln.convert.recipe_yaml_expressions import Expanded

    Kind = TypeVar("Kind", bound=Part)

_SECTIONS = frozenset({"package", "source", "build", "requirements", "test", "about", "extra", "outputs"})
_OUTPUT = keys.OUTPUT_BUILD | {"name", "version", "type", "script", "files", "build", "requirements", "test", "about"}
_FILES = frozenset({"script", "files"})
_NOT_INHERITED = frozenset({"number", "skip", "entry_points", "run_exports", "script", "noarch", "noarch_python"})
_ABOVE_STAGING = "# The compile that the outputs share."


class Converter:
    """Converts the tree of one meta.yaml."""

    def __init__(
        self,
        expanded: Expanded,
        tree: DictPart,
        sections: SectionConverter,
        tests: PackageTestConverter,
    ) -> None:
        self._expanded = expanded
        self._tree = tree
        self._sections = sections
        self._tests = tests
        self._facts = sections.facts
        self._attempt = sections.attempt
        self._faults = sections.faults

    def recipe(self) -> DictPart:
        """Return the tree of the recipe.yaml; what cannot be carried over is in the faults of the sections."""
        for name, part in self._tree.pairs:
            if name not in _SECTIONS:
                self._faults.append(Refused(part.number, f"the section {name!r} has no equivalent in recipe.yaml"))
        result = DictPart(below=self._tree.below)
        if self._expanded.settings:
            result.pairs.append(("context", self._context()))
        outputs = [part for part in self._tree.all("outputs") if not is_empty(part)]
        result.pairs.extend(self._several(outputs[0]) if outputs else self._single())
        extra = self._tree.all("extra")
        if extra and not is_empty(extra[0]):
            result.pairs.append(("extra", next(iter(require_no_conditions(extra)))))
        return result

    # -- parts of both kinds --------------------------------------------------------------------------------

    def _context(self) -> DictPart:
        pairs: list[tuple[str, Part]] = []
        for element in self._expanded.settings:
            above = list(self._expanded.above.get(element.number, ()))
            value = element.value.constant
            if isinstance(value, list):
                part: Part = ListPart(items=[literal_text(str(item)) for item in value], above=above)
            elif element.value.is_constant:
                words = str(value).lower() if isinstance(value, bool) else str(value)
                part = ScalarPart(pieces=(words,), plain=not isinstance(value, str), above=above)
            else:
                part = ScalarPart(pieces=(element.value,), above=above)
            part.behind = self._expanded.remarks.get(element.number, "")
            pairs.append((element.name, part))
        return DictPart(pairs=pairs)

    def _identity(self, given: DictPart) -> DictPart:
        for name, part in given.pairs:
            if name not in {"name", "version"}:
                self._faults.append(Refused(part.number, f"package/{name} has no equivalent in recipe.yaml"))
        return replace(_name_and_version(given), above=given.above)

    def _named(self, part: DictPart, whole: DictPart) -> DictPart:
        """Return a package with its name, version and build number in the place of conda-build's names for them."""
        package, build = section(whole, "package"), section(whole, "build")
        places = {
            "PKG_NAME": (part.all("name"), package.all("name")),
            "PKG_VERSION": (part.all("version"), package.all("version")),
            "build_number": (_section(part, "build").all("number"), part.all("number"), build.all("number")),
        }
        values = {}
        for name, alternatives in places.items():
            given = next((result for parts in alternatives if (result := chosen_text(parts))), None)
            values[name] = Expr("0") if given is None else expr_of(given)
        pairs = [
            (key, element if key == "outputs" else substituted(element, values, key)) for key, element in part.pairs
        ]
        return replace(part, pairs=pairs)

    def _default_script(self) -> list[Part]:
        """Return the file that conda-build runs where a recipe names no script."""
        has = [name for name in ("build.sh", "bld.bat") if name in self._facts.files]
        if len(has) == 2:
            return [ScalarPart(pieces=(Expr('"bld.bat" if win else "build.sh"'),))]
        return [literal_text(has[0])] if has else []

    def _script(self, build: DictPart) -> Part | None:
        """Return the script of the recipe's top level."""
        variables, lines = build.all("script_env"), build.all("script")
        own = any(not is_empty(part) for part in lines)
        lines = lines if own else self._default_script()
        return self._attempt(lambda: self._sections.script(lines, variables, of_file=not own))

    def _add_keys(self, name: str, package: ConvertedPackage) -> None:
        """Add the keys that the rendering of the package needs for an equal hash."""
        for key, names in (("use_keys", self._facts.use_keys), ("ignore_keys", self._facts.ignore_keys)):
            if name in names:
                package.put(
                    ("build", "variant", key), ListPart(items=[literal_text(element) for element in names[name]])
                )

    # -- one package ----------------------------------------------------------------------------------------

    def _single(self) -> list[tuple[str, Part]]:
        tree, package = self._named(self._tree, self._tree), ConvertedPackage()
        identity = section(tree, "package")
        package.put(("package",), self._identity(identity))
        package.put(("source",), self._sections.source(tree.all("source")))
        build = section(tree, "build")
        self._sections.build(build, package, self._script(build))
        self._add_keys(_name(identity), package)
        self._sections.requirements(tree.all("requirements"), package)
        package.put(("tests",), self._attempt(lambda: self._tests.convert(tree.all("test"), implicit=True)))
        package.put(("about",), self._sections.about(section(tree, "about")))
        return _ordered(package, {"build": build, "requirements": tree.all("requirements")})

    # -- outputs --------------------------------------------------------------------------------------------

    def _several(self, outputs: Part) -> list[tuple[str, Part]]:
        self._tree = tree = self._named(self._tree, self._tree)
        top = ConvertedPackage()
        if not isinstance(outputs, ListPart):
            raise Refused(outputs.number, "'outputs' is a list")
        entries = [self._named(self._entry(element), tree) for element in outputs.items]
        identity, build = section(tree, "package"), section(tree, "build")
        name = _name(identity)
        if not any(_name(element) == name for element in entries) and self._facts.top_is_package:
            entries.append(DictPart(pairs=[("name", part) for part in identity.all("name")]))
        staging = self._staging(identity, build)
        top.put(("recipe",), self._identity(identity))
        if staging is None:
            top.put(("source",), self._sections.source(tree.all("source")))
        shared = DictPart(
            pairs=[(key, part) for key, part in build.pairs if key in {"number", "skip"}], above=build.above
        )
        self._sections.build(shared, top, None)
        whole_about = section(tree, "about")
        shares_about = all(
            _covers(whole_about, section(element, "about")) for element in entries if element.all("about")
        )
        if shares_about:
            top.put(("about",), self._sections.about(whole_about))
        parts: list[Part] = [] if staging is None else [staging]
        parts.extend(self._output(element, name, staging, None if shares_about else whole_about) for element in entries)
        pairs = _ordered(top, {"build": build})
        about = [pair for pair in pairs if pair[0] == "about"]
        return [
            *(pair for pair in pairs if pair[0] != "about"),
            ("outputs", ListPart(items=parts, above=outputs.above)),
            *about,
        ]

    def _entry(self, given: Part) -> DictPart:
        if not isinstance(given, DictPart):
            raise Refused(given.number, "an output is a mapping")
        for name, part in given.pairs:
            if name not in _OUTPUT:
                self._faults.append(Refused(part.number, f"outputs/{name} has no equivalent in recipe.yaml"))
        kind = chosen_text(given.all("type"))
        if kind is not None and kind.value not in {"conda", "conda_v2"}:
            raise Refused(kind.number, f"an output of the type {kind.value!r} has no equivalent")
        return given

    def _staging(self, identity: DictPart, build: DictPart) -> DictPart | None:
        """Return the staging output that does what the recipe's top level does; None where that has no script."""
        script = self._script(build)
        has_script = any(not is_empty(part) for part in build.all("script")) or bool(self._default_script())
        name = chosen_text(identity.all("name"))
        if script is None or not has_script or name is None:
            return None
        result = ConvertedPackage()
        result.put(("staging",), DictPart(pairs=[("name", replace(name, pieces=(*name.pieces, "-build"), above=[]))]))
        result.put(("source",), self._sections.source(self._tree.all("source")))
        result.put(("build", "script"), self._with_keys(script, identity, build))
        requirements = [_only(part, ("build", "host")) for part in self._tree.all("requirements")]
        self._sections.requirements(list(requirements), result)
        if ignored := [key for key in ("ignore_run_exports", "ignore_run_exports_from") if build.all(key)]:
            for key in ignored:
                result.put(keys.LISTS[key], conditional_list(build.all(key)))
        given = {"build": build, "requirements": self._tree.all("requirements")}
        return DictPart(pairs=_ordered(result, given), above=[_ABOVE_STAGING])

    def _with_keys(self, script: Part, identity: DictPart, build: DictPart) -> Part:
        """Return the script of a compile with the keys that it reads, which it would only have if they were counted."""
        if not self._facts.compile_keys:
            return script
        given = script if isinstance(script, DictPart) else DictPart(pairs=[("content", script)])
        env = _section(given, "env")
        names = {name for name, _ in env.pairs}
        own = {
            "PKG_NAME": identity.all("name"),
            "PKG_VERSION": identity.all("version"),
            "PKG_BUILDNUM": build.all("number"),
        }
        pairs = [
            (key, self._own_value(own[key]) if key in own else self._key_value(key))
            for key in self._facts.compile_keys
            if key not in names
        ]
        rest = [pair for pair in given.pairs if pair[0] != "env"]
        return DictPart(pairs=[*rest, ("env", DictPart(pairs=[*env.pairs, *pairs]))])

    def _key_value(self, key: str) -> Part:
        return ScalarPart(pieces=(Expr(key) if key in self._facts.always else Expr(f'{key} | default("")', FILTER),))

    def _own_value(self, parts: list[Part]) -> Part:
        """Return a variable of the package as text, as variables are; without a value it is 0, as a build number is."""
        value = chosen_text(parts)
        return literal_text("0") if value is None else replace(value, plain=False, above=[], behind="")

    def _output(self, entry: DictPart, top: str, staging: DictPart | None, about: DictPart | None) -> DictPart:
        tree, package = self._tree, ConvertedPackage()
        is_top = _name(entry) == top
        own_files = any(not is_empty(part) for key in _FILES for part in entry.all(key))
        package.put(("package",), _name_and_version(entry))
        build = self._build(entry, is_top=is_top)
        runs = own_files or any(not is_empty(part) for part in build.all("script"))
        if staging is not None and runs:
            package.put(("inherit",), self._inherit(staging))
        self._sections.build(build, package, self._own_script(entry, build))
        self._add_keys(_name(entry), package)
        package.put(("build", "files"), _files(entry.all("files")))
        requirements = entry.all("requirements")
        if is_top:
            requirements = [_merged(requirements, tree.all("requirements"))]
        self._sections.requirements(requirements, package)
        tests = tree.all("test") if is_top else entry.all("test")
        package.put(("tests",), self._attempt(lambda: self._tests.convert(tests, implicit=is_top)))
        package.put(("about",), self._about(entry, about, is_top=is_top))
        above = entry.above
        return DictPart(
            pairs=_ordered(package, {"build": build, "requirements": entry.all("requirements")}), above=above
        )

    def _inherit(self, staging: DictPart) -> DictPart:
        named = staging.pairs[0][1]
        assert isinstance(named, DictPart)
        return DictPart(pairs=[("from", named.pairs[0][1]), ("run_exports", literal_text("false"))])

    def _build(self, entry: DictPart, *, is_top: bool) -> DictPart:
        """Return an output's build section with what it inherits from the top level, as conda-build has it."""
        whole, own = section(self._tree, "build"), section(entry, "build")
        direct_keys = [(key, part) for key, part in entry.pairs if key in keys.OUTPUT_BUILD]
        if is_top:
            names = {key for key, _ in own.pairs}
            inherited = [
                (key, part)
                for key, part in whole.pairs
                if key not in names | {"number", "skip", "script", "script_env"}
            ]
            pairs = [*own.pairs, *inherited]
        elif entry.all("build"):
            pairs = own.pairs
        else:
            excluded = _NOT_INHERITED | {key for key, _ in direct_keys} | {"script_env"}
            pairs = [*direct_keys, *((key, _bare(part)) for key, part in whole.pairs if key not in excluded)]
        condition = conjunction(entry.guards)
        if condition is not None:
            test = negated(condition)
            pairs = [*pairs, ("skip", ScalarPart(number=entry.number, pieces=("true",), guards=(test,)))]
        return DictPart(pairs=list(pairs), above=own.above)

    def _own_script(self, entry: DictPart, build: DictPart) -> Part | None:
        named = [part for part in entry.all("script") if not is_empty(part)]
        variables = build.all("script_env")
        if named:
            return self._sections.script(named, variables, of_file=all(isinstance(part, ScalarPart) for part in named))
        return self._sections.script(build.all("script"), variables)

    def _about(self, entry: DictPart, whole: DictPart | None, *, is_top: bool) -> DictPart | None:
        own = section(entry, "about")
        if is_top:
            top = section(self._tree, "about")
            names = {key for key, _ in own.pairs}
            own = DictPart(pairs=[*own.pairs, *((key, _bare(part)) for key, part in top.pairs if key not in names)])
            return self._sections.about(own) if whole is not None or entry.all("about") else None
        if own.pairs:
            return self._sections.about(own)
        return None if whole is None else self._sections.about(_bare(whole))


def _section(parent: DictPart, key: str) -> DictPart:
    result = parent.all(key)
    return result[0] if result and isinstance(result[0], DictPart) else DictPart()


def _name(given: DictPart) -> str:
    name = chosen_text(given.all("name"))
    return "" if name is None else unparenthesized(name.value)


def _name_and_version(given: DictPart) -> DictPart:
    return DictPart(pairs=[(key, text) for key in ("name", "version") if (text := chosen_text(given.all(key)))])


def _covers(whole: DictPart, own: DictPart) -> bool:
    return {key for key, _ in whole.pairs} <= {key for key, _ in own.pairs}


def _files(parts: list[Part]) -> Part | None:
    """Return the files of an output: a list of globs, or lists of those to include and to exclude."""
    if len(parts) != 1 or not isinstance(parts[0], DictPart):
        return conditional_list(parts)
    require_unconditional(parts[0])
    names = dict.fromkeys(name for name, _ in parts[0].pairs)
    return replace(parts[0], pairs=[(name, items) for name in names if (items := conditional_list(parts[0].all(name)))])


def _only(part: Part, names: tuple[str, ...]) -> Part:
    return (
        replace(part, pairs=[pair for pair in part.pairs if pair[0] in names]) if isinstance(part, DictPart) else part
    )


def _merged(own: list[Part], whole: list[Part]) -> DictPart:
    """Return an output's requirements with those sections of the top level that it has not."""
    parts = [part for part in (*own, *whole) if not is_empty(part)]
    result = DictPart()
    for part in parts:
        if not isinstance(part, DictPart):
            raise Refused(part.number, "requirements are a mapping of sections")
        names = {key for key, _ in result.pairs}
        result.pairs.extend((key, value) for key, value in part.pairs if key not in names)
    return result


def _bare(part: Kind) -> Kind:
    """Return a part without comments, for a second place."""
    bare = replace(part, above=[], behind="", below=[])
    if isinstance(bare, ListPart):
        bare.items = [_bare(element) for element in bare.items]
    elif isinstance(bare, DictPart):
        bare.pairs = [(key, _bare(element)) for key, element in bare.pairs]
    return bare


_REQUIREMENTS = ("build", "host", "run", "run_constraints", "run_exports", "ignore_run_exports")
_ORDER = ("package", "recipe", "staging", "inherit", "source", "build", "requirements", "tests", "about")


def _ordered(package: ConvertedPackage, given: Mapping[str, object]) -> list[tuple[str, Part]]:
    """Return the sections in their usual order, with the comments of the sections that they come from."""
    for name, part in package.root.pairs:
        source = given.get(name)
        parts = source if isinstance(source, list) else [source]
        above = [comment for element in parts if isinstance(element, Part) for comment in element.above]
        if name in given and isinstance(part, DictPart):
            part.above = [*above, *part.above]
        if name == "requirements" and isinstance(part, DictPart):
            part.pairs.sort(key=lambda pair: _REQUIREMENTS.index(pair[0]))
    return sorted(package.root.pairs, key=lambda pair: _ORDER.index(pair[0]))
