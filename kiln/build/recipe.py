"""Write a rendered output as a recipe of rattler-build with nothing left to evaluate."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from kiln.build.engine_settings import (
    binary_settings,
    ignored_run_exports,
    one_environment,
    packing_settings,
    python_settings,
)
from kiln.build.solved_pins import engine_requirement
from kiln.matchspec import strict

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping
    from pathlib import Path

    from kiln.model.rendered import Output, OutputTests, Requirements, Script, Source

RUN_EXPORTS = {
    "weak": "weak",
    "strong": "strong",
    "noarch": "noarch",
    "weak_constrains": "weak_constraints",
    "strong_constrains": "strong_constraints",
}


AS_IT_IS: Mapping[str, Any] = {
    "dynamic_linking": {"binary_relocation": False},
    "prefix_detection": {"ignore_binary_files": True},
    "python": {"skip_pyc_compilation": ["**"]},
}


def concrete(
    output: Output,
    *,
    recipe_folder: Path,
    environment: Mapping[str, str],
    prologue: Iterable[str] = (),
    epilogue: Iterable[str] = (),
    sources: Iterable[Source] = (),
    as_it_is: bool = False,
    without: Iterable[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the recipe of one output; ``without`` names requirement sections to omit.

    ``prologue`` and ``epilogue`` are shell lines that run before and after the output's script. ``as_it_is`` packs
    the installed files unchanged: no search path is rewritten, no binary searched for the prefix, no module compiled.
    """
    left_out = set(without)
    script = [
        *exports({**environment, **literal_variables(output.script_env)}),
        *prologue,
        *script_lines(output.script, recipe_folder, output.settings.interpreter),
        *epilogue,
    ]
    source_entries = [source(entry, recipe_folder) for entry in sources]
    return {
        "package": {"name": output.name, "version": output.version},
        **({"source": source_entries} if source_entries else {}),
        "build": _build(output, script, as_it_is=as_it_is),
        "requirements": {
            section: specs for section, specs in _requirements(output, left_out).items() if section not in left_out
        },
        "tests": _tests(output.tests),
        "about": license_files(output.about),
        "extra": dict(extra or {}),
    }


def compiling(
    name: str,
    script: Iterable[str],
    *,
    requirements: Requirements,
    sources: Iterable[Source],
    recipe_folder: Path,
    script_env: Iterable[str] = (),
    merged: bool = False,
) -> dict[str, Any]:
    """Return the recipe of the compile step: a package without content, run for the files that its script leaves.

    ``merged`` is ``merge_build_host``: the build requirements are installed into the host prefix.
    """
    needs = one_environment(requirements, merged=merged)
    return {
        "package": {"name": name, "version": "0"},
        "source": [source(entry, recipe_folder) for entry in sources],
        "build": {
            "number": 0,
            "string": "compile",
            "script": {"content": list(script), **passed(script_env)},
            "files": [".kiln-none"],
            **({"merge_build_and_host_envs": True} if merged else {}),
            **AS_IT_IS,
        },
        "requirements": {
            "build": [strict(spec) for spec in needs.build],
            "host": [strict(spec) for spec in needs.host],
        },
    }


def source(definition: Source, recipe_folder: Path) -> dict[str, Any]:
    """Return an entry of ``source`` in rattler-build's terms; paths are relative to the recipe."""
    entry: dict[str, Any] = {}
    if definition.url:
        entry["url"] = list(definition.url)
    elif definition.git_url is not None:
        entry["git"] = git_address(definition.git_url, recipe_folder)
    elif definition.path is not None:
        entry |= local_source((recipe_folder / definition.path).resolve())
    fields = {
        "rev": definition.git_rev,
        "depth": definition.git_depth,
        "sha256": definition.sha256,
        "md5": definition.md5,
        "file_name": definition.file_name,
        "target_directory": definition.folder,
    }
    entry |= {key: value for key, value in fields.items() if value is not None}
    if definition.patches:
        entry["patches"] = [str(recipe_folder / patch) for patch in definition.patches]
    return entry


def local_source(path: Path) -> dict[str, Any]:
    """Return the entry of a local source; a file is copied as it is, where rattler-build would unpack an archive."""
    name = {"file_name": path.name} if path.is_file() else {}
    return {"path": str(path), "use_gitignore": False, **name}


def git_address(address: str, recipe_folder: Path) -> str:
    """Return the address of a repository; one that begins with a dot is relative to the recipe, as in conda-build."""
    return str((recipe_folder / address).resolve()) if address.startswith(".") else address


def exports(environment: Mapping[str, str]) -> list[str]:
    """Return the shell lines that set variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def literal_variables(script_env: Iterable[str]) -> dict[str, str]:
    """Return the variables of ``build/script_env`` whose values are in the recipe."""
    pairs = (entry.split("=", 1) for entry in script_env if "=" in entry)
    return {name: value for name, value in pairs if name.isidentifier()}


def caller_names(script_env: Iterable[str]) -> tuple[str, ...]:
    """Return the variables of ``build/script_env`` whose values are the caller's."""
    return tuple(sorted({entry for entry in script_env if entry.isidentifier()}))


def passed(script_env: Iterable[str]) -> dict[str, list[str]]:
    """Return the entry that passes the caller's variables to a script: as secrets, since tokens are among them."""
    variables = caller_names(script_env)
    return {"secrets": list(variables)} if variables else {}


def script_lines(script: Script, recipe_folder: Path, interpreter: str | None = None) -> tuple[str, ...]:
    """Return the shell lines that run a script: a file of the recipe by its kind, or the lines themselves.

    ``interpreter`` is a program with its arguments, apart by blanks, as conda-build has it.
    """
    if script.file is None:
        return script.lines
    program = shlex.join(interpreter.split()) if interpreter else "python" if script.file.endswith(".py") else "bash -e"
    return (f"{program} {shlex.quote(str(recipe_folder / script.file))}",)


def _build(output: Output, script: list[str], *, as_it_is: bool) -> dict[str, Any]:
    build: dict[str, Any] = {
        "number": output.build_number,
        "string": output.build_string,
        "script": {"content": script, **passed(output.script_env)},
        **(AS_IT_IS if as_it_is else {**binary_settings(output), "python": python_settings(output.settings.python)}),
        **packing_settings(output),
    }
    build["python"] = {**build["python"], "entry_points": list(output.entry_points)}
    if output.noarch:
        build["noarch"] = output.noarch
    return build


def _requirements(output: Output, left_out: Container[str]) -> dict[str, Any]:
    merged = output.settings.merge_build_host and "build" not in left_out
    needs = one_environment(output.requirements, merged=merged)
    pins = {(field, index): pin for field, index, pin in output.pins}

    def specs(field: str, texts: Iterable[str]) -> list[str]:
        places = ((pins.get((field, index)), text) for index, text in enumerate(texts))
        return [engine_requirement(pin) if pin else strict(text) for pin, text in places]

    ignored = ignored_run_exports(output.settings)
    return {
        "build": specs("build", needs.build),
        "host": specs("host" if needs is output.requirements else "build", needs.host),
        "run": specs("run", needs.run),
        "run_constraints": specs("run_constrained", needs.run_constrained),
        "run_exports": {
            RUN_EXPORTS[kind]: specs(f"run_exports/{kind}", texts) for kind, texts in output.run_exports.items()
        },
        **({"ignore_run_exports": ignored} if ignored else {}),
    }


def _tests(tests: OutputTests) -> list[dict[str, Any]]:
    tests_of_recipe: list[dict[str, Any]] = []
    if tests.imports:
        tests_of_recipe.append({"python": {"imports": list(tests.imports), "pip_check": False}})
    if tests.commands:
        tests_of_recipe.append(
            {
                "script": list(tests.commands),
                "requirements": {"run": [strict(spec) for spec in tests.requires]},
                "files": {"recipe": list(tests.files), "source": list(tests.source_files)},
            }
        )
    return tests_of_recipe


def license_files(about: Mapping[str, str | tuple[str, ...]]) -> dict[str, Any]:
    """Return the one part of ``about`` that the engine needs; the others are added to the package afterwards.

    It refuses many values that conda-build takes, such as two addresses of documentation.
    """
    names = about.get("license_file", ())
    return {"license_file": [names] if isinstance(names, str) else list(names)} if names else {}
