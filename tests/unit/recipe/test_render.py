from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import (
    KilnError,
    MalformedYaml,
    RecipeFault,
    SelectorFault,
    TemplateFault,
    UnsafeTemplate,
    VariantFault,
)
from kiln.feedstock import matrix, rerender
from kiln.recipe import pins as recipe_pins
from kiln.recipe import render
from kiln.recipe.rendered import Requirements, Script
from tests import builders
from tests.builders import PINNING, copied

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.base.position import Place
    from kiln.recipe.rendered import Output, RenderedConfig

RECIPE = """\
{% set version = "2.1.0" %}
package:
  name: top
  version: {{ version }}
source:
  - url: https://example.com/top-{{ version }}.tar.gz
    sha256: abc
    patches:
      - a.patch
  - git_url: https://example.com/x.git
    git_tag: v1
build:
  number: 3
  script: make all
requirements:
  build:
    - {{ compiler("c") }}
outputs:
  - name: libtop
    script: install.sh
    files:
      - lib/*
    build:
      track_features:
        - top-cpu
      run_exports:
        - {{ pin_subpackage("libtop", max_pin="x.x") }}
    requirements:
      host:
        - zlib
  - name: py-top
    build:
      script: pip install .
      entry_points:
        - top = top:main
    requirements:
      host:
        - python
        - zlib 1.3
        - {{ pin_subpackage("libtop", exact=True) }}
      run:
        - python
        - {{ pin_subpackage("libtop", exact=True) }}
        - {{ pin_subpackage("libtop", min_pin="x.x", max_pin="x") }}
        - {{ pin_compatible("zlib", max_pin="x") }}
        - {{ pin_compatible("other") }}
        - {{ pin_compatible("bounded", lower_bound="1.2", upper_bound="3") }}
    test:
      imports:
        - top
      commands:
        - top --help
about:
  license: MIT
"""
VARIANTS = """\
c_compiler_version:
  - 13
python:
  - 3.11.* *_cpython
  - 3.12.* *_cpython
"""


def rendered(folder: Path, recipe: str = RECIPE, variants: str = VARIANTS) -> RenderedConfig:
    feedstock = builders.feedstock(folder, recipe, variants, files={"recipe/build.sh": "", "recipe/install.sh": ""})
    return builders.rendered(feedstock)


def named(found: RenderedConfig, name: str) -> list[Output]:
    return [output for output in found.outputs if output.name == name]


def test_a_config_that_loops_has_an_output_for_each_python(tmp_path: Path) -> None:
    found = rendered(tmp_path)
    assert [output.variant["python"] for output in named(found, "py-top")] == ["3.11.* *_cpython", "3.12.* *_cpython"]
    assert len(named(found, "libtop")) == 1
    assert [output.build_string[:5] for output in named(found, "py-top")] == ["py311", "py312"]


def test_what_a_build_needs_is_there(tmp_path: Path) -> None:
    found = rendered(tmp_path)
    (step,) = found.stagings
    assert (step.title, step.script) == ("compile", Script(lines=("make all",)))
    assert step.requirements.build == ("gcc_linux-64 13.*",)
    assert {output.staging for output in found.outputs} == {"compile"}
    assert (found.sources[0].url, found.sources[0].patches) == (("https://example.com/top-2.1.0.tar.gz",), ("a.patch",))
    assert (found.sources[1].git_url, found.sources[1].git_rev) == ("https://example.com/x.git", "v1")
    (library,) = named(found, "libtop")
    assert library.script == Script(file="install.sh")
    assert (library.files, library.track_features, library.build_number) == (("lib/*",), ("top-cpu",), 3)
    package = named(found, "py-top")[0]
    assert package.script == Script(lines=("pip install .",))
    assert package.entry_points == ("top = top:main",)
    (test,) = package.tests
    assert (test.imports, test.script.lines, test.pip_check) == (("top",), ("top --help",), False)
    assert package.about == {"license": "MIT"}


def test_closed_bounds_are_ranges_and_exact_builds(tmp_path: Path) -> None:
    found = recipe_pins.close_static_pins(rendered(tmp_path))
    (library,) = named(found, "libtop")
    assert named(found, "py-top")[0].requirements.run == (
        "python >=3.11,<3.12.0a0",
        f"libtop 2.1.0 {library.build_string}",
        "libtop >=2.1,<3.0a0",
        "zlib",
        "other",
        "bounded >=1.2,<3",
    )
    assert library.run_exports == {"weak": ("libtop >=2.1.0,<2.2.0a0",)}
    assert [(field, index, pin.name) for field, index, pin in named(found, "py-top")[0].pins] == [
        ("run", 3, "zlib"),
        ("run", 4, "other"),
        ("run", 0, "python"),
    ]


def test_bounds_that_the_recipes_own_version_decides_are_shown(tmp_path: Path) -> None:
    recipe = RECIPE.replace('pin_compatible("zlib", max_pin="x")', 'pin_compatible("zlib", min_pin="x.x", max_pin="x")')
    assert (
        "zlib >=1.3,<2.0a0"
        in named(recipe_pins.close_static_pins(rendered(tmp_path, recipe)), "py-top")[0].requirements.run
    )


@pytest.mark.parametrize(
    ("noarch", "wanted"),
    [("", [(0, "python", "x.x", "x.x"), (1, "zlib", "x.x", "x")]), ("python", [(1, "zlib", "x.x", "x")])],
)
def test_pin_run_as_build_pins_to_what_is_solved(noarch: str, wanted: list[object], tmp_path: Path) -> None:
    recipe = HEAD + (f"build:\n  noarch: {noarch}\n" if noarch else "")
    recipe += "requirements:\n  host:\n    - python\n    - zlib\n  run:\n    - python\n    - zlib >=1 h*\n    - other\n"
    found = rendered(
        tmp_path, recipe, "pin_run_as_build:\n  zlib:\n    min_pin: x.x\n    max_pin: x\npython:\n  - 3.11\n"
    )
    (output,) = recipe_pins.close_static_pins(found).outputs
    assert [(index, pin.name, pin.min_pin, pin.max_pin) for _, index, pin in output.pins] == wanted
    assert output.pins[-1][2].spec == "zlib >=1 h*"


def test_a_text_in_pin_run_as_build_counts_for_both_bounds(tmp_path: Path) -> None:
    recipe = HEAD + "requirements:\n  host:\n    - perl\n  run:\n    - perl\n"
    found = rendered(tmp_path, recipe, "pin_run_as_build:\n  perl: x.x\nperl:\n  - 5.32\n")
    (output,) = recipe_pins.close_static_pins(found).outputs
    assert [(pin.name, pin.min_pin, pin.max_pin) for _, _, pin in output.pins] == [("perl", "x.x", "x.x")]


def test_a_plain_version_is_solved_for_all_that_begin_so(tmp_path: Path) -> None:
    specs = "\n    - f 1.2\n    - b 1.2 0\n    - c ==1.2\n    - d >=1\n    - e 1.2.*\n"
    sections = "".join(f"  {section}:{specs}" for section in ("build", "host", "run", "run_constrained"))
    tests = f"test:\n  commands:\n    - a\n  requires:{specs}"
    found = rendered(tmp_path, f"{HEAD}requirements:\n{sections}{tests}")
    (output,) = recipe_pins.close_static_pins(found).outputs
    solved = ("f 1.2.*", "b 1.2 0", "c ==1.2", "d >=1", "e 1.2.*")
    needs = output.requirements
    assert (needs.build, needs.host, needs.run, output.tests[0].requires) == (solved, solved, solved, solved)
    assert needs.run_constrained == ("f 1.2", *solved[1:])
    assert found.outputs[0].requirements.run[0] == "f 1.2"  # before a solver, as in conda-build


def test_a_plain_version_of_a_shared_build_step_is_solved_so_too(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "build.sh").write_text("true\n")
    recipe = f"{HEAD}requirements:\n  build:\n    - cmake 3.2\noutputs:\n  - name: b\n  - name: c\n"
    (step,) = recipe_pins.close_static_pins(rendered(tmp_path, recipe)).stagings
    assert step.requirements.build == ("cmake 3.2.*",)


def test_pin_run_as_build_needs_a_package_that_it_was_built_with(tmp_path: Path) -> None:
    found = rendered(tmp_path, HEAD + "requirements:\n  run:\n    - python >=3\n", "")
    assert [(output.requirements.run, output.pins) for output in recipe_pins.close_static_pins(found).outputs] == [
        (("python >=3",), ())
    ]


def test_a_config_knows_the_machine_that_builds_it_where_its_settings_are_not_to_be_seen(tmp_path: Path) -> None:
    recipe = HEAD + "requirements:\n  build:\n    - cross-tool   # [build_platform != target_platform]\n"
    forge = "provider:\n  linux_aarch64: default\nbuild_platform:\n  linux_aarch64: linux_64\n"
    feedstock = builders.feedstock(tmp_path, recipe, "", forge)
    config = next(config for config in matrix.configs(feedstock) if config.platform == "linux-aarch64")
    found = render.render(feedstock, config)
    (tmp_path / "conda-forge.yml").unlink()  # as in a container
    inside = render.render(feedstock, dataclasses.replace(config, build_platform=found.config.build_platform))
    assert found.config.build_platform == "linux-64"
    assert [item.outputs[0].requirements.build for item in (found, inside)] == [("cross-tool",)] * 2


@pytest.mark.parametrize("spec", ["a >=1,,<2", "foo@bar", "a >=1.0<2"])
def test_a_requirement_that_is_no_match_spec_is_refused(spec: str, tmp_path: Path) -> None:
    found = rendered(tmp_path, HEAD, "")
    output = dataclasses.replace(found.outputs[0], requirements=Requirements(run=(spec,)))
    with pytest.raises(RecipeFault) as caught:
        recipe_pins.close_static_pins(dataclasses.replace(found, outputs=(output,)))
    assert caught.value.what == f"a: {spec!r} in run is not a match spec"


def test_a_pin_to_an_unknown_output_is_reported(tmp_path: Path) -> None:
    recipe = RECIPE.replace('pin_subpackage("libtop", exact=True)', 'pin_subpackage("libtpo", exact=True)')
    with pytest.raises(RecipeFault) as caught:
        recipe_pins.close_static_pins(rendered(tmp_path, recipe))
    assert "'libtpo'" in caught.value.what


def test_a_skipped_output_can_be_pinned(tmp_path: Path) -> None:
    pinned = "    requirements:\n      run_constrained:\n        - {{ pin_subpackage('extra', exact=True) }}\n"
    recipe = f"{HEAD}outputs:\n  - name: library\n{pinned}  - name: extra\n    build:\n      skip: true\n"
    found = recipe_pins.close_static_pins(rendered(tmp_path, recipe))
    assert [output.name for output in found.outputs] == ["library"]
    assert found.outputs[0].requirements.run_constrained[0].startswith("extra 1 ")


def test_every_output_may_be_skipped(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\n")
    (config,) = matrix.configs(feedstock)
    feedstock.meta.write_text("package:\n  name: a\n  version: 1\nbuild:\n  skip: true\n")
    assert render.render(feedstock, config).outputs == ()


def test_several_configs_of_a_feedstock_do_not_mix(tmp_path: Path) -> None:
    feedstock = copied("cuda", tmp_path)
    configs = [config for config in matrix.configs(feedstock, PINNING) if config.platform == "linux-64"]
    first = [render.as_plain_data(render.render(feedstock, config)) for config in configs]
    again = [render.as_plain_data(render.render(feedstock, config)) for config in reversed(configs)]
    assert first == again[::-1]
    assert len({str(outputs) for outputs in first}) == len(configs)


HEAD = "package:\n  name: a\n  version: 1\n"
FAULTS: list[tuple[str, str, type[KilnError], str]] = [
    ("unknown selector", HEAD + "build:\n  skip: true  # [lunix]\n", SelectorFault, "5:18"),
    ("undefined name", HEAD + "about:\n  home: {{ hmoe }}\n", TemplateFault, "5:12"),
    ("internals", HEAD + "about:\n  home: {{ ''.__class__ }}\n", UnsafeTemplate, "5"),
    ("file outside", HEAD + "about:\n  home: {{ load_file_data('/etc/passwd') }}\n", UnsafeTemplate, "5"),
    (
        "file above",
        HEAD + "about:\n  home: {{ load_file_data('../../x.json', from_recipe_dir=True) }}\n",
        UnsafeTemplate,
        "5",
    ),
    ("include outside", HEAD + "about:\n  home: {% include '/etc/passwd' %}\n", UnsafeTemplate, "5"),
    (
        "missing file",
        HEAD + "about:\n  home: {{ load_file_data('x.json', from_recipe_dir=True) }}\n",
        TemplateFault,
        "5",
    ),
    ("tab", HEAD + "about:\n\thome: x\n", MalformedYaml, "5"),
    ("twice", HEAD + "about:\n  home: a\n  home: b\n", MalformedYaml, "6"),
    (
        "after a loop",
        "{% for i in range(3) %}\n# {{ i }}\n{% endfor %}\n" + HEAD + "about:\n  a: [\n",
        MalformedYaml,
        "8",
    ),
    ("unclosed block", HEAD + "{% if true %}\nabout:\n", TemplateFault, "4"),
    ("list of outputs", HEAD + "outputs:\n  - libx\n", RecipeFault, "4"),
    ("text as section", HEAD + "build: x\n", RecipeFault, "4"),
    ("upper case", "package:\n  name: App\n  version: 1\n", RecipeFault, "1"),
    ("bad version", "package:\n  name: a\n  version: 1-2\n", RecipeFault, "1"),
    ("bad number", HEAD + "build:\n  number: many\n", RecipeFault, "4"),
    ("long line", HEAD + "about:\n  home: " + "x" * 20_000 + "\n", MalformedYaml, "5"),
    ("object", HEAD + "about: !!python/object:os.system {}\n", UnsafeTemplate, "4"),
]


@pytest.mark.parametrize(("recipe", "error", "line"), [fault[1:] for fault in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_reported_with_its_place_in_the_recipe(
    tmp_path: Path, recipe: str, error: type[KilnError], line: str
) -> None:
    with pytest.raises(error) as caught:
        matrix.configs(builders.feedstock(tmp_path, recipe))
    assert f"{caught.value.at}:".startswith(f"recipe/meta.yaml:{line}:"), str(caught.value)


@pytest.mark.parametrize("pins", ["text", "{python: [x.x]}", "{python: {min_pin: x.x}, numpy: 3}"])
def test_pins_that_are_not_a_mapping_to_places_are_reported(tmp_path: Path, pins: str) -> None:
    with pytest.raises(VariantFault) as caught:
        matrix.configs(builders.feedstock(tmp_path, HEAD, f"pin_run_as_build: {pins}\n"))
    assert f"{caught.value.at}" == "recipe/conda_build_config.yaml:1:1"


@pytest.mark.parametrize("recipe", ["package:\n  name:\n  version: 1\n", "about:\n  home: x\n"])
def test_a_package_without_a_name_is_reported(tmp_path: Path, recipe: str) -> None:
    feedstock = builders.feedstock(tmp_path, recipe)
    (config,) = matrix.configs(feedstock)
    with pytest.raises(RecipeFault) as caught:
        render.render(feedstock, config)
    assert caught.value.what == "a package has no name"


def test_a_key_of_a_pinning_that_is_not_here_may_be_tested(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  skip: true  # [some_pinned_library == '7' and win]\n"
    feedstock = builders.feedstock(tmp_path, HEAD)
    (config,) = matrix.configs(feedstock)
    feedstock.meta.write_text(recipe)
    assert len(render.render(feedstock, config).outputs) == 1
    feedstock.meta.write_text(HEAD + "build:\n  skip: true  # [lunix]\n")
    with pytest.raises(SelectorFault):
        render.render(feedstock, config)


def test_a_name_that_only_a_pinning_could_define_is_doubted(tmp_path: Path) -> None:
    recipe = HEAD + "requirements:\n  host:\n    - zlib\nbuild:\n  number: 1  # [lunix]\n"
    feedstock = builders.feedstock(tmp_path, recipe)
    doubts: dict[Place, SelectorFault] = {}
    configs = matrix.configs(feedstock, PINNING, doubts)
    assert [f"{place}" for place in doubts] == ["recipe/meta.yaml:8:17"]
    rerender.write_ci_support(feedstock, configs)
    config = next(config for config in configs if "zlib" in config.variant)
    assert [output.build_number for output in render.render(feedstock, config).outputs] == [0]


def test_run_exports_that_are_selected_away_leave_their_kind(tmp_path: Path) -> None:
    recipe = HEAD + "build:\n  run_exports:\n    strong:\n      - b  # [win]\n    weak:\n      - c\n"
    feedstock = builders.feedstock(tmp_path, recipe)
    found = builders.rendered(feedstock)
    assert render.as_plain_data(found)[0]["run_exports"] == {"strong": None, "weak": ["c"]}
    assert recipe_pins.close_static_pins(found).outputs[0].run_exports == {"weak": ("c",)}
