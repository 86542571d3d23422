"""Given an output, exactly this is installed and run to test it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.model.rendered import Output, OutputTests
from kiln.package_test.plan import plan

if TYPE_CHECKING:
    from kiln.model.plan import TestStep

APP = Output(
    name="app",
    version="1.0",
    build_number=3,
    build_string="h_3",
    subdir="linux-64",
    run_exports={},
    about={},
    used={},
    tests=OutputTests(
        imports=("app.core",), commands=("app --help",), requires=("pip", "gcc_linux-64 14.*"), files=("t.c",)
    ),
)


def planned(available: set[str] | None = None) -> TestStep:
    return plan(APP, recipe_folder=Path("/r"), folder=Path("/t"), prefix=Path("/p"), available=available)


def test_the_very_package_is_installed_with_what_its_tests_require() -> None:
    assert planned().specs == ("app ==1.0 h_3", "pip", "gcc_linux-64 14.*")


def test_imports_run_before_commands() -> None:
    assert planned().script[-2:] == ("python -c 'import app.core'", "app --help")
    assert planned().commands == 2


def test_requirements_that_a_channel_lacks_are_omitted_with_a_note() -> None:
    step = planned({"pip", "app"})
    assert step.specs == ("app ==1.0 h_3", "pip")
    assert step.notes == ("tested without gcc_linux-64 14.*, which this channel lacks",)


def test_files_and_environment_are_the_recipes() -> None:
    step = planned()
    assert step.files == {"t.c": Path("/r/t.c")}
    assert step.environment["PREFIX"] == "/p"
    assert step.environment["PKG_VERSION"] == "1.0"
