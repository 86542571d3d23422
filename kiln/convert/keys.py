"""The keys of meta.yaml, and where recipe.yaml has the same.

Sources: rattler-build's page "Converting a recipe from conda-build", its reference of the recipe, and conda-build's
"Defining metadata (meta.yaml)".
"""

from __future__ import annotations

Path = tuple[str, ...]

TEXTS: dict[str, Path] = {
    "number": ("build", "number"),
    "string": ("build", "string"),
    "noarch": ("build", "noarch"),
    "python_version_independent": ("build", "python", "version_independent"),
    "merge_build_host": ("build", "merge_build_and_host_envs"),
    "python_site_packages_path": ("build", "python", "site_packages_path"),
}
LISTS: dict[str, Path] = {
    "entry_points": ("build", "python", "entry_points"),
    "skip_compile_pyc": ("build", "python", "skip_pyc_compilation"),
    "always_include_files": ("build", "always_include_files"),
    "no_link": ("build", "always_copy_files"),
    "rpaths": ("build", "dynamic_linking", "rpaths"),
    "missing_dso_whitelist": ("build", "dynamic_linking", "missing_dso_allowlist"),
    "runpath_whitelist": ("build", "dynamic_linking", "rpath_allowlist"),
    "has_prefix_files": ("build", "prefix_detection", "force_file_type", "text"),
    "binary_has_prefix_files": ("build", "prefix_detection", "force_file_type", "binary"),
    "force_use_keys": ("build", "variant", "use_keys"),
    "force_ignore_keys": ("build", "variant", "ignore_keys"),
    "ignore_run_exports": ("requirements", "ignore_run_exports", "by_name"),
    "ignore_run_exports_from": ("requirements", "ignore_run_exports", "from_package"),
}
FLAGS_OR_LISTS: dict[str, Path] = {
    "binary_relocation": ("build", "dynamic_linking", "binary_relocation"),
    "ignore_prefix_files": ("build", "prefix_detection", "ignore"),
}
DETECTION: Path = ("build", "prefix_detection", "ignore_binary_files")
ABOUT = {
    "home": "homepage",
    "summary": "summary",
    "description": "description",
    "license": "license",
    "license_family": "license_family",
    "license_file": "license_file",
    "doc_url": "documentation",
    "dev_url": "repository",
}
REQUIREMENTS = {"build": "build", "host": "host", "run": "run", "run_constrained": "run_constraints"}
SOURCE = {
    "url": "url",
    "sha256": "sha256",
    "md5": "md5",
    "fn": "file_name",
    "folder": "target_directory",
    "git_url": "git",
    "git_rev": "rev",
    "git_tag": "tag",
    "git_branch": "branch",
    "git_depth": "depth",
    "path": "path",
    "patches": "patches",
}
SOURCE_LISTS = frozenset({"url", "patches"})
# Keys of an output next to its sections, and that conda-build reads as keys of its build section.
OUTPUT_BUILD = frozenset(
    {"number", "string", "noarch", "noarch_python", "entry_points", "run_exports", "track_features"}
)
