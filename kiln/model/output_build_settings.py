"""The keys of ``build:`` and ``outputs:`` that decide how an engine packs an output's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkingSettings:
    """The checks and changes of binaries; None for a behavior that the recipe leaves to the engine.

    ``overlinking_ignored`` are globs of binaries whose overlinking is never an error.
    """

    rpaths: tuple[str, ...] = ()
    missing_dso_allowlist: tuple[str, ...] = ()
    rpath_allowlist: tuple[str, ...] = ()
    overlinking_ignored: tuple[str, ...] = ()
    error_overlinking: bool | None = None
    error_overdepending: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSettings:
    """The files in which the prefix is searched: ``text`` and ``binary`` have it, ``ignore`` is never replaced.

    ``ignore_binary`` are globs of binaries that are not searched.
    """

    text: tuple[str, ...] = ()
    binary: tuple[str, ...] = ()
    ignore: bool | tuple[str, ...] = False
    ignore_binary: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSettings:
    """The settings of Python packages; ``skip_pyc`` are globs of modules that are not compiled.

    ``keep_eggs`` leaves eggs that are folders as they are.
    """

    skip_pyc: tuple[str, ...] = ()
    version_independent: bool = False
    site_packages_path: str | None = None
    app_entry_points: bool = False
    keep_eggs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """Settings by which an output is built and packed.

    ``ignore_run_exports`` are names of packages, ``ignore_run_exports_from`` those of packages whose exports do not
    count. ``link_scripts`` maps ``post-link`` and so on to files of the recipe. ``excluded_files`` are globs that the
    output's ``files`` do not match. ``no_link`` are globs of files that are copied into a prefix, never linked, in
    conda-build's notation; ``always_copy_files`` are the same in rattler-build's. ``post_process`` are replacements in
    files, as recipe.yaml has them. ``by_engine`` leaves to rattler-build what conda-build does differently: the run
    exports of merged environments, bytecode, pip's records of sources, and about.json.
    """

    linking: LinkingSettings = LinkingSettings()
    prefix: PrefixSettings = PrefixSettings()
    python: PythonSettings = PythonSettings()
    always_include_files: tuple[str, ...] = ()
    merge_build_host: bool = False
    ignore_run_exports: tuple[str, ...] = ()
    ignore_run_exports_from: tuple[str, ...] = ()
    link_scripts: Mapping[str, str] = field(default_factory=dict)
    excluded_files: tuple[str, ...] = ()
    no_link: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    feature_values: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    include_recipe: bool = True
    always_copy_files: tuple[str, ...] = ()
    post_process: tuple[Mapping[str, Any], ...] = ()
    by_engine: bool = False
