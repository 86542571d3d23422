"""A plan has a substitute for each requirement, or is refused with all that have none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.base.errors import RehearsalRefused
from kiln.base.serialization import from_json_values, to_json
from kiln.build.rehearsal import wheel_choice
from kiln.build.rehearsal.inputs import required_specs_of_tests
from kiln.build.rehearsal.substitutes import (
    RequiredPackage,
    RequirementSection,
    SubstituteSearch,
    outputs_for_python,
    plan_config_rehearsal,
    python_version_for_requirements,
    required_packages,
)
from kiln.build.rehearsal.wheel_choice import RequirementsConflict, WheelResolution
from kiln.build.rehearsal.wheels import LockedWheel, RehearsalPlan
from kiln.feedstock.sources import SourceSearch, UnavailableItem
from kiln.recipe.feedstock import BuildConfig
from kiln.recipe.rendered import Output, RenderedConfig, Requirements
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterable


CONFIG = BuildConfig(name="linux_64_", platform="linux-64", variant={"zlib": ("1",)}, pin_run_as_build={})


def output(name: str, host: tuple[str, ...] = (), **changes: Any) -> Output:
    fields = {"version": "1.0", "build_string": "h_0", "requirements": Requirements(host=host), **changes}
    return builders.output(name, **fields)


def wheel(name: str, version: str = "2.0") -> LockedWheel:
    file = f"{name}-{version}-py3-none-any.whl"
    return LockedWheel(name=name, version=version, file=file, size=1, sha256=name, pythons=("3.11",))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The requirements that pip was asked for; nobody has no project there, theirs conflicts with odd."""
    requests: list[list[str]] = []

    def resolve(requirements: Iterable[str], **_: object) -> WheelResolution:
        texts = sorted(requirements)
        requests.extend([texts] if texts else [])  # without requirements, pip is not asked
        if {"odd<1", "odd>=1"} <= {part for text in texts for part in _split(text)}:
            raise RequirementsConflict("odd<1 and odd>=1")
        names = [text.partition("<")[0].partition(">")[0].partition("=")[0] for text in texts]
        return WheelResolution(
            wheels=tuple(wheel(name) for name in names if "nobody" not in name),
            unavailable=tuple(UnavailableItem(name=n, reason="no wheel") for n in names if "nobody" in n),
        )

    monkeypatch.setattr(wheel_choice, "resolve_wheels", resolve)
    return requests


def _split(text: str) -> list[str]:
    name = text.partition("<")[0].partition(">")[0]
    return [f"{name}{clause}" for clause in text[len(name) :].split(",")]


def plan(
    *outputs: Output, test_specs: tuple[tuple[str, str], ...] = (), python: str = "3.11", path: str = ""
) -> RehearsalPlan:
    rendered = RenderedConfig(config=CONFIG, name="a", outputs=outputs)
    search = SubstituteSearch(
        python=python,
        own={output.name: output.version for output in outputs if not output.skip},
        pinned=CONFIG.variant.keys(),
        env={"PATH": path, "PIP_INDEX_URL": "https://me:password@index.example"},
        machine_env={"PATH": path},
        glibc="2.36",
    )
    source_search = SourceSearch(store=Path("/none"), folder=None, mirror=None, projects=(), env={})
    required = required_packages(rendered, test_specs=test_specs)
    return plan_config_rehearsal(rendered, required, search=search, source_search=source_search)


def test_python_packages_are_resolved_together_and_known_under_the_channels_names(asked: list[list[str]]) -> None:
    result = plan(output("a", ("python 3.11.*", "numpy 2.0", "jupyter_thing", "python-build >=1")))
    assert asked == [["build>=1", "jupyter-thing", "numpy==2.0.*"]]
    assert [entry.name for entry in result.dependencies] == ["build", "jupyter-thing", "numpy"]
    (alias,) = result.stand_ins
    assert (alias.name, alias.depends) == ("jupyter_thing", ("jupyter-thing ==2.0",))
    assert "taken from pip's index by their names alone: jupyter_thing" in result.notes
    assert from_json_values(RehearsalPlan, to_json(result)) == result


def test_programs_of_this_machine_do_not_get_pips_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cmake", "gcc"):
        (tmp_path / name).touch(mode=0o755)
    environments: list[dict[str, str]] = []

    def capture(argv: tuple[str, ...], *, env: dict[str, str], **_: object) -> process.ProcessResult:
        environments.append(env)
        return process.ProcessResult(argv=argv, exit_code=0, tail="", seconds=0, stdout="13.2")

    monkeypatch.setattr(process, "capture", capture)
    result = plan(output("a", ("cmake", "gcc_linux-64 13.*")), python="", path=str(tmp_path))
    assert {"cmake", "gcc_linux-64", "libgcc"} <= {entry.name for entry in result.stand_ins}
    assert len(environments) > 4
    assert all(env == {"PATH": str(tmp_path)} for env in environments)


def test_everything_that_is_missing_is_listed_with_what_requires_it(asked: list[list[str]]) -> None:
    with pytest.raises(RehearsalRefused) as caught:
        plan(
            output("a", ("zlib 1", "libthing", "cmake-of-nobody >=3")),
            output("b", ("libthing >=2", "gfortran_linux-64 14")),
        )
    assert caught.value.what == "linux_64_ cannot be rehearsed: 4 requirements cannot be had"
    assert [line.strip() for line in caught.value.why.splitlines()] == [
        "gfortran_linux-64 14.* (host of b): this machine has no gfortran",
        "libthing (host of a, host of b): it is a library of the channel, not a Python package",
        "zlib 1.* (host of a): it is a library of the channel, which the variant pins",
        "cmake-of-nobody >=3 (host of a): no wheel",
    ]


@pytest.mark.parametrize("spec", ["--index-url=https://a.example", "-r/etc/passwd", "_x", "a/b"])
def test_what_is_no_name_never_reaches_pip(spec: str, asked: list[list[str]]) -> None:
    with pytest.raises(RehearsalRefused) as caught:
        plan(output("a", (spec,)))
    assert "1 requirement cannot be had" in caught.value.what
    assert asked == []
    plan(output("a", ("b\n--pre",)))
    assert asked == [["b"]], "nor does what follows a name"


def test_what_tests_alone_require_is_left_out_with_a_note(asked: list[list[str]]) -> None:
    result = plan(output("a", ("pip",)), test_specs=(("a", "pytest-of-nobody >=8"),))
    assert "tested without pytest-of-nobody >=8 (test of a): no wheel" in result.notes


def test_an_output_of_the_config_is_never_taken_from_a_wheel(
    asked: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = WheelResolution(wheels=(wheel("b"), wheel("my-own", "9")))
    monkeypatch.setattr(wheel_choice, "resolve_wheels", lambda *_, **__: answer)
    result = plan(output("my_own", ("b",)))
    assert [entry.name for entry in result.dependencies] == ["b"]
    (alias,) = result.stand_ins
    assert (alias.name, alias.version, alias.depends) == ("my-own", "1.0", ("my_own",)), "wheels require my-own"


def test_environments_that_contradict_each_other_are_resolved_alone(asked: list[list[str]]) -> None:
    needs = Requirements(host=("odd <1",), run=("odd >=1",))
    result = plan(output("a", requirements=needs))
    assert asked == [["odd<1,>=1"], ["odd<1"], ["odd>=1"]]
    assert any(note.startswith("the requirements contradict each other") for note in result.notes)
    with pytest.raises(RehearsalRefused, match="its requirements contradict each other as pip sees them"):
        plan(output("a", ("odd <1", "odd >=1")))


def test_without_python_nothing_comes_from_an_index(asked: list[list[str]]) -> None:
    with pytest.raises(RehearsalRefused, match="1 requirement cannot be had") as caught:
        plan(output("a", ("something",)), python="")
    assert "nothing on this machine stands in for it" in caught.value.why
    assert asked == []


def required(*specs: str) -> list[RequiredPackage]:
    return [RequiredPackage(name="python", spec=spec, section=RequirementSection.HOST, output="a") for spec in specs]


@pytest.mark.parametrize(
    ("specs", "preferred", "python"),
    [
        ((), ("3.12",), ""),
        (("python",), ("3.12",), "3.12"),
        (("python >=3.9", "python 3.10.*"), ("3.12",), "3.10"),
        (("python >=3.9,<3.12.0a0",), ("3.12",), "3.11"),
        (("python 3.13.* *_cp313",), (), "3.13"),
    ],
)
def test_one_python_satisfies_all_outputs(specs: tuple[str, ...], preferred: tuple[str, ...], python: str) -> None:
    assert python_version_for_requirements(required(*specs), preferred) == python


def test_pythons_that_exclude_each_other_are_refused_with_their_places() -> None:
    with pytest.raises(RehearsalRefused, match="no Python of a rehearsal satisfies") as caught:
        python_version_for_requirements(required("python 3.10.*", "python >=3.11"), ())
    assert caught.value.why == "python 3.10.* (host of a); python >=3.11 (host of a)"
    with pytest.raises(RehearsalRefused, match="no free-threaded Python"):
        python_version_for_requirements(required("python 3.13.* *_cp313t"), ())


def test_outputs_of_other_pythons_are_left_out() -> None:
    outputs = (
        output("a", variant={"python": "3.10.* *_cpython"}),
        output("a", variant={"python": "3.11.* *_cpython"}),
        output("all"),
    )
    chosen = outputs_for_python(RenderedConfig(config=CONFIG, outputs=outputs), "3.11")
    assert [(entry.name, entry.variant) for entry in chosen] == [("a", {"python": "3.11.* *_cpython"}), ("all", {})]


META = """\
package:
  name: parent
  version: 1
build:
  script: make
requirements:
  build:
    - make
  host:
    - zstd 1.5
outputs:
  - name: library
    requirements:
      run:
        - __glibc >=2.17
        - Tool >=3
    test:
      requires:
        - pytest 8
      commands:
        - true
  - name: program
    requirements:
      run:
        - library
"""


def rendered(folder: Path) -> RenderedConfig:
    feedstock = builders.feedstock(folder, META, files={".ci_support/linux_64_.yaml": "target_platform:\n- linux-64\n"})
    return builders.closed(feedstock, "linux_64_")


def test_each_requirement_has_its_section_and_its_output(tmp_path: Path) -> None:
    config = rendered(tmp_path)
    entries = required_packages(config, test_specs=required_specs_of_tests(config))
    assert {(entry.name, entry.version_constraint, entry.section, entry.output) for entry in entries} == {
        ("make", "", RequirementSection.BUILD, "parent"),
        ("zstd", "1.5.*", RequirementSection.HOST, "parent"),
        ("tool", ">=3", RequirementSection.RUN, "library"),
        ("pytest", "8.*", RequirementSection.TEST, "library"),
    }
    assert {entry.section_and_output for entry in entries if entry.name == "zstd"} == {"host of parent"}
