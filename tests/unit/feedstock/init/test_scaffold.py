"""The files of a new feedstock are written whole, and none that exists is changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kiln.base.errors import NotWritable, UsageError
from kiln.feedstock import matrix, pinning
from kiln.feedstock.init import generator, pypi, scaffold
from kiln.feedstock.init.pypi import ConditionalRequirement
from kiln.feedstock.init.scaffold import (
    KilnRequirement,
    PlannedFiles,
    RecipeFormat,
    parse_given_requirement,
    python_recipe,
    requirement_of_pip_origin,
    starter_recipe,
    url_of_git_remote,
    yaml_comment,
    yaml_list_lines,
    yaml_scalar,
    yaml_scalar_of_prose,
)
from kiln.feedstock.lint import check
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from tests import builders
from tests.git_repositories import git
from tests.unit.feedstock.init.test_pypi import GENERATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.feedstock.init.pypi import PythonProject
    from kiln.recipe.feedstock import Feedstock
    from kiln.recipe.rendered import Output


ROOT = Path(__file__).parents[4]
KILN = KilnRequirement(line="kiln==1")
META = "package:\n  name: a\n  version: '1'\n"
RECIPE = starter_recipe("a", "1", RecipeFormat.V1, ["jane"])


def test_the_entry_point_of_this_repository_is_that_of_all_feedstocks(tmp_path: Path) -> None:
    text = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN).added["build-locally.py"]
    assert text == (ROOT / "build-locally.py").read_text()


def test_a_new_folder_appears_complete_with_its_modes(tmp_path: Path) -> None:
    root = tmp_path / "a" / "f"
    (root.parent / ".f.12-0a1b2c3d.part" / "recipe").mkdir(parents=True)  # of a killed command
    scaffold.write_planned_files(root, scaffold.new_feedstock_files(root, RECIPE, KILN))
    assert os.access(root / "build-locally.py", os.X_OK)
    assert not os.access(root / "conda-forge.yml", os.X_OK)
    assert (root / "requirements" / "kiln.txt").read_text().splitlines()[-1] == "kiln==1"
    assert [path.name for path in root.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("name", ["recipe/recipe.yaml", "recipe/meta.yaml", "conda-forge.yml", ".gitignore"])
def test_a_file_that_exists_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("theirs")
    with pytest.raises(NotWritable, match="overwrites nothing") as caught:
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert caught.value.why == name


def test_the_files_of_a_killed_command_are_kept_and_the_others_added(tmp_path: Path) -> None:
    planned = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.new_feedstock_files(tmp_path, RECIPE, KILN).kept == tuple(planned.added)
    (tmp_path / "conda-forge.yml").unlink()
    again = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert tuple(again.added) == ("conda-forge.yml",)
    (tmp_path / "outputs.txt").write_text(f"{planned.added['outputs.txt']}theirs\n")
    with pytest.raises(NotWritable) as caught:
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert caught.value.why == "outputs.txt"


def test_a_dangling_link_counts_as_existing_and_a_linked_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "conda-forge.yml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotWritable):
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    (tmp_path / "conda-forge.yml").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "recipe").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotWritable, match="is a link"):
        scaffold.write_planned_files(tmp_path, scaffold.new_feedstock_files(tmp_path, RECIPE, KILN))
    assert not (tmp_path / "conda-forge.yml").exists()


def test_a_feedstock_gets_what_it_lacks(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    planned = scaffold.missing_feedstock_files(feedstock, KILN)
    assert list(planned.added) == [".gitignore", "build-locally.py", "requirements/kiln.txt"]
    assert planned.kept == ("conda-forge.yml",)
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.missing_feedstock_files(feedstock, KILN).added == {}


def test_conda_smithys_entry_point_stays_and_needs_no_requirement(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META, files={"build-locally.py": "import subprocess\n"})
    planned = scaffold.missing_feedstock_files(feedstock, KILN)
    assert list(planned.added) == [".gitignore"]
    assert planned.kept == ("conda-forge.yml", "build-locally.py")


def test_a_recipe_yaml_without_settings_gets_those_of_its_format(tmp_path: Path) -> None:
    files = {"recipe/recipe.yaml": "package:\n  name: a\n  version: '1'\n"}
    scaffold.write_planned_files(tmp_path, PlannedFiles(added=files))
    planned = scaffold.missing_feedstock_files(recipe_feedstock.load(tmp_path), KILN)
    assert "conda_build_tool: rattler-build\n" in planned.added["conda-forge.yml"]


def test_the_list_of_outputs_is_written_once(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    planned = scaffold.planned_outputs_file(feedstock, ["b", "a", "a"])
    assert planned.added["outputs.txt"].splitlines()[1:] == ["a", "b"]
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.planned_outputs_file(feedstock, ["c"]) == PlannedFiles(added={}, kept=("outputs.txt",))


@pytest.mark.parametrize(("name", "hint"), [("A", "kiln init a"), ("a b", ""), ("../a", ""), ("", ""), ("-x", "")])
def test_an_invalid_name_is_refused(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a package") as caught:
        scaffold.require_valid_package_name(name)
    assert caught.value.hint == hint


@pytest.mark.parametrize("version", ["", "1-2", "1 2", "1..2", "x" * 65])
def test_an_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="cannot be a version"):
        scaffold.require_valid_version(version)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "build-locally.py"
    path.write_text((ROOT / "build-locally.py").read_text())
    return path


def ended(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), "--all"], capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_the_entry_point_without_a_requirement_says_how_to_get_one(script: Path) -> None:
    process = ended(script)
    assert process.returncode == 3
    assert "requirements/kiln.txt is missing" in process.stderr
    assert "kiln init" in process.stderr
    assert not (script.parent / ".venv").exists()


@pytest.mark.processes
def test_the_entry_point_keeps_an_environment_that_is_not_its_own(script: Path) -> None:
    builders.write_files(script.parent, {"requirements/kiln.txt": "kiln==1\n", ".venv/mine": ""})
    process = ended(script)
    assert process.returncode == NotWritable.exit_code
    assert "move it away" in process.stderr
    assert (script.parent / ".venv" / "mine").exists()


@pytest.mark.processes
def test_the_entry_point_uses_a_complete_environment_as_it_is(script: Path) -> None:
    text, folder = "kiln==1\n", script.parent / ".venv"
    builders.write_files(script.parent, {"requirements/kiln.txt": text})
    python = '#!/bin/sh\nprintf "%s|" "$@"\n'
    builders.write_files(folder, {"kiln-requirements.txt": f"# {folder}\n{text}", "bin/python": python})
    (folder / "bin" / "python").chmod(0o755)
    words = ["-I", "-m", "kiln", "--called", "build-locally.py", "-C", str(script.parent), "build"]
    assert ended(script).stdout.split("|")[:-1] == [*words, "--calling-python", sys.executable, "--all"]


@pytest.mark.processes
def test_the_entry_point_is_interrupted_without_a_traceback(script: Path) -> None:
    builders.write_files(script.parent, {"requirements/kiln.txt": "kiln==1\n"})
    code = f"import runpy, sys; sys._base_executable = {str(script.parent / 'python')!r};"
    builders.write_files(script.parent, {"python": "#!/bin/sh\necho Traceback >&2\nkill -INT $PPID\nexec sleep 60\n"})
    (script.parent / "python").chmod(0o755)
    code += f"runpy.run_path({str(script)!r})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (130, "setting up .venv from requirements/kiln.txt\n")


@pytest.mark.parametrize("version", ["0.1.0", "1.10", "2", "1e3", "1!2.0+x"])
@pytest.mark.parametrize("form", RecipeFormat)
def test_a_starter_renders_as_asked_and_has_no_lints(tmp_path: Path, form: RecipeFormat, version: str) -> None:
    root = tmp_path / "f"
    recipe = starter_recipe("a-b.c", version, form, ["jane", "org/team"])
    scaffold.write_planned_files(root, scaffold.new_feedstock_files(root, recipe, KilnRequirement(line="kiln==1")))
    feedstock = recipe_feedstock.load(root)
    assert check.check(feedstock) == []
    (config,) = matrix.configs(feedstock, None, {})
    (output,) = render.render(feedstock, config).outputs
    assert (output.name, output.version, output.noarch) == ("a-b.c", version, "generic")
    assert (root / "outputs.txt").read_text().splitlines()[1:] == ["a-b.c"]
    assert pinning.keys_without_value(feedstock) == ()


@pytest.mark.parametrize("text", ["1.10", "yes", "a: b", "- a", "", "two\nlines", "it's", "@x", "null"])
def test_a_scalar_reads_back_as_the_text_on_one_line(text: str) -> None:
    assert "\n" not in yaml_scalar(text)
    assert yaml.safe_load(f"key: {yaml_scalar(text)}")["key"] == text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("runs {{ os }} and {% if %}", "runs { { os }} and { % if %}"),
        ("${{ env.get('A') }}", "${ { env.get('A') }}"),
        ("for C# [win]", "for C# (win)"),
        ("two\n lines\u202e", "two lines"),
        ("not here [win]", "not here (win)"),
        ("{\u200b{ os }}", "{ { os }}"),
    ],
)
def test_foreign_text_is_harmless(text: str, result: str) -> None:
    assert yaml.safe_load(f"key: {yaml_scalar_of_prose(text)}")["key"] == result


def test_items_and_comments_are_harmless() -> None:
    assert yaml_list_lines(["foo{{ 1/0 }} = a:b", "a  b", "c [win]"], 0) == "- foo{ { 1/0 }} = a:b\n- a  b\n- c (win)\n"
    assert yaml_comment("a[b] ({{ os }})\n- x") == "# a(b) ({ { os }})- x"


PROJECT = pypi.project_from_generated_recipe(GENERATED, mapped=True)
COMPILED = replace(PROJECT, noarch=False, entry_points=())
CONDITIONS = [("", ("win",)), ("<3.13", ()), (">=3.12", ("linux", "osx"))]
WHOLE = replace(
    COMPILED,
    languages=("c", "cxx", "rust"),
    tools=("cmake", "ninja"),
    python_bounds=("<3.99",),
    conditional=tuple(
        ConditionalRequirement(spec=f"r{number} >=1", text="", python=python, platforms=platforms)
        for number, (python, platforms) in enumerate(CONDITIONS)
    ),
    programs=("foo",),
    tests=("tests/", "pyproject.toml"),
    test_requirements=("pytest >=8",),
    about={**PROJECT.about, "homepage": "https://h.example", "repository": "https://github.com/o/p"},
)
VARIANTS = (
    "cxx_compiler:\n  - gxx\ncxx_compiler_version:\n  - '14'\nrust_compiler:\n  - rust\n"
    "python_min:\n  - '3.12'\nc_compiler:\n  - gcc\nc_compiler_version:\n  - '14'\nc_stdlib:\n  - sysroot\n"
    "c_stdlib_version:\n  - '2.17'\npython:\n  - 3.12.* *_cpython\n"
)


def made(folder: Path, project: PythonProject, form: RecipeFormat) -> Feedstock:
    recipe = python_recipe(project, form, ["jane", "org/team"])
    tool = "conda_build_tool: rattler-build\n" if form is RecipeFormat.V1 else ""
    files = {**recipe.files, "conda-forge.yml": tool, "recipe/conda_build_config.yaml": VARIANTS}
    scaffold.write_planned_files(folder, PlannedFiles(added=files))
    return recipe_feedstock.load(folder)


def rendered(feedstock: Feedstock) -> Output:
    config, *_ = (config for config in matrix.configs(feedstock, None, {}) if config.platform == "linux-64")
    (output,) = render.render(feedstock, config).outputs
    return output


@pytest.mark.parametrize("form", RecipeFormat)
@pytest.mark.parametrize(
    "project",
    [
        PROJECT,
        COMPILED,
        replace(PROJECT, python_min=""),
        WHOLE,
        replace(WHOLE, noarch=True, conditional=(), languages=()),
    ],
)
def test_a_recipe_has_no_lints(tmp_path: Path, project: PythonProject, form: RecipeFormat) -> None:
    feedstock = made(tmp_path / "f", project, form)
    for of_conda_forge in (False, True):
        messages = check.check(feedstock, of_conda_forge=of_conda_forge)
        assert [item for item in messages if item.at.file == form.recipe_path] == []


def test_both_formats_make_the_same_package(tmp_path: Path) -> None:
    outputs = [rendered(made(tmp_path / form.value, PROJECT, form)) for form in RecipeFormat]
    names = [(output.name, output.version) for output in outputs]
    assert names == [("foo-bar", "3.10")] * 2
    runs = [{spec.replace("==", "") for spec in output.requirements.run} for output in outputs]
    assert runs[0] == runs[1] == {"python >=3.12", "httpcore 1.*", "flatbuffers >=1.0"}


def test_both_formats_say_the_same_of_a_compiled_project(tmp_path: Path) -> None:
    v1, v0 = (rendered(made(tmp_path / form.value, WHOLE, form)) for form in (RecipeFormat.V1, RecipeFormat.V0))
    runs = [{spec.replace("==", "") for spec in output.requirements.run} for output in (v0, v1)]
    assert {spec.split()[0] for spec in runs[0]} == {"python", "httpcore", "flatbuffers", "r1", "r2"}
    assert {spec.split()[0] for spec in runs[1]} == {"python", "httpcore", "flatbuffers", "r1", "r2"}
    builds = [sorted({spec.split()[0] for spec in output.requirements.build}) for output in (v0, v1)]
    assert builds[0] == builds[1]
    assert {"cargo-bundle-licenses", "cmake", "gcc_linux-64", "gxx_linux-64", "ninja", "rust_linux-64"} <= set(
        builds[0]
    )


HOSTILE = "x{{ 1 // 0 }}${{ 1 // 0 }}{% if %}{# [nope] #}  # [nope]"


@pytest.mark.parametrize("form", RecipeFormat)
def test_foreign_text_is_harmless_wherever_it_comes_from(tmp_path: Path, form: RecipeFormat) -> None:
    about = dict.fromkeys(("homepage", "summary", "license", "documentation"), HOSTILE)
    project = replace(
        PROJECT,
        about=about,
        host=("pip", "foo ===1{{1 // 0}}"),
        run=("foo ===1{{1 // 0}}",),
        imports=(HOSTILE,),
        license_files=(HOSTILE, "[nope]"),
        entry_points=(HOSTILE, "a = a:b [nope]"),
        left_out=(HOSTILE, "foo[nope] ({{ 1 // 0 }})"),
    )
    text = python_recipe(project, form, ["jane"]).files[form.recipe_path]
    live = [line for line in text.splitlines() if "1 // 0" in line and ("{{" in line or "[" in line)]
    assert live == []
    assert rendered(made(tmp_path / "f", replace(project, host=("pip",), run=()), form)).name == "foo-bar"


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (
            {"url": "https://h.example/kiln.git", "vcs_info": {"vcs": "git", "commit_id": COMMIT}},
            f"kiln @ git+https://h.example/kiln.git@{COMMIT}",
        ),
        (
            {
                "url": "https://me:secret@h.example/kiln",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT},
                "subdirectory": "a",
            },
            f"kiln @ git+https://h.example/kiln@{COMMIT}#subdirectory=a",
        ),
        (
            {"url": "https://h.example/kiln-1-py3-none-any.whl", "archive_info": {"hashes": {"sha256": "ab"}}},
            "kiln @ https://h.example/kiln-1-py3-none-any.whl#sha256=ab",
        ),
        (
            {"url": "https://h.example/kiln-1.tar.gz", "archive_info": {"hash": "sha256=cd"}},
            "kiln @ https://h.example/kiln-1.tar.gz#sha256=cd",
        ),
        ({"url": "file:///w/kiln.whl", "archive_info": {}}, "kiln @ file:///w/kiln.whl"),
        ({"url": "https://me:secret@h.example/a+b/k.whl", "archive_info": {}}, "kiln @ https://h.example/a+b/k.whl"),
        ({"url": "file:///w/clone", "dir_info": {"editable": True}}, "kiln @ file:///w/clone"),
    ],
)
def test_pips_record_of_the_origin_is_pinned_without_credentials(origin: Mapping[str, Any], line: str) -> None:
    requirement = requirement_of_pip_origin(origin)
    assert requirement.line == line
    assert bool(requirement.note) == line.startswith("kiln @ file:")


def test_a_version_alone_is_used_only_where_pip_took_kiln_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: ("1.2", None))
    assert scaffold.requirement_of_running_kiln(env={}).line == "kiln==1.2"


def test_an_unknown_origin_is_refused_and_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: None)
    monkeypatch.setattr(scaffold, "PACKAGE_ROOT", tmp_path)
    with pytest.raises(UsageError, match="the origin of this kiln is unknown") as caught:
        scaffold.requirement_of_running_kiln(env={"PATH": ""})
    assert "--kiln" in caught.value.hint
    assert "kiln==" not in caught.value.hint


@pytest.mark.processes
def test_a_clone_gives_its_commit_at_the_repository_that_it_came_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scaffold, "_installed_version_and_origin", lambda: None)
    monkeypatch.setattr(scaffold, "PACKAGE_ROOT", tmp_path)
    env = {"PATH": os.environ["PATH"]}
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    assert scaffold.requirement_of_running_kiln(env=env).line == f"kiln @ {tmp_path.as_uri()}"
    git(tmp_path, "remote", "add", "origin", "https://u:p@h.example/kiln.git")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert scaffold.requirement_of_running_kiln(env=env).line == f"kiln @ git+https://h.example/kiln.git@{commit}"
    assert not scaffold.requirement_of_running_kiln(env=env).note
    (tmp_path / "kiln").mkdir()
    (tmp_path / "kiln" / "new.py").touch()
    assert "not committed" in scaffold.requirement_of_running_kiln(env=env).note


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("git@h.example:me/kiln.git", "ssh://git@h.example/me/kiln.git"),
        ("ssh://git@h.example/kiln", "ssh://git@h.example/kiln"),
        ("ssh://git:word@h.example/kiln", "ssh://git@h.example/kiln"),
        ("https://h.example/kiln", "https://h.example/kiln"),
        ("/srv/kiln", None),
        ("file:///srv/kiln", None),
    ],
)
def test_remotes_become_addresses_for_pip(remote: str, address: str | None) -> None:
    assert url_of_git_remote(remote) == address


@pytest.mark.parametrize(
    "text",
    [
        "kiln==0.1.0",
        f"kiln @ git+https://h.example/kiln@{COMMIT}",
        f"kiln @ git+ssh://git@h.example/kiln@{COMMIT}",
        f"kiln @ git+https://h.example/@me/kiln@{COMMIT}#subdirectory=a",
        "kiln @ https://h.example/kiln-1-py3-none-any.whl",
    ],
)
def test_a_pinned_requirement_is_taken(text: str) -> None:
    assert parse_given_requirement(text).line == text
    assert parse_given_requirement(text.removeprefix("kiln @ ")).line == text


def test_a_path_becomes_an_address(tmp_path: Path) -> None:
    (tmp_path / "kiln.whl").touch()
    assert parse_given_requirement(str(tmp_path / "kiln.whl")).line == f"kiln @ {tmp_path.as_uri()}/kiln.whl"
    assert parse_given_requirement(f"kiln @ {tmp_path.as_uri()}/kiln.whl").note


@pytest.mark.parametrize("name", ["a.whl", "a b.whl", "a#1%20.whl"])
def test_a_file_is_given_by_its_path_or_by_any_form_of_its_url(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    url = (tmp_path / name).as_uri()
    for text in (
        str(tmp_path / name),
        url,
        url.replace("file://", "file:"),
        url.replace("file://", "file://localhost"),
    ):
        assert parse_given_requirement(text).line == f"kiln @ {url}"
    assert parse_given_requirement(f"{url}#sha256=ab").line == f"kiln @ {url}#sha256=ab"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kiln", "leaves the version open"),
        ("kiln>=0.1", "leaves the version open"),
        ("kiln==0.1,<1", "leaves the version open"),
        ("kiln==1.*", "leaves the version open"),
        ("kiln===1.*", "leaves the version open"),
        ("kiln @ git+https://h.example/kiln", "names no commit"),
        ("git+https://h.example/kiln@", "names no commit"),
        ("git+https://h.example/kiln@#subdirectory=a", "names no commit"),
        ("git+https://h.example/@me/kiln", "names no commit"),
        ("git+https://h.example/@me", "names no commit"),
        ("file://h.example/tmp", "file://h.example/tmp does not exist"),
        ("file://[/kiln", "is not a URL"),
        ("file:/no/such%20file.whl", "/no/such file.whl does not exist"),
        ("kiln @ git+https://u:p@h.example/kiln", "names no commit"),
        ("oven==1", "names oven"),
        ("not a requirement", "is not a requirement"),
        ("/no/such.whl", "does not exist"),
    ],
)
def test_an_open_or_invalid_requirement_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as caught:
        parse_given_requirement(text)
    assert caught.value.hint.startswith("--kiln")
    assert "kiln==" not in caught.value.hint  # another project has the name on PyPI
    assert "u:p" not in str(caught.value)


def generating(monkeypatch: pytest.MonkeyPatch, errors: dict[bool, str]) -> None:
    """Put a generator that fails in the place of the library's, which reaches the network."""

    def generate(project: str, version: str | None, mapped: bool) -> str:
        if mapped in errors:
            raise RuntimeError(errors[mapped])
        return f"{project} {version}"

    library = SimpleNamespace(generate_pypi_recipe_string_py=generate)
    monkeypatch.setattr(generator, "import_module", lambda _: library)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({}, {"recipe": "a 1", "mapped": True}),
        ({True: "failed to download pypi name mapping"}, {"recipe": "a 1", "mapped": False}),
        ({True: "404"}, {"error": "404"}),
        ({True: "no name mapping", False: "404"}, {"error": "404"}),
    ],
)
def test_names_are_mapped_where_the_table_can_be_read(
    monkeypatch: pytest.MonkeyPatch, errors: dict[bool, str], expected: dict[str, object]
) -> None:
    generating(monkeypatch, errors)
    assert generator.generate_recipe("a", "1") == expected
