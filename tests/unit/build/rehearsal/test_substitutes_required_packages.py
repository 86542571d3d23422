"""A rehearsal needs what the outputs and build steps of a config require, each with its section and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.build.rehearsal.inputs import required_specs_of_tests
from kiln.build.rehearsal.substitutes import RequirementSection, required_packages
from kiln.feedstock import config_file
from kiln.recipe import pins, render
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.rendered import RenderedConfig

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
    return pins.close_static_pins(render.render(feedstock, config_file.read_config(feedstock, "linux_64_")))


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
