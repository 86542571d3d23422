"""A rendered output as a recipe of rattler-build with nothing left to evaluate."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kiln.base import http
from kiln.build.engine import source_plan
from kiln.build.engine.dependencies import pin_placeholder
from kiln.build.engine.scripts import export_lines, lines_without_shell_trace, recipe_license_path, script_run_lines
from kiln.conda.specs import package_name, strict_rattler_spec
from kiln.recipe.rendered import RUN_EXPORTS, TEST_MODULES, Output, OutputTest, Script, Source, Staging
from kiln.recipe.variants.files import cuda_version_of_config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from kiln.build.steps import RunExport
    from kiln.recipe.rendered import BuildSettings, PrefixSettings, RenderedConfig, Requirements


def linking_and_prefix_settings(output: Output) -> dict[str, Any]:
    """Return the settings for binaries with which the engine does what conda-build does, unless the recipe differs."""
    relocation = output.binary_relocation
    return {
        "dynamic_linking": {
            "binary_relocation": list(relocation) if isinstance(relocation, tuple) else relocation,
            **_dynamic_linking_settings(output),
        },
        "prefix_detection": {
            "ignore_binary_files": list(output.settings.prefix.ignore_binary)
            or not output.detect_binary_files_with_prefix,
            **_prefix_detection_settings(output.settings.prefix),
        },
    }


def _dynamic_linking_settings(output: Output) -> dict[str, Any]:
    """Return the settings of linking.

    conda-build removes search paths outside of the prefix from the binaries that it changes, even those that the
    recipe allows (mk_relative_linux in conda_build/post.py); the engine would keep the allowed ones.
    """
    settings, changed = output.settings.linking, output.binary_relocation is not False
    allowed = () if changed and not output.settings.by_engine else settings.rpath_allowlist
    return _without_defaults(
        rpaths=list(settings.rpaths),
        missing_dso_allowlist=_allowed_missing_libraries(output),
        rpath_allowlist=list(allowed),
        overlinking_behavior=_linking_error_behavior(error=settings.error_overlinking),
        overdepending_behavior=_linking_error_behavior(error=settings.error_overdepending),
    )


def _allowed_missing_libraries(output: Output) -> list[str]:
    """Return the globs of libraries that may be missing.

    conda-build matches a library of the system as ``$RPATH/NAME``, the engine as the bare name.
    """
    globs = output.settings.linking.missing_dso_allowlist
    names = [] if output.settings.by_engine else [name for glob in globs if (name := _library_name_under_rpath(glob))]
    return list(dict.fromkeys((*globs, *names)))


def _library_name_under_rpath(glob: str) -> str:
    folder, _, name = glob.rpartition("/")
    return name if folder and fnmatch.fnmatchcase("$RPATH", folder) else ""


def _linking_error_behavior(*, error: bool | None) -> str | None:
    return None if error is None else "error" if error else "ignore"


def _prefix_detection_settings(settings: PrefixSettings) -> dict[str, Any]:
    ignored = settings.ignore
    return _without_defaults(
        force_file_type=_without_defaults(text=list(settings.text), binary=list(settings.binary)),
        ignore=list(ignored) if isinstance(ignored, tuple) else ignored,
    )


def python_package_settings(output: Output) -> dict[str, Any]:
    """Return the settings of Python packages; the engine takes a folder of modules from a package ``python`` alone."""
    settings = output.settings.python
    takes_folder = output.name == "python" or output.settings.by_engine
    return _without_defaults(
        skip_pyc_compilation=list(settings.skip_pyc),
        version_independent=settings.version_independent,
        site_packages_path=settings.site_packages_path if takes_folder else None,
        use_python_app_entrypoint=settings.app_entry_points,
    )


def file_selection_settings(output: Output) -> dict[str, Any]:
    """Return the settings of an output's files and environments."""
    settings = output.settings
    files: Any = list(output.files)
    if settings.excluded_files:
        files = _without_defaults(include=files, exclude=list(settings.excluded_files))
    return _without_defaults(
        files=files,
        always_include_files=list(settings.always_include_files),
        always_copy_files=list(settings.always_copy_files),
        post_process=[dict(entry) for entry in settings.post_process],
        merge_build_and_host_envs=settings.merge_build_host,
    )


def requirements_merged_into_host(requirements: Requirements, settings: BuildSettings) -> Requirements:
    """Return the requirements with those of a merged environment in ``host``, where all their run exports count.

    A merged environment with requirements in ``host`` is refused: there the engine drops even the strong exports of
    ``build``, which conda-build takes (conda_build/render.py, add_upstream_pins).
    """
    if not settings.merge_build_host or settings.by_engine or requirements.host:
        return requirements
    return replace(requirements, build=(), host=requirements.build)


def ignored_run_exports(settings: BuildSettings) -> dict[str, list[str]]:
    """Return the run exports that do not count; a package for all Pythons does not depend on the one in ``host``.

    Source: get_upstream_pins in conda_build/render.py.
    """
    independent = ["python"] if settings.python.version_independent else []
    return _without_defaults(
        by_name=[*settings.ignore_run_exports, *independent],
        from_package=[*settings.ignore_run_exports_from, *independent],
    )


def _without_defaults(**values: Any) -> dict[str, Any]:
    """Return the values that are neither empty nor the engine's defaults."""
    return {key: value for key, value in values.items() if value not in (None, False, [], {})}


def missing_index_json_entries(output: Output) -> dict[str, Any]:
    """Return the entries of index.json that the engine does not write."""
    about = {key: text for key in ("license", "license_family") if isinstance(text := output.about.get(key), str)}
    features = {"features": output.settings.features, "track_features": output.track_features}
    texts = {key: " ".join(words) for key, words in features.items() if words}
    values: dict[str, Any] = {key: dict(value) for key, value in output.settings.feature_values.items()}
    if folder := output.settings.python.site_packages_path:
        values["python_site_packages_path"] = folder
    return {**{key: value for key, value in about.items() if value}, **texts, **values}


ABOUT = {"home": "homepage", "dev_url": "repository", "doc_url": "documentation"}  # conda-build's key: rattler-build's

AS_IT_IS: Mapping[str, Any] = {
    "dynamic_linking": {"binary_relocation": False},
    "prefix_detection": {"ignore_binary_files": True},
}


def output_recipe(
    output: Output,
    *,
    recipe_folder: Path,
    environment: Mapping[str, str],
    prologue: Iterable[str] = (),
    epilogue: Iterable[str] = (),
    sources: Iterable[Source] = (),
    as_it_is: bool = False,
    extra: Mapping[str, Any] | None = None,
    inherited: Iterable[RunExport] = (),
) -> dict[str, Any]:
    """Return the recipe of one output.

    ``inherited`` are run exports of the requirements of a build step that the output shares.

    ``prologue`` and ``epilogue`` are shell lines that run before and after the output's script. ``as_it_is`` packs
    the installed files unchanged: no search path is rewritten, no binary searched for the prefix, and the build section
    omitted, since nothing is compiled.
    """
    script = [
        *export_lines({**environment, **literal_script_variables(output.script_env)}),
        *lines_without_shell_trace(prologue),
        *script_run_lines(output.script, recipe_folder),
        *lines_without_shell_trace(epilogue),
    ]
    source_entries = [source_entry(entry, recipe_folder) for entry in sources if not entry.linked]
    requirements = _requirements_section(output, as_it_is=as_it_is)
    requirements["run"] += [
        strict_rattler_spec(entry.spec) for entry in inherited if not _is_ignored_run_export(entry, output.settings)
    ]
    return {
        **_script_context_section(output.script),
        "package": {"name": output.name, "version": output.version},
        **({"source": source_entries} if source_entries else {}),
        "build": _build_section(output, script, as_it_is=as_it_is),
        "requirements": requirements,
        "tests": [entry for test in output.tests if test.by_engine for entry in _test_entries(test)],
        "about": _about_section(output, recipe_folder),
        "extra": dict(extra or {}),
    }


def compile_step_recipe(name: str, staging: Staging, script: Iterable[str], *, recipe_folder: Path) -> dict[str, Any]:
    """Return the recipe of a shared build step: a package without content, run for the files that its script leaves."""
    needs, ignored = (
        requirements_merged_into_host(staging.requirements, staging.settings),
        ignored_run_exports(staging.settings),
    )
    return {
        **_script_context_section(staging.script),
        "package": {"name": name, "version": "0"},
        "source": [source_entry(entry, recipe_folder) for entry in staging.sources if not entry.linked],
        "build": {
            "number": 0,
            "string": "compile",
            "script": {"content": list(script), **script_secrets_entry(staging.script_env)},
            "files": [".kiln-none"],
            **({"merge_build_and_host_envs": True} if staging.settings.merge_build_host else {}),
            **AS_IT_IS,
            "python": {"skip_pyc_compilation": ["**"]},
        },
        "requirements": {
            "build": [strict_rattler_spec(spec) for spec in needs.specs_to_solve("build")],
            "host": [strict_rattler_spec(spec) for spec in needs.specs_to_solve("host")],
            **({"ignore_run_exports": ignored} if ignored else {}),
        },
    }


def _script_context_section(script: Script) -> dict[str, Any]:
    """Return the values of the names in a script's expressions, which the engine evaluates at build time."""
    return {"context": dict(script.names)} if script.names else {}


def source_entry(definition: Source, recipe_folder: Path) -> dict[str, Any]:
    """Return an entry of ``source`` in rattler-build's terms; paths are relative to the recipe.

    That of a source which kiln fetches lacks the address and the hashes, which `source_fetch` adds.
    """
    entry: dict[str, Any] = {}
    is_fetched = source_plan.is_fetched_by_kiln(definition)
    if is_fetched:
        pass
    elif definition.url:
        entry["url"] = list(definition.url)
    elif definition.git_url is not None:
        entry["git"] = source_plan.absolute_repository_address(definition.git_url, recipe_folder)
    elif definition.path is not None:
        path = (recipe_folder / definition.path).resolve()
        entry |= {"path": str(path), "use_gitignore": False} if definition.by_engine else local_source_entry(path)
    identity = {
        "rev": definition.git_rev,
        "depth": definition.git_depth,
        "sha256": definition.sha256,
        "md5": definition.md5,
        "file_name": definition.file_name,
    }
    fields = {**({} if is_fetched else identity), "target_directory": definition.folder}
    entry |= {key: value for key, value in fields.items() if value is not None}
    if definition.patches:
        # In the recipe, or in a folder of the build that the engine puts in place.
        entry["patches"] = [
            name if name.startswith("${{") else str(recipe_folder / name) for name in definition.patches
        ]
    return {**entry, **definition.settings}


def local_source_entry(path: Path) -> dict[str, Any]:
    """Return the entry of a local source; a file is copied as it is, where rattler-build would unpack an archive."""
    name = {"file_name": path.name} if path.is_file() else {}
    return {"path": str(path), "use_gitignore": False, **name}


def literal_script_variables(script_env: Iterable[str]) -> dict[str, str]:
    """Return the variables of ``build/script_env`` whose values are in the recipe."""
    pairs = (entry.split("=", 1) for entry in script_env if "=" in entry)
    return {name: value for name, value in pairs if name.isidentifier()}


def caller_variable_names(script_env: Iterable[str]) -> tuple[str, ...]:
    """Return the variables of ``build/script_env`` whose values are the caller's."""
    return tuple(sorted({entry for entry in script_env if entry.isidentifier()}))


def script_secrets_entry(script_env: Iterable[str]) -> dict[str, list[str]]:
    """Return the entry that passes the caller's variables to a script: as secrets, since tokens are among them."""
    variables = caller_variable_names(script_env)
    return {"secrets": list(variables)} if variables else {}


def _build_section(output: Output, script: list[str], *, as_it_is: bool) -> dict[str, Any]:
    build: dict[str, Any] = {
        "number": output.build_number,
        "string": output.build_string,
        "script": {"content": script, **script_secrets_entry(output.script_env)},
        **(AS_IT_IS if as_it_is else linking_and_prefix_settings(output)),
        "python": {**python_package_settings(output), "entry_points": list(output.entry_points)},
        **file_selection_settings(output),
    }
    if output.noarch:
        build["noarch"] = output.noarch
    return build


def _requirements_section(output: Output, *, as_it_is: bool) -> dict[str, Any]:
    own = output.requirements
    needs = own if as_it_is else requirements_merged_into_host(own, output.settings)
    pins = {(field, index): pin for field, index, pin in output.pins}

    def specs_with_pins(field: str, texts: Iterable[str]) -> list[str]:
        places = ((pins.get((field, index)), text) for index, text in enumerate(texts))
        return [pin_placeholder(pin) if pin else strict_rattler_spec(text) for pin, text in places]

    return {
        **({} if as_it_is else {"build": specs_with_pins("build", needs.specs_to_solve("build"))}),
        "host": specs_with_pins("host" if needs is own else "build", needs.specs_to_solve("host")),
        "run": specs_with_pins("run", needs.run),
        "run_constraints": specs_with_pins("run_constrained", needs.run_constrained),
        "run_exports": {
            RUN_EXPORTS[kind]: specs_with_pins(f"run_exports/{kind}", texts)
            for kind, texts in output.run_exports.items()
        },
        **({"ignore_run_exports": ignored} if (ignored := ignored_run_exports(output.settings)) else {}),
    }


def _is_ignored_run_export(entry: RunExport, settings: BuildSettings) -> bool:
    return package_name(entry.spec) in settings.ignore_run_exports or entry.package in settings.ignore_run_exports_from


def _test_entries(test: OutputTest) -> Iterator[dict[str, Any]]:
    """Yield the entries of a test in the package's metadata: one for each kind that the engine has."""
    modules = {**test.modules, test.language: (*test.imports, *test.modules.get(test.language, ()))}
    imports = modules.pop("python", ())
    if imports or test.pip_check or test.pythons:
        versions = {"python_version": list(test.pythons)} if test.pythons else {}
        yield {"python": {"imports": list(imports), "pip_check": test.pip_check, **versions}}
    for language, names in modules.items():
        if names and language in TEST_MODULES:
            yield {language: {TEST_MODULES[language]: list(names)}}
    yield from ({"downstream": strict_rattler_spec(spec)} for spec in test.downstreams)
    if test.contents:
        yield {"package_contents": dict(test.contents)}
    if test.script.file is not None or test.script.lines:
        build = {"build": [strict_rattler_spec(spec) for spec in test.requires_build]} if test.requires_build else {}
        yield {
            "script": _test_script_entry(test.script),
            "requirements": {"run": [strict_rattler_spec(spec) for spec in test.requires], **build},
            "files": {"recipe": list(test.files), "source": list(test.source_files)},
        }


def _test_script_entry(script: Script) -> Any:
    """Return a test's script for the package's metadata, which gets the text of a file."""
    settings = {"interpreter": script.interpreter, "env": dict(script.environment), "cwd": script.folder}
    setting: dict[str, Any] = {key: value for key, value in settings.items() if value}
    if script.file is not None:
        return {"file": script.file, **setting}
    return {"content": list(script.lines), **setting} if setting else list(script.lines)


def _about_section(output: Output, recipe_folder: Path) -> dict[str, Any]:
    """Return ``about`` as the engine needs it: without the values that are added to the package afterwards.

    It refuses many values that conda-build takes, such as two addresses of documentation.
    """
    if output.settings.by_engine:
        return {
            ABOUT.get(key, key): list(value) if isinstance(value, tuple) else value
            for key, value in output.about.items()
        }
    licenses = [recipe_license_path(name, recipe_folder) for name in output.about_texts("license_file")]
    return {"license_file": licenses} if licenses else {}


NOT_VARIABLES = ("perl", "lua", "r", "numpy", "python")  # conda-build has variables of other names for them


def config_caller_variable_names(rendered: RenderedConfig) -> tuple[str, ...]:
    """Return the names of the caller's variables that scripts of a config get, from ``build/script_env``."""
    outputs = (name for output in rendered.outputs for name in output.script_env)
    steps = (name for staging in rendered.stagings for name in staging.script_env)
    return caller_variable_names((*steps, *outputs))


def cuda_override(rendered: RenderedConfig) -> dict[str, str]:
    """Return the variable with which a CUDA config is solved on a machine without a GPU, as in conda-forge's builds."""
    version = cuda_version_of_config(rendered.config)
    return {} if version is None else {"CONDA_OVERRIDE_CUDA": version}


def script_environment(output: Output, rendered: RenderedConfig, recipe_folder: Path) -> dict[str, str]:
    """Return the variables that conda-build sets for a script and rattler-build does not.

    They are every variant key whose name can be a variable's, and the recipe's folder.
    """
    variables = exportable_variables({**output.variant, **output.used_keys_as_text})
    return {**variant_variables(rendered), **variables, "RECIPE_DIR": str(recipe_folder)}


def variant_variables(rendered: RenderedConfig) -> dict[str, str]:
    """Return the config's variant as variables, the first value of each key; and the other keys of a meta.yaml.

    A script may read keys of the variant file in the recipe's folder that no config has, because the recipe does not
    use them. Source: get_dict in conda_build/environ.py.
    """
    others = rendered.outputs[0].all_keys if rendered.outputs else {}
    texts = {key: value for key, value in others.items() if isinstance(value, str) and key not in NOT_VARIABLES}
    return exportable_variables(
        {**texts, **{key: values[0] for key, values in rendered.config.variant.items() if values}}
    )


def exportable_variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values whose names can be variables', without channels' credentials: packages contain them."""
    return {
        key: ",".join(map(http.url_without_credentials, value.split(",")))
        for key, value in values.items()
        if key.isidentifier() and not key.startswith("__")
    }
