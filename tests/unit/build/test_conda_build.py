"""conda-build is told exactly what conda-forge's build steps tell it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kiln.build.conda_build import Call, argv, clobber, condarc, script
from kiln.model.cell import Cell
from kiln.model.rendered import Output, Rendered

CALL = Call(
    engine="conda-build",
    recipe=Path("/home/conda/recipe_root"),
    variant_file=Path("/f/.ci_support/linux_64_.yaml"),
    clobber_file=Path("/w/clobber_linux_64_.yaml"),
    condarc=Path("/w/condarc"),
    croot=Path("/w/croot"),
    cache=Path("/a/cache"),
    channels=("conda-forge", "other"),
    extra={"flow_run_id": "", "remote_url": "https://g/a b", "sha": "abc"},
)


def test_the_command_line_is_conda_forges() -> None:
    assert argv(CALL) == (
        "conda-build",
        "/home/conda/recipe_root",
        "-m",
        "/f/.ci_support/linux_64_.yaml",
        "--suppress-variables",
        "--clobber-file",
        "/w/clobber_linux_64_.yaml",
        "--extra-meta",
        "flow_run_id=",
        "remote_url=https://g/a b",
        "sha=abc",
    )


def test_mambabuild_is_told_the_same() -> None:
    mamba = dataclasses.replace(CALL, engine="mambabuild")
    assert argv(mamba) == ("conda-mambabuild", *argv(CALL)[1:])
    assert "command -v conda-mambabuild >/dev/null || exit 97" in script(mamba)
    assert "'remote_url=https://g/a b'" in script(mamba)


def test_a_shell_is_opened_where_conda_debug_has_made_an_output_ready() -> None:
    lines = script(CALL, debug="libsmall-*").splitlines()
    assert "command -v conda-debug >/dev/null || exit 97" in lines
    variant = "-m /f/.ci_support/linux_64_.yaml"
    clobbered = "--clobber-file /w/clobber_linux_64_.yaml"
    ready = f"conda debug /home/conda/recipe_root {variant} --output-id 'libsmall-*' {clobbered} </dev/null"
    assert lines[-2:] == [ready, "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"]
    assert "--output-id" not in script(CALL, debug="")


def test_conda_is_told_where_to_work_and_which_channels_to_ask() -> None:
    told = json.loads(condarc(CALL))
    assert told["conda-build"] == {"root-dir": "/w/croot", "pkg_format": "2"}
    assert told["channels"] == ["conda-forge", "other"]
    assert told["channel_priority"] == "strict"


@pytest.mark.parametrize(
    ("decrement", "number", "expected"),
    [(None, 3, {}), ("0", 1003, {}), ("1000", 1003, {"build": {"number": 3}}), ("1000", 3, {"build": {"number": 3}})],
)
def test_the_build_number_is_clobbered_for_old_compilers_alone(
    decrement: str | None, number: int, expected: dict[str, object]
) -> None:
    variant = {} if decrement is None else {"build_number_decrement": (decrement,)}
    cell = Cell(name="c", platform="linux-64", variant=variant, pin_run_as_build={})
    output = Output(
        name="a",
        version="1",
        build_number=number,
        build_string="0",
        subdir="linux-64",
        run_exports={},
        about={},
        used={},
    )
    assert json.loads(clobber(Rendered(cell=cell, outputs=(output,)))) == expected
