"""Plan the tests of a package from its rendered output: the specs to install and the script to run."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kiln.matchspec_notation import package_name, strict_rattler_spec
from kiln.model.build_and_test_steps import TestStep
from kiln.model.rendered import Output, OutputTest
from kiln.recipe_script_launch_commands import script_run_lines

if TYPE_CHECKING:
    from collections.abc import Collection


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
    output: Output,
    *,
    recipe_folder: Path,
    folder: Path,
    prefix: Path,
    available: Collection[str] | None = None,
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
            script=(
                *((BUILD_HEAD,) if test.requires_build else ()),
                *SCRIPT_HEAD,
                *lines,
            ),
            commands=len(lines),
            checked=1 if test.contents else 0,
            environment=_test_environment_variables(output, where),
            files=recipe_files_of_test(test, recipe_folder),
            files_of=output.name if test.source_files else "",
            links="post-link" in output.settings.link_scripts,
            folder=folder.with_name(f"{folder.name}{place}"),
            prefix=where,
            downstreams=test.downstreams,
            notes=(f"tested without {', '.join(unavailable)}, which this channel lacks",) if unavailable else (),
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
            matches = _files_matching_pattern(recipe_folder, pattern, below=not test.by_engine) or [
                recipe_folder / pattern
            ]
            files |= {str(match.relative_to(recipe_folder)): match for match in matches}
    return files


def _files_matching_pattern(folder: Path, pattern: str, *, below: bool) -> list[Path]:
    """Return the files that match a pattern; with ``below``, at any depth, as in conda-build."""
    try:
        return sorted(folder.rglob(pattern) if below else folder.glob(pattern))
    except (ValueError, NotImplementedError):  # not a pattern
        return []


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
