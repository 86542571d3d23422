"""The build settings of an output, from the build section of a recipe.yaml."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.output_settings import BuildSettings, LinkingSettings, PrefixSettings, PythonSettings
from kiln.model.source_position import Place
from kiln.recipe_v1.node_evaluation import RECIPE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_BEHAVIORS = {"error": True, "ignore": False, None: None}


def settings(build: Mapping[str, Any], requirements: Mapping[str, Any]) -> BuildSettings:
    """Return how an output is built and packed; what is not given is the engine's to decide.

    Raises:
        RecipeFault: a value is not one of the engine's.
    """
    linking, detection, python = (build.get(key, {}) for key in ("dynamic_linking", "prefix_detection", "python"))
    forced, ignored = detection.get("force_file_type", {}), requirements.get("ignore_run_exports", {})
    files, binaries = build.get("files"), detection.get("ignore_binary_files")
    return BuildSettings(
        linking=LinkingSettings(
            rpaths=tuple(linking.get("rpaths", ())),
            missing_dso_allowlist=tuple(linking.get("missing_dso_allowlist", ())),
            rpath_allowlist=tuple(linking.get("rpath_allowlist", ())),
            error_overlinking=_is_error(linking, "overlinking_behavior"),
            error_overdepending=_is_error(linking, "overdepending_behavior"),
        ),
        prefix=PrefixSettings(
            text=tuple(forced.get("text", ())),
            binary=tuple(forced.get("binary", ())),
            ignore=_flag_or_globs(detection.get("ignore")),
            ignore_binary=tuple(binaries) if isinstance(binaries, list) else (),
        ),
        python=PythonSettings(
            skip_pyc=tuple(python.get("skip_pyc_compilation", ())),
            version_independent=bool(python.get("version_independent")),
            site_packages_path=python.get("site_packages_path"),
            app_entry_points=bool(python.get("use_python_app_entrypoint")),
        ),
        always_include_files=tuple(build.get("always_include_files", ())),
        always_copy_files=tuple(build.get("always_copy_files", ())),
        merge_build_host=bool(build.get("merge_build_and_host_envs")),
        ignore_run_exports=tuple(ignored.get("by_name", ())),
        ignore_run_exports_from=tuple(ignored.get("from_package", ())),
        excluded_files=tuple(files.get("exclude", ())) if isinstance(files, dict) else (),
        post_process=tuple(build.get("post_process", ())),
        by_engine=True,
    )


def _flag_or_globs(value: Any) -> bool | tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else bool(value)


def _is_error(linking: Mapping[str, Any], key: str) -> bool | None:
    value = linking.get(key)
    if value not in _BEHAVIORS:
        raise RecipeFault(
            f"dynamic_linking/{key} is {str(value)[:40]!r}", at=Place(file=RECIPE), hint="'error' or 'ignore'"
        )
    return _BEHAVIORS[value]
