"""The files of a new feedstock: recipes as texts in both formats, and what a checkout lacks."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml
from packaging.requirements import InvalidRequirement, Requirement

from kiln.base import files as base_files
from kiln.base import git, http, patterns
from kiln.base.errors import NotWritable, UsageError
from kiln.base.position import Place
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.conda.specs import Version
from kiln.feedstock import rerender
from kiln.feedstock.init.pypi import ADDRESS, ConditionalRequirement, PythonProject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.recipe.feedstock import Feedstock


_WIDTH = 1 << 20  # characters; a scalar stays on its line


class RecipeFormat(Enum):
    """The formats of recipes: conda-build's meta.yaml (v0) and rattler-build's recipe.yaml (v1)."""

    V0 = "v0"
    V1 = "v1"

    @property
    def recipe_path(self) -> str:
        """The path of the recipe in the feedstock."""
        return "recipe/recipe.yaml" if self is RecipeFormat.V1 else "recipe/meta.yaml"


def yaml_scalar(text: str) -> str:
    """Return a text as a YAML scalar of one line, quoted where needed."""
    quoted = yaml.safe_dump(text, width=_WIDTH, allow_unicode=True).removesuffix("...\n").rstrip("\n")
    return quoted if "\n" not in quoted else yaml.safe_dump(text, width=_WIDTH, default_style='"').strip()


def yaml_scalar_of_prose(text: str) -> str:
    """Return foreign prose as a YAML scalar on one line, without templates and selectors."""
    return yaml_scalar(_without_templates_and_selectors(" ".join(text.split())))


def yaml_list_lines(values: Iterable[str], indent: int) -> str:
    """Return the lines of a list of scalars, which may be foreign text."""
    return "".join(f"{' ' * indent}- {yaml_scalar(_without_templates_and_selectors(value))}\n" for value in values)


def yaml_comment(text: str) -> str:
    """Return foreign text as a comment, which Jinja evaluates like any other text."""
    return _without_templates_and_selectors(f"# {text}")


def _without_templates_and_selectors(text: str) -> str:
    """Return foreign text in which nothing is a template, a selector, or hidden."""
    text = re.sub(r"\{(?=[{%#])", "{ ", patterns.HIDDEN.sub("", text))
    # conda-build reads `# [win]` as a selector, also inside of quotes, and `[win]` at the end of a line.
    return text.replace("[", "(").replace("]", ")") if "#" in text or text.endswith("]") else text


FILES = Path(__file__).with_name("starter_files")  # texts with fields in braces; the license's own text is SPDX's


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecipe:
    """The recipe of a new feedstock: its files by path, the names that it publishes, and notes on what is left open."""

    name: str
    format: RecipeFormat
    files: Mapping[str, str]
    notes: tuple[str, ...] = ()


def starter_recipe(name: str, version: str, format_: RecipeFormat, maintainers: Sequence[str]) -> NewRecipe:
    """Return the recipe of a small package that installs a program."""
    license_file = "LICENSE.txt"
    values = {
        "name": name,
        "scalar_name": yaml_scalar(name),
        "quoted_name": f'"{name}"',
        "quoted_version": f'"{version}"',
        "home": f"https://github.com/{maintainers[0]}/{name}",
        "summary": yaml_scalar(f"A short description of {name}"),
        "license_file": license_file,
        "maintainers": yaml_list_lines(maintainers, 4),
        "holder": ", ".join(maintainers),
    }
    texts = {format_.recipe_path: _starter_template_text(f"{Path(format_.recipe_path).name}.in").format(**values)}
    if format_ is RecipeFormat.V0:
        texts["recipe/build.sh"] = _starter_template_text("build.sh")
    texts |= {
        f"recipe/src/{file}": _starter_template_text(f"{file}.in").format(**values)
        for file in ("hello.sh", license_file)
    }
    note = f"{format_.recipe_path} is an example that builds; change its source, script, tests and about"
    return NewRecipe(name=name, format=format_, files=texts, notes=(note,))


def _starter_template_text(file: str) -> str:
    return (FILES / file).read_text(encoding="utf-8")


_INSTALL = "{python} -m pip install . -vv --no-deps --no-build-isolation"
_CRATES = "THIRDPARTY.yml"
_BUNDLE = f"cargo-bundle-licenses --format yaml --output {_CRATES}"
_ABOUT = {  # the keys in recipe.yaml and in meta.yaml
    "homepage": ("homepage", "home"),
    "summary": ("summary", "summary"),
    "license": ("license", "license"),
    "repository": ("repository", "dev_url"),
    "documentation": ("documentation", "doc_url"),
}


def python_recipe(project: PythonProject, format_: RecipeFormat, maintainers: Sequence[str]) -> NewRecipe:
    """Return the recipe of a Python project."""
    lines = _recipe_yaml_lines(project) if format_ is RecipeFormat.V1 else _meta_yaml_lines(project)
    end = ("", "about:", *_about_lines(project, format_), "", "extra:", "  recipe-maintainers:")
    text = "\n".join((*lines, *end, yaml_list_lines(maintainers, 4)))
    return NewRecipe(name=project.name, format=format_, files={format_.recipe_path: text}, notes=project.notes)


def _recipe_yaml_lines(project: PythonProject) -> Iterator[str]:
    yield from ("schema_version: 1", "", "context:", f"  name: {yaml_scalar(project.name)}")
    yield f'  version: "{project.version}"'
    if project.noarch and project.python_min:
        yield f'  python_min: "{project.python_min}"'
    yield from ("", "package:", "  name: ${{ name }}", "  version: ${{ version }}", "")
    yield from _source_and_build_lines(project, "${{ %s }}")
    if skipped := _skipped_pythons(project):
        yield from ("  skip:", *(f'    - match(python, "{python}")' for python in skipped))
    if project.entry_points:
        yield from ("  python:", "    entry_points:", yaml_list_lines(project.entry_points, 6).rstrip())
    yield from ("", "requirements:", *_requirement_lines(project, "${{ %s }}"), "")
    yield from ("tests:", "  - python:", "      imports:", yaml_list_lines(project.imports, 8).rstrip())
    if project.noarch:
        yield from ("      python_version:", "        - ${{ python_min }}.*", '        - "*"')
    if project.programs:
        yield from ("  - script:", *(f"      - {name} --help" for name in project.programs))
    if project.tests:
        yield from ("  - files:", "      source:", yaml_list_lines(project.tests, 8).rstrip())
        yield from ("    requirements:", "      run:", yaml_list_lines(project.test_requirements, 8).rstrip())
        yield from ("    script:", f"      - pytest {project.tests[0]}")


def _meta_yaml_lines(project: PythonProject) -> Iterator[str]:
    yield f'{{% set name = "{project.name}" %}}'
    yield f'{{% set version = "{project.version}" %}}'
    if project.noarch and project.python_min:
        yield f'{{% set python_min = "{project.python_min}" %}}'
    yield from ("", "package:", "  name: {{ name }}", '  version: "{{ version }}"', "")
    yield from _source_and_build_lines(project, "{{ %s }}")
    for python in _skipped_pythons(project):
        yield f"  skip: true  # [py{_selector_bound(python)}]"
    if project.entry_points:
        yield from ("  entry_points:", yaml_list_lines(project.entry_points, 4).rstrip())
    yield from ("", "requirements:", *_requirement_lines(project, "{{ %s }}"), "")
    yield from ("test:", "  imports:", yaml_list_lines(project.imports, 4).rstrip(), "  commands:", "    - pip check")
    yield from (f"    - {name} --help" for name in project.programs)
    if project.tests:
        yield f"    - pytest {project.tests[0]}"
        yield from ("  source_files:", yaml_list_lines((name.rstrip("/") for name in project.tests), 4).rstrip())
    yield from ("  requires:", "    - pip")
    if project.tests:
        yield yaml_list_lines(project.test_requirements, 4).rstrip()
    if project.noarch:
        yield "    - python {{ python_min }}"


def _source_and_build_lines(project: PythonProject, braces: str) -> Iterator[str]:
    """Yield the lines of the source and of the build section; ``braces`` are those of the format's expressions."""
    name, version, first = (braces % expression for expression in ("name", "version", "name[0]"))
    url = project.url.replace(f"/source/{project.name[0]}/{project.name}/", f"/source/{first}/{name}/")
    yield from ("source:", f"  url: {url.replace('{version}', version)}", f"  sha256: {project.sha256}")
    yield from ("", "build:", "  number: 0", *(("  noarch: python",) if project.noarch else ()))
    install = _INSTALL.format(python=braces % "PYTHON")
    if "rust" in project.languages:
        yield from ("  script:", f"    - {_BUNDLE}", f"    - {install}")
    else:
        yield f"  script: {install}"


def _requirement_lines(project: PythonProject, braces: str) -> Iterator[str]:
    minimum = braces % "python_min"
    v1 = braces.startswith("$")
    if not project.noarch:
        compilers = (f"compiler('{language}')" for language in project.languages or ("c",))
        yield from ("  build:", *(f"    - {braces % function}" for function in ("stdlib('c')", *compilers)))
        yield from ("    - cargo-bundle-licenses",) if "rust" in project.languages else ()
        yield from (f"    - {tool}" for tool in project.tools)
    yield "  host:"
    yield f"    - python {minimum}{'.*' if v1 else ''}" if project.noarch else "    - python"
    yield yaml_list_lines(project.host, 4).rstrip()
    yield "  run:"
    bounds = "".join(f",{bound}" for bound in project.python_bounds)
    yield f"    - python >={minimum}{bounds}" if project.noarch else "    - python"
    if project.run:
        yield yaml_list_lines(project.run, 4).rstrip()
    for requirement in project.conditional:
        yield from _conditional_lines(requirement, v1=v1)
    yield from (f"    {yaml_comment(text)}" for text in project.left_out)


def _skipped_pythons(project: PythonProject) -> list[str]:
    """Return the bounds of the Pythons for which a compiled project is not built: the variants say for which it is."""
    if project.noarch:
        return []
    opposites = {"<": ">=", "<=": ">", "!=": ""}
    found = [f"<{project.python_min}"] if project.python_min else []
    for bound in project.python_bounds:
        operator = bound.rstrip("0123456789.*")
        found.append(f"{opposites[operator]}{bound.removeprefix(operator)}")
    return found


def _selector_bound(bound: str) -> str:
    """Return a bound of Python as a selector compares it: ``<3.11`` as ``<311``."""
    match = re.match(r"(\D*)3\.(\d+)", bound)
    return f"{match[1] or '=='}3{match[2]}" if match else bound


def _conditional_lines(requirement: ConditionalRequirement, *, v1: bool) -> Iterator[str]:
    item = yaml_list_lines([requirement.spec], 4).rstrip()
    platforms = " or ".join(requirement.platforms)
    if v1:
        python = f'match(python, "{requirement.python}")' if requirement.python else ""
        parts = [f"({platforms})" if python and " or " in platforms else platforms, python]
        yield f"    - if: {' and '.join(filter(None, parts))}"
        yield f"      then: {item.strip().removeprefix('- ')}"
    else:
        python = f"py{_selector_bound(requirement.python)}" if requirement.python else ""
        parts = [f"({platforms})" if python and " or " in platforms else platforms, python]
        yield f"{item}  # [{' and '.join(filter(None, parts))}]"


def _about_lines(project: PythonProject, format_: RecipeFormat) -> Iterator[str]:
    values = {**project.about}
    values["homepage"] = values.get("homepage") or f"{ADDRESS}/project/{project.name}/"
    values["summary"] = values.get("summary") or project.name
    values["license"] = values.get("license") or "LicenseRef-unknown"
    files = (*project.license_files, *((_CRATES,) if "rust" in project.languages else ()))
    for key, names in _ABOUT.items():
        if values.get(key):
            yield f"  {names[format_ is RecipeFormat.V0]}: {yaml_scalar_of_prose(values[key])}"
        if key == "license":
            yield from ("  license_file:", yaml_list_lines(files, 4).rstrip())


SCRIPT, REQUIREMENTS, OUTPUTS, FORGE, IGNORED = (
    "build-locally.py",
    "requirements/kiln.txt",
    "outputs.txt",
    "conda-forge.yml",
    ".gitignore",
)
SCRIPT_FILE = Path(__file__).with_name("build-locally.py.txt")
_TOOL = "conda_build_tool: rattler-build\n"
_EXECUTABLE = 0o755
IGNORED_TEXT = "/.venv/\nbuild_artifacts/\n"
_OUTPUTS_HEAD = (
    "# The packages that this feedstock may publish: names or globs, one a line (kiln publish refuses others).\n"
)
_REQUIREMENTS_HEAD = "# kiln, as pip installs it for build-locally.py; a change here makes .venv anew.\n"
# The image is conda-forge's default; a pinning's docker_image takes its place.
_FORGE_TEXT = """\
# Settings of this feedstock; what is not named here has conda-forge's default.
{tool}docker:
  fallback_image: quay.io/condaforge/linux-anvil-x86_64:alma9
github:
  branch_name: main
  tooling_branch_name: main
provider:
  linux_64: github_actions
  osx_64: null
  win_64: null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """Files to add to a feedstock by their paths, and the files that stay as they are."""

    added: Mapping[str, str]
    kept: tuple[str, ...] = ()


def require_valid_package_name(name: str) -> str:
    """Return a package's name.

    Raises:
        UsageError: conda does not accept it.
    """
    if reason := patterns.invalid_name_reason(name, "package name"):
        hint = f"kiln init {name.lower()}" if not patterns.invalid_name_reason(name.lower(), "package name") else ""
        raise UsageError(f"{name!r} cannot be the name of a package", why=reason, hint=hint)
    return name


def require_valid_version(version: str) -> str:
    """Return a version.

    Raises:
        UsageError: conda does not accept it.
    """
    reason = patterns.invalid_name_reason(version, "version")
    try:
        Version(version)
    except ValueError as error:
        reason = reason or str(error)
    if reason:
        raise UsageError(f"{version!r} cannot be a version", why=reason, hint="--version 0.1.0")
    return version


def new_feedstock_files(folder: Path, recipe: NewRecipe, requirement: KilnRequirement) -> PlannedFiles:
    """Return the files of a new feedstock; those that a killed command has left, which are the same, are kept.

    Raises:
        NotWritable: some of them exist, with other contents.
    """
    tool = _TOOL if recipe.format is RecipeFormat.V1 else ""
    added = {
        FORGE: _FORGE_TEXT.format(tool=tool),
        IGNORED: IGNORED_TEXT,
        OUTPUTS: _outputs_file_text([recipe.name]),
        **_build_script_files(requirement),
        **recipe.files,
    }
    recipes = [form.recipe_path for form in RecipeFormat]
    existing = [name for name in dict.fromkeys([*added, *recipes]) if os.path.lexists(folder / name)]
    kept = tuple(name for name in existing if _has_text(folder / name, added.get(name)))
    if len(kept) < len(existing):
        raise NotWritable(
            "kiln init overwrites nothing, and these files exist",
            at=Place(file=str(folder)),
            why=", ".join(name for name in existing if name not in kept),
            hint=f"name another folder with --folder, or add what is missing: kiln -C {folder} init",
        )
    return PlannedFiles(added={name: text for name, text in added.items() if name not in kept}, kept=kept)


def _has_text(path: Path, text: str | None) -> bool:
    data = (text or "").encode()
    with contextlib.suppress(OSError, ValueError):
        return text is not None and base_files.read_regular_file(path, len(data)) == data
    return False


def missing_feedstock_files(feedstock: Feedstock, requirement: KilnRequirement) -> PlannedFiles:
    """Return the files that a feedstock lacks; conda-smithy's build-locally.py needs no requirement."""
    tool = "" if feedstock.meta.is_file() else _TOOL
    texts = {FORGE: _FORGE_TEXT.format(tool=tool), IGNORED: IGNORED_TEXT, **_build_script_files(requirement)}
    if (feedstock.root / SCRIPT).exists() and not rerender.has_kiln_build_script(feedstock):
        del texts[REQUIREMENTS]
    existing = tuple(name for name in texts if os.path.lexists(feedstock.root / name))
    return PlannedFiles(added={name: text for name, text in texts.items() if name not in existing}, kept=existing)


def planned_outputs_file(feedstock: Feedstock, packages: Iterable[str]) -> PlannedFiles:
    """Return the list of the packages that a feedstock may publish, if it has none."""
    if os.path.lexists(feedstock.root / OUTPUTS):
        return PlannedFiles(added={}, kept=(OUTPUTS,))
    return PlannedFiles(added={OUTPUTS: _outputs_file_text(packages)})


def _outputs_file_text(packages: Iterable[str]) -> str:
    return _OUTPUTS_HEAD + "".join(f"{name}\n" for name in sorted(set(packages)))


def write_planned_files(folder: Path, planned: PlannedFiles) -> None:
    """Write the planned files; a folder that does not exist appears when it is complete.

    Raises:
        NotWritable: the path of a file contains a link.
        DiskFull: the disk is full.
    """
    if folder.exists():
        for name in planned.added:
            base_files.safe_path_inside(folder / name, folder)
        _write_into_folder(folder, planned)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with base_files.full_disk_as_kiln_error(folder.parent), base_files.held_folder_lock(folder.parent):
        for leftover in base_files.part_files_beside(folder):  # of a killed command
            base_files.remove(leftover)
        with base_files.atomic_replacement(folder) as part:
            part.mkdir()
            _write_into_folder(part, planned)


def _write_into_folder(folder: Path, planned: PlannedFiles) -> None:
    for name, text in planned.added.items():
        executable = name == SCRIPT or name.endswith(".sh")
        base_files.write_text(folder / name, text, mode=_EXECUTABLE if executable else None)


def _build_script_files(requirement: KilnRequirement) -> dict[str, str]:
    return {SCRIPT: SCRIPT_FILE.read_text(encoding="utf-8"), REQUIREMENTS: f"{_REQUIREMENTS_HEAD}{requirement.line}\n"}


NAME = "kiln"
_SSH = re.compile(r"(?P<user>[\w.-]+@)?(?P<host>[\w.-]+):(?P<path>[^/:].*)")
_URL = re.compile(r"[a-z+]+://")
_PATH_LIKE = re.compile(r"\.{0,2}/|file:")
_COMMIT = re.compile(r"[^@]+@[^@]+")  # the last part of a repository's path
_HINT = "--kiln 'kiln @ git+https://HOST/REPOSITORY@COMMIT', or a wheel's path"  # another project has the name on PyPI


@dataclass(frozen=True, slots=True, kw_only=True)
class KilnRequirement:
    """A requirement line for pip; ``note`` says where it does not work."""

    line: str
    note: str = ""


def parse_given_requirement(text: str) -> KilnRequirement:
    """Return a requirement that the user gives, pinned: a version, a URL, a wheel or a folder.

    Raises:
        UsageError: it is not a requirement on kiln, or leaves the version open.
    """
    if _PATH_LIKE.match(text) or (text.endswith(".whl") and "://" not in text):
        return _requirement_of_local_file(_existing_file_url(text))
    try:
        requirement = Requirement(f"{NAME} @ {text}" if _URL.match(text) else text)
    except InvalidRequirement as error:
        raise UsageError(f"--kiln {text!r} is not a requirement", why=str(error).splitlines()[0], hint=_HINT) from error
    if requirement.name != NAME:
        raise UsageError(f"--kiln names {requirement.name}", why=f"the project is called {NAME}", hint=_HINT)
    if requirement.url is not None:
        return (
            _requirement_of_local_file(requirement.url)
            if requirement.url.startswith("file:")
            else _requirement_of_url(requirement.url)
        )
    operators = [item.operator for item in requirement.specifier]
    if operators not in (["=="], ["==="]) or "*" in str(requirement.specifier):
        raise UsageError(f"--kiln {text!r} leaves the version open", why="the next release may differ", hint=_HINT)
    return KilnRequirement(line=str(requirement))


def _existing_file_url(text: str) -> str:
    """Return the URL of a file or a folder from its path or URL."""
    try:
        parts = urlsplit(text if text.startswith("file:") else Path(text).absolute().as_uri())
    except ValueError as error:
        raise UsageError(f"--kiln {text!r} is not a URL", why=str(error), hint=_HINT) from error
    path = base_files.path_of_file_url(parts.path).absolute()
    if parts.netloc not in {"", "localhost"} or not path.exists():
        raise UsageError(f"--kiln: {text if parts.netloc else path} does not exist", hint=_HINT)
    return path.as_uri() + (f"#{parts.fragment}" if parts.fragment else "")


def _requirement_of_url(url: str) -> KilnRequirement:
    """Return the requirement of an address, which names a wheel or a commit."""
    path = urlsplit(url).path
    if "+" in url.partition("://")[0] and not _COMMIT.fullmatch(path.rpartition("/")[2]):
        hint = _HINT if "@" in path else f"--kiln 'kiln @ {_url_without_password(url)}@COMMIT'"
        raise UsageError("--kiln names no commit of the repository", why="its next commit may differ", hint=hint)
    return KilnRequirement(line=f"{NAME} @ {_url_without_password(url)}")


def requirement_of_running_kiln(*, env: Mapping[str, str]) -> KilnRequirement:
    """Return the requirement of the kiln that runs now, from pip's record of its origin or from its git clone.

    Raises:
        UsageError: its origin is unknown.
    """
    record = _installed_version_and_origin()
    if record is None:
        return _requirement_of_git_clone(env)
    version, origin = record
    if origin is None:
        return KilnRequirement(line=f"{NAME}=={version}")
    return requirement_of_pip_origin(origin)


def requirement_of_pip_origin(origin: Mapping[str, Any]) -> KilnRequirement:
    """Return the requirement of a record of PEP 610."""
    url, folder = str(origin.get("url", "")), origin.get("subdirectory")
    fragment = [f"subdirectory={folder}"] if folder else []
    if vcs := origin.get("vcs_info"):
        tail = f"#{'&'.join(fragment)}" if fragment else ""
        return KilnRequirement(line=f"{NAME} @ {vcs['vcs']}+{_url_without_password(url)}@{vcs['commit_id']}{tail}")
    archive = origin.get("archive_info") or {}
    hashes = archive.get("hashes") or dict([str(archive.get("hash", "")).split("=", 1)] if archive.get("hash") else [])
    fragment = [f"sha256={hashes['sha256']}", *fragment] if "sha256" in hashes else fragment
    tail = f"#{'&'.join(fragment)}" if fragment else ""
    if url.startswith("file:"):
        return _requirement_of_local_file(f"{url}{tail}")
    return KilnRequirement(line=f"{NAME} @ {_url_without_password(url)}{tail}")


def _requirement_of_local_file(url: str) -> KilnRequirement:
    note = "requirements/kiln.txt names a file of this computer; give a URL or a version with --kiln for CI and others"
    return KilnRequirement(line=f"{NAME} @ {url}", note=note)


def _installed_version_and_origin() -> tuple[str, dict[str, Any] | None] | None:
    """Return the version and the origin of the installed kiln; None when pip has not installed the running one."""
    try:
        installed = distribution(NAME)
    except PackageNotFoundError:
        return None
    if Path(str(installed.locate_file(NAME))).resolve() != (PACKAGE_ROOT / "kiln").resolve():
        return None
    text = installed.read_text("direct_url.json")
    return installed.version, json.loads(text) if text else None


def _requirement_of_git_clone(env: Mapping[str, str]) -> KilnRequirement:
    """Return the requirement of the commit of the clone that runs, at the repository that it was cloned from."""
    commit, _ = (
        git.checkout_commit(PACKAGE_ROOT, (PACKAGE_ROOT / NAME,), env=env)
        if (PACKAGE_ROOT / ".git").exists()
        else ("", "")
    )
    if not commit:
        raise UsageError(
            "the origin of this kiln is unknown",
            why=f"pip has not installed {PACKAGE_ROOT / 'kiln'}, and it is not in a git clone",
            hint=_HINT,
        )
    remote = git.output_or_empty(PACKAGE_ROOT, "remote", "get-url", "origin", env=env).strip()
    if not remote or (url := url_of_git_remote(remote)) is None:
        return _requirement_of_local_file(PACKAGE_ROOT.as_uri())
    dirty = git.is_dirty(commit)
    note = "this clone has changes that are not committed; the feedstock gets its last commit" if dirty else ""
    return KilnRequirement(line=f"{NAME} @ git+{url}@{git.base_commit(commit)}", note=note)


def _url_without_password(url: str) -> str:
    """Return a URL without the password in it; the user of ssh belongs to the address."""
    head, mark, rest = url.partition("://")
    if "ssh" not in head:
        vcs, plus, address = url.rpartition("+") if "+" in head else ("", "", url)
        return f"{vcs}{plus}{http.url_without_credentials(address)}"
    return f"{head}{mark}" + re.sub(r"^([^/@:]*):[^/@]*@", r"\1@", rest)


def url_of_git_remote(remote: str) -> str | None:
    """Return the URL of a git remote, without credentials; None for a folder."""
    if "://" in remote:
        return None if remote.startswith("file:") else _url_without_password(remote)
    match = _SSH.fullmatch(remote)
    return f"ssh://{match['user'] or ''}{match['host']}/{match['path']}" if match else None
