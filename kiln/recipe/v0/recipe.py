"""A recipe on one platform: its packages at every variant, with repeated renderings cached."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kiln.base.errors import RecipeFault
from kiln.base.position import Place
from kiln.conda.specs import version_or_none
from kiln.recipe.template.names import Namespace
from kiln.recipe.template.selectors import BoundedDict, apply_selectors_again
from kiln.recipe.v0.evaluation import _BUILD_NAMES, _LANGUAGE, _PACKAGE, RecipeTemplate, language_version_variable
from kiln.recipe.v0.functions import NAMES, OF_SOURCE, VARYING, pin_functions, template_functions
from kiln.recipe.v0.metadata import (
    BuildScripts,
    Metadata,
    output_entries_with_values,
    output_names_and_types,
    output_type,
)
from kiln.recipe.v0.sources import SourceFiles
from kiln.recipe.v0.used_keys import UsedKeySearch
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.recipe.template.jinja import Template
    from kiln.recipe.template.selectors import SelectedText
    from kiln.recipe.variants.files import Platform
    from kiln.recipe.variants.space import Space, Variant


class Recipe:
    """A recipe, a platform and the space of its variants."""

    def __init__(
        self,
        source: RecipeTemplate,
        platform: Platform,
        space: Space,
        pins: Callable[..., str] | None = None,
        *,
        reads_sources: bool = False,
    ) -> None:
        self.source = source
        self.pins = pins
        self.reads_sources = reads_sources
        self.undefined: set[str] = set()  # names of the source's revision that are written without a value
        self.platform = platform
        self.space = space
        self.narrowed = space
        self.pins_numpy = (
            False  # whether a job's top has the legacy requirement numpy x.x, numpy's build version at run time
        )
        self.usage = UsedKeySearch(space.keys)
        self.scripts = BuildScripts(source.path.parent, space.keys)
        self._remembered: dict[object, frozenset[str]] = {}
        # An entry holds its variant and text, so that no other ones get the same ids.
        self._values: BoundedDict[tuple[int, int, str], tuple[Variant, object, Mapping[str, Any]]] = BoundedDict(64)
        self._packages: BoundedDict[tuple[int, int], tuple[Variant, object, tuple[Metadata, ...]]] = BoundedDict(64)
        self._same: dict[frozenset[str], frozenset[str]] = {}
        self._defaults = platform.default_variant()
        self._loops = tuple(sorted(space.varying_keys))
        self._tool_keys = tuple(
            sorted({"target_platform", "cdt_name", "cdt_arch"} | {key for key in space.keys if key.endswith(_TOOLS)})
        )

    # -- for metadata ---------------------------------------------------------------------------------------

    def place_of_section(self, section: str = "") -> Place:
        """Return the place where a section of the recipe begins."""
        for line in self.source.text.lines:
            if section and line.text.startswith(f"{section}:"):
                return Place(file=self.source.name, line=line.number, column=1)
        return Place(file=self.source.name)

    def cached_used_keys(
        self, variant: Variant, query: tuple[object, ...], find: Callable[[], frozenset[str]]
    ) -> frozenset[str]:
        """Return the cached used keys of a package at a variant; ``find`` computes them the first time.

        As in conda-build, the first result counts for all packages of one name, the recipe's top included.
        """
        key = (query, tuple([variant.get(loop) for loop in self._loops]))
        keys = self._remembered.get(key)
        if keys is None:
            keys = find()
            keys = self._remembered[key] = self._same.setdefault(keys, keys)
        return keys

    def namespace(self, variant: Variant, host_subdir: str) -> Namespace:
        """Return the names in selectors and templates."""
        try:
            fixed = self.platform.fixed_names(variant, host_subdir)
        except (ValueError, IndexError) as error:
            languages = ", ".join(f"{key}: {variant.get(key)}" for key in ("python", "numpy"))
            raise RecipeFault(f"invalid version of a language ({languages})", at=self.place_of_section()) from error
        # A name that Jinja sets is undefined in selectors, where conda-build takes it for False.
        known = self.source.known | self.source.set_names
        return Namespace(fixed, variant, known, all_known=self.source.all_known, doubts=self.source.doubts)

    def text_after_selectors(self, names: Namespace | None) -> str:
        """Return the recipe's text with selectors applied to some names, or unselected for None."""
        return (self.source.text.text if names is None else self.source.text.select(names).text).rstrip()

    @staticmethod
    def output_entries(values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the entries of the ``outputs`` section."""
        return as_list(values.get("outputs") or None)

    # -- rendering ------------------------------------------------------------------------------------------

    def rendered_values(self, variant: Variant, host_subdir: str) -> Mapping[str, Any]:
        """Return the recipe's values at a variant.

        The package's own names (``PKG_VERSION`` and so on) and the place of its source are known only after a
        rendering, so a recipe that uses them is rendered three times; what the source lacks in the last is an error.
        The same variant is asked for by each of its packages, so its values are cached.
        """
        text = self.source.text  # which may be replaced, see `RecipeTemplate.replace_text`
        key = (id(variant), id(text), host_subdir)
        if key not in self._values:
            self._values[key] = variant, text, self._render_values(variant, host_subdir)
        return self._values[key][2]

    def _render_values(self, variant: Variant, host_subdir: str) -> Mapping[str, Any]:
        values: Mapping[str, Any] = {}
        names = self.namespace(variant, host_subdir)
        selected = self.source.text.select(names)
        template = self.source.compiled_template(selected)
        again = template.names is None or template.names & (_PACKAGE | OF_SOURCE) or self.source.names_revision
        passes = 3 if again else 1
        for number in range(1, passes + 1):
            final = self.reads_sources and number == passes
            values = self._render_once(variant, host_subdir, names, selected, values, final=final)
        return values

    def _render_once(
        self,
        variant: Variant,
        host_subdir: str,
        names: Namespace,
        selected: SelectedText,
        before: Mapping[str, Any],
        *,
        final: bool,
    ) -> Mapping[str, Any]:
        template = self.source.compiled_template(selected)
        package = Metadata(self, variant, before, host_subdir=host_subdir)
        identity = (package.name, package.version, package.build_number) if before else ()
        sources = SourceFiles.from_section(self.source.folder, before.get("source"), final=final)
        depended = (self.platform.subdir, self.pins is None, *self._implicit_template_inputs(variant, template))
        extra = (*identity, host_subdir, repr(sources) if before else None, *depended)

        def context() -> Callable[[str], Any]:
            return self._context_lookup(variant, names, package, sources)

        text = self.source.rendered_text(selected, names, context, extra, self.undefined if final else None)
        text = apply_selectors_again(text, names, self.source.name)
        return self.source.parsed_values(
            text, selected, lambda: self.source.rendered_text_with_line_marks(selected, names, context)
        )

    def _implicit_template_inputs(self, variant: Variant, template: Template) -> list[object]:
        """Return the values on which the template depends without naming them."""
        if template.names is None or "environ" in template.names:
            return [self, *(variant.get(key) for key in self._loops)]
        tools = self._tool_keys if template.names & VARYING else ()
        languages = sorted({_LANGUAGE[name] for name in template.names & _LANGUAGE.keys()})
        return [variant.get(key) for key in (*tools, *languages)]

    def _context_lookup(
        self, variant: Variant, names: Namespace, package: Metadata, sources: SourceFiles
    ) -> Callable[[str], Any]:
        revision = dict(sources.git_variables()) if self.reads_sources and self.source.names_revision else {}
        arch = package.host_subdir.rpartition("-")[2]

        def value_of_name(name: str) -> Any:
            if name == "environ":
                return self._template_environ(variant, value_of_name) | revision
            for place in (local_names, revision, variant):
                if name in place:
                    return place[name]
            return self._value_of_build_name(name, package) if name in _OF_BUILD else names.fixed_value(name)

        local_names = template_functions(self.platform, variant, arch, sources=sources)
        if self.pins is not None:
            local_names |= pin_functions(self.pins)
        return value_of_name

    def _value_of_build_name(self, name: str, package: Metadata) -> Any:
        """Return the value of one of the names that conda-build adds to those of selectors."""
        if name in _PACKAGE:
            return {
                "PKG_NAME": package.name,
                "PKG_VERSION": package.version,
                "PKG_BUILDNUM": str(package.build_number),
                "PKG_HASH": "1234567",  # a placeholder: the hash depends on the rendered recipe
                "PKG_BUILD_STRING": "placeholder",
            }[name]
        if name in _LANGUAGE:
            return language_version_variable(name, package.variant, self._defaults)
        return _BUILD_NAMES[name] if name in _BUILD_NAMES else self._value_of_system_name(name, package.host_subdir)

    def _template_environ(self, variant: Variant, value: Callable[[str], Any]) -> dict[str, Any]:
        """Return the template's ``environ``: the platform's environment, a build's names, and the variant."""
        environ: dict[str, Any] = dict(self.platform.environ)
        reserved = {"PERL", "LUA", "R", "NUMPY", "PYTHON"}
        for name in (*_BUILD_NAMES, *_LANGUAGE, *sorted(_PACKAGE), *sorted(_SYSTEM)):
            reserved.add(name)
            try:
                environ[name] = _BUILD_NAMES[name] if name in _BUILD_NAMES else value(name)
            except KeyError:
                continue
        return environ | {key: variant[key] for key in variant if key.upper() not in reserved}

    def _value_of_system_name(self, name: str, host_subdir: str) -> str:
        system, _, arch = host_subdir.partition("-")
        extension = {"win": ".dll", "osx": ".dylib"}.get(system, ".so")
        names = {
            "ARCH": arch,
            "SUBDIR": host_subdir,
            "SHLIB_EXT": extension,
            "RECIPE_DIR": str(self.source.path.parent),
        }
        if name in names:
            return names[name]
        if system != "osx":
            raise KeyError(name)
        return {"OSX_ARCH": "arm64" if arch == "arm64" else "x86_64", "MACOSX_DEPLOYMENT_TARGET": "10.9"}[name]

    # -- packages -------------------------------------------------------------------------------------------

    def host_subdir(self, variant: Variant) -> str:
        """Return the platform that packages are made for."""
        return str(variant.get("target_platform", self.platform.subdir))

    def top_level_metadata(self, variant: Variant) -> Metadata:
        """Return the recipe's top at a variant."""
        host = self.host_subdir(variant)
        values = self.rendered_values(variant, host)
        top = Metadata(self, variant, values, host_subdir=host)
        top.listed = output_names_and_types(top, self.output_entries(values))
        return top

    def jobs_with_packages(self, initial: Variant | None = None) -> Iterator[tuple[Space, list[Metadata]]]:
        """Yield each job that the recipe's top distinguishes: the part of the space that it covers, and its packages.

        ``initial`` is the variant of the first rendering, by default the space's first. Skipped packages, and jobs
        whose top is skipped, are omitted.
        """
        with contextlib.nullcontext() if initial is None else self.source.without_judgment():
            before = self.top_level_metadata(initial or self.space.first_variant())
        space = self.narrowed = self._space_narrowed_for_noarch(before)
        start = space.first_variant()
        first = Metadata(self, start, before.values, host_subdir=self.host_subdir(start), listed=before.listed)
        loops = first.find_used_keys() & space.varying_keys
        seen_keys = set()
        for variant in space.reduced_to_keys(loops).variants():
            top = self.top_level_metadata(variant)
            key = (
                top.dist_before_hash,
                variant.get("target_platform"),
                self.used_varying_values(variant, top.used_keys()),
            )
            if key not in seen_keys:
                seen_keys.add(key)
                if not top.skip:
                    self.pins_numpy = self.pins_numpy or top.package_text().has_numpy_in_build_string
                    part = space.restricted_to_variant(variant, loops)
                    yield part, self._packages_of_job(part, top, space)

    @staticmethod
    def used_varying_values(variant: Variant, used: frozenset[str]) -> tuple[tuple[str, Any], ...]:
        """Return a variant's values of the used keys that vary, which distinguish packages of one name."""
        return tuple([(key, value) for key, value in variant.own.items() if key in used])

    def _space_narrowed_for_noarch(self, top: Metadata) -> Space:
        """Return the space; for a ``noarch`` recipe with the newest Python alone."""
        dimension = self.space.dimension("python")
        if dimension is None or not (top.noarch or top.sets_build_noarch_python):
            return self.space
        newest = max(dimension.values("python"), key=lambda python: _python_sort_key(python.split(" ")[0]))
        return self.space.where("python", newest)

    def _packages_of_job(self, part: Space, top: Metadata, space: Space) -> list[Metadata]:
        loops = top.used_keys(everywhere=True) & space.varying_keys
        packages: dict[object, Metadata] = {}
        for variant in part.reduced_to_keys(loops).variants():
            for package in self.output_packages(variant):
                packages[(package.name, package.kind, self.used_varying_values(variant, package.used_keys()))] = package
        return [package for package in packages.values() if not package.skip]

    def output_packages(self, variant: Variant) -> tuple[Metadata, ...]:
        """Return every package of the recipe at a variant, in the recipe's order.

        Each package looks for its twin with open pins among those of its variant, so they are cached.
        """
        text = self.source.text
        key = (id(variant), id(text))
        if key not in self._packages:
            self._packages[key] = variant, text, tuple(self._output_packages(variant))
        return self._packages[key][2]

    def _output_packages(self, variant: Variant) -> Iterator[Metadata]:
        top = self.top_level_metadata(variant)
        pairs = output_entries_with_values(top)
        entries = [entry for entry, _ in pairs][: len(self.output_entries(top.values))]  # without an added metapackage
        for entry, values in pairs:
            host = "noarch" if entry.get("noarch") or entry.get("noarch_python") else top.host_subdir
            yield Metadata(
                self,
                variant,
                {**values, "outputs": entries},
                host_subdir=host,
                parent=top.name,
                kind=output_type(entry),
                listed=top.listed,
            )


_TOOLS = ("_compiler", "_stdlib", "_compiler_version", "_stdlib_version")
_SYSTEM = frozenset({"ARCH", "SUBDIR", "SHLIB_EXT", "RECIPE_DIR", "OSX_ARCH", "MACOSX_DEPLOYMENT_TARGET"})
_OF_BUILD = _PACKAGE | _LANGUAGE.keys() | _BUILD_NAMES.keys() | _SYSTEM
BUILT_IN = NAMES | _OF_BUILD  # names in templates that need no variant to have a value


def _python_sort_key(python: str) -> tuple[bool, Any]:
    version = version_or_none(python)
    return (version is not None, version or python)
