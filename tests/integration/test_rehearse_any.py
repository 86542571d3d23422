"""A rehearsal of any feedstock: real builds and tests from pip's index and this machine, without a conda channel."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.build.rehearsal import python_search
from kiln.conda.package_reader import read_info_json
from tests import builders, warm

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

MACHINE = python_search.first_available_interpreter(first=[Path(sys.executable)], env=os.environ)
VARIANTS = """\
c_compiler:
  - gcc
c_compiler_version:
  - 99
c_stdlib:
  - sysroot
c_stdlib_version:
  - 2.17
"""
NOARCH = """\
package:
  name: hello-words
  version: "1.0"
source:
  url: https://index.example/packages/source/h/hello-words/hello_words-1.0.tar.gz
  sha256: {sha256}
build:
  noarch: python
  number: 0
  script: {{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
requirements:
  host:
    - python {python}
    - pip
    - setuptools
  run:
    - python >={python}
    - packaging >=20
    - typing_extensions
test:
  imports:
    - hello_words
  requires:
    - python {python}
    - pip
    - a-package-that-nobody-has
  commands:
    - pip check
    - hello-words
about:
  license: MIT
  license_file: LICENSE
"""
PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "hello-words"
version = "1.0"
dependencies = ["packaging>=20", "typing-extensions"]
scripts = {hello-words = "hello_words:main"}
[tool.setuptools]
py-modules = ["hello_words"]
"""
MODULE = """\
import packaging.version
import typing_extensions

def main():
    assert packaging.version.Version("1.10") > packaging.version.Version("1.9")
    print(typing_extensions.Literal["hello"])
"""
IN_C = """\
schema_version: 1
package:
  name: answer
  version: "1.0"
source:
  path: src
build:
  number: 0
  script:
    - make answer
    - mkdir -p $PREFIX/bin
    - cp answer $PREFIX/bin/
requirements:
  build:
    - ${{ compiler("c") }}
    - ${{ stdlib("c") }}
    - make
tests:
  - script:
      - answer | grep 42
about:
  license: MIT
  license_file: src/LICENSE
"""
C_FILES = {
    "recipe/recipe.yaml": IN_C,
    "recipe/variants.yaml": VARIANTS,
    "recipe/src/LICENSE": "free",
    "recipe/src/answer.c": '#include <stdio.h>\nint main(void) { puts("42 by " __VERSION__); return 0; }\n',
    "recipe/src/Makefile": "answer: answer.c\n\t@echo compiled by $(CC)\n\t$(CC) $(CFLAGS) -o $@ $< $(LDFLAGS)\n",
    "conda-forge.yml": "provider:\n  osx_64: null\n  win_64: null\nconda_build_tool: rattler-build\n",
}

pytestmark = [
    pytest.mark.slow("wheels are fetched, packaged and installed"),
    pytest.mark.skipif(MACHINE is None, reason="this machine has no Python that a rehearsal can use"),
]


def kiln(root: Path, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return warm.kiln("-C", str(root), *words, env={**os.environ, **(env or {})})


def source_archive() -> bytes:
    """The source of the Python project, as an index has it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in {"pyproject.toml": PROJECT, "hello_words.py": MODULE, "LICENSE": "free"}.items():
            member = tarfile.TarInfo(f"hello_words-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


def package_of(report: str) -> tuple[dict[str, Any], Path]:
    (config,) = json.loads(report)["configs"]
    (package,) = config["packages"]
    return package, Path(package["artifact"]["path"])


def test_a_python_feedstock_is_rehearsed_from_wheels_and_from_its_source_on_an_index(tmp_path: Path) -> None:
    archive, python = source_archive(), MACHINE.minor_version if MACHINE else ""
    sha256 = hashlib.sha256(archive).hexdigest()
    index = tmp_path / "index" / "hello-words"
    index.mkdir(parents=True)
    (index / "renamed-1.0.tar.gz").write_bytes(archive)
    (index / "index.html").write_text(f'<a href="renamed-1.0.tar.gz#sha256={sha256}">the source</a>')
    feedstock = builders.feedstock(tmp_path / "feedstock", NOARCH.format(sha256=sha256, python=python))
    assert kiln(feedstock.root, "rerender", "--no-pinning").returncode == 0
    extra = " ".join(filter(None, (os.environ.get("PIP_EXTRA_INDEX_URL"), index.parent.as_uri())))
    ended = kiln(feedstock.root, "build", "--rehearse", "--json", env={"PIP_EXTRA_INDEX_URL": extra})
    assert ended.returncode == 0, ended.stderr
    assert "tested without a-package-that-nobody-has" in ended.stderr
    package, path = package_of(ended.stdout)
    assert package["tests"]["verdict"] == "passed"
    assert path.parent.name == "noarch"
    assert read_info_json(path, "about.json")["extra"]["rehearsal"] is True
    depends = set(read_info_json(path, "index.json")["depends"])
    assert depends == {f"python >={python}", "packaging >=20", "typing_extensions"}


def test_a_c_feedstock_is_rehearsed_with_this_machines_compiler(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path / "feedstock", "", files=C_FILES)
    (feedstock.root / "recipe" / "meta.yaml").unlink()
    (feedstock.root / "recipe" / "conda_build_config.yaml").unlink()
    assert kiln(feedstock.root, "rerender", "--no-pinning").returncode == 0
    ended = kiln(feedstock.root, "build", "--rehearse", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "stands in for gcc_linux-64 99" in ended.stderr
    package, path = package_of(ended.stdout)
    assert package["tests"]["verdict"] == "passed"
    assert {"__glibc >=2.17,<3.0.a0", "libgcc >=99"} <= set(read_info_json(path, "index.json")["depends"])
    log = next((feedstock.root / "build_artifacts" / "logs").rglob("*.log")).read_text()
    assert "compiled by x86_64-conda-linux-gnu-cc" in log


def test_what_cannot_be_had_is_listed_before_anything_is_built(tmp_path: Path) -> None:
    meta = NOARCH.format(sha256="0" * 64, python=MACHINE.minor_version if MACHINE else "")
    meta = meta.replace("    - setuptools\n", "    - setuptools\n    - libwhatever\n    - hello-words-of-nobody >=3\n")
    feedstock = builders.feedstock(tmp_path / "feedstock", meta)
    assert kiln(feedstock.root, "rerender", "--no-pinning").returncode == 0
    ended = kiln(feedstock.root, "build", "--rehearse", env={"PIP_EXTRA_INDEX_URL": ""})
    assert ended.returncode == 38, ended.stderr
    assert "cannot be rehearsed: 3 requirements cannot be had" in ended.stderr
    assert "libwhatever (host of hello-words): it is a library of the channel" in ended.stderr
    assert "hello-words-of-nobody >=3 (host of hello-words): " in ended.stderr
    assert "source https://index.example/packages/source/h/hello-words/hello_words-1.0.tar.gz: no index" in ended.stderr
    assert not (feedstock.root / "build_artifacts" / "rehearsal").exists()
