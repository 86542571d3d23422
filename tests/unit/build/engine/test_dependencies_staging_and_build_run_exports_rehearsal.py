"""A rehearsal's packages ask for the C library and the processor that a build's would."""

from __future__ import annotations

import pytest

from kiln.build.engine.dependencies import run_exports_from_build_tools
from kiln.build.steps import RunExport
from kiln.recipe.rendered import Output, Requirements, Script


def output(*build: str) -> Output:
    return Output(
        name="lib",
        version="1",
        build_number=0,
        build_string="0",
        subdir="linux-64",
        requirements=Requirements(build=build, host=("zlib",), run=()),
        run_exports={},
        about={},
        used={},
        script=Script(),
    )


@pytest.mark.parametrize(
    ("spec", "exported"),
    [
        ("sysroot_linux-64 2.28.*", "__glibc >=2.28,<3.0.a0"),
        ("sysroot_linux-64 ==2.17", "__glibc >=2.17,<3.0.a0"),
        ("x86_64-microarch-level 3", "_x86_64-microarch-level >=3"),
    ],
)
def test_what_the_tools_of_the_build_section_export(spec: str, exported: str) -> None:
    assert list(run_exports_from_build_tools(output("gcc_linux-64 13.*", spec))) == [
        RunExport(spec=exported, package=spec.split(maxsplit=1)[0])
    ]


@pytest.mark.parametrize("spec", ["gcc_linux-64 13.*", "sysroot_linux-64", "sysroot_linux-aarch64 2.28.*"])
def test_other_tools_and_those_without_a_version_export_nothing(spec: str) -> None:
    assert list(run_exports_from_build_tools(output(spec))) == []
