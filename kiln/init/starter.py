"""A new feedstock from nothing: a noarch package with one program, which builds, passes its test and has no lints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.init.yaml_snippets import RecipeFormat, items, scalar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LICENSE_FILE = "LICENSE.txt"
_V1 = """\
# The recipe of {name}: what the package is made from, how, and how it is tested.
# Its reference: https://rattler-build.prefix.dev/latest/reference/recipe_file/
schema_version: 1

context:
  name: {scalar_name}
  version: {quoted_version}

package:
  name: ${{{{ name }}}}
  version: ${{{{ version }}}}

source:
  # The files in recipe/src. For a release of upstream's: url and sha256, as in
  #   url: https://HOST/${{{{ name }}}}-${{{{ version }}}}.tar.gz
  path: src

build:
  number: 0
  noarch: generic
  script:
    - mkdir -p "$PREFIX/bin"
    - cp hello.sh "$PREFIX/bin/${{{{ name }}}}"
    - chmod 755 "$PREFIX/bin/${{{{ name }}}}"

tests:
  - script:
      - ${{{{ name }}}}
  - package_contents:
      files:
        - bin/${{{{ name }}}}

about:
  homepage: {home}
  summary: {summary}
  license: BSD-3-Clause
  license_file: {license_file}

extra:
  recipe-maintainers:
{maintainers}"""
_V0 = """\
# The recipe of {name}: what the package is made from, how (build.sh), and how it is tested.
# Its reference: https://docs.conda.io/projects/conda-build/en/stable/resources/define-metadata.html
{{% set name = {quoted_name} %}}
{{% set version = {quoted_version} %}}

package:
  name: {{{{ name }}}}
  version: "{{{{ version }}}}"

source:
  # The files in recipe/src. For a release of upstream's: url and sha256.
  path: src

build:
  number: 0
  noarch: generic

test:
  commands:
    - {{{{ name }}}}
    - test -x "$PREFIX/bin/{{{{ name }}}}"

about:
  home: {home}
  summary: {summary}
  license: BSD-3-Clause
  license_file: {license_file}

extra:
  recipe-maintainers:
{maintainers}"""
_BUILD = """\
#!/bin/bash
set -euo pipefail

mkdir -p "$PREFIX/bin"
cp hello.sh "$PREFIX/bin/$PKG_NAME"
chmod 755 "$PREFIX/bin/$PKG_NAME"
"""
_PROGRAM = """\
#!/bin/sh
echo "hello from {name}"
"""
# The license's own text (SPDX: BSD-3-Clause).
_LICENSE = """\
BSD 3-Clause License

Copyright (c) {holder}

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.

2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.

3. Neither the name of the copyright holder nor the names of its
   contributors may be used to endorse or promote products derived from
   this software without specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS"
AND ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE
IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT HOLDER OR CONTRIBUTORS BE LIABLE
FOR ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL
DAMAGES (INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR
SERVICES; LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER
CAUSED AND ON ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY,
OR TORT (INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE
OF THIS SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecipe:
    """The recipe of a new feedstock: its files by path, the names that it publishes, and notes on what is left open."""

    name: str
    format: RecipeFormat
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


def starter(name: str, version: str, format_: RecipeFormat, maintainers: Sequence[str]) -> NewRecipe:
    """Return the recipe of a small package that installs a program."""
    values = {
        "name": name,
        "scalar_name": scalar(name),
        "quoted_name": f'"{name}"',
        "quoted_version": f'"{version}"',
        "home": f"https://github.com/{maintainers[0]}/{name}",
        "summary": scalar(f"A short description of {name}"),
        "license_file": _LICENSE_FILE,
        "maintainers": items(maintainers, 4),
    }
    texts = {format_.file: (_V1 if format_ is RecipeFormat.V1 else _V0).format(**values)}
    if format_ is RecipeFormat.V0:
        texts["recipe/build.sh"] = _BUILD
    texts["recipe/src/hello.sh"] = _PROGRAM.format(name=name)
    texts[f"recipe/src/{_LICENSE_FILE}"] = _LICENSE.format(holder=", ".join(maintainers))
    note = f"{format_.file} is an example that builds; change its source, script, tests and about"
    return NewRecipe(name=name, format=format_, files=texts, notes=(note,))
