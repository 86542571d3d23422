"""A key of a recipe does the same in every command: build, test, publish, install, verify; for both formats.

Each output of the two recipes is a small package for some keys. Its tests check in the installed package that the keys
had their effect, so a key that one of the commands does not know makes that command fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed, HashMismatch, RecipeFault, TestsFailed, UsageError
from kiln.cli.main import run
from kiln.conda import package_reader, package_writer
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import InfoFile
from kiln.recipe import pins
from tests import builders, warm
from tests.packages import compiler_stand_in, python_stand_in, release_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.base.errors import KilnError

pytestmark = [pytest.mark.needs("gcc", "readelf"), pytest.mark.slow("a recipe passes through every command")]
SOURCES = {
    "recipe/src/text": "one\n",
    "recipe/src/data/deep.txt": "deep\n",
    "recipe/src/own.log": "a log\n",
    "recipe/change.patch": "--- a/text\n+++ b/text\n@@ -1 +1 @@\n-one\n+two\n",
    "recipe/src/own.patch": "--- a/data/deep.txt\n+++ b/data/deep.txt\n@@ -1 +1 @@\n-deep\n+deeper\n",
    "recipe/COPYING": "free\n",
    "recipe/shared.dat": "shared\n",
    "recipe/check.sh": 'test "$(cat shared.dat)" = shared\n',
    "recipe/src/answer.c": "int answer(void) { return 42; }\n",
    "recipe/src/main.c": '#include <stdio.h>\nint answer();\nint main(void) { printf("%d", answer()); return 0; }\n',
    "recipe/src/c_answer.py": "def main():\n    print(6 * 7)\n",
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
      has_prefix_files:
        - share/one
        - share/data
        - share/copied
      binary_has_prefix_files:
        - share/two
      include_recipe: false
      python_site_packages_path: lib/own
      features:
        - fast
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
        - {{ pin_subpackage('c-link', exact=True) }}
    test:
      commands:
        - test -f $PREFIX/share/linked
  - name: c-merged
    script: copy-dep.sh
    build:
      merge_build_host: true
    requirements:
      build:
        - dep
    test:
      commands:
        - test -f $PREFIX/share/c-merged
  - name: c-pinned
    requirements:
      host:
        - dep=1=0
        - "dep[build_number='<2', version='>=1']"
      run:
        - {{ pin_compatible('dep', max_pin='x') }}
        - dep=1=0*
        - dep >= 0.5, < 2
        - "dep[version='1|2']"
        - "dep[build_number='>=0']"
      run_constrained:
        - "absent[build='cpu*']"
    test:
      commands:
        - test -f $PREFIX/share/dep
  - name: c-library
    script: compile.sh
    build:
      rpaths:
        - lib/
        - lib/own
      error_overlinking: true
      missing_dso_whitelist:
        - "*libc.so*"
      run_exports:
        - {{ pin_subpackage('c-library', max_pin='x') }}
    requirements:
      build:
        - {{ compiler('c') }}
    test:
      commands:
        - test -f $PREFIX/lib/libanswer.so
  - name: c-program
    script: link-program.sh
    requirements:
      build:
        - {{ compiler('c') }}
      host:
        - {{ pin_subpackage('c-library', exact=True) }}
    test:
      commands:
        - test "$(answer)" = 42
  - name: c-python
    script: install-module.sh
    build:
      noarch: python
      entry_points:
        - c-answer = c_answer:main
    requirements:
      host:
        - python
      run:
        - python >=3.8
    test:
      imports:
        - c_answer
      requires:
        - dep
      script: check.py
      commands:
        - test "$(c-answer)" = 42
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
        - test "$(cat $PREFIX/share/c-host $PREFIX/share/dep)" = depdep
about:
  home: https://example.org, https://example.com
  dev_url:
    - https://dev.example.org
  doc_url: https://docs.example.org/
  license: MIT
  doc_source_url: https://docs.example.org/source
  license_family: MIT
  license_url: https://example.org/license
  license_file: licenses/COPYING
  summary: A contract
  description: has {% raw %}${{ braces }}{% endraw %}
  keywords: one
  identifiers:
    - doi:1
  tags:
    - a
extra:
  recipe-maintainers:
    - someone
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
echo $PREFIX >$PREFIX/share/data
for file in one copied; do echo $PREFIX >$PREFIX/share/$file; done
printf '%s\\0' $PREFIX >$PREFIX/share/two
""",
    "recipe/link.sh": "mkdir -p $PREFIX/share; echo $PKG_NAME $PKG_VERSION $PKG_BUILDNUM >$PREFIX/share/linked\n",
    "recipe/touch-dep.sh": "echo changed >$PREFIX/share/dep\n",
    "recipe/copy-dep.sh": "cp $PREFIX/share/dep $PREFIX/share/$PKG_NAME\n",
    "recipe/compile.sh": "mkdir -p $PREFIX/lib; $CC -shared -fPIC answer.c -o $PREFIX/lib/libanswer.so\n",
    "recipe/link-program.sh": "mkdir -p $PREFIX/bin; $CC main.c -L$PREFIX/lib -lanswer -o $PREFIX/bin/answer\n",
    "recipe/install-module.sh": "mkdir -p $SP_DIR; cp c_answer.py $SP_DIR\n",
    "recipe/check.py": "import os, c_answer\nassert os.path.isfile(os.environ['PREFIX'] + '/share/dep')\n",
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
        - ${{ pin_subpackage('c-link', exact=true) }}
    tests:
      - script:
          - test -f $PREFIX/share/linked
  - package:
      name: c-merged
    build:
      merge_build_and_host_envs: true
      script:
        - cp $PREFIX/share/dep $PREFIX/share/$PKG_NAME
    requirements:
      build:
        - dep
    tests:
      - script:
          - test -f $PREFIX/share/c-merged
  - package:
      name: c-pinned
    requirements:
      host:
        - dep ==1 0
        - dep[version='>=1']
      run:
        - ${{ pin_compatible('dep', lower_bound='x', upper_bound='x') }}
        - dep ==1 0*
        - dep >=0.5,<2
        - dep[version='==1|==2']
      run_constraints:
        - absent[build='cpu*']
    tests:
      - script:
          - test -f $PREFIX/share/dep
  - package:
      name: c-library
    source:
      path: src
    build:
      script: compile
      dynamic_linking:
        rpaths:
          - lib/
          - lib/own
        overlinking_behavior: error
        missing_dso_allowlist:
          - "*libc.so*"
    requirements:
      build:
        - ${{ compiler('c') }}
      run_exports:
        - ${{ pin_subpackage('c-library', upper_bound='x') }}
    tests:
      - script:
          - test -f $PREFIX/lib/libanswer.so
  - package:
      name: c-program
    source:
      path: src
    build:
      script: link-program
    requirements:
      build:
        - ${{ compiler('c') }}
      host:
        - ${{ pin_subpackage('c-library', exact=true) }}
    tests:
      - script:
          - test "$(answer)" = 42
  - package:
      name: c-python
    source:
      path: src
    build:
      noarch: python
      script: install-module
      python:
        entry_points:
          - c-answer = c_answer:main
    requirements:
      host:
        - python
      run:
        - python >=3.8
    tests:
      - python:
          imports:
            - c_answer
          pip_check: false
      - script:
          interpreter: python
          content:
            - import os, c_answer
            - assert os.path.isfile(os.environ["PREFIX"] + "/share/dep")
        requirements:
          run:
            - dep
      - script:
          - test "$(c-answer)" = 42
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
        - cp $PREFIX/share/dep $PREFIX/share/c-host
    requirements:
      host:
        - dep
      run:
        - dep
    tests:
      - script:
          - test "$(cat $PREFIX/share/c-host $PREFIX/share/dep)" = depdep
about:
  homepage: https://example.org
  repository: https://dev.example.org
  documentation: https://docs.example.org/
  license: MIT
  license_file:
    - COPYING
  summary: A contract
extra:
  recipe-maintainers:
    - someone
"""
NAMES = (
    *("exports", "host", "ignores", "included", "library", "link", "linked", "merged", "pinned", "prefix", "program"),
    *("python", "script", "source", "user"),
)
INSTALLED = tuple(name for name in NAMES if name != "included")  # which has a file of another package


@dataclass(kw_only=True)
class Outcome:
    """What the commands made of a recipe: its packages by name, and the number of tests in each command."""

    packages: dict[str, Path] = field(default_factory=dict)
    tests: dict[str, dict[str, int]] = field(default_factory=dict)
    prefix: Path
    channel: Path
    old_form: bool  # a meta.yaml

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
    made = release_package(folder / "made", "dep", payload={"share/dep": b"dep"})
    channel.add((package, "linux-64") for package in (made, python_stand_in(folder), compiler_stand_in(folder)))
    variants = (
        f"flavour:\n  - sweet\nchannel_sources:\n  - {channel.url}\nc_compiler:\n  - gcc\nc_compiler_version:\n  - 14\n"
    )
    root = folder / "feedstock"
    if request.param == "meta.yaml":
        builders.feedstock(root, META, variants, files={**SOURCES, **SCRIPTS})
    else:
        builders.feedstock(root, RECIPE, files={**SOURCES, **SCRIPTS, "recipe/variants.yaml": variants}, v1=True)
    result = Outcome(prefix=folder / "prefix", channel=folder / "published", old_form=request.param == "meta.yaml")
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
    assert {(value["subdir"], value.get("noarch")) for value in index.values()} == {
        *(("linux-64", None), ("noarch", "generic"), ("noarch", "python")),
    }
    depends = {name: sorted(value["depends"]) for name, value in index.items()}
    assert depends["user"] == ["dep >=1"]
    assert depends["merged"] == ["dep >=1"] * outcome.old_form, "conda-build takes the exports of the one environment"
    assert depends["ignores"] == depends["included"] == depends["library"] == []
    assert depends["linked"] == [f"c-link 1.5 {index['link']['build']}"]
    assert depends["python"] == ["python >=3.8"]
    assert {spec.replace("==", "") for spec in depends["pinned"]} - {
        'dep[build_number=">=0"]'
    } == {  # which recipe.yaml does not allow
        *("dep >=1", "dep >=1,<2.0a0", "dep 1 0*", "dep >=0.5,<2", "dep 1|2"),
    }
    assert depends["program"] == ["c-library >=1.5,<2.0a0"]
    assert (index["user"]["constrains"], index["pinned"]["constrains"]) == (["absent >=2"], ["absent * cpu*"])
    assert outcome.json("exports", "run_exports.json") == {"weak": ["dep >=1"]}
    assert [data for name, data in outcome.info("source").items() if name.startswith("licenses/")] == [b"free\n"]
    hashed = [(name, outcome.json(name, "hash_input.json")) for name in ("source", "link")]
    ((name, values),) = (item for item in hashed if item[1].get("flavour") == "sweet")
    digest = hashlib.sha1(json.dumps(values, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
    assert index[name]["build"] == f"h{digest[:7]}_3"


def test_about(outcome: Outcome) -> None:
    about = outcome.json("source", "about.json")
    assert {key: about[key] for key in ("summary", "license", "doc_url")} == {
        "summary": "A contract", "license": "MIT", "doc_url": "https://docs.example.org/",
    }  # fmt: skip
    assert about["extra"]["recipe-maintainers"] == ["someone"]
    if outcome.old_form:
        expected = {
            "home": "https://example.org, https://example.com",
            "dev_url": ["https://dev.example.org"],
            "doc_source_url": "https://docs.example.org/source",
            "license_family": "MIT",
            "license_url": "https://example.org/license",
            "description": "has ${{ braces }}",
            "keywords": ["one"],
            "identifiers": ["doi:1"],
            "tags": ["a"],
        }
        assert {key: about[key] for key in expected} == expected


def test_paths(outcome: Outcome) -> None:
    paths = {entry["_path"]: entry for entry in outcome.json("prefix", "paths.json")["paths"]}
    assert (paths["share/one"]["file_mode"], paths["share/two"]["file_mode"]) == ("text", "binary")
    if outcome.old_form:
        assert (paths["share/copied"]["no_link"], paths["share/data"]["file_mode"]) == (True, "text")
        index = outcome.json("prefix", "index.json")
        assert (index["features"], index["track_features"]) == ("fast", "slow")
        assert index["python_site_packages_path"] == "lib/own"
        assert not any(name.startswith("recipe/") for name in outcome.info("prefix"))


def test_installed_files(outcome: Outcome) -> None:
    share = outcome.prefix / "share"
    assert (share / "source").read_text() == "two 1.5 3 sweet given\n"
    assert (share / "one").read_text() == f"{outcome.prefix}\n"
    assert (share / "in").exists()
    assert not (share / "out").exists()
    assert not (share / "linked").exists(), "an installation runs no link scripts"
    assert (share / "c-host").read_bytes() == b"dep", "what another output's script did to the file is not seen"
    for program in ("answer", "c-answer"):
        assert subprocess.check_output(outcome.prefix / "bin" / program, text=True).strip() == "42"
    printed = subprocess.check_output(("readelf", "-d", outcome.prefix / "lib" / "libanswer.so"), text=True)
    assert re.search(r"\$ORIGIN/?\.?:\$ORIGIN/(\.\./lib/)?own", printed), printed


OWN = "package:\n  name: own\n  version: '1'\n"
C_PROGRAM = """
  script:
    - mkdir -p $PREFIX/bin
    - echo 'int main(void) { return 0; }' >main.c
    - gcc main.c -o $PREFIX/bin/main
"""
REFUSED: dict[str, tuple[str, type[KilnError], tuple[str, ...]]] = {
    "overlinking": (f"build:\n  error_overlinking: true{C_PROGRAM}", BuildFailed, ("verlinking against",)),
    "another hash": (
        f"source:\n  url: {Path(__file__).as_uri()}\n  md5: {'0' * 32}\n",
        HashMismatch,
        ("the md5 of test_contract.py is ", f"the recipe has {'0' * 32}"),
    ),
    "a script of tests": ("test:\n  commands:\n    - true\n", TestsFailed, ("fail with exit code 3",)),
    "a downstream": ("test:\n  downstreams:\n    - user\n", TestsFailed, ("user, downstream of own fail",)),
    "keys": (
        "build:\n  numbr: 1\n  pin_depends: strict\n",
        RecipeFault,
        ("meta.yaml:5:3: unknown key 'build/numbr'", "did you mean 'number'", "does not have 'build/pin_depends'"),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why(name: str, tmp_path: Path) -> None:
    recipe, error, told = REFUSED[name]
    channel = LocalChannel(root=tmp_path / "channel")
    user = release_package(tmp_path / "made", "user", depends=["own"])
    with_tests = tmp_path / "tests" / user.name
    with_tests.parent.mkdir()
    added = {"test/run_test.sh": InfoFile(data=b"exit 3\n")}
    package_writer.rewrite_info(user, with_tests, lambda _, data: data, added=added)
    channel.add([(with_tests, "linux-64")])
    script = {"recipe/run_test.sh": "exit 3\n"} if "script" in name else {}
    root = builders.feedstock(tmp_path / "f", OWN + recipe, f"channel_sources:\n  - {channel.url}\n", files=script).root
    kiln(root, "rerender", "--no-pinning")
    ended = warm.kiln("-C", str(root), "build", "--all", "--container", "none")
    assert ended.returncode == error.exit_code, ended.stderr
    assert [text for text in told if text not in ended.stderr] == []


def test_packages_are_tested_by_the_config_that_renders_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = f"{OWN}test:\n  commands:\n    - grep -q large $PREFIX/share/own\n"
    made = builders.feedstock(tmp_path / "f", meta)
    kiln(made.root, "rerender", "--no-pinning")
    (output,) = pins.close_static_pins(builders.rendered(made)).outputs
    package = release_package(tmp_path / "built", "own", build=output.build_string)
    assert run(["-C", str(made.root), "test", str(package)]) == TestsFailed.exit_code
    assert "the tests of own fail with exit code 1" in capsys.readouterr().err
    other = release_package(tmp_path / "built", "other")
    assert run(["-C", str(made.root), "test", str(other)]) == UsageError.exit_code
    assert "no config of" in capsys.readouterr().err
