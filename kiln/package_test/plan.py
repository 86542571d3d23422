"""Plan the tests of a package from its rendered output: the specs to install and the script to run."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from kiln.matchspec import package_name, strict
from kiln.model.plan import TestStep

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from kiln.model.rendered import Output

SCRIPT_HEAD = (
    "set -e",
    'export PATH="$PREFIX/bin:$PATH"',
    'for hook in "$PREFIX"/etc/conda/activate.d/*.sh; do if [ -e "$hook" ]; then . "$hook"; fi; done',
    "set -x",
)

_LANGUAGES = {"r": "r", "perl": "perl", "lua": "lua"}
_IMPORTS = {
    "python": ("python -c", "import {}"),
    "r": ("Rscript -e", "library({})"),
    "perl": ("perl -e", "use {};"),
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


def plan(
    output: Output,
    *,
    recipe_folder: Path,
    folder: Path,
    prefix: Path,
    available: Collection[str] | None = None,
    sources: Path | None = None,
) -> TestStep:
    """Plan the test of one package; ``sources`` is the folder with the source files that it uses.

    ``available`` are the names of the packages in the channel, where that is known: other requirements of the test
    are omitted, with a note (a rehearsal has no compiler packages, for example; its tests use the machine's).
    """
    requirements = required_specs(output)
    required = [spec for spec in requirements if available is None or package_name(spec) in available]
    unavailable = [spec for spec in requirements if spec not in required]
    lines = test_lines(output)
    return TestStep(
        package=output.name,
        specs=(f"{output.name} =={output.version} {output.build_string}", *map(strict, required)),
        script=(*SCRIPT_HEAD, *lines),
        commands=len(lines),
        environment=_environment(output, prefix),
        files={**test_files(output, recipe_folder), **_source_files(output, sources)},
        folder=folder,
        prefix=prefix,
        downstreams=output.tests.downstreams,
        notes=(f"tested without {', '.join(unavailable)}, which this channel lacks",) if unavailable else (),
    )


def required_specs(output: Output) -> tuple[str, ...]:
    """Return the specs that an output's tests require: the recipe's, and the programs of its test scripts."""
    named = {package_name(spec) for spec in output.tests.requires}
    programs = [program for name, program in _PROGRAMS.items() if name in output.tests.scripts]
    return (*output.tests.requires, *(program for program in programs if program not in named))


def _source_files(output: Output, sources: Path | None) -> dict[str, Path]:
    files = sorted(sources.iterdir()) if sources is not None and output.tests.source_files else ()
    return {file.name: file for file in files}


def test_lines(output: Output) -> tuple[str, ...]:
    """Return the shell lines of an output's tests: its imports, its scripts, then its commands.

    A shell script runs in the shell of the commands, as in conda-build, which appends them to it.
    """
    tests = output.tests
    imports = [*((_language(output.name), name) for name in tests.imports), *tests.other_imports]
    scripts = (line for name, line in SCRIPTS.items() if name in tests.scripts)
    return (*(import_line(language, name) for language, name in imports), *scripts, *tests.commands)


def test_files(output: Output, recipe_folder: Path) -> dict[str, Path]:
    """Return the files of the recipe that a test uses, by their places in the test's folder.

    A pattern matches at any depth, as in conda-build; a name that matches nothing is reported when it is copied.
    """
    tests = output.tests
    files = {name: recipe_folder / file for name, file in tests.scripts.items()}
    for pattern in tests.files:
        if PurePosixPath(pattern).is_absolute() or ".." in pattern.split("/"):
            files[PurePosixPath(pattern).name] = recipe_folder / pattern
        else:
            matches = _matches(recipe_folder, pattern) or [recipe_folder / pattern]
            files |= {str(match.relative_to(recipe_folder)): match for match in matches}
    return files


def _matches(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.rglob(pattern))
    except (ValueError, NotImplementedError):  # it is no pattern
        return []


def _language(package: str) -> str:
    """Return the language of a package's imports, by its name."""
    return _LANGUAGES.get(package.partition("-")[0], "python") if "-" in package else "python"


def import_line(language: str, name: str) -> str:
    """Return the shell line that imports a module of a language."""
    program, statement = _IMPORTS.get(language, _IMPORTS["python"])
    return f"{program} {shlex.quote(statement.format(name))}"


def _environment(output: Output, prefix: Path) -> dict[str, str]:
    """Return the variables that conda-build's test environment has and a recipe's tests may rely on."""
    return {
        "PREFIX": str(prefix),
        "CONDA_PREFIX": str(prefix),
        "CONDA_DEFAULT_ENV": str(prefix),
        "PKG_NAME": output.name,
        "PKG_VERSION": output.version,
        "PKG_BUILDNUM": str(output.build_number),
        "SHLIB_EXT": ".so",
        "PYTHONNOUSERSITE": "1",
    }
