"""The tests that a package carries, as conda-build or rattler-build packed them: those of a package downstream."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenPackage, KilnError
from kiln.package_test.plan import SCRIPTS, import_line
from kiln.yamltext import Scalars, parse, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedTests:
    """The tests in a package: the shell lines, the specs that they require, and the files for the test's folder."""

    lines: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    files: Mapping[str, Path] = field(default_factory=dict)


def carried_tests(info: Path) -> CarriedTests:
    """Return the tests in the ``info`` folder of an unpacked package.

    Raises:
        BrokenPackage: when they cannot be read.
    """
    try:
        if (info / "tests" / "tests.yaml").is_file():
            return _of_rattler_build(info / "tests" / "tests.yaml")
        return _of_conda_build(info / "test")
    except (KilnError, ValueError, AttributeError, TypeError) as error:
        raise BrokenPackage(f"the tests in {info} cannot be read", why=str(error)) from error


def _of_conda_build(folder: Path) -> CarriedTests:
    lines = tuple(line for name, line in SCRIPTS.items() if (folder / name).is_file())
    requires = folder / "test_time_dependencies.json"
    specs = json.loads(read_text(requires, requires.name)) if requires.is_file() else []
    return CarriedTests(lines=lines, requires=tuple(map(str, specs)), files={".": folder} if lines else {})


def _of_rattler_build(file: Path) -> CarriedTests:
    tests: list[dict[str, Any]] = parse(read_text(file, file.name), file.name, Scalars.WORDS).value or []
    requires = [str(spec) for test in tests for spec in (test.get("requirements") or {}).get("run", ())]
    return CarriedTests(lines=tuple(line for test in tests for line in _lines(test)), requires=tuple(requires))


def _lines(test: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of one test of rattler-build; tests of contents and of other packages have none."""
    python = test.get("python") or {}
    yield from (import_line("python", str(name)) for name in python.get("imports", ()))
    if python.get("pip_check"):
        yield "pip check"
    script = test.get("script")
    if script:
        value = script if isinstance(script, dict) else {"content": script}
        if value.get("interpreter") not in {None, "bash"} or "content" not in value:
            raise ValueError("a test's script is for another interpreter than bash")
        content = value["content"]
        yield f'pushd "$PREFIX"/{shlex.quote(str(value["cwd"]))} >/dev/null' if "cwd" in value else "pushd . >/dev/null"
        yield from ([content] if isinstance(content, str) else map(str, content))
        yield "popd >/dev/null"
