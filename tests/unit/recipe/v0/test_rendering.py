"""The parts of a rendered config: each form that a recipe may write a value in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import RecipeFault
from kiln.feedstock import config_file, matrix
from kiln.recipe import render
from kiln.recipe.rendered import Checkout, Requirements, Script, Source
from kiln.recipe.v0 import rendering
from kiln.recipe.variants.files import VariantFile, load_variant_file
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.rendered import Output, RenderedConfig

HEAD = "package:\n  name: a\n  version: 1\n"
OUTPUTS = "outputs:\n  - name: a\n  - name: b\n"
LINUX_AND_WINDOWS = "build_platform: {}\nprovider:\n  linux_64: default\n  win_64: default\n"


def rendered(folder: Path, recipe: str, **files: str) -> RenderedConfig:
    feedstock = builders.feedstock(
        folder, HEAD + recipe, files={f"recipe/{name}.sh": text for name, text in files.items()}
    )
    return builders.rendered(feedstock)


def output(folder: Path, recipe: str, **files: str) -> Output:
    return rendered(folder, recipe, **files).outputs[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, True),
        ("true", True),
        (True, True),
        ("False", False),
        ("no", False),
        ("OFF", False),
        ("0", False),
        (["lib/*", "bin/*"], ("lib/*", "bin/*")),
        ([], ()),
    ],
)
def test_binaries_are_relocated_unless_the_recipe_says_otherwise(value: Any, expected: object) -> None:
    assert rendering.binary_relocation(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {}),
        ([], {}),
        ("a >=1", {"weak": ("a >=1",)}),
        (["a", None, "b"], {"weak": ("a", "b")}),
        ({"strong": "a", "weak": None, "noarch": ["b"]}, {"strong": ("a",), "weak": (), "noarch": ("b",)}),
    ],
)
def test_run_exports_are_weak_unless_named(value: Any, expected: dict[str, tuple[str, ...]]) -> None:
    """A kind without lines stays: conda-build writes it into run_exports.json, too."""
    assert rendering.run_exports(value) == expected


@pytest.mark.parametrize("section", ["about", "test"])
def test_a_section_that_is_not_a_mapping_is_refused_at_its_line(tmp_path: Path, section: str) -> None:
    with pytest.raises(RecipeFault, match=f"the section '{section}' is a list") as caught:
        rendered(tmp_path, f"{section}:\n  - home\n")
    assert str(caught.value.at) == "recipe/meta.yaml:4:1"


def test_about_has_texts_and_lists_of_texts_without_empty_values(tmp_path: Path) -> None:
    about = "about:\n  home: https://a.example\n  license_file:\n    - A\n    - B\n  summary:\n  version: 1.10\n"
    assert output(tmp_path, about).about == {"home": "https://a.example", "license_file": ("A", "B"), "version": "1.10"}


@pytest.mark.parametrize(
    ("build", "noarch", "subdir"),
    [
        ("build:\n  number: 1\n", None, "linux-64"),
        ("build:\n  noarch: python\n", "python", "noarch"),
        ("build:\n  noarch: generic\n", "generic", "noarch"),
        ("build:\n  noarch_python: true\n", "python", "noarch"),
    ],
)
def test_the_subdir_is_that_of_the_kind_of_package(tmp_path: Path, build: str, noarch: str | None, subdir: str) -> None:
    result = output(tmp_path, build)
    assert (result.noarch, result.subdir, result.platform) == (noarch, subdir, "linux-64")


@pytest.mark.parametrize(
    ("recipe", "script"),
    [
        ("", Script(file="build.sh")),
        ("build:\n  script: make\n", Script(lines=("make",))),
        ("build:\n  script:\n    - make\n    - make install\n", Script(lines=("make", "make install"))),
        ("outputs:\n  - name: a\n    script: install.sh\n", Script(file="install.sh")),
        ("outputs:\n  - name: a\n    script:\n      - make\n", Script(lines=("make",))),
        ("outputs:\n  - name: b\n    build:\n      script: make b\n", Script(lines=("make b",))),
        ("outputs:\n  - name: b\n", Script()),
    ],
)
def test_a_package_is_made_by_its_own_script_else_by_the_recipes(tmp_path: Path, recipe: str, script: Script) -> None:
    assert output(tmp_path, recipe, build="", install="").script == script


def test_without_a_script_file_there_is_no_script(tmp_path: Path) -> None:
    assert output(tmp_path, "").script == Script()


def test_a_recipe_with_outputs_has_a_build_step_of_its_own(tmp_path: Path) -> None:
    needs = "requirements:\n  build:\n    - make\n  host:\n    - zlib\n"
    result = rendered(tmp_path, needs + OUTPUTS, build="make")
    (step,) = result.stagings
    assert step.script == Script(file="build.sh")
    assert step.requirements == Requirements(build=("make",), host=("zlib",))
    assert rendered(tmp_path, needs, build="make").stagings == ()


def test_the_build_script_of_windows_is_a_batch_file(tmp_path: Path) -> None:
    files = {"recipe/build.sh": "", "recipe/bld.bat": ""}
    recipe = f"{HEAD}requirements:\n  build:\n    - make  # [win]\n"
    feedstock = builders.feedstock(tmp_path, recipe, forge=LINUX_AND_WINDOWS, files=files)
    configs = {config.platform: config for config in matrix.configs(feedstock)}
    linux, windows = (render.render(feedstock, configs[platform]).outputs[0] for platform in ("linux-64", "win-64"))
    assert (linux.script.file, windows.script.file) == ("build.sh", "bld.bat")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("  url: u\n  sha256: 0a\n  folder: f\n", [Source(url=("u",), sha256="0a", folder="f")]),
        ("  path: p\n  sha256: ''\n  md5: ''\n", [Source(path="p")]),
        ("  - url:\n      - u\n      - v\n  - path: p\n", [Source(url=("u", "v")), Source(path="p")]),
        ("  url: u\n  sha1: 1a\n  sha512: 2b\n", [Source(url=("u",), hashes={"sha1": "1a", "sha512": "2b"})]),
        (
            "  path: p\n  content_sha384: a\n  content_hash_skip: .git/\n",
            [Source(path="p", content_hashes={"sha384": "a"}, content_hash_skip=(".git/",))],
        ),
        ("  url: u\n  no_hoist: false\n", [Source(url=("u",), no_hoist=True)]),
        ("  path: p\n  path_via_symlink: no\n  folder: f\n", [Source(path="p", linked=True, folder="f")]),
        ("  url: u/get\n  fn: a.tar.gz\n", [Source(url=("u/get",), archive_name="a.tar.gz")]),
        ("  url: u/a.tar.gz\n  fn: a.tar.gz\n", [Source(url=("u/a.tar.gz",))]),
        ("  hg_url: h\n  hg_tag: 1.10\n", [Source(checkout=Checkout(program="hg", url="h", revision="1.10"))]),
        ("  hg_url: h\n", [Source(checkout=Checkout(program="hg", url="h"))]),
        (
            "  svn_url: s\n  svn_rev: 07\n  svn_ignore_externals: On\n  svn_username: u\n  svn_password: p\n",
            [Source(checkout=Checkout(program="svn", url="s", revision="07", externals=False, user="u", password="p"))],
        ),
        ("  svn_url: s\n  svn_username: u\n", [Source(checkout=Checkout(program="svn", url="s"))]),
        ("  git_url: g\n  git_rev: v1\n", [Source(git_url="g", git_rev="v1")]),
        ("  git_url: g\n  git_tag: 1.10\n", [Source(git_url="g", git_rev="1.10")]),
        ("  git_url: g\n  git_branch: main\n", [Source(git_url="g", git_rev="main")]),
        ("  url: u\n  patches:\n    - a.patch\n    - b.patch  # [win]\n", [Source(url=("u",), patches=("a.patch",))]),
    ],
)
def test_sources_are_one_entry_or_several(tmp_path: Path, source: str, expected: list[Source]) -> None:
    assert list(rendered(tmp_path, f"source:\n{source}").sources) == expected


def test_the_tests_of_a_package_have_five_lists(tmp_path: Path) -> None:
    section = (
        "test:\n  imports: a\n  commands:\n    - a\n  requires:\n    - b\n  files:\n    - c\n  source_files:\n    - d\n"
    )
    (result,) = output(tmp_path, section).tests
    assert (result.imports, result.script.lines, result.requires) == (("a",), ("a",), ("b",))
    assert (result.files, result.source_files) == (("c",), ("d",))


@pytest.mark.parametrize(("name", "language"), [("r-a", "r"), ("perl-a", "perl"), ("lua-a", "lua"), ("rust", "python")])
def test_imports_are_in_the_language_of_the_package(tmp_path: Path, name: str, language: str) -> None:
    section = "test:\n  imports:\n    - m\n    - lang: perl\n      imports: n\n"
    (result,) = output(tmp_path, f"outputs:\n  - name: {name}\n    " + section.replace("\n", "\n    ")).tests
    assert (result.language, result.imports, result.modules) == (language, ("m",), {"perl": ("n",)})


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_test_that_is_no_mapping_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match="not a mapping"):
        rendered(tmp_path, f"outputs:\n  - name: {name}\n    test: x\n")


def test_the_files_of_other_configs_are_read_once_for_all_configs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"linux_64_python3.{minor}" for minor in range(9, 14)]
    files = {f".ci_support/{name}.yaml": f"python:\n- {name[-4:].lstrip('n')}\n" for name in names}
    feedstock = builders.feedstock(tmp_path, HEAD, files=files)
    read: list[str] = []

    def recorded(path: Path, name: str) -> VariantFile:
        read.append(name)
        return load_variant_file(path, name)

    monkeypatch.setattr(sys.modules["kiln.recipe.render"], "load_variant_file", recorded)
    for name in names:
        render.render(feedstock, config_file.read_config(feedstock, name))
    of_configs = sorted(name for name in read if name.startswith(".ci_support/"))
    assert of_configs == [f".ci_support/{name}.yaml" for name in sorted(names)]
