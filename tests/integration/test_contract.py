"""A key of a recipe does the same in every command: build, test, publish, install, verify; for both formats.

Each output of the two recipes is a small package for some keys. Its tests check in the installed package that the keys
had their effect, so a key that one of the commands does not know makes that command fail.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.cli.main import run
from kiln.conda import package_reader
from kiln.conda.channel import LocalChannel
from kiln.recipe import feedstock
from tests import builders
from tests.builders import LINUX_ONLY
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = {
    "recipe/src/text": "one\n",
    "recipe/src/data/deep.txt": "deep\n",
    "recipe/src/own.log": "a log\n",
    "recipe/change.patch": "--- a/text\n+++ b/text\n@@ -1 +1 @@\n-one\n+two\n",
    "recipe/src/own.patch": "--- a/data/deep.txt\n+++ b/data/deep.txt\n@@ -1 +1 @@\n-deep\n+deeper\n",
    "recipe/COPYING": "free\n",
    "recipe/shared.dat": "shared\n",
    "recipe/check.sh": 'test "$(cat shared.dat)" = shared\n',
    "outputs.txt": "c-*\n",
}
META = r"""
package:
  name: contract
  version: "1.5"
source:
  - path: src
    patches:
      - change.patch
  - path: COPYING
    folder: licenses
build:
  number: 3
outputs:
  - name: c-source
    script: install-source.sh
    test:
      source_files:
        - text
        - data
        - "*.log"
      files:
        - "*.dat"
      requires:
        - dep
      commands:
        - test "$(cat text)" = two
        - test "$(cat data/deep.txt)" = deep
        - test "$(cat shared.dat)" = shared
        - test "$(ls *.log)" = own.log
        - test -f $PREFIX/share/dep
        - test "$(cat $PREFIX/share/source)" = "two 1.5 3 sweet given"
    build:
      script_env:
        - GIVEN=given
  - name: c-script
    script: check.awk
    script_interpreter: awk -f
    files:
      include:
        - share/*
      exclude:
        - share/out
    test:
      script: run-check.sh
      files:
        - shared.dat
        - check.sh
  - name: c-prefix
    script: install-prefix.sh
    build:
      no_link:
        - share/copied
      binary_has_prefix_files:
        - share/two
      include_recipe: false
      track_features:
        - slow
    test:
      commands:
        - test "$(cat $PREFIX/share/one)" = "$PREFIX"
        - test "$(tr -d '\0' <$PREFIX/share/two)" = "$PREFIX"
        - test "$(cat $PREFIX/info/own)" = own
  - name: c-link
    build:
      post-link: link
    test:
      commands:
        - test "$(cat $PREFIX/share/linked)" = "c-link 1.5 3"
        - test "$CONDA_BUILD_STATE $PKG_NAME $PKG_VERSION $PKG_BUILDNUM" = "TEST c-link 1.5 3"
        - test "$flavour" = sweet
        - echo {{ flavour }}
  - name: c-linked
    requirements:
      run:
        - c-link
    test:
      commands:
        - test -f $PREFIX/share/linked
  - name: c-exports
    build:
      run_exports:
        - dep >=1
    test:
      commands:
        - printf 'caf\351\n\0'
  - name: c-user
    requirements:
      host:
        - c-exports
      run_constrained:
        - absent >=2
    test:
      commands:
        - test -f $PREFIX/share/dep
  - name: c-ignores
    build:
      noarch: generic
      ignore_run_exports_from:
        - c-exports
    requirements:
      host:
        - c-exports
    test:
      commands:
        - test ! -f $PREFIX/share/dep
  - name: c-included
    script: touch-dep.sh
    build:
      always_include_files:
        - share/dep
      ignore_run_exports:
        - dep
    requirements:
      host:
        - dep
    test:
      commands:
        - test "$(cat $PREFIX/share/dep)" = changed
  - name: c-host
    script: copy-dep.sh
    requirements:
      host:
        - dep
      run:
        - dep
    test:
      commands:
        - test "$(cat $PREFIX/share/copy $PREFIX/share/dep)" = depdep
about:
  license: MIT
  license_file: licenses/COPYING
  summary: A contract
"""
SCRIPTS = {
    "recipe/install-source.sh": """
mkdir -p $PREFIX/share
printf 'caf\\351\\n'; seq 3000
echo $(cat text) $PKG_VERSION $PKG_BUILDNUM {flavour} $GIVEN >$PREFIX/share/source
""".replace("{flavour}", "sweet"),
    "recipe/check.awk": 'BEGIN { system("mkdir -p $PREFIX/share; touch $PREFIX/share/in $PREFIX/share/out") }\n',
    "recipe/run-check.sh": "test -f $PREFIX/share/in && test ! -f $PREFIX/share/out && . ./check.sh\n",
    "recipe/install-prefix.sh": """
mkdir -p $PREFIX/share $PREFIX/info
echo own >$PREFIX/info/own
for file in one copied; do echo $PREFIX >$PREFIX/share/$file; done
printf '%s\\0' $PREFIX >$PREFIX/share/two
""",
    "recipe/link.sh": "mkdir -p $PREFIX/share; echo $PKG_NAME $PKG_VERSION $PKG_BUILDNUM >$PREFIX/share/linked\n",
    "recipe/touch-dep.sh": "echo changed >$PREFIX/share/dep\n",
    "recipe/copy-dep.sh": "cp $PREFIX/share/dep $PREFIX/share/copy\n",
}
RECIPE = r"""
recipe:
  name: contract
  version: "1.5"
build:
  number: 3
outputs:
  - package:
      name: c-source
    source:
      - path: src
        target_directory: work
        patches:
          - change.patch
          - ${{ SRC_DIR }}/work/own.patch
    build:
      script:
        env:
          GIVEN: given
        content:
          - mkdir -p $PREFIX/share
          - printf 'caf\351\n'; seq 3000
          - echo $(cat work/text) $PKG_VERSION $PKG_BUILDNUM ${{ flavour }} $GIVEN >$PREFIX/share/source
    tests:
      - script:
          - test "$(cat work/text)" = two
          - test "$(cat work/data/deep.txt)" = deeper
          - test "$(cat shared.dat)" = shared
          - test "$(cd work; ls *.log)" = own.log
          - test -f $PREFIX/share/dep
          - test "$(cat $PREFIX/share/source)" = "two 1.5 3 sweet given"
        files:
          source:
            - work/
          recipe:
            - shared.dat
        requirements:
          run:
            - dep
  - package:
      name: c-script
    build:
      script:
        - mkdir -p $PREFIX/share; touch $PREFIX/share/in $PREFIX/share/out
      files:
        include:
          - share/*
        exclude:
          - share/out
    tests:
      - script:
          file: check.sh
        files:
          recipe:
            - shared.dat
      - package_contents:
          files:
            - share/in
  - package:
      name: c-prefix
    build:
      script:
        - mkdir -p $PREFIX/share
        - echo $PREFIX >$PREFIX/share/one
        - printf '%s\0' $PREFIX >$PREFIX/share/two
      prefix_detection:
        force_file_type:
          binary:
            - share/two
    tests:
      - script:
          - test "$(cat $PREFIX/share/one)" = "$PREFIX"
          - test "$(tr -d '\0' <$PREFIX/share/two)" = "$PREFIX"
  - package:
      name: c-link
    build:
      script:
        - mkdir -p $PREFIX/bin
        - cp $RECIPE_DIR/link.sh $PREFIX/bin/.c-link-post-link.sh
    tests:
      - script:
          - test "$(cat $PREFIX/share/linked)" = "c-link 1.5 3"
          - test "$CONDA_BUILD_STATE $PKG_NAME $PKG_VERSION" = "TEST c-link 1.5"
  - package:
      name: c-linked
    requirements:
      run:
        - c-link
    tests:
      - script:
          - test -f $PREFIX/share/linked
  - package:
      name: c-exports
    requirements:
      run_exports:
        - dep >=1
    tests:
      - script:
          - printf 'caf\351\n\0'
  - package:
      name: c-user
    requirements:
      host:
        - c-exports
      run_constraints:
        - absent >=2
    tests:
      - script:
          - test -f $PREFIX/share/dep
  - package:
      name: c-ignores
    build:
      noarch: generic
    requirements:
      host:
        - c-exports
      ignore_run_exports:
        from_package:
          - c-exports
    about:
      license: CC0-1.0
      license_file:
        - check.sh
    tests:
      - script:
          - test ! -f $PREFIX/share/dep
  - package:
      name: c-included
    build:
      script:
        - echo changed >$PREFIX/share/dep
      always_include_files:
        - share/dep
    requirements:
      host:
        - dep
      ignore_run_exports:
        by_name:
          - dep
    tests:
      - script:
          - test "$(cat $PREFIX/share/dep)" = changed
  - package:
      name: c-host
    build:
      script:
        - cp $PREFIX/share/dep $PREFIX/share/copy
    requirements:
      host:
        - dep
      run:
        - dep
    tests:
      - script:
          - test "$(cat $PREFIX/share/copy $PREFIX/share/dep)" = depdep
about:
  license: MIT
  license_file:
    - COPYING
  summary: A contract
"""
NAMES = ("exports", "host", "ignores", "included", "link", "linked", "prefix", "script", "source", "user")
INSTALLED = tuple(name for name in NAMES if name != "included")  # which has a file of another package


@dataclass(kw_only=True)
class Outcome:
    """What the commands made of a recipe: its packages by name, and the number of tests in each command."""

    packages: dict[str, Path] = field(default_factory=dict)
    tests: dict[str, dict[str, int]] = field(default_factory=dict)
    prefix: Path
    channel: Path

    def info(self, name: str) -> Mapping[str, bytes]:
        return package_reader.read_info_files(self.packages[f"c-{name}"])

    def json(self, name: str, file: str) -> Any:
        return json.loads(self.info(name)[file])


def kiln(root: Path, *words: str) -> str:
    """Run a command in this process, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run(["-C", str(root), *words])
    assert code == 0, printed.getvalue() + errors.getvalue()
    return printed.getvalue()


@pytest.fixture(scope="module", params=["meta.yaml", "recipe.yaml"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Bring a recipe through all commands."""
    folder = tmp_path_factory.mktemp("contract")
    channel = LocalChannel(root=folder / "channel")
    channel.add([(release_package(folder / "made", "dep", payload={"share/dep": b"dep"}), "linux-64")])
    variants = f"flavour:\n  - sweet\nchannel_sources:\n  - {channel.url}\n"
    root = folder / "feedstock"
    if request.param == "meta.yaml":
        builders.feedstock(root, META, variants, files={**SOURCES, **SCRIPTS})
    else:
        files = {"recipe/recipe.yaml": RECIPE, "recipe/variants.yaml": variants, "conda-forge.yml": LINUX_ONLY}
        for name, text in {**files, **SOURCES, "recipe/link.sh": SCRIPTS["recipe/link.sh"]}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        feedstock.load(root)
    result = Outcome(prefix=folder / "prefix", channel=folder / "published")
    kiln(root, "rerender", "--no-pinning")
    kiln(root, "build", "--all", "--container", "none")
    report = json.loads(kiln(root, "report", "--json"))
    built = [package for config in report["configs"] for package in config["packages"]]
    result.tests["build"] = {package["artifact"]["name"]: package["tests"]["commands"] for package in built}
    result.packages = {package["artifact"]["name"]: Path(package["artifact"]["path"]) for package in built}
    tested = json.loads(kiln(root, "test", "--json", *map(str, result.packages.values())))
    result.tests["test"] = {test["package"]: test["tests"] for test in tested}
    kiln(root, "publish", "--to", str(result.channel))
    for package in result.packages.values():
        kiln(root, "verify", str(result.channel / package.parent.name / package.name))
    kiln(
        root, "install", "-p", str(result.prefix), "-c", str(result.channel), "-c", channel.url,
        *(f"c-{name}" for name in INSTALLED),
    )  # fmt: skip
    return result


def test_every_package_passes_the_same_tests_in_every_command(outcome: Outcome) -> None:
    assert outcome.tests["build"].keys() == {f"c-{name}" for name in NAMES}
    assert outcome.tests["test"] == outcome.tests["build"]
    assert all(outcome.tests["build"].values())
    assert {path.name for path in outcome.channel.glob("*/*.conda")} == {
        path.name for path in outcome.packages.values()
    }


def test_metadata(outcome: Outcome) -> None:
    index = {name: outcome.json(name, "index.json") for name in NAMES}
    assert {(value["version"], value["build_number"]) for value in index.values()} == {("1.5", 3)}
    assert index["user"]["depends"] == ["dep >=1"]
    assert index["user"]["constrains"] == ["absent >=2"]
    assert index["ignores"]["depends"] == index["included"]["depends"] == []
    assert (index["ignores"]["subdir"], index["ignores"]["noarch"]) == ("noarch", "generic")
    assert outcome.json("exports", "run_exports.json") == {"weak": ["dep >=1"]}
    assert outcome.json("source", "about.json")["summary"] == "A contract"
    assert [data for name, data in outcome.info("source").items() if name.startswith("licenses/")] == [b"free\n"]
    hashed = [outcome.json(name, "hash_input.json") for name in ("source", "link")]
    assert any(values.get("flavour") == "sweet" for values in hashed)


def test_installed_files(outcome: Outcome) -> None:
    share = outcome.prefix / "share"
    assert (share / "source").read_text() == "two 1.5 3 sweet given\n"
    assert (share / "one").read_text() == f"{outcome.prefix}\n"
    assert (share / "in").exists()
    assert not (share / "out").exists()
    assert not (share / "linked").exists(), "an installation runs no link scripts"
    assert (share / "copy").read_bytes() == b"dep", "what another output's script did to the file is not seen"
