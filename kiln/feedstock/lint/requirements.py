"""Rules for requirements, pins and compilers."""

from __future__ import annotations

import re
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import list_or_empty, mapping_or_empty, mappings_in_list
from kiln.conda.specs import version_or_none
from kiln.feedstock.lint.model import Problem, hint_rule, lint_rule
from kiln.feedstock.lint.reading import COMPATIBLE_PIN, COMPILER, SUBPACKAGE_PIN, branch_texts, texts_in_list
from kiln.feedstock.lint.texts import LOGIC, PLATFORMS, first_disallowed_selector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.feedstock.lint.model import LintedFeedstock, LintedRecipe


_BRACKETS = lazy_pattern(r".*(\[.*\])")
_PARENTHESES = lazy_pattern(r".*(\(.*\))")
_KEYS = lazy_pattern(r"([a-zA-Z0-9_-]+)=")
_NAME = lazy_pattern(r"([^ =<>!~]+)([><!=~ ].+)?")
_VALID_NAME = lazy_pattern(r"(?:__[a-z0-9]|(?:[a-z0-9]|[a-z0-9_](?!_)))[._-]?(?:[a-z0-9]+(?:\.|-|_|$))*$")
_VERSION_BUILD = lazy_pattern(r"(.+?[^><!,|]?)(?:(?<![=!|,<>~])[ =]([^-=,|<>~]+?))?$")
_RELATION = lazy_pattern(r"(=|==|!=|<=|>=|<|>|~=)(?![=<>!~])(\S+)$")
_BOUND = r"(?:[<>=!~]=|[<>=])\s*[\w.*+!]+"
_BOUNDED = lazy_pattern(rf"(?P<name>[\w.-]+)\s*(?P<version>{_BOUND}(?:\s*[,|]\s*{_BOUND})*)(?:\s+(?P<build>[\w.*]+))?")
_WITH_BUILD = lazy_pattern(r"(?P<name>[\w.-]+)(?:\s+|\s*==\s*|=(?=\*=))(?P<version>[\w.*+!]+)=(?P<build>[\w.*]+)")
_KEYWORDS = lazy_pattern(
    r"(?P<name>[\w.-]+)\s*\[version=(['\"]?)(?P<version>[^'\"\],]+(?:,[^'\"\]=]+)*)\2"
    r"(?:,\s*build=(['\"]?)(?P<build>[^'\"\],]+)\4)?\]"
)
_ARCHIVES = (".conda", ".tar.bz2")
_OTHER_KEYS = frozenset(
    ["build_number", "channel", "subdir", "fn", "url", "md5", "sha256", "license", "license_family", "track_features",
     "features"]
)  # fmt: skip
_MAX_LENGTH = 500  # characters; longer texts are not specs
PIN_STUBS = (COMPATIBLE_PIN, SUBPACKAGE_PIN)


class SpecFields(NamedTuple):
    """The fields of a match spec: its name, whether it has a version, and whether it has more than that."""

    name: str
    versioned: bool
    more: bool


def has_separated_fields(spec: str) -> bool:
    """Return whether the fields of a match spec are valid and separated by single words: name, version, build.

    Jinja and what stands for pins are not checked.
    """
    spec = spec.partition("#")[0].strip()
    if "{{" in spec or spec.startswith(PIN_STUBS):
        return True
    count = len(spec.split())
    return 0 < count <= 3 and match_spec_strictness(spec) == count


def spec_in_words(spec: str) -> str:
    """Return a spec as name, version and build in single words; empty when it may mean more than one thing.

    The build of name=1.2=0 is that of 1.2 for conda, and that of 1.2.* in conda-smithy's advice.
    """
    forms = (_BOUNDED.fullmatch(spec), _WITH_BUILD.fullmatch(spec), _KEYWORDS.fullmatch(spec))
    name, version, build = next((match.group("name", "version", "build") for match in forms if match), ("", "", None))
    words = " ".join(filter(None, (name, "".join(version.split()), build)))
    return words if has_separated_fields(words) else ""


def match_spec_strictness(spec: str) -> int | None:
    """Return 1 for a name, 2 for a name and a version, 3 for all else, None for an invalid spec.

    conda calls this the strictness of a spec.
    """
    fields = spec_fields(spec)
    if fields is None:
        return None
    return 3 if fields.more or "*" in fields.name else 2 if fields.versioned else 1


def spec_fields(spec: str) -> SpecFields | None:
    """Return the fields of a match spec in any of conda's notations, None for an invalid spec."""
    if spec.endswith("@"):
        return SpecFields(name="*", versioned=False, more=True)
    if spec.endswith(_ARCHIVES) or len(spec) > _MAX_LENGTH:
        return None
    rest, keys = _spec_and_bracket_keys(spec.partition(" if ")[0])
    if keys is None:
        return None
    if parentheses := _PARENTHESES.match(rest):
        rest = rest.replace(parentheses[1], "")
    *channel, rest = rest.rsplit(":", 2)
    match = _NAME.match(rest)
    if not match or not ("*" in match[1] or _VALID_NAME.match(match[1].lower())):
        return None
    version, build = _version_and_build((match[2] or "").strip())
    if version and "version" not in keys and not is_version_spec(version):
        return None
    more = bool(build or keys - {"version"} or (len(channel) == 2 and channel[0]))
    return SpecFields(name=match[1].lower(), versioned=bool(version or "version" in keys), more=more)


def _spec_and_bracket_keys(spec: str) -> tuple[str, set[str] | None]:
    """Return a spec without its brackets, and the keys in them; None for an invalid key."""
    match = _BRACKETS.match(spec)
    if not match:
        return spec, None if "[" in spec else set()
    keys = set(_KEYS.findall(match[1])) - {"name"}
    return spec.replace(match[1], ""), keys if keys <= {"version", "build", *_OTHER_KEYS} else None


def _version_and_build(text: str) -> tuple[str, str]:
    if not text:
        return "", ""
    match = _VERSION_BUILD.search(text)
    version, build = (match[1], (match[2] or "").strip()) if match else (text, "")
    return _without_equality_signs(version.replace(" ", ""), build), build


def _without_equality_signs(version: str, build: str) -> str:
    """Return a version without the signs of equality that conda drops."""
    if version in {"=", "=="} or not version.startswith("="):
        return version
    bare = version.lstrip("=")
    if version.startswith("==") and not build:
        return bare
    if any(sign in bare for sign in "=,|"):
        return version
    return bare if build or bare.endswith("*") else f"{bare}*"


def is_version_spec(text: str) -> bool:
    """Return whether conda reads a version spec, such as ``>=1.2,<2|==3.*``."""
    return all(_is_valid_version_bound(part.strip()) for part in re.split(r"[|,]", text))


def _is_valid_version_bound(text: str) -> bool:
    text = text.strip("()")
    if text[:1] == "^" or text[-1:] == "$":
        return text[:1] == "^" and text[-1:] == "$"
    if text[:1] in {*"=<>!~"}:
        relation = _RELATION.match(text)
        version = relation[2] if relation else ""
        if not relation or (relation[1] == "~=" and version.endswith(".*")):
            return False
        return version_or_none(version.removesuffix(".*")) is not None
    if "*" in text.rstrip("*") or text == "*" or ("@" in text and not text.endswith("*")):
        return True  # a pattern, any version, or an opaque text
    return version_or_none(text.rstrip("*").rstrip(".") if text.endswith("*") else text) is not None


OPERATORS = ("!=", "=", "==", ">", "<", "<=", ">=")
LANGUAGES = ("python", "r-base")
_LANGUAGE = r"(?:m2w64_)?(?:c|cxx|fortran|rust|go-cgo)"
_COMPILERS = (re.compile(f"{_LANGUAGE}{COMPILER}"), re.compile(rf"\${{{{ compiler\(['\"]{_LANGUAGE}"))
_STDLIBS = (
    re.compile("(?:m2w64_)?c_stdlib_stub$"),
    re.compile(r".*\$\{\{ stdlib\(['\"](?:m2w64_)?c['\"]\)", re.DOTALL),
)


def _top_level_specs(recipe: LintedRecipe) -> Iterator[tuple[str, str]]:
    """Yield the section and the text of each outermost requirement, exports included."""
    for section, value in recipe.top_level_requirements.items():
        kinds = value
        if recipe.version and section == "ignore_run_exports":
            kinds = mapping_or_empty(value).get("from_package")
        elif recipe.version and isinstance(value, dict):
            kinds = list(chain.from_iterable(value.values()))
        yield from ((str(section), spec) for spec in texts_in_list(kinds))


def _specs_without_jinja(recipe: LintedRecipe) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the section, the text and the words of each requirement without Jinja."""
    for section, spec in _top_level_specs(recipe):
        bare = spec if recipe.version else spec.partition("#")[0]
        words = bare.split()
        if words and ("${{" if recipe.version else "{{") not in bare:
            yield section, spec, words


def space_after_operator(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield specs with a space between the operator and the version."""
    for section, spec, words in _specs_without_jinja(subject.recipe):
        if len(words) > 2 and words[1] in OPERATORS:
            text = f"requirements/{section}: {str(spec)!r} has a space after {words[1]!r}"
            yield Problem(text=text, at=subject.recipe.place_of(spec), cure=_cure_in_words(words))


def no_space_before_operator(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield specs without a space between the name and the operator."""
    for section, spec, words in _specs_without_jinja(subject.recipe):
        if len(words) > 2 and words[1] in OPERATORS:
            continue
        if any(sign in words[0] for sign in "><="):
            text = f"requirements/{section}: {str(spec)!r} has no space after the name"
            yield Problem(text=text, at=subject.recipe.place_of(spec), cure=_cure_in_words(words))


def _cure_in_words(words: list[str]) -> str:
    spec = spec_in_words(" ".join(words))
    return f"write {spec}" if spec else ""


def specs_without_separated_fields(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield specs of a meta.yaml that conda-build may misread: not name, version and build as three words."""
    if subject.recipe.version:
        return
    ids: set[int] = set()
    for section, spec in _specs_of_meta_yaml(subject):
        if id(spec) not in ids and not has_separated_fields(spec):
            ids.add(id(spec))
            text = f"{section}: the fields of {str(spec)!r} are not 'name [version [build]]'"
            yield Problem(text=text, at=subject.recipe.place_of(spec))


def _specs_of_meta_yaml(subject: LintedFeedstock) -> Iterator[tuple[str, str]]:
    recipe = subject.recipe
    top = recipe.top_level_requirements
    for section, value in top.items():
        yield from ((f"requirements/{section}", spec) for spec in texts_in_list(value))
    yield from (("test/requires", spec) for spec in texts_in_list(recipe.section("test").get("requires")))
    for output in recipe.outputs:
        requirements = output.get("requirements") or {}
        lists = requirements if isinstance(requirements, dict) else {"run": requirements}
        # conda-smithy sees constraints of outputs only where the top level has some, which it adds them to.
        constrained = (
            ("run_constrained",) if top.get("run_constrained") and "lint_stdlib" not in subject.skipped_rules else ()
        )
        for section in ("build", "host", "run", *constrained):
            yield from ((f"requirements/{section}", spec) for spec in texts_in_list(lists.get(section)))
        yield from (
            ("test/requires", spec) for spec in texts_in_list(mapping_or_empty(output.get("test")).get("requires"))
        )


def deprecated_requirement(subject: LintedFeedstock, *, name: str, text: str) -> Iterator[Problem]:
    """Yield a requirement of the build that is deprecated."""
    for spec in subject.recipe.top_level_requirements_of_kind("build"):
        if spec == name:
            yield Problem(text=text, at=subject.recipe.place_of(spec))


def licenses_not_collected(subject: LintedFeedstock, *, language: str, tool: str) -> Iterator[Problem]:
    """Yield the compiler of a language without the tool that collects the licenses of dependencies."""
    recipe = subject.recipe
    build = recipe.top_level_requirements_of_kind("build")
    compiler = f"{'$' * recipe.version}{{{{ compiler('{language}') }}}}"
    for spec in build:
        if spec == compiler and tool not in build and recipe.package_name[0] != tool:
            yield Problem(text=f"a {language} compiler is used without {tool}", at=recipe.place_of(spec))


def _language_specs(recipe: LintedRecipe) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each language with its specs in host and in run, for a package of one output that is not noarch."""
    if recipe.noarch is None and not recipe.root.get("outputs"):
        for language in LANGUAGES:
            host, run = (
                [spec for spec in recipe.top_level_requirements_of_kind(section) if spec.partition(" ")[0] == language]
                for section in ("host", "run")
            )
            yield language, host, run


def language_missing_in_run(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a language that the build has and the installed package has not."""
    for language, host, run in _language_specs(subject.recipe):
        if host and not run:
            text = f"{language} is in requirements/host, not in requirements/run"
            yield Problem(text=text, at=subject.recipe.place_of(host[0]), cure=f"add {language} to requirements/run")


def pinned_language(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a language with a version in a package that is built once for each version."""
    for language, host, run in _language_specs(subject.recipe):
        if language == "python" and is_version_independent(subject.recipe, subject.recipe.section("build")):
            continue
        for specs in (host, run):
            for spec in specs if language not in specs else ():
                if spec.partition(" ")[2].startswith((">", "<")):
                    text = f"{str(spec)!r} has a version, but the package is built for each {language}"
                    yield Problem(
                        text=text, at=subject.recipe.place_of(spec), cure=f"write {language}, and skip versions"
                    )


def is_version_independent(recipe: LintedRecipe, build: Mapping[Any, Any]) -> bool:
    """Return whether a package is built once for all versions of Python."""
    if recipe.version:
        return bool(mapping_or_empty(build.get("python")).get("version_independent"))
    return bool(build.get("python_version_independent"))


def missing_python_bound(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a noarch Python package that names no version of Python."""
    recipe = subject.recipe
    if recipe.noarch != "python" or recipe.root.get("outputs"):
        return
    run = recipe.top_level_requirements_of_kind("run")
    if not any(spec.split()[:1] == ["python"] and spec != "python" for spec in run):
        spec = next((spec for spec in run if spec == "python"), None)
        at = recipe.place_of(spec) if spec else recipe.place_of_key(recipe.section("requirements"), "run")
        text = "a noarch Python package has no lower bound of python in requirements/run"
        yield Problem(text=text, at=at, cure=f"write python >={'$' * recipe.version}{{{{ python_min }}}}")


def wrong_pin_functions(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield pin_compatible on outputs of the recipe, and pin_subpackage on other packages."""
    recipe = subject.recipe
    outputs = recipe.outputs
    top = recipe.root
    if recipe.version:
        outputs = [mapping_or_empty(recipe.renderer.render_value(output)) for output in outputs]
        names = [mapping_or_empty(output.get("package")).get("name") for output in outputs]
        names += [recipe.renderer.render_value(recipe.section("package").get("name"))]
        top = {"requirements": recipe.renderer.render_value(recipe.root.get("requirements"))}
    else:
        names = [output.get("name") for output in outputs] + [recipe.section("package").get("name")]
    known = {name for name in names if isinstance(name, str)}
    for holder in (top, *outputs):
        for pin in _possible_pins(recipe, holder):
            yield from _wrong_pin_function(recipe, pin, known)


def _possible_pins(recipe: LintedRecipe, holder: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the requirements and exports of the recipe or an output that may be pins."""
    requirements = mapping_or_empty(holder.get("requirements"))
    if recipe.version:
        exports = requirements.get("run_exports")
        kinds = exports.values() if isinstance(exports, dict) else [exports]
        yield from chain.from_iterable(branch_texts(kind) for kind in kinds)
    else:
        yield from texts_in_list(mapping_or_empty(holder.get("build")).get("run_exports"))
        yield from texts_in_list(requirements.get("run"))
        yield from texts_in_list(requirements.get("host"))


def _wrong_pin_function(recipe: LintedRecipe, pin: str, known: set[str]) -> Iterator[Problem]:
    words = pin.split()
    if len(words) < 2:
        return
    name = words[1]
    if pin.startswith(COMPATIBLE_PIN) and name in known:
        text = f"pin_compatible({name!r}) pins an output of this recipe"
        yield Problem(text=text, at=recipe.place_of(pin), cure=f"write pin_subpackage({name!r})")
    elif pin.startswith(SUBPACKAGE_PIN) and name not in known:
        text = f"pin_subpackage({name!r}) pins a package that is not an output of this recipe"
        yield Problem(text=text, at=recipe.place_of(pin), cure=f"write pin_compatible({name!r})")


def _requirements_of_kind(recipe: LintedRecipe, kind: str) -> list[list[str]]:
    """Return the requirements of one kind, of all branches: those of the top level, then of each output.

    A plain list of an output counts as host and run.
    """
    lists = [recipe.top_level_requirements_of_kind(kind)]
    for output in recipe.outputs:
        requirements = output.get("requirements") or {}
        if isinstance(requirements, list):
            lists.append(texts_in_list(requirements) if kind in {"host", "run"} and not recipe.version else [])
        else:
            lists.append(recipe.texts_of_all_branches(mapping_or_empty(requirements).get(kind)))
    return lists


def missing_stdlib(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield outputs that use a compiler without the C standard library."""
    recipe = subject.recipe
    compiler, stdlib = _COMPILERS[recipe.version], _STDLIBS[recipe.version]
    for build in _requirements_of_kind(recipe, "build"):
        first = next((spec for spec in build if compiler.match(spec)), None)
        if first is not None and not any(stdlib.match(spec) for spec in build):
            text = "a compiler is used without stdlib('c')"
            yield Problem(text=text, at=recipe.place_of(first))


def direct_sysroot_requirement(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield requirements on the sysroot, which stdlib replaces."""
    for spec in chain(*_requirements_of_kind(subject.recipe, "build")):
        if spec.startswith("sysroot_linux"):
            yield Problem(text=f"{str(spec)!r} is required directly", at=subject.recipe.place_of(spec))


def direct_macos_constraint(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield constraints on the version of macOS, which stdlib replaces."""
    for kind in ("run", "run_constraints" if subject.recipe.version else "run_constrained"):
        for spec in chain(*_requirements_of_kind(subject.recipe, kind)):
            if spec.startswith("__osx >"):
                yield Problem(text=f"{str(spec)!r} is required directly", at=subject.recipe.place_of(spec))


def conditions_in_noarch_recipe(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield conditions in the requirements of a noarch recipe.yaml, which is built once."""
    recipe = subject.recipe
    if not recipe.version or not recipe.noarch:
        return
    for section, value in recipe.section("requirements").items():
        conditional = mappings_in_list(list_or_empty(value))
        bad = next((item for item in conditional if not _is_allowed_condition(subject, section, item)), None)
        if bad is not None:
            yield Problem(text="a noarch package has a requirement with a condition", at=recipe.place_of(bad))
            break
    build = recipe.section("build")
    if "skip" in build:
        yield Problem(text="a noarch package has a skip", at=recipe.place_of_key(build, "skip"))


def _is_allowed_condition(subject: LintedFeedstock, section: str, item: Mapping[Any, Any]) -> bool:
    if not subject.has_several_noarch_platforms:
        return False
    words = set(str(item.get("if", "")).split()) - LOGIC
    return section not in {"host", "run"} or words <= PLATFORMS


def possible_noarch_package(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a package that is installed with pip, needs no compiler, and has no selectors: it could be noarch."""
    recipe = subject.recipe
    lists = _requirements_of_kind(recipe, "build")
    build = list(chain(*lists)) if lists[0] else []
    if recipe.noarch is not None or "pip" not in build or any(COMPILER in spec for spec in build):
        return
    possible = _may_be_noarch(recipe) if recipe.version else not first_disallowed_selector(recipe)
    if possible:
        pip = next(spec for spec in build if spec == "pip")
        yield Problem(text="the package may be noarch: python", at=recipe.place_of(pip))


def _may_be_noarch(recipe: LintedRecipe) -> bool:
    section = recipe.section("requirements")
    build = texts_in_list(section.get("build"))
    compiled = any(spec.startswith("${{") and ("compiler('c')" in spec or 'compiler("c")' in spec) for spec in build)
    conditional = any(mappings_in_list(list_or_empty(value)) for value in section.values())
    return "pip" in build and not compiled and not conditional


_STDLIB = "add stdlib('c') to requirements/build of each output that uses a compiler"
_WORDS = "write 'name version build': python >=3.9, libfoo 1.2.* cpu_*"
_DIRECT = "add stdlib('c') to requirements/build, and set c_stdlib_version in the variant file"

RULES = (
    lint_rule(
        "R-017",
        partial(deprecated_requirement, name="numpy x.x", text="'numpy x.x' is a deprecated pin"),
        "require numpy without a version",
    ),
    lint_rule(
        "R0-006",
        partial(deprecated_requirement, name="toolchain", text="the package toolchain is deprecated"),
        "write {{ compiler('c') }} and the like",
    ),
    lint_rule("R-021", space_after_operator, _WORDS, fixable=True),
    lint_rule("R-022", no_space_before_operator, _WORDS, fixable=True),
    lint_rule("R-023", language_missing_in_run, "add it to requirements/run"),
    lint_rule("R-024", pinned_language, "remove the version"),
    lint_rule("R-026", missing_python_bound, "write python >={{ python_min }}"),
    lint_rule(
        "R-027", wrong_pin_functions, "use pin_subpackage for outputs of the recipe, pin_compatible for all others"
    ),
    lint_rule(
        "R-031",
        partial(licenses_not_collected, language="rust", tool="cargo-bundle-licenses"),
        "add cargo-bundle-licenses to requirements/build, and run it in the script",
    ),
    lint_rule(
        "R-032",
        partial(licenses_not_collected, language="go", tool="go-licenses"),
        "add go-licenses to requirements/build, and run it in the script",
    ),
    lint_rule("R-033", missing_stdlib, _STDLIB, fixable=True, skip="lint_stdlib"),
    lint_rule("R-034", direct_sysroot_requirement, _DIRECT, skip="lint_stdlib"),
    lint_rule("R-035", direct_macos_constraint, _DIRECT, skip="lint_stdlib"),
    lint_rule("R1-002", conditions_in_noarch_recipe, "remove noarch:, or the condition", skip="lint_noarch_selectors"),
    hint_rule("R-041", possible_noarch_package, "write noarch: python in the build section", others=True),
    hint_rule("R-048", specs_without_separated_fields, _WORDS, fixable=True),
)
