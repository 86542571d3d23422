"""A recipe evaluated for one config, with the settings by which an engine packs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln.base.errors import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.base.errors import KilnError
    from kiln.base.position import Place
    from kiln.recipe.feedstock import BuildConfig


OWN_ENGINE = "rattler-build"  # the engine whose process kiln runs itself


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSettings:
    """The zstd ``level`` of packages, the ``channel_priority`` of solves, and whether overlinking is an error."""

    level: int = 1
    channel_priority: str = "strict"
    error_overlinking: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlatforms:
    """The subdirs of a build: of its packages, and of the machine that makes them."""

    target: str = "linux-64"
    build: str = "linux-64"


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


# The keys of recipe.yaml: of run_exports by conda-build's, and of tests by language.
RUN_EXPORTS = {
    "weak": "weak",
    "strong": "strong",
    "noarch": "noarch",
    "weak_constrains": "weak_constraints",
    "strong_constrains": "strong_constraints",
}
TEST_MODULES = {"perl": "uses", "r": "libraries", "ruby": "requires"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """The match specs of each section, in the recipe's order.

    ``versions`` are those that the variant gives the bare names in ``build`` and ``host``.
    """

    build: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    run: tuple[str, ...] = ()
    run_constrained: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    def specs_to_solve(self, section: str) -> tuple[str, ...]:
        """Return the specs of a section as they are solved: bare names with the variant's versions.

        A version of letters, digits and dots alone stands for all that begin so, as in rattler-build.
        """
        setting: tuple[str, ...] = getattr(self, section)
        return tuple(self._spec_with_version(spec) if section in {"build", "host"} else spec for spec in setting)

    def _spec_with_version(self, spec: str) -> str:
        version = self.versions.get(spec)
        if version is None:
            return spec
        return f"{spec} {version}.*" if version.replace(".", "").isalnum() else f"{spec} {version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script: a file of the recipe, or lines; neither means nothing to run.

    ``interpreter`` runs it, bash without one, or the one that a file's suffix stands for; ``program``, a command with
    its arguments, runs a file in its place, as conda-build's ``script_interpreter``. ``environment`` are variables that
    it gets, ``folder`` is its working directory, relative to the prefix. ``names`` are the values of the names in the
    expressions of its lines, which the engine evaluates at build time.
    """

    file: str | None = None
    lines: tuple[str, ...] = ()
    interpreter: str | None = None
    program: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    names: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTest:
    """A test of an output, which runs in an environment of its own with the output and ``requires``.

    ``imports`` are modules in ``language``, and ``pip_check`` is whether pip checks the environment, once for each of
    ``pythons``, versions of Python, if there are some. ``modules`` are those of more languages. ``scripts`` are the
    files of the recipe that are run before ``script``, by the names that they have in a test: ``run_test.py`` and so
    on. ``downstreams`` are specs of packages whose tests run, too. ``requires_build`` are the requirements of a second
    prefix, ``contents`` are patterns of files that the package must or must not have, in the keys of recipe.yaml's
    ``package_contents``. ``by_engine`` gives ``files`` the meaning that they have in recipe.yaml: the package has them.
    """

    imports: tuple[str, ...] = ()
    pip_check: bool = False
    pythons: tuple[str, ...] = ()
    language: str = "python"
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    script: Script = Script()
    requires: tuple[str, ...] = ()
    requires_build: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()
    contents: Mapping[str, Any] = field(default_factory=dict)
    downstreams: tuple[str, ...] = ()
    by_engine: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A bound that is evaluated once the version is known: of another output, or of a package in ``host``.

    ``subpackage`` is true for another output. ``min_pin`` and ``max_pin`` are how many components to keep (``x.x``);
    ``lower`` and ``upper`` are explicit bounds of the recipe, ``build`` is a pattern of build strings. ``spec`` is the
    recipe's own requirement, to which ``pin_run_as_build`` applies where ``host`` has the package; empty for a pin that
    the recipe itself has. ``by_engine`` leaves the bounds to rattler-build, whose rules are those of a ``recipe.yaml``.
    """

    name: str
    subpackage: bool
    min_pin: str | None = "x.x.x.x.x.x"
    max_pin: str | None = "x"
    lower: str | None = None
    upper: str | None = None
    exact: bool = False
    spec: str = ""
    by_engine: bool = False
    build: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """A working copy of a repository: ``program`` is ``hg``, ``svn`` or ``git``; without a revision, the newest one.

    ``externals`` is whether Subversion follows its references to other repositories. ``depth`` is the number of
    commits that git fetches, None for all.
    """

    program: str
    url: str
    revision: str | None = None
    externals: bool = True
    depth: int | None = None
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One entry of the ``source:`` section; one of ``url``, ``git_url``, ``path`` and ``checkout`` is given.

    ``hashes`` are those of a file besides ``sha256`` and ``md5``, by algorithm. ``content_hashes`` are those of the
    unpacked files, without the paths in ``content_hash_skip``. ``file_name`` is the name of a file that is not to be
    unpacked, ``archive_name`` that of a file whose address has another one. ``no_hoist`` keeps the single folder at the
    top of an archive; ``linked`` makes a link to ``path`` and copies nothing. ``by_engine`` leaves local files and
    wheels to rattler-build, which unpacks archives. ``settings`` are further keys, as recipe.yaml names them.
    """

    url: tuple[str, ...] = ()
    sha256: str | None = None
    md5: str | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    content_hashes: Mapping[str, str] = field(default_factory=dict)
    content_hash_skip: tuple[str, ...] = ()
    file_name: str | None = None
    archive_name: str | None = None
    no_hoist: bool = False
    checkout: Checkout | None = None
    git_url: str | None = None
    git_rev: str | None = None
    git_depth: int | None = None
    path: str | None = None
    linked: bool = False
    folder: str | None = None
    patches: tuple[str, ...] = ()
    by_engine: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names that lead out of the work folder.

        Raises:
            RecipeFault: always in this case, whatever the engine would do.
        """
        for name, text in (("folder", self.folder), ("file name", self.file_name)):
            path = PurePosixPath((text or "").replace("\\", "/"))
            if path.is_absolute() or ".." in path.parts or "\0" in (text or ""):
                raise RecipeFault(
                    f"the {name} of a source is {text!r}",
                    why="it leads out of the work folder",
                    hint="give a path below it",
                )


def hash_key(name: str) -> str:
    """Return a key, or a pinned package's name, as it is in the hash of a recipe.yaml: without dashes and dots."""
    return name.replace("-", "_").replace(".", "_")


COMPILE = "compile"  # the name of the recipe's own build step


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """A build step that several outputs share: the recipe's own, or a staging output of its.

    ``package`` are the name, version and build number that the script sees, if any. ``variant`` are the values of the
    keys that the step uses, where they vary inside the config. The scripts of the outputs run in the step's work
    directory; or, with ``copied``, in a copy of it, with all installed files and with the run exports of the step's
    requirements.
    """

    name: str = COMPILE
    script: Script = Script()
    script_env: tuple[str, ...] = ()
    requirements: Requirements = Requirements()
    sources: tuple[Source, ...] = ()
    package: tuple[str, str, int] | None = None
    variant: Mapping[str, str] = field(default_factory=dict)
    settings: BuildSettings = field(default_factory=BuildSettings)
    copied: bool = False

    @property
    def title(self) -> str:
        """The name of the step in a run."""
        return COMPILE if self.name == COMPILE else f"{COMPILE} {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One package of a config.

    ``used`` are the keys in the hash. ``run_exports`` maps ``weak``, ``strong``, ``noarch``, ``weak_constrains`` and
    ``strong_constrains`` to match specs; ``run_exports_bare`` is set when the recipe has a list, which means weak.
    ``pins`` are the bounds to evaluate: the field (``run``, or ``run_exports/weak``), the position in it, and the pin.
    ``platform`` is the subdir that the output was rendered for, which for ``noarch`` packages is not the ``subdir`` of
    the channel that they go to. ``variant`` are the values of the keys that vary inside the config, such as each of
    several Pythons. ``script_env`` are variables of the caller that the script gets: ``NAME``, or ``NAME=value``.
    ``staging`` is the name of the build step that it shares, whose run exports it takes over with ``staged_exports``.
    ``single`` are the fields that the recipe has as text, or as true, in the place of a list or a word.
    ``is_output`` is true for an output that has another name than the recipe. ``sections`` are the evaluated sections
    of a meta.yaml for this package, and ``all_keys`` the values of all variant keys, used or not.
    """

    name: str
    version: str
    build_number: int
    build_string: str
    subdir: str
    noarch: str | None = None
    requirements: Requirements = Requirements()
    track_features: tuple[str, ...] = ()
    run_exports: Mapping[str, tuple[str, ...]]
    tests: tuple[OutputTest, ...] = ()
    script: Script = Script()
    entry_points: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    about: Mapping[str, str | tuple[str, ...]]
    used: Mapping[str, str]
    skip: bool = False
    run_exports_bare: bool = False
    pins: tuple[tuple[str, int, Pin], ...] = ()
    platform: str = ""
    variant: Mapping[str, str] = field(default_factory=dict)
    script_env: tuple[str, ...] = ()
    binary_relocation: bool | tuple[str, ...] = True
    detect_binary_files_with_prefix: bool = True
    settings: BuildSettings = field(default_factory=BuildSettings)
    extra: Mapping[str, Any] = field(default_factory=dict)
    single: frozenset[str] = frozenset()
    sources: tuple[Source, ...] = ()
    staging: str | None = None
    staged_exports: bool = True
    is_output: bool = False
    sections: Mapping[str, Any] = field(default_factory=dict)
    all_keys: Mapping[str, Any] = field(default_factory=dict)

    def about_texts(self, key: str) -> tuple[str, ...]:
        """Return the texts of a key of ``about`` that the recipe has as a text or as a list, without empty ones."""
        value = self.about.get(key) or ()
        return tuple(filter(None, (value,) if isinstance(value, str) else value))

    @property
    def package_file_name(self) -> str:
        """The name of the package file."""
        return f"{self.name}-{self.version}-{self.build_string}.conda"

    @property
    def channel_path(self) -> str:
        """The path of the package file in a channel."""
        return f"{self.subdir}/{self.package_file_name}"

    @property
    def used_keys_as_text(self) -> dict[str, str]:
        """The keys in the hash with their values as scripts see them: truth values in lower case."""
        values: Mapping[str, Any] = self.used
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFault:
    """A key of a recipe that an engine cannot honor, or that no engine knows when ``known`` is false."""

    key: str
    known: bool
    what: str
    at: Place
    why: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedConfig:
    """All outputs of a config, and the build steps that they share.

    ``name`` is that of the recipe as a whole. ``network`` are the steps whose scripts may use the network according to
    the recipe, by names or patterns, ``plan_command`` is the command that shows how a config is compiled, or empty.
    ``skipped`` are outputs that are not made, and that others pin nevertheless, as conda-build allows.
    ``key_faults`` are the keys that do not exist, and those that rattler-build does not have. ``warnings`` are about
    what both take, but hardly anybody means. ``file`` is the recipe's file.
    """

    config: BuildConfig
    name: str = ""
    stagings: tuple[Staging, ...] = ()
    outputs: tuple[Output, ...] = ()
    skipped: tuple[Output, ...] = ()
    network: tuple[str, ...] = ()
    plan_command: str = ""
    key_faults: tuple[KeyFault, ...] = ()
    warnings: tuple[KilnError, ...] = ()
    file: str = "recipe/meta.yaml"

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all build steps and outputs, each once."""
        distinct: list[Source] = []
        lists = (*(staging.sources for staging in self.stagings), *(output.sources for output in self.outputs))
        for sources in lists:
            distinct += [source for source in sources if source not in distinct]
        return tuple(distinct)

    def staging_of_output(self, output: Output) -> Staging | None:
        """Return the build step that an output shares with others, if it does."""
        return next((staging for staging in self.stagings if staging.name == output.staging), None)
