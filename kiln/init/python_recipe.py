"""The texts of a recipe for a project on PyPI, in both formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.init.pypi import ADDRESS, PythonProject
from kiln.init.safe_yaml_text import RecipeFormat, yaml_comment, yaml_list_lines, yaml_scalar, yaml_scalar_of_prose
from kiln.init.starter_recipe import NewRecipe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_INSTALL = "{python} -m pip install . -vv --no-deps --no-build-isolation"
_ABOUT_V1 = {"homepage": "homepage", "summary": "summary", "license": "license", "documentation": "documentation"}
_ABOUT_V0 = {"homepage": "home", "summary": "summary", "license": "license", "documentation": "doc_url"}


def python_recipe(project: PythonProject, format_: RecipeFormat, maintainers: Sequence[str]) -> NewRecipe:
    """Return the recipe of a Python project."""
    lines = _recipe_yaml_lines(project) if format_ is RecipeFormat.V1 else _meta_yaml_lines(project)
    end = ("", "about:", *_about_lines(project, format_), "", "extra:", "  recipe-maintainers:")
    text = "\n".join((*lines, *end, yaml_list_lines(maintainers, 4)))
    return NewRecipe(name=project.name, format=format_, files={format_.recipe_path: text}, notes=project.notes)


def _recipe_yaml_lines(project: PythonProject) -> Iterator[str]:
    yield from ("schema_version: 1", "", "context:", f"  name: {yaml_scalar(project.name)}")
    yield f'  version: "{project.version}"'
    if project.python_min:
        yield f'  python_min: "{project.python_min}"'
    yield from ("", "package:", "  name: ${{ name }}", "  version: ${{ version }}", "")
    yield from _source_and_build_lines(project, "${{ %s }}")
    if project.entry_points:
        yield from ("  python:", "    entry_points:", yaml_list_lines(project.entry_points, 6).rstrip())
    yield from ("", "requirements:", *_requirement_lines(project, "${{ %s }}"), "")
    yield from ("tests:", "  - python:", "      imports:", yaml_list_lines(project.imports, 8).rstrip())
    if project.noarch:
        yield from ("      python_version:", "        - ${{ python_min }}.*", '        - "*"')


def _meta_yaml_lines(project: PythonProject) -> Iterator[str]:
    yield f'{{% set name = "{project.name}" %}}'
    yield f'{{% set version = "{project.version}" %}}'
    if project.python_min:
        yield f'{{% set python_min = "{project.python_min}" %}}'
    yield from ("", "package:", "  name: {{ name }}", '  version: "{{ version }}"', "")
    yield from _source_and_build_lines(project, "{{ %s }}")
    if project.entry_points:
        yield from ("  entry_points:", yaml_list_lines(project.entry_points, 4).rstrip())
    yield from ("", "requirements:", *_requirement_lines(project, "{{ %s }}"), "")
    yield from ("test:", "  imports:", yaml_list_lines(project.imports, 4).rstrip(), "  commands:", "    - pip check")
    yield from ("  requires:", "    - pip")
    if project.noarch:
        yield "    - python {{ python_min }}"


def _source_and_build_lines(project: PythonProject, braces: str) -> Iterator[str]:
    """Yield the lines of the source and of the build section; ``braces`` are those of the format's expressions."""
    name, version, first = (braces % expression for expression in ("name", "version", "name[0]"))
    url = project.url.replace(f"/source/{project.name[0]}/{project.name}/", f"/source/{first}/{name}/")
    yield from ("source:", f"  url: {url.replace('{version}', version)}", f"  sha256: {project.sha256}")
    yield from ("", "build:", "  number: 0", *(("  noarch: python",) if project.noarch else ()))
    yield f"  script: {_INSTALL.format(python=braces % 'PYTHON')}"


def _requirement_lines(project: PythonProject, braces: str) -> Iterator[str]:
    """Yield the lines of the requirements; ``braces`` as above."""
    minimum = braces % "python_min"
    if not project.noarch:
        yield from ("  build:", *(f"    - {braces % function}" for function in ("stdlib('c')", "compiler('c')")))
    v1 = braces.startswith("$")
    yield "  host:"
    yield f"    - python {minimum}{'.*' if v1 else ''}" if project.noarch else "    - python"
    yield yaml_list_lines(project.host, 4).rstrip()
    yield "  run:"
    yield f"    - python >={minimum}" if project.noarch else "    - python"
    if project.run:
        yield yaml_list_lines(project.run, 4).rstrip()
    yield from (f"    {yaml_comment(text)}" for text in project.left_out)


def _about_lines(project: PythonProject, format_: RecipeFormat) -> Iterator[str]:
    values = {"homepage": f"{ADDRESS}/project/{project.name}/", "summary": project.name, **project.about}
    values.setdefault("license", "LicenseRef-unknown")
    names = _ABOUT_V1 if format_ is RecipeFormat.V1 else _ABOUT_V0
    for key in ("homepage", "summary", "license"):
        yield f"  {names[key]}: {yaml_scalar_of_prose(values[key])}"
    yield from ("  license_file:", yaml_list_lines(project.license_files, 4).rstrip())
    if values.get("documentation"):
        yield f"  {names['documentation']}: {yaml_scalar_of_prose(values['documentation'])}"
