"""Rules for Python packages of conda-forge, and for versions of macOS in variant files."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import list_or_empty, mapping_or_empty
from kiln.base.yaml import place_of_key_path, read_text
from kiln.conda.specs import version_or_none
from kiln.feedstock.lint.model import VARIANT_FILES, LintedFeedstock, Problem, hint_rule, lint_rule
from kiln.feedstock.lint.reading import PYTHON_MIN, branch_items, branch_texts, read_values, texts_in_list
from kiln.feedstock.lint.requirements import is_version_independent
from kiln.recipe.template.expression import ExpressionError, evaluate_expression
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.feedstock.lint.model import LintedRecipe


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


MACOS_RULES = (
    lint_rule("RC-000", deprecated_deployment_target, f"write {_STDLIB} for macOS"),
    lint_rule(
        "RC-001", macos_minimum_below_baseline, "remove the value, or add a selector for the system that it is for"
    ),
    lint_rule("CBC-001", macos_sdk_below_minimum, f"raise {_SDK}, or remove it"),
)


BACKENDS = frozenset(
    [
        "setuptools", "flit", "flit-core", "hatchling", "poetry", "poetry-core", "pdm-backend", "pdm-pep517",
        "pymsbuild", "meson-python", "scikit-build-core", "sphinx-theme-builder", "maturin",
        "jupyter-packaging", "whey", "uv-build",
    ]
)  # fmt: skip
_SELF_BUILT = frozenset({"hatchling", "pdm-backend", "setuptools"})
_CROSS_PYTHON = lazy_pattern(r"cross-python(?:_|\s|$)")


class RecipePackage(NamedTuple):
    """A package that the recipe makes: its sections, requirements (all branches) and tests."""

    node: Any
    build: Mapping[Any, Any]
    requirements: Mapping[Any, Any]
    host: list[str]
    run: list[str]
    tests: Any


def packages_of_recipe(recipe: LintedRecipe) -> list[RecipePackage]:
    """Return the packages of a recipe: its outputs, or if there are none, the recipe itself."""
    packages = []
    holders: list[Mapping[Any, Any]] = [*recipe.outputs] or [recipe.root]
    for holder in holders:
        value = holder.get("requirements")
        requirements = {"run": value} if isinstance(value, list) else mapping_or_empty(value)
        packages.append(
            RecipePackage(
                node=requirements or holder,
                build=mapping_or_empty(holder.get("build")),
                requirements=requirements,
                host=recipe.texts_of_all_branches(requirements.get("host")),
                run=recipe.texts_of_all_branches(requirements.get("run")),
                tests=holder.get("tests" if recipe.version else "test"),
            )
        )
    return packages


def _first_word(spec: str) -> str:
    return (spec.split() or [""])[0]


def missing_build_backend(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield packages that are installed with pip, without a build backend in their requirements."""
    recipe = subject.recipe
    holders: list[tuple[str, Mapping[Any, Any]]] = [(recipe.package_name[0], recipe.section("requirements"))]
    holders += [
        (str(output.get("name") or ""), mapping_or_empty(output.get("requirements"))) for output in recipe.outputs
    ]
    for name, requirements in holders:
        specs = recipe.texts_of_all_branches(requirements.get("host")) or recipe.texts_of_all_branches(
            requirements.get("build")
        )
        names = {spec.split(" ")[0] for spec in specs}
        if name in _SELF_BUILT or "pip" not in names or {word.replace("_", "-") for word in names} & BACKENDS:
            continue
        pip = next(spec for spec in specs if spec.split(" ")[0] == "pip")
        yield Problem(text="pip is required without a build backend", at=recipe.place_of(pip))


def missing_python_min(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield noarch Python packages that are not built, run and tested by the variable python_min."""
    recipe = subject.recipe
    value = r"\${{ python_min }}" if recipe.version else PYTHON_MIN
    exact, lower = rf"python\s+=?=?{value}", rf"python\s+>={value}"
    sign, star = ("$", ".*") if recipe.version else ("", "")
    constraint = f"{sign}{{{{ python_min }}}}"
    for package in packages_of_recipe(recipe):
        if package.build.get("noarch") != "python":
            continue
        for section, specs, pattern, usual in (
            ("host", package.host, exact, f"python {constraint}{star}"),
            ("run", package.run, lower, f"python >={constraint}"),
            ("the test's requirements", _test_requirements(recipe, package.tests), exact, f"python {constraint}{star}"),
        ):
            matches = (_first_word(spec) == "python" != spec and re.search(pattern, spec) for spec in specs)
            if not any(matches):
                text = f"{section} of a noarch Python package lacks {usual!r}"
                yield Problem(text=text, at=recipe.place_of(package.node), cure=f"write {usual}")


def _test_requirements(recipe: LintedRecipe, tests: Any) -> list[str]:
    if not recipe.version:
        return texts_in_list(mapping_or_empty(tests).get("requires"))
    specs: list[str] = []
    for test in map(mapping_or_empty, list_or_empty(tests)):
        specs += branch_texts(mapping_or_empty(test.get("requirements")).get("run"))
        if "python" in test:
            versions = mapping_or_empty(test["python"]).get("python_version")
            specs += [f"python {version}" for version in branch_texts(versions)] or ["python"]
    return specs


def untested_latest_python(subject: LintedFeedstock, *, noarch: bool) -> Iterator[Problem]:
    """Yield noarch or version-independent packages of a recipe.yaml whose tests do not use the latest Python."""
    recipe = subject.recipe
    for package in packages_of_recipe(recipe) if recipe.version else ():
        is_noarch, independent = package.build.get("noarch") == "python", is_version_independent(recipe, package.build)
        if (is_noarch if noarch else independent) and not _tests_latest_python(package):
            kind = "noarch Python" if noarch else "version-independent"
            text = f"a {kind} package is not tested with the latest Python"
            yield Problem(text=text, at=recipe.place_of(package.tests or package.node))
            return


def _tests_latest_python(package: RecipePackage) -> bool:
    """Return whether all Python tests use the latest Python, or the package has an upper bound of it."""
    if any(_first_word(spec) == "python" and "<" in spec for spec in package.run):
        return True
    for test in map(mapping_or_empty, list_or_empty(package.tests)):
        if "python" in test and "*" not in branch_texts(mapping_or_empty(test["python"]).get("python_version")):
            return False
    return True


def ignored_cross_python_exports(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the export of cross-python that is ignored by hand, which rattler-build does by itself."""
    recipe = subject.recipe
    for package in packages_of_recipe(recipe) if recipe.version else ():
        if package.build.get("noarch") != "python" and not is_version_independent(recipe, package.build):
            continue
        for name in branch_texts(mapping_or_empty(package.requirements.get("ignore_run_exports")).get("from_package")):
            if _CROSS_PYTHON.match(name.strip()):
                yield Problem(
                    text=f"the exports of {str(name)!r} are ignored by rattler-build", at=recipe.place_of(name)
                )
                return


def missing_abi3audit(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield packages for Python's stable ABI whose tests do not run abi3audit."""
    recipe = subject.recipe
    for package in packages_of_recipe(recipe):
        independent = is_version_independent(recipe, package.build) and package.build.get("noarch") != "python"
        abi3 = independent and any(_first_word(spec) == "python-abi3" for spec in package.host)
        if abi3 and not _runs_abi3audit(recipe, package.tests):
            text = "a package for the stable ABI is not checked with abi3audit"
            yield Problem(text=text, at=recipe.place_of(package.tests or package.node))
            return


def _runs_abi3audit(recipe: LintedRecipe, tests: Any) -> bool:
    for test in map(mapping_or_empty, list_or_empty(tests) if recipe.version else [tests]):
        specs = branch_texts(
            mapping_or_empty(test.get("requirements")).get("run") if recipe.version else test.get("requires")
        )
        commands = branch_texts(test.get("script" if recipe.version else "commands"))
        if any(_first_word(spec) == "abi3audit" for spec in specs) or any("abi3audit" in line for line in commands):
            return True
    return False


_BOTH = 'list ${{ python_min }}.* and "*" under python_version:'

PYTHON_RULES = (
    hint_rule(
        "R-046",
        missing_build_backend,
        "add the backend that pyproject.toml names, or setuptools, to requirements/host",
        skip="hint_pip_no_build_backend",
    ),
    hint_rule("R-047", missing_python_min, "use python_min", skip="hint_python_min"),
    hint_rule("R1-004", partial(untested_latest_python, noarch=True), _BOTH, skip="hint_noarch_python_test_latest"),
    hint_rule(
        "R1-005",
        partial(untested_latest_python, noarch=False),
        _BOTH,
        skip="hint_python_version_independent_test_latest",
    ),
    hint_rule("R1-007", ignored_cross_python_exports, "remove the entry", skip="hint_abi3_cross_python_run_exports"),
    hint_rule(
        "R-053",
        missing_abi3audit,
        "require abi3audit in a test, and run it on the extension modules",
        skip="hint_abi3_missing_abi3audit",
    ),
)
