"""The tests of a package: the specs to install and the script to run, planned or as packed; names of wheels."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base import files as base_files
from kiln.base.errors import BrokenPackage, KilnError, TestsFailed
from kiln.base.yaml import ScalarInterpretation, parse_document, read_text
from kiln.build.engine.scripts import COMMANDS, script_run_lines
from kiln.build.steps import TestStep
from kiln.conda.specs import package_name, strict_rattler_spec, with_version_wildcard
from kiln.recipe.rendered import TEST_MODULES, Output, OutputTest, Script

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelName:
    """The parts of a wheel's file name, as in PEP 427; several tags are joined by dots."""

    path: Path
    name: str
    version: str
    python: str
    abi: str
    platform: str

    @classmethod
    def from_path(cls, path: Path) -> WheelName:
        """Return the parts of a wheel's name.

        Raises:
            BrokenPackage: for an invalid file name.
        """
        match = NAME.fullmatch(path.name)
        if match is None:
            form = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl (PEP 427)"
            raise BrokenPackage(f"invalid wheel name: {path.name}", why=form)
        return cls(path=path, **match.groupdict())

    @property
    def tags(self) -> str:
        """The tags, as in the name."""
        return f"{self.python}-{self.abi}-{self.platform}"


def require_wheel_for_python(wheel: WheelName, python: str | None) -> None:
    """Refuse a wheel that is not for the Python that its config is for (``3.11``; None for a config without one)."""
    tags = {f"cp{python.replace('.', '')}", "py3", "py2.py3"} if python else {wheel.python}
    stable = wheel.abi == "abi3"  # one for all later ones
    if wheel.python not in tags and not stable:
        raise TestsFailed(
            f"the wheel {wheel.path.name} is for {wheel.python}", why=f"the config is for Python {python}"
        )


SCRIPT_HEAD = (
    "set -e",
    'export PATH="$PREFIX/bin:$PATH"',
    'for hook in "$PREFIX"/etc/conda/activate.d/*.sh; do if [ -e "$hook" ]; then . "$hook"; fi; done',
    "set -x",
)
BUILD_HEAD = 'export PATH="$BUILD_PREFIX/bin:$PATH"'
# The package of each language's interpreter, and the command that loads a module of it.
_INTERPRETERS = {"perl": "perl", "r": "r-base", "ruby": "ruby", "lua": "lua"}
_IMPORTS = {
    "python": ("python -c", "import {}"),
    "r": ("Rscript -e", "library({})"),
    "perl": ("perl -e", "use {};"),
    "ruby": ("ruby -e", "require '{}'"),
    "lua": ("lua -e", 'require "{}"'),
}
SCRIPTS = {
    "run_test.py": "python -s run_test.py",
    "run_test.pl": "perl run_test.pl",
    "run_test.r": "Rscript run_test.r",
    "run_test.lua": "lua run_test.lua",
    "run_test.sh": ". ./run_test.sh",
}
# The programs that scripts need, which conda-build adds to the requirements of a test (get_test_deps).
_PROGRAMS = {"run_test.py": "python", "run_test.pl": "perl", "run_test.r": "r-base", "run_test.lua": "lua"}


def plan_package_tests(
    output: Output, *, recipe_folder: Path, folder: Path, prefix: Path, available: Collection[str] | None = None
) -> tuple[TestStep, ...]:
    """Plan the tests of one package, at least one; the source files that they use are those in the package.

    ``available`` are the names of the packages in the channel, where that is known: other requirements of the test
    are omitted, with a note (a rehearsal has no compiler packages, for example; its tests use the machine's).
    """
    tests = [(test, python) for test in output.tests or (OutputTest(),) for python in test.pythons or (None,)]
    places = [f"-{number}" if number else "" for number in range(len(tests))]

    def plan_test_step(test: OutputTest, python: str | None, place: str) -> TestStep:
        pythons = [] if python is None else [f"python {python.removesuffix('.*')}.*"]  # it may be a pattern already
        required = [*specs_required_by_test(test), *pythons]
        requirements = [spec for spec in required if available is None or package_name(spec) in available]
        unavailable = [spec for spec in required if spec not in requirements]
        lines = shell_lines_of_test(test, recipe_folder)
        where = prefix.with_name(f"{prefix.name}{place}")
        return TestStep(
            package=output.name,
            specs=(f"{output.name} =={output.version} {output.build_string}", *map(strict_rattler_spec, requirements)),
            build_specs=tuple(map(strict_rattler_spec, test.requires_build)),
            script=(*((BUILD_HEAD,) if test.requires_build else ()), *SCRIPT_HEAD, *lines),
            commands=len(lines),
            checked=1 if test.contents else 0,
            environment=_test_environment_variables(output, where),
            files=recipe_files_of_test(test, recipe_folder),
            files_of=output.name if test.source_files else "",
            links="post-link" in output.settings.link_scripts,
            folder=folder.with_name(f"{folder.name}{place}"),
            prefix=where,
            downstreams=test.downstreams,
            notes=(f"tested without what this channel lacks: {', '.join(unavailable)}",) if unavailable else (),
        )

    return tuple(plan_test_step(test, python, place) for (test, python), place in zip(tests, places, strict=True))


def specs_required_by_test(test: OutputTest) -> tuple[str, ...]:
    """Return the specs that a test requires besides its output: the recipe's, and the programs that run it."""
    named = {package_name(spec) for spec in test.requires}
    programs = [program for name, program in _PROGRAMS.items() if name in test.scripts]
    programs += ["pip"] if test.pip_check else []
    programs += [_INTERPRETERS[language] for language in test.modules if language in _INTERPRETERS]
    return (*test.requires, *dict.fromkeys(program for program in programs if program not in named))


def recipe_files_of_test(test: OutputTest, recipe_folder: Path) -> dict[str, Path]:
    """Return the files of the recipe that a test uses, by their places in the test's folder.

    A name that matches nothing is reported when it is copied.
    """
    files = {name: recipe_folder / file for name, file in test.scripts.items()}
    for pattern in test.files:
        if PurePosixPath(pattern).is_absolute() or ".." in pattern.split("/"):
            files[PurePosixPath(pattern).name] = recipe_folder / pattern
        else:
            matches = base_files.files_matching(recipe_folder, pattern, below=not test.by_engine)
            files |= {str(match.relative_to(recipe_folder)): match for match in matches or [recipe_folder / pattern]}
    return files


def shell_lines_of_test(test: OutputTest, recipe_folder: Path) -> tuple[str, ...]:
    """Return the shell lines of a test: its imports, its files, then its script.

    A shell script of conda-build runs in the shell of the commands, which it appends to it.
    """
    imports = (module_import_command(test.language, name) for name in test.imports)
    modules = (module_import_command(language, name) for language, names in test.modules.items() for name in names)
    scripts = (line for name, line in SCRIPTS.items() if name in test.scripts)
    checks = ["pip check"] if test.pip_check else []
    return (*imports, *checks, *modules, *scripts, *script_run_lines(test.script, recipe_folder))


def module_import_command(language: str, name: str) -> str:
    """Return the shell line that imports a module of a language."""
    program, statement = _IMPORTS.get(language, _IMPORTS["python"])
    return f"{program} {shlex.quote(statement.format(name))}"


def _test_environment_variables(output: Output, prefix: Path) -> dict[str, str]:
    """Return the variables that conda-build's test environment has and a recipe's tests may rely on."""
    used = output.used_keys_as_text
    variant = {key: value for key, value in used.items() if key.isidentifier() and not key.startswith("__")}
    return {
        **variant,
        "CONDA_BUILD": "1",
        "CONDA_BUILD_STATE": "TEST",
        "PREFIX": str(prefix),
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "PKG_NAME": output.name,
        "PKG_VERSION": output.version,
        "PKG_BUILDNUM": str(output.build_number),
        "PKG_BUILD_STRING": output.build_string,
        "SHLIB_EXT": ".so",
        "PYTHONNOUSERSITE": "1",
    }


# The kinds of tests: those of the contents have run while the package was packed, the others run with their package.
_KINDS = frozenset({"python", "script", "requirements", "files", "package_contents", "downstream", *TEST_MODULES})


def output_with_packed_tests(record: Any, info: Path) -> Output:
    """Return an installed package with its tests, which are in the ``info`` folder of its unpacked file."""
    return Output(
        name=str(record.name.normalized),
        version=str(record.version),
        build_number=int(record.build_number),
        build_string=str(record.build),
        subdir=str(record.subdir),
        run_exports={},
        about={},
        used={},
        tests=read_packed_tests(info),
    )


def read_packed_tests(info: Path) -> tuple[OutputTest, ...]:
    """Return the tests in the ``info`` folder of an unpacked package."""
    try:
        if (info / "tests" / "tests.yaml").is_file():
            return _read_rattler_build_tests(info / "tests" / "tests.yaml")
        return _read_conda_build_tests(info / "test")
    except (KilnError, ValueError, AttributeError, TypeError) as error:
        raise BrokenPackage(
            f"the tests of the package {info.parent.name} cannot be run: {error}", hint=f"they are in {info}"
        ) from error


def _read_conda_build_tests(folder: Path) -> tuple[OutputTest, ...]:
    scripts = {name: name for name in SCRIPTS if (folder / name).is_file()}
    requires = folder / "test_time_dependencies.json"
    specs = json.loads(read_text(requires, requires.name)) if requires.is_file() else []
    return (
        (OutputTest(scripts=scripts, requires=tuple(with_version_wildcard(str(spec)) for spec in specs)),)
        if scripts
        else ()
    )


def _read_rattler_build_tests(file: Path) -> tuple[OutputTest, ...]:
    entries: list[dict[str, Any]] = (
        parse_document(read_text(file, file.name), file.name, ScalarInterpretation.WORDS).value or []
    )
    tests = (_parse_test_entry(entry) for entry in entries)
    return tuple(test for test in tests if test != OutputTest(by_engine=True))


def _parse_test_entry(entry: dict[str, Any]) -> OutputTest:
    if unknown := sorted(entry.keys() - _KINDS):
        raise ValueError(f"tests of the kind {unknown[0]!r} are not supported")
    needs = entry.get("requirements") or {}
    python = entry.get("python")
    return OutputTest(
        imports=_text_tuple((python or {}).get("imports")),
        pip_check=python is not None and str(python.get("pip_check", "true")).lower() == "true",  # it is the default
        pythons=_text_tuple((python or {}).get("python_version")),
        modules={name: _text_tuple(entry[name].get(key)) for name, key in TEST_MODULES.items() if name in entry},
        script=_parse_test_script(entry["script"]) if "script" in entry else Script(),
        requires=_text_tuple(needs.get("run")),
        requires_build=_text_tuple(needs.get("build")),
        by_engine=True,
    )


def _parse_test_script(given: Any) -> Script:
    setting: Mapping[str, Any] = given if isinstance(given, dict) else {"content": given}
    interpreter = setting.get("interpreter")
    if interpreter is not None and interpreter not in COMMANDS:
        raise ValueError(f"test scripts for the interpreter {interpreter!r} are not supported")
    if "content" not in setting:
        raise ValueError("a test's script has no content")
    return Script(
        lines=_text_tuple(setting["content"]),
        interpreter=interpreter,
        environment={str(name): str(value) for name, value in (setting.get("env") or {}).items()},
        folder=setting.get("cwd"),
    )


def _text_tuple(given: Any) -> tuple[str, ...]:
    """Return a text, or a list of texts, as a tuple."""
    return () if given is None else (str(given),) if isinstance(given, str) else tuple(map(str, given))
