"""Recipes that the linter has nothing to say about, and the messages about changed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.feedstock.lint import check
from kiln.recipe import feedstock as recipe_feedstock
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.feedstock.lint.model import LintMessage
    from kiln.recipe.feedstock import Feedstock

ABOUT = """
about:
  home: https://example.org
  license: MIT
  license_file: LICENSE
  summary: A %s

extra:
  recipe-maintainers:
    - somebody
"""
ABOUT_V1 = ABOUT.replace("home:", "homepage:")
META = (
    """\
{% set name = "small" %}
{% set version = "1.10" %}

package:
  name: {{ name }}
  version: "{{ version }}"

source:
  url: https://example.org/{{ name }}-{{ version }}.tar.gz
  sha256: 0000000000000000000000000000000000000000000000000000000000000000

build:
  number: 0
  skip: true  # [win]

requirements:
  build:
    - {{ compiler("c") }}
    - {{ stdlib("c") }}
  host:
    - zlib >=1.2,<2
  run:
    - zlib  # [linux]

test:
  commands:
    - small --version
"""
    + ABOUT % "small program"
)
OUTPUTS = (
    """\
package:
  name: small-split
  version: "1.0"

build:
  number: 0

outputs:
  - name: libsmall
    requirements:
      build:
        - {{ compiler("c") }}
        - {{ stdlib("c") }}
    test:
      commands:
        - test -f $PREFIX/lib/libsmall.so
  - name: small
    requirements:
      run:
        - {{ pin_subpackage("libsmall", exact=True) }}
        - {{ pin_compatible("zlib") }}
    test:
      commands:
        - small --version
"""
    + ABOUT % "small program"
)
NOARCH = (
    """\
package:
  name: pure
  version: "1.0"

build:
  number: 0
  noarch: python

requirements:
  host:
    - python {{ python_min }}
    - pip
    - setuptools
  run:
    - python >={{ python_min }}

test:
  imports:
    - pure
  requires:
    - python {{ python_min }}
"""
    + ABOUT % "pure package"
)
RECIPE = (
    """\
context:
  name: small
  version: "1.10"

package:
  name: ${{ name }}
  version: ${{ version }}

source:
  url: https://example.org/${{ name }}-${{ version }}.tar.gz
  sha256: 0000000000000000000000000000000000000000000000000000000000000000

build:
  number: 0

requirements:
  build:
    - ${{ compiler("c") }}
    - ${{ stdlib("c") }}
  host:
    - zlib >=1.2,<2
  run:
    - if: linux
      then: zlib

tests:
  - script:
      - small --version
"""
    + ABOUT_V1 % "small program"
)
NOARCH_RECIPE = (
    """\
package:
  name: pure
  version: "1.0"

build:
  number: 0
  noarch: python

requirements:
  host:
    - python ${{ python_min }}.*
    - pip
    - setuptools
  run:
    - python >=${{ python_min }}

tests:
  - python:
      imports:
        - pure
      python_version:
        - ${{ python_min }}.*
        - "*"
"""
    + ABOUT_V1 % "pure package"
)
ABI3 = (
    """\
package:
  name: fast
  version: "1.0"

build:
  number: 0
  python:
    version_independent: true

requirements:
  build:
    - ${{ compiler("c") }}
    - ${{ stdlib("c") }}
  host:
    - python ${{ python_min }}.*
    - python-abi3 ${{ python_min }}.*
  run:
    - python

tests:
  - python:
      imports:
        - fast
      python_version:
        - ${{ python_min }}.*
        - "*"
  - requirements:
      run:
        - abi3audit
    script:
      - abi3audit $SP_DIR/fast.abi3.so
"""
    + ABOUT_V1 % "fast package"
)
RECIPE_OUTPUTS = (
    """\
recipe:
  name: small-split
  version: "1.0"

build:
  number: 0

outputs:
  - staging:
      name: compiled
    requirements:
      build:
        - ${{ compiler("c") }}
        - ${{ stdlib("c") }}
  - package:
      name: libsmall
    requirements:
      run_exports:
        - ${{ pin_subpackage("libsmall") }}
    tests:
      - script:
          - test -f $PREFIX/lib/libsmall.so
  - package:
      name: small
    requirements:
      run:
        - ${{ pin_subpackage("libsmall") }}
    tests:
      - script:
          - small --version
"""
    + ABOUT_V1 % "small program"
)
CLEAN = (META, OUTPUTS, NOARCH, RECIPE, NOARCH_RECIPE, ABI3, RECIPE_OUTPUTS)
SETTINGS = "provider:\n  win_64: azure\n"
CONFIG = "c_stdlib:\n- sysroot\npython_min:\n- '3.10'\nzlib:\n- '1'\n"


def name_of(recipe: str) -> str:
    """Return the name of the file that a recipe is for."""
    return "recipe/recipe.yaml" if "${{" in recipe or "homepage:" in recipe else "recipe/meta.yaml"


def feedstock(folder: Path, recipe: str, files: Mapping[str, str] | None = None) -> Feedstock:
    """Write a feedstock of a recipe, one config, settings, and other files."""
    texts = {".ci_support/linux_64_.yaml": CONFIG, "conda-forge.yml": SETTINGS, name_of(recipe): recipe}
    builders.write_files(folder, {**texts, **(files or {})})
    return recipe_feedstock.load(folder)


def messages(
    folder: Path, recipe: str, files: Mapping[str, str] | None = None, *, of_conda_forge: bool = False
) -> list[LintMessage]:
    """Return the messages about a recipe with other files."""
    return check.check(feedstock(folder, recipe, files), of_conda_forge=of_conda_forge)


def changed(recipe: str, old: str, new: str) -> str:
    """Return a recipe with its only or first such text replaced."""
    assert old in recipe, old
    return recipe.replace(old, new, 1)
