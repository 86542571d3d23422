"""A recipe that reads its source reads it as conda-build does, inside the feedstock, and without running it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from kiln.base import yaml
from kiln.base.errors import KilnError, MalformedYaml, RecipeFault, TemplateFault, UnsafeTemplate
from kiln.feedstock import matrix
from kiln.recipe import render
from tests import builders
from tests.git_repositories import git

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output

READING = """\
{% set data = load_file_data("FILE") %}
package:
  name: a
  version: {{ data.get("version") }}
source:
SOURCE
about:
  summary: {{ load_file_regex("FILE", "v[a-z]+n").group() if data else "" }}
"""
DATA = '{"version": "1.5"}'


def reading(source: str, file: str = "data.json") -> str:
    indented = "\n".join(f"  {line}" for line in source.splitlines())
    return READING.replace("SOURCE", indented).replace("FILE", file)


def output(feedstock: Feedstock) -> Output:
    (result,) = builders.rendered(feedstock).outputs
    return result


def require_refused(feedstock: Feedstock, kind: type[KilnError], what: str) -> None:
    matrix.configs(feedstock)  # a rerender needs no source
    with pytest.raises(kind, match=what):
        output(feedstock)


def test_a_local_source_is_read(tmp_path: Path) -> None:
    result = output(builders.feedstock(tmp_path, reading("path: src"), files={"recipe/src/data.json": DATA}))
    assert (result.version, result.about["summary"]) == ("1.5", "version")


def test_of_several_sources_the_one_that_has_the_file_is_read(tmp_path: Path) -> None:
    local = "- path: src\n  folder: first\n- path: ../more\n  folder: second/part\n"
    source = f"{local}- url: https://a.org/a.tar.gz\n  folder: x"
    files = {"recipe/src/data.json": '{"version": "1"}', "more/data.json": '{"version": "2"}'}
    assert output(builders.feedstock(tmp_path / "a", reading(source, "first/data.json"), files=files)).version == "1"
    assert (
        output(builders.feedstock(tmp_path / "b", reading(source, "second/part/data.json"), files=files)).version == "2"
    )
    require_refused(
        builders.feedstock(tmp_path / "c", reading(source, "second/data.json"), files=files), TemplateFault, "not found"
    )
    require_refused(
        builders.feedstock(tmp_path / "d", reading(source, "x/data.json"), files=files), TemplateFault, "does not fetch"
    )


def test_of_two_sources_with_a_file_the_later_is_read(tmp_path: Path) -> None:
    files = {"recipe/a/data.json": '{"version": "1"}', "recipe/b/data.json": '{"version": "2"}'}
    assert output(builders.feedstock(tmp_path, reading("- path: a\n- path: b"), files=files)).version == "2"


@pytest.mark.parametrize(
    ("source", "kind", "what"),
    [
        ("url: https://a.org/a.tar.gz", TemplateFault, "does not fetch"),
        ("git_url: https://a.org/a.git", TemplateFault, "does not fetch"),
        ("hg_url: https://a.org/a", TemplateFault, "does not fetch"),
        ("url: file:///etc/passwd", TemplateFault, "does not fetch"),
        ("url: data.json", TemplateFault, "does not fetch"),
        ("path: ../../outside", UnsafeTemplate, "the template reads"),
        ("path: missing", RecipeFault, "the source 'missing' does not exist"),
        ("path: .", TemplateFault, "file 'data.json' not found in the recipe's source"),
    ],
)
def test_what_no_local_source_has_is_refused(tmp_path: Path, source: str, kind: type[KilnError], what: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "data.json").write_text(DATA)
    require_refused(builders.feedstock(tmp_path / "feedstock", reading(source)), kind, what)


@pytest.mark.parametrize("call", ["load_setup_py_data()", "load_setuptools('a/setup.py', from_recipe_dir=True)"])
def test_a_setup_py_is_not_run(tmp_path: Path, call: str) -> None:
    meta = f"{{% set data = {call} %}}\npackage:\n  name: a\n  version: {{{{ data.get('version') }}}}\n"
    files = {"recipe/setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')", "pyproject.toml": ""}
    feedstock = builders.feedstock(tmp_path, meta, files=files)
    require_refused(feedstock, TemplateFault, "the template reads setup.py, which would have to be run")
    with pytest.raises(TemplateFault) as caught:
        output(feedstock)
    assert "load_file_data" in caught.value.hint
    assert (str(caught.value.at), (tmp_path / "ran").exists()) == ("recipe/meta.yaml:1", False)


def test_a_link_out_of_the_feedstock_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text(DATA)
    source = tmp_path / "feedstock" / "recipe" / "src"
    source.mkdir(parents=True)
    (source / "data.json").symlink_to(tmp_path / "secret.json")
    feedstock = builders.feedstock(tmp_path / "feedstock", reading("path: src"))
    with pytest.raises(UnsafeTemplate, match="the template reads"):
        output(feedstock)


def test_a_match_in_a_file_of_the_source_may_be_the_version(tmp_path: Path) -> None:
    meta = """\
{% set match = load_file_regex("data.json", '"version": "([0-9.]+)"') %}
package:
  name: a
  version: {{ match.group(1) }}
source:
  path: src
build:
  string: v{{ PKG_VERSION }}_0
"""
    result = output(builders.feedstock(tmp_path / "a", meta, files={"recipe/src/data.json": DATA}))
    assert (result.version, result.build_string) == ("1.5", "v1.5_0")
    nothing = builders.feedstock(tmp_path / "b", meta, files={"recipe/src/data.json": "{}"})
    with pytest.raises(TemplateFault, match="the template fails"):
        output(nothing)


def test_a_file_that_a_patch_changes_is_refused(tmp_path: Path) -> None:
    source = "path: src\npatches:\n  - p.diff"
    patch = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    files = {"recipe/src/data.json": DATA, "recipe/p.diff": patch.format("other.json")}
    assert output(builders.feedstock(tmp_path / "a", reading(source), files=files)).version == "1.5"
    files["recipe/p.diff"] = patch.format("data.json")
    require_refused(
        builders.feedstock(tmp_path / "b", reading(source), files=files), TemplateFault, "which p.diff changes"
    )


def test_the_size_of_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"recipe/src/data.json": DATA + " " * 3000}
    monkeypatch.setattr(yaml, "_MAX_SIZE", 3000)
    feedstock = builders.feedstock(tmp_path, reading("path: src"), files=files)
    require_refused(feedstock, MalformedYaml, "data.json has 3,018 bytes")


GIT = """\
package:
  name: a
  version: {{ GIT_DESCRIBE_TAG_PEP440 }}
source:
  SOURCE
build:
  number: {{ environ.get("GIT_DESCRIBE_NUMBER", 7) }}
about:
  summary: {{ GIT_DESCRIBE_TAG }} {{ GIT_DESCRIBE_HASH }} {{ GIT_BUILD_STR }} {{ GIT_FULL_HASH }}
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with two commits, the first tagged, for tests to copy: making one takes seven runs of git."""
    folder = tmp_path_factory.mktemp("repository") / "src"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "data.json").write_text(DATA)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "one")
    git(folder, "tag", "v1.2")
    git(folder, "commit", "-q", "--allow-empty", "-m", "two")
    return folder


@pytest.mark.processes
@pytest.mark.parametrize("source", ["path: ../src", "git_url: ../src", "git_url: ../src/.git\n  git_rev: main"])
def test_the_revision_of_a_local_repository_is_read(tmp_path: Path, source: str, original: Path) -> None:
    feedstock = builders.feedstock(tmp_path, GIT.replace("SOURCE", source))
    commit = git(shutil.copytree(original, tmp_path / "src"), "rev-parse", "HEAD")
    result = output(feedstock)
    short = f"g{commit[:7]}"
    assert (result.version, result.build_number) == (f"v1.2.post1+{short[1:]}", 1)
    assert result.about["summary"] == f"v1.2 {short} 1_{short} {commit}"


@pytest.mark.processes
def test_a_revision_of_the_recipe_counts(tmp_path: Path, original: Path) -> None:
    source = "git_url: ../src\n  git_rev: v1.2"
    feedstock = builders.feedstock(tmp_path, GIT.replace("SOURCE", source))
    shutil.copytree(original, tmp_path / "src")
    assert (output(feedstock).version, output(feedstock).build_number) == ("v1.2", 0)
    reads = builders.feedstock(tmp_path / "reads", reading("git_url: ../src\ngit_rev: main"))
    shutil.copytree(original, tmp_path / "reads" / "src")
    assert output(reads).version == "1.5"
    require_refused(
        builders.feedstock(tmp_path, GIT.replace("SOURCE", "git_url: ../src\n  git_rev: v9")),
        RecipeFault,
        "has no revision 'v9'",
    )


@pytest.mark.processes
@pytest.mark.parametrize("source", ["git_url: https://a.org/a.git", "path: ../src", "path: ."])
def test_a_name_of_the_revision_without_a_value_is_not_built(tmp_path: Path, source: str, original: Path) -> None:
    feedstock = builders.feedstock(tmp_path, GIT.replace("SOURCE", source))
    git(shutil.copytree(original, tmp_path / "src"), "tag", "-d", "v1.2")
    rendered = builders.rendered(feedstock)
    assert rendered.outputs[0].build_number == 7
    for own_engine in (True, False):
        with pytest.raises(RecipeFault, match="GIT_BUILD_STR has no value, and is empty text") as caught:
            render.require_supported_keys([rendered], own_engine=own_engine)
        assert str(caught.value.at) == "recipe/meta.yaml:4:1"
    assert "recipe/meta.yaml:4:1: GIT_DESCRIBE_TAG has no value" in "\n".join(render.key_fault_warnings(rendered))


def test_git_is_not_asked_for_other_names(tmp_path: Path) -> None:
    meta = "package:\n  name: a\n  version: 1\nsource:\n  path: ../src\nbuild:\n  script: GIT_SSL_NO_VERIFY=1 make\n"
    assert output(builders.feedstock(tmp_path, meta, files={"src/.git": "gitdir: /a\n"})).version == "1"


@pytest.mark.processes
def test_a_repository_runs_no_program_and_stays_in_the_feedstock(tmp_path: Path, original: Path) -> None:
    feedstock = builders.feedstock(tmp_path, GIT.replace("SOURCE", "path: ../src"))
    shutil.copytree(original, tmp_path / "src")
    ran = tmp_path / "ran"
    for setting in ("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "diff.external"):
        git(tmp_path / "src", "config", setting, f"touch {ran}; false")
    assert output(feedstock).build_number == 1
    assert not ran.exists()
    shared = builders.feedstock(tmp_path / "shared", GIT.replace("SOURCE", "path: ../src"))
    shutil.copytree(original, tmp_path / "shared" / "src")
    (tmp_path / "shared" / "src" / ".git" / "objects" / "info" / "alternates").write_text(f"{tmp_path}\n")
    require_refused(shared, RecipeFault, "is not complete in the feedstock")
    linked = builders.feedstock(
        tmp_path / "linked", GIT.replace("SOURCE", "path: ../src"), files={"src/.git": "gitdir: /a\n"}
    )
    require_refused(linked, RecipeFault, "is not complete in the feedstock")


@pytest.fixture(scope="module")
def packed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the repository with its references in a file of packed ones, too."""
    folder = shutil.copytree(original, tmp_path_factory.mktemp("packed") / "src")
    git(folder, "pack-refs", "--all", "--no-prune")
    return folder


READS = (reading("git_url: ../src"), GIT.replace("SOURCE", "path: ../src"))


@pytest.mark.processes
@pytest.mark.parametrize("reads", READS)
def test_a_repository_without_links_is_read(tmp_path: Path, reads: str, packed: Path) -> None:
    feedstock = builders.feedstock(tmp_path, reads)
    commit = git(shutil.copytree(packed, tmp_path / "src"), "rev-parse", "HEAD")
    assert output(feedstock).version in {"1.5", f"v1.2.post1+{commit[:7]}"}


# Without the mark for processes: git is not even started.
@pytest.mark.parametrize("link", ["", "objects", "objects/pack", "refs/heads/main", "HEAD", "config", "packed-refs"])
@pytest.mark.parametrize("reads", READS)
def test_a_repository_with_a_link_out_of_the_feedstock_is_refused(
    tmp_path: Path, link: str, reads: str, packed: Path
) -> None:
    feedstock = builders.feedstock(tmp_path / "a", reads)
    place = shutil.copytree(packed, tmp_path / "a" / "src") / ".git" / link
    place.rename(tmp_path / "before")
    place.symlink_to(packed / ".git" / link)
    require_refused(feedstock, UnsafeTemplate, "the template reads the git repository 'src'")


def test_a_repository_with_settings_of_another_file_is_refused(tmp_path: Path, original: Path) -> None:
    feedstock = builders.feedstock(tmp_path, GIT.replace("SOURCE", "path: ../src"))
    with (shutil.copytree(original, tmp_path / "src") / ".git" / "config").open("a") as config:
        config.write(f"[include]\n\tpath = {tmp_path / 'settings'}\n")
    require_refused(feedstock, UnsafeTemplate, "the template reads the git repository 'src'")
