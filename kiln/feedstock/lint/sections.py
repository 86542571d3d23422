"""Rules for the structure of a recipe: its sections, keys and order, and what makes it invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.base.errors import did_you_mean
from kiln.base.position import Place
from kiln.base.serialization import list_or_empty, mapping_or_empty
from kiln.feedstock.lint.model import (
    META,
    RECIPE_YAML,
    VARIANT_FILES,
    LintedFeedstock,
    LintedRecipe,
    Problem,
    hint_rule,
    lint_rule,
)
from kiln.feedstock.lint.reading import branch_items
from kiln.feedstock.lint.texts import FORMER_INDEX, INDEX
from kiln.recipe.feedstock import is_v1
from kiln.recipe.v0.validity import recipe_keys
from kiln.recipe.v1.expressions import MalformedExpression, compile_template
from kiln.recipe.v1.recipe import malformed_conditions, templates_outside_scripts
from kiln.recipe.v1.sections import SINGLE
from kiln.recipe.v1.unknown_keys import unknown_keys as unknown_keys_unknown_keys
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_V1_TOOL = "conda_build_tool: rattler-build"
_RECIPE_SECTIONS = ("context", "package", "recipe", "build", "requirements", "about", "extra", "cache")
_RECIPE_LISTS = ("outputs", "tests")
_OUTPUT_SECTIONS = ("build", "about")
_KINDS = ("build", "host", "run", "run_constrained", "run_constraints")
_SHAPES_OF_TYPES: dict[type, tuple[str, str]] = {
    dict: ("a mapping", "write 'key: value' below it"),
    list: ("a list", "write one '- item' a line"),
}


def wrong_value_types(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield sections that are not mappings or lists, and requirements that are not lists of texts."""
    recipe = subject.recipe
    if recipe.version:
        yield from _wrong_shape_problems(subject, recipe.root, _RECIPE_SECTIONS, dict)
        yield from _wrong_shape_problems(subject, recipe.root, _RECIPE_LISTS, list)
    for section in ("source", "outputs"):
        for entry in _entries_of_section(subject, section):
            if entry is not None and not isinstance(entry, dict):
                text = f"an entry of {section} is {_shape_description(entry)}, expected a mapping"
                yield Problem(text=text, at=recipe.place_of_key(recipe.root, section))
    for output in recipe.outputs:
        sections = (*_OUTPUT_SECTIONS, "package" if recipe.version else "test")
        yield from _wrong_shape_problems(subject, output, sections, dict)
    for holder in (recipe.root, *recipe.outputs):
        value = holder.get("requirements")
        requirements = {"run": value} if isinstance(value, list) and holder is not recipe.root else value
        yield from _requirement_type_problems(subject, mapping_or_empty(requirements))
        if recipe.version == 0:
            yield from _command_type_problems(subject, holder)


def _command_type_problems(subject: LintedFeedstock, holder: Mapping[Any, Any]) -> Iterator[Problem]:
    """Yield commands with a colon that YAML reads as mappings."""
    for section, key in (("test", "commands"), ("build", "script")):
        for item in list_or_empty(mapping_or_empty(holder.get(section)).get(key)):
            if isinstance(item, dict):
                text = f"an entry of {section}/{key} is a mapping, expected text"
                yield Problem(text=text, at=subject.recipe.place_of(item), cure="quote the entry")


def _entries_of_section(subject: LintedFeedstock, section: str) -> list[Any]:
    value = subject.recipe.root.get(section)
    if subject.recipe.version:
        return list(branch_items(value))
    return [] if isinstance(value, dict) else list_or_empty(value)


def _wrong_shape_problems(
    subject: LintedFeedstock, holder: Mapping[Any, Any], names: tuple[str, ...], expected: type
) -> Iterator[Problem]:
    """Yield the values of these keys that are not of the expected type."""
    word, cure = _SHAPES_OF_TYPES[expected]
    for name in names:
        value = holder.get(name)
        if value is not None and not isinstance(value, expected):
            text = f"{name} is {_shape_description(value)}, expected {word}"
            yield Problem(text=text, at=subject.recipe.place_of_key(holder, name), cure=cure)


def _requirement_type_problems(subject: LintedFeedstock, requirements: Mapping[Any, Any]) -> Iterator[Problem]:
    recipe = subject.recipe
    if recipe.version == 0:
        yield from _wrong_shape_problems(subject, requirements, _KINDS, list)
    for kind in _KINDS:
        value = requirements.get(kind)
        for item in (branch_items(value) if recipe.version else list_or_empty(value)) if value is not None else ():
            # In recipe.yaml, pins may be mappings.
            if item is not None and not isinstance(item, (str, dict) if recipe.version else str):
                text = f"an entry of requirements/{kind} is {_shape_description(item)}, expected text"
                if isinstance(item, dict):
                    yield Problem(text=text, at=recipe.place_of(item), cure="write a space for the colon")
                else:
                    yield Problem(text=text, at=recipe.place_of_key(requirements, kind), cure="quote the entry")


def _shape_description(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"the text {str(value)!r}" if isinstance(value, str) else f"the value {value!r}"


def unknown_v1_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the keys of a recipe.yaml that its sections do not have, so that rattler-build refuses the recipe."""
    recipe = subject.recipe
    for unknown in unknown_keys_unknown_keys(recipe.root) if recipe.version else ():
        text = f"{unknown.section} has no key {str(unknown.key)!r}"
        yield Problem(text=text, at=recipe.place_of(unknown.key), cure=did_you_mean(str(unknown.key), unknown.known))


def repeated_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that a mapping has twice, with which a recipe is not built."""
    recipe = subject.recipe
    for key in recipe.repeated_keys:
        yield Problem(
            text=f"duplicate key {str(key)!r}: the later value would override the earlier one", at=recipe.place_of(key)
        )


def malformed_expressions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield texts of a recipe.yaml whose expressions rattler-build cannot read; scripts are rendered by the build."""
    recipe = subject.recipe
    for text in templates_outside_scripts(recipe.root, ()) if recipe.version else ():
        try:
            compile_template(str(text))
        except MalformedExpression as error:
            at = recipe.place_of_line(text.line + error.line, text.column)
            yield Problem(text=f"malformed expression {str(text)[:80]!r}: {error}", at=at)
    for text, fault, _ in malformed_conditions(recipe.root) if recipe.version else ():
        at = recipe.place_of_line(text.line + fault.line, text.column)
        cure = "a condition is an expression without ${{ }}, its parentheses closed"
        yield Problem(text=f"malformed condition {str(text)[:80]!r}: {fault}", at=at, cure=cure)


VALIDITY_RULES = (lint_rule("kiln-type", wrong_value_types, "write a mapping"),)
KEY_RULES = (
    lint_rule("kiln-key", unknown_v1_keys, "remove the key"),
    lint_rule("kiln-duplicate", repeated_keys, "keep one of them, or put them under selectors that exclude each other"),
    lint_rule("kiln-template", malformed_expressions, "an expression is ${{ NAME }}, on one line and closed"),
)


META_ORDER = ("package", "source", "build", "requirements", "test", "app", "outputs", "about", "extra")
SEVERAL_ORDER = ("schema_version", "context", "recipe", "source", "build", "outputs", "about", "extra")
REQUIREMENTS_ORDER = ("build", "host", "run")
NOARCH = ("python", "generic")
_HASHES = frozenset({"sha1", "sha256", "md5"})

# Keys that conda-build reads, and that conda-smithy calls unknown, as ``FIELDS`` in conda_build/metadata.py lacks them.
_UNLISTED = {
    "about": {"recipe_log_file"},
    "build": {"activate_in_script", "ignore_verify_codes", "no_move_top_level_workdir_loops"},
    "outputs": {"features", "noarch", "noarch_python", "python_version_independent", "string", "track_features"},
    "test": {"script"},
}
_EXTRA = frozenset({"recipe-maintainers", "feedstock-name", "network", "plan"})  # conda-smithy's own, and kiln's
_MAPPINGS = ("build", "requirements", "test", "about", "extra", "package")
_SHAPES_OF_SECTIONS: dict[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(_MAPPINGS, (dict, "a mapping")),
    "source": ((dict, list), "a mapping or a list of mappings"),
    "outputs": (list, "a list of mappings"),
}
_TEST_KEYS = frozenset({"imports", "commands"})
_TEST_FILES = ("run_test.py", "run_test.sh", "run_test.bat", "run_test.pl")
_TEST_SCRIPTS = (".bat", ".sh")


def second_recipe_file(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the recipe that is not read, of a meta.yaml and a recipe.yaml."""
    if subject.recipe.version and subject.feedstock.recipe_v1.exists() and subject.feedstock.meta.exists():
        reads_v1 = is_v1(subject.feedstock)
        unread = META if reads_v1 else RECIPE_YAML
        text = f"{unread} is not read, since conda-forge.yml {'says' if reads_v1 else 'does not say'} {_V1_TOOL}"
        yield Problem(text=text, at=Place(file=unread))


def unknown_schema_version(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a version of the recipe format that does not exist."""
    version = subject.recipe.root.get("schema_version", 1)
    if subject.recipe.version and version != 1:
        at = subject.recipe.place_of_key(subject.recipe.root, "schema_version")
        yield Problem(text=f"unsupported schema version {version!r}", at=at, cure="write schema_version: 1")


def misshapen_sections(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield sections of a meta.yaml that are not mappings, or not the lists that they must be."""
    recipe = subject.recipe
    if recipe.version:
        return
    for name, (types, expected) in _SHAPES_OF_SECTIONS.items():
        value = recipe.root.get(name)
        if name in recipe.root and not isinstance(value, types):
            shape = "empty" if value is None else "a list" if isinstance(value, list) else "a single value"
            text = f"the section {name!r} is {shape}, expected {expected}"
            yield Problem(text=text, at=recipe.place_of_key(recipe.root, name))
    top_tests = mapping_or_empty(recipe.root.get("test")).keys() & _TEST_KEYS
    for output in () if top_tests else recipe.outputs:
        if not isinstance(output.get("test", {}), dict):
            yield Problem(text="the test section of an output is empty", at=recipe.place_of_key(output, "test"))


def unknown_sections(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield outermost keys that the recipe's format does not have."""
    known = tuple(dict.fromkeys((*SINGLE, *SEVERAL_ORDER))) if subject.recipe.version else META_ORDER
    for key in subject.recipe.root:
        if key not in known:
            yield Problem(
                text=f"unknown section {str(key)!r}",
                at=subject.recipe.place_of(key),
                cure=did_you_mean(str(key), known),
            )


def expected_section_order(recipe: LintedRecipe) -> tuple[str, ...]:
    """Return the order of the outermost sections."""
    if not recipe.version:
        return META_ORDER
    return SEVERAL_ORDER if "outputs" in recipe.root else SINGLE


def wrong_section_order(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield outermost sections in another order than the usual one."""
    yield from _order_problems(subject, "section", subject.recipe.root, expected_section_order(subject.recipe))


def wrong_requirements_order(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield requirements in another order than build, host, run."""
    section = subject.recipe.section("requirements")
    yield from _order_problems(subject, "requirements", section, REQUIREMENTS_ORDER)


def _order_problems(
    subject: LintedFeedstock, what: str, keys: Iterable[Any], order: tuple[str, ...]
) -> Iterator[Problem]:
    names = [key for key in keys if key in order]
    expected = sorted(names, key=order.index)
    for name, other in zip(names, expected, strict=True):
        if name != other:
            text = f"the {what} {str(name)!r} stands where {str(other)!r} is expected"
            yield Problem(text=text, at=subject.recipe.place_of(name), cure=f"order them: {', '.join(expected)}")
            return


def known_keys_of_section(section: str) -> frozenset[str]:
    """Return the keys of a section of a meta.yaml that conda-smithy knows."""
    if section == "extra":
        return _EXTRA
    return frozenset(key for within, key in recipe_keys() if within == section) - _UNLISTED.get(section, set())


def unknown_keys(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield keys that conda-build does not know in the sections of a meta.yaml."""
    recipe = subject.recipe
    if recipe.version:
        return
    for section in META_ORDER:
        value = recipe.root.get(section)
        if section in {"source", "outputs"}:
            holders = recipe.sources if section == "source" else recipe.outputs
        else:
            holders = [mapping_or_empty(value)]
        known = known_keys_of_section(section)
        for key in (key for holder in holders for key in holder):
            if key not in known:
                text = f"unknown key {str(key)!r} in the section {section!r}"
                yield Problem(text=text, at=recipe.place_of(key), cure=did_you_mean(str(key), known))


def missing_build_number(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a missing build number."""
    if subject.recipe.section("build").get("number") is None:
        yield Problem(text="build/number is missing", at=subject.recipe.place_in_section("build", "number"))


def invalid_noarch(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield an invalid value of build/noarch."""
    value = subject.recipe.noarch
    if value is not None and value not in NOARCH:
        at = subject.recipe.place_of_key(subject.recipe.section("build"), "noarch")
        yield Problem(text=f"invalid value {value!r} of build/noarch", at=at)


def missing_hash(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield downloads without a hash."""
    for source in subject.recipe.sources:
        if "url" in source and not _HASHES & source.keys():
            yield Problem(text="a source with a URL has no hash", at=subject.recipe.place_of_key(source, "url"))


def old_pypi_url(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield downloads from the former address of PyPI."""
    for source in subject.recipe.sources:
        for url in as_list(source.get("url")):
            if isinstance(url, str) and url.startswith(FORMER_INDEX):
                yield Problem(text="the URL has PyPI's former address", at=subject.recipe.place_of(url))


def second_variant_file(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a second variant file."""
    files = [name for name in VARIANT_FILES if subject.variant_file(name)]
    if len(files) > 1:
        text = f"the recipe has both {' and '.join(files)}"
        yield Problem(text=text, at=Place(file=f"recipe/{files[1]}"))


def ignored_windows_script(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a script of conda-build's name in a recipe for rattler-build, which does not run it."""
    if subject.recipe.version and (subject.feedstock.recipe / "bld.bat").exists():
        yield Problem(text="rattler-build runs build.bat, not bld.bat", at=Place(file="recipe/bld.bat"))


def float_values(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield numbers with a decimal point, which lose trailing zeros: the version 1.10 would become 1.1."""
    yield from _float_problems(subject, subject.recipe.root, "", subject.recipe.root)


def _float_problems(subject: LintedFeedstock, value: Any, path: str, near: Any) -> Iterator[Problem]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _float_problems(subject, item, f"{path}/{key}" if path else str(key), key)
    elif isinstance(value, list):
        for item in value:
            yield from _float_problems(subject, item, path, near)
    elif isinstance(value, float):
        yield Problem(text=f"{path} is read as the number {value}", at=subject.recipe.place_of(near))


SECTION_RULES = (
    lint_rule("R-051", second_recipe_file, "remove it, or correct the setting"),
    lint_rule("schema", unknown_schema_version, "write schema_version: 1"),
    lint_rule("schema", misshapen_sections, "fill the section, or remove it"),
    lint_rule("R-000", unknown_sections, "remove the section, or correct its name"),
    lint_rule("R-001", wrong_section_order, "reorder the sections", fixable=True),
    lint_rule("R-018", unknown_keys, "remove the key, or correct its name"),
    lint_rule("R-008", missing_build_number, "add number: 0 to the build section", fixable=True),
    lint_rule("R-009", wrong_requirements_order, "reorder the requirements", fixable=True),
    lint_rule("R-019", missing_hash, "add sha256: with the hash of the file"),
    lint_rule("R-020", invalid_noarch, "write noarch: python or noarch: generic"),
    lint_rule("RC-002", second_variant_file, "keep one; variants.yaml is for recipe.yaml only"),
    lint_rule("R-040", float_values, "quote the value", fixable=True),
    hint_rule("R-050", old_pypi_url, f"write {INDEX} in the place of {FORMER_INDEX}", fixable=True),
    hint_rule("R1-003", ignored_windows_script, "rename bld.bat to build.bat"),
)


def _has_tests_and_untested_outputs(subject: LintedFeedstock) -> tuple[bool, list[dict[Any, Any]]]:
    """Return whether anything is tested, and the outputs that are not, if the recipe has no test of its own."""
    recipe = subject.recipe
    if recipe.version:
        entries = list_or_empty(recipe.root.get("tests"))
        if any(isinstance(test, dict) for entry in entries for test in branch_items(entry)):
            return True, []
        packages = [output for output in recipe.outputs if "package" in output or "staging" not in output]
        untested = [output for output in packages if not output.get("tests")]
        return len(untested) < len(packages), untested
    if _TEST_KEYS & recipe.section("test").keys() or any(
        (subject.feedstock.recipe / name).exists() for name in _TEST_FILES
    ):
        return True, []
    untested = [output for output in recipe.outputs if not _has_output_tests(output)]
    return len(untested) < len(recipe.outputs), untested


def _has_output_tests(output: Mapping[Any, Any]) -> bool:
    tests = mapping_or_empty(output.get("test"))
    return bool(_TEST_KEYS & tests.keys()) or str(tests.get("script", "")).endswith(_TEST_SCRIPTS)


def no_tests(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a recipe without any test."""
    tested, _ = _has_tests_and_untested_outputs(subject)
    if not tested:
        at = subject.recipe.place_of_key(subject.recipe.root, "test", "tests", "outputs")
        yield Problem(text="the recipe has no test", at=at)


def untested_outputs(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield outputs without a test, in a recipe that tests others."""
    tested, outputs = _has_tests_and_untested_outputs(subject)
    for output in outputs if tested else ():
        name = mapping_or_empty(output.get("package")).get("name") if subject.recipe.version else output.get("name")
        yield Problem(text=f"the output {str(name or '?')!r} has no test", at=subject.recipe.place_of(output))


def installs_without_pip(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield scripts that install a Python package without pip."""
    recipe = subject.recipe
    script = recipe.section("build").get("script")
    for command in script if isinstance(script, list) else [script]:
        if isinstance(command, str) and "python setup.py install" in command:
            yield Problem(text="'python setup.py install' is deprecated", at=recipe.place_of(command))


def ignored_output_tests(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the tests of an output of a meta.yaml that has the recipe's name."""
    recipe = subject.recipe
    name = recipe.section("package").get("name")
    for output in () if recipe.version else recipe.outputs:
        if output.get("test") and output.get("name") == name:
            yield Problem(text=f"the tests of the output {name} are ignored", at=recipe.place_of_key(output, "test"))


TEST_RULES = (
    lint_rule("R-005", no_tests, "add imports: or commands: (recipe.yaml: tests:) that use the package"),
    hint_rule("R-006", untested_outputs, "add a test to the output"),
    hint_rule("kiln-test", ignored_output_tests, "move them to the recipe's own section test"),
    hint_rule("R-049", installs_without_pip, "write '{{ PYTHON }} -m pip install . --no-deps --no-build-isolation'"),
)
