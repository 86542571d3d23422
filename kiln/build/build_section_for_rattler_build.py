"""The build settings of an output in rattler-build's terms: only what differs from the engine's defaults."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kiln.model.output_build_settings import BuildSettings, PrefixSettings
    from kiln.model.rendered import Output, Requirements


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
