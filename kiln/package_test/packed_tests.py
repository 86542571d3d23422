"""The tests that a package carries, as conda-build or rattler-build packed them: those of a package downstream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage, KilnError
from kiln.matchspec_notation import with_version_wildcard
from kiln.model.rendered import TEST_MODULES, Output, OutputTest, Script
from kiln.package_test.specs_and_script import SCRIPTS
from kiln.recipe_script_launch_commands import COMMANDS
from kiln.yamltext import ScalarInterpretation, parse_document, read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# The kinds of tests: those of the contents have run while the package was packed, the others run with their package.
_KINDS = frozenset({"python", "script", "requirements", "files", "package_contents", "downstream", *TEST_MODULES})


def output_with_packed_tests(record: Any, info: Path) -> Output:
    """Return an installed package with its tests, which are in the ``info`` folder of its unpacked file.

    Raises:
        BrokenPackage: when the tests cannot be read, or are of an unknown kind.
    """
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
    """Return the tests in the ``info`` folder of an unpacked package.

    Raises:
        BrokenPackage: when they cannot be read, or are of an unknown kind.
    """
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
