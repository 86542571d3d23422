"""A recipe.yaml: its outputs at one variant, the keys that each uses, and the names it mentions anywhere."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base.errors import RecipeFault, SelectorFault, did_you_mean, raise_all
from kiln.base.limits import errors
from kiln.base.position import Place
from kiln.base.yaml import PlacedText, ScalarInterpretation, parse_document, read_text
from kiln.recipe.v1 import sections as v1_sections
from kiln.recipe.v1.expressions import (
    MalformedExpression,
    compile_expression,
    is_template,
    names_in_script_line,
    required_names,
)
from kiln.recipe.v1.nodes import (
    RECIPE,
    context_entry_value,
    is_empty_node,
    node_error,
    node_place,
    rendered_text,
    require_known_keys,
    require_mapping,
    require_scalar,
    unknown_key_error,
    unknown_key_errors,
)
from kiln.recipe.v1.scope import LATE, VariantScope, platform_names
from kiln.recipe.v1.scope import variant_key_of_name as normalized_name
from kiln.recipe.v1.sections import canonical_spec, name_of_bare_requirement
from kiln.recipe.v1.unknown_keys import unknown_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path


_CONDITIONS = ("if", "skip")
_SCRIPTS = ("script", "content")
# The section with the name and the version, which another one has the place of in a recipe with outputs.
_TWINS = {"package": "with outputs, package: is recipe:", "recipe": "without outputs, recipe: is package:"}
_OWN_NAMES = ("context", "extra")  # sections whose keys are the feedstock's own


def mentioned_variant_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return every key that a recipe may ask a variant for, and where it first stands."""
    own = _names_independent_of_variant(recipe)
    result: dict[str, Place] = {}
    for name, node in _names_with_scalars(recipe.root, ""):
        if name not in own:
            result.setdefault(name, node_place(node))
    return result


def required_variant_keys(recipe: RecipeV1) -> dict[str, Place]:
    """Return the keys that a recipe cannot be evaluated without: written out, not compared or with a default.

    What stands in a script is the build's own affair, and a condition may be one of other platforms.
    """
    own = _names_independent_of_variant(recipe)
    result: dict[str, Place] = {}
    for node in templates_outside_scripts(recipe.root, {"context"}):
        with contextlib.suppress(MalformedExpression):  # whoever evaluates it says what is wrong, and where
            for name in required_names(str(node)) - own:
                result.setdefault(name, node_place(node))
    return result


def _names_independent_of_variant(recipe: RecipeV1) -> set[str]:
    """Return the names that have a value, or get one, without any variant."""
    return {*map(str, recipe.context), *platform_names("linux-64", "linux-64"), *LATE, "hash", "build_number"}


def _names_with_scalars(node: Any, key: str) -> Iterator[tuple[str, PlacedText]]:
    if isinstance(node, dict):
        for inner, value in node.items():
            yield from _names_with_scalars(value, key if inner in {"then", "else"} else str(inner))
    elif isinstance(node, list):
        for item in node:
            yield from _names_with_scalars(item, key)
    elif isinstance(node, PlacedText):
        yield from ((name, node) for name in _names_in_scalar(node, key))


def _names_in_scalar(node: PlacedText, key: str) -> frozenset[str]:
    try:
        if is_template(node):
            return names_in_script_line(str(node))  # which takes what any template may hold
        if key in _CONDITIONS:
            return compile_expression(str(node)).names
        bare = name_of_bare_requirement(canonical_spec(node)) if key in {"build", "host"} else ""
    except (MalformedExpression, ValueError):  # the latter by an invalid requirement
        return frozenset()  # as above
    return frozenset({normalized_name(bare)}) if bare else frozenset()


def _conditions(node: Any, key: str = "") -> Iterator[tuple[PlacedText, bool]]:
    """Yield each condition, and whether it is one of ``skip``."""
    if isinstance(node, dict):
        for inner, value in node.items():
            if inner not in _OWN_NAMES:
                yield from _conditions(value, key if inner in {"then", "else"} else str(inner))
    elif isinstance(node, list):
        for item in node:
            yield from _conditions(item, key)
    elif isinstance(node, PlacedText) and key in _CONDITIONS and node and not is_template(node):
        yield node, key == "skip"


def malformed_conditions(root: Mapping[str, Any]) -> Iterator[tuple[PlacedText, MalformedExpression, bool]]:
    """Yield each malformed condition with its fault, and whether it is one of ``skip``, which then does not hold."""
    for node, skips in _conditions(root):
        try:
            compile_expression(str(node))
        except MalformedExpression as error:
            yield node, error, skips


def skip_warnings(recipe: RecipeV1, known: Collection[str]) -> dict[Place, SelectorFault]:
    """Return a warning for each condition of ``skip`` that skips nothing, by its place.

    It is malformed, or has a name without a value that is like a platform's; ``known`` are the keys of variants.
    """
    warnings = {
        (at := node_place(node)): SelectorFault(
            f"the condition {str(node)[:80]!r} of skip is malformed, so nothing is skipped by it",
            at=at,
            why=f"{error}; rattler-build takes it for false",
            hint="correct it; kiln lint fails until then",
        )
        for node, error, skips in malformed_conditions(recipe.root)
        if skips
    }
    platforms = platform_names("linux-64", "linux-64")
    own = {*known, *map(str, recipe.context), *platforms}
    for node, skips in _conditions(recipe.root):
        if skips and node_place(node) not in warnings:
            for name in sorted(required_names(f"${{{{ {node} }}}}") - own):
                if hint := did_you_mean(name, platforms):
                    what = f"the condition {str(node)[:80]!r} of skip has the unknown name {name!r}"
                    why = "rattler-build takes it for false"
                    warnings[node_place(node)] = SelectorFault(what, at=node_place(node), why=why, hint=hint)
    return warnings


def templates_outside_scripts(node: Any, apart: Collection[str]) -> Iterator[PlacedText]:
    """Yield the scalars that are templates, but those in scripts and below the keys that are ``apart``."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _SCRIPTS and key not in apart:
                yield from templates_outside_scripts(value, apart)
    elif isinstance(node, list):
        for item in node:
            yield from templates_outside_scripts(item, apart)
    elif isinstance(node, PlacedText) and is_template(node):
        yield node


_ALWAYS = frozenset({"target_platform", "channel_targets", "channel_sources"})
# Variables of a build's environment that rattler-build lets the variant give, and takes for used.
_OF_MACOS = frozenset({"MACOSX_DEPLOYMENT_TARGET", "OSX_ARCH"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StagingAtVariant:
    """A staging output at one variant, and the keys of the variant that it read and that it requires.

    ``own`` are the keys that its own sections ask for, without those that only the recipe's context reads.
    ``run_exports`` is false for an output that does not take over the run exports of its requirements.
    """

    name: str
    sections: Mapping[str, Any]
    reads: frozenset[str]
    required: frozenset[str]
    own: frozenset[str]
    run_exports: bool = True


@dataclass(frozen=True, kw_only=True)
class PackageAtVariant:
    """A package at one variant: its evaluated sections, and the keys that it uses.

    ``used`` are the keys by which conda-smithy distinguishes packages: of a staging output that it inherits, those that
    its requirements ask for. ``hashed`` are those in the package's hash, which rattler-build counts with all that the
    staging output reads.
    """

    name: str
    version: str
    sections: Mapping[str, Any]
    used: frozenset[str]
    hashed: frozenset[str]
    scope: VariantScope
    entry: Any  # the node of the output, for the place of a fault
    staging: StagingAtVariant | None = None

    @property
    def noarch(self) -> str | None:
        """``python``, ``generic`` or None."""
        result: str | None = self.sections["build"].get("noarch")
        return result

    @property
    def skip(self) -> bool:
        """True if the package is skipped at this variant."""
        return bool(self.sections["build"].get("skip"))

    def placed_error(self, what: str, why: str = "") -> RecipeFault:
        """Return a fault of the package, placed in the recipe."""
        return node_error(self.entry, what, why)


@dataclass(kw_only=True)
class RecipeV1:
    """The file ``recipe.yaml``; every platform and variant of one run shares it."""

    text: str
    root: Mapping[str, Any]
    entries: tuple[Mapping[str, Any], ...] = field(default=())

    @classmethod
    def read(cls, path: Path) -> RecipeV1:
        """Read and check a recipe.

        Raises:
            KilnError: it is malformed, or has a key that is not known.
        """
        return cls.from_text(read_text(path, RECIPE))

    @classmethod
    def from_text(cls, text: str) -> RecipeV1:
        """Parse and check the text of a recipe.

        Raises:
            KilnError: it is malformed, or has a key that is not known.
        """
        root = parse_document(text, RECIPE, ScalarInterpretation.PLACED).value
        if not isinstance(root, dict):
            raise RecipeFault("a recipe is a mapping of sections", at=Place(file=RECIPE))
        recipe = cls(text=text, root=root)
        recipe.require_valid()
        return recipe

    # -- structure ------------------------------------------------------------------------------------------

    @property
    def has_outputs(self) -> bool:
        """True if the recipe has a list of outputs; else it is one package."""
        return "outputs" in self.root

    @property
    def context(self) -> Mapping[str, Any]:
        """The recipe's own names."""
        return require_mapping(self.root.get("context"), "context")

    def require_valid(self) -> None:
        """Refuse what no recipe may say, whatever the variant."""
        if self.has_outputs and "requirements" in self.root:
            what = "a recipe with outputs has no requirements of its own"
            raise node_error(_key_node(self.root, "requirements"), what, hint="write them into each output")
        self._check_keys()
        version = self.root.get("schema_version")
        if version is not None and version != "1":
            raise node_error(version, f"schema_version is {version!r}", hint="kiln reads version 1")
        require_mapping(self.root.get("extra"), "extra")
        if self.has_outputs:
            self._check_outputs(self.root["outputs"])
        elif "package" not in self.root:
            raise RecipeFault("the recipe has neither 'package' nor 'outputs'", at=Place(file=RECIPE))
        elif not isinstance(self.root["package"], dict):
            raise node_error(
                self.root["package"], "package is a mapping of keys", hint="write its name and version below"
            )

    def _check_keys(self) -> None:
        """Refuse all unknown keys at once, also in branches that no variant takes, as rattler-build does."""
        known = (*(v1_sections.SEVERAL if self.has_outputs else v1_sections.SINGLE), "$schema")
        faults = [
            *unknown_key_errors(self.root, known, "a recipe with outputs" if self.has_outputs else "a recipe", _TWINS),
            *(unknown_key_error(unknown.key, unknown.known, unknown.section) for unknown in unknown_keys(self.root)),
        ]
        raise_all(faults)

    def _check_outputs(self, outputs: Any) -> None:
        if not isinstance(outputs, list):
            raise node_error(outputs, "outputs is a list", hint="begin each with '- package:'")
        if not outputs:
            raise node_error(_key_node(self.root, "outputs"), "outputs has no output")
        for entry in outputs:
            self._check_output_entry(entry)
        self.entries = tuple(entry for entry in outputs if "package" in entry)

    def _check_output_entry(self, entry: Any) -> None:
        if not isinstance(entry, dict) or not {"package", "staging"} & entry.keys():
            raise node_error(entry, "an output has 'package' or 'staging'", hint="begin it with '- package:'")
        if "staging" in entry:
            require_known_keys(entry, v1_sections.STAGING, "a staging output")
            _name_of_staging(entry)
            for part, kind in (
                ("build", v1_sections.STAGING_BUILD),
                ("requirements", v1_sections.STAGING_REQUIREMENTS),
            ):
                require_known_keys(require_mapping(entry.get(part), kind.name), kind.kinds, kind.name)
        else:
            require_known_keys(entry, v1_sections.OUTPUT, "an output")

    @property
    def package_count(self) -> int:
        """The number of packages, before any is skipped."""
        return len(self.entries) if self.has_outputs else 1

    def recipe_name_at(self, package: PackageAtVariant) -> str:
        """Return the name of the recipe as a whole, at the variant of one of its packages."""
        named = v1_sections.PACKAGE(self.root.get("recipe"), package.scope) if self.has_outputs else {}
        return named.get("name") or package.name

    # -- evaluation -----------------------------------------------------------------------------------------

    def package_at_variant(self, index: int, scope: VariantScope) -> PackageAtVariant:
        """Return one package at a variant, of its scope; of a skipped one, only ``build`` is evaluated."""
        if self.has_outputs:
            return self._evaluate_output(self.entries[index], scope)
        return self._evaluate_single_package(scope)

    def scope_at_variant(
        self, variant: Mapping[str, Any], target: str, build: str, *, words: bool = False
    ) -> VariantScope:
        """Return the scope of a variant, with the recipe's context evaluated; ``words`` is as in it.

        Raises:
            KilnError: the context cannot be evaluated there, with the line.
        """
        errors.record_place(RECIPE)
        scope = VariantScope(variant, target, build, words=words)
        scope.in_context = True
        for key, node in self.context.items():
            scope.context[str(key)] = context_entry_value(node, scope)
        scope.in_context = False
        return scope

    def _evaluate_single_package(self, scope: VariantScope) -> PackageAtVariant:
        package = v1_sections.PACKAGE(self.root.get("package"), scope)
        sections = {
            "build": v1_sections.BUILD(self.root.get("build"), scope),
            **self._evaluated_sections(self.root, scope, top=False),
        }
        return self._make_package(self.root["package"], package, sections, scope)

    def _evaluate_output(self, entry: Mapping[str, Any], scope: VariantScope) -> PackageAtVariant:
        in_context = frozenset(scope.reads)
        staging = self._inherited_staging(entry, scope)
        scope.reads = set(in_context)
        top = staging is None and is_empty_node(entry.get("inherit"))
        package = v1_sections.PACKAGE(entry["package"], scope)
        if "version" not in package:
            package |= v1_sections.PACKAGE(self.root.get("recipe"), scope) | package
        whole, own = (v1_sections.BUILD(self.root.get("build"), scope), v1_sections.BUILD(entry.get("build"), scope))
        sections: dict[str, Any] = {"build": _merged_build_section(whole, own, with_script=top)}
        if not sections["build"].get("skip"):
            sections |= self._evaluated_sections(entry, scope, top=top)
        return self._make_package(entry["package"], package, sections, scope, staging)

    def _evaluated_sections(self, entry: Mapping[str, Any], scope: VariantScope, *, top: bool) -> dict[str, Any]:
        whole = {} if entry is self.root else v1_sections.ABOUT(self.root.get("about"), scope)
        return {
            "about": whole | v1_sections.ABOUT(entry.get("about"), scope),
            "requirements": v1_sections.REQUIREMENTS(entry.get("requirements"), scope),
            "extra": v1_sections.evaluate_nested_texts(require_mapping(self.root.get("extra"), "extra"), scope),
            "source": self._evaluated_sources(entry, scope, top=top),
            "tests": [
                *(v1_sections.evaluate_tests(self.root.get("tests"), scope) if top else ()),
                *v1_sections.evaluate_tests(entry.get("tests"), scope),
            ],
        }

    def _evaluated_sources(self, entry: Mapping[str, Any], scope: VariantScope, *, top: bool) -> list[Any]:
        holders = (self.root, entry) if top else (entry,)
        return [source for holder in holders for source in v1_sections.SOURCE(holder.get("source"), scope)]

    def _make_package(
        self,
        entry: Any,
        package: Mapping[str, str],
        sections: Mapping[str, Any],
        scope: VariantScope,
        staging: StagingAtVariant | None = None,
    ) -> PackageAtVariant:
        for key in ("name", "version"):
            if not package.get(key):
                raise node_error(entry, f"the package has no {key}")
        own = {
            *scope.reads,
            *_version_keys_by_requirement(sections.get("requirements", {}), scope).values(),
            *(
                key
                for key in (*_ALWAYS, *(_OF_MACOS if scope.target.startswith("osx-") else ()))
                if key in scope.variant
            ),
        }
        required, reads = (staging.required, staging.reads) if staging else (frozenset[str](), frozenset[str]())
        build = sections["build"]
        used = _apply_use_and_ignore_keys(own | required, build, scope)
        return PackageAtVariant(
            name=package["name"],
            version=package["version"],
            sections=sections,
            used=used,
            hashed=used | _apply_use_and_ignore_keys(reads, {"variant": build.get("variant", {})}, scope),
            scope=scope,
            entry=entry,
            staging=staging,
        )

    # -- staging --------------------------------------------------------------------------------------------

    def _inherited_staging(self, entry: Mapping[str, Any], scope: VariantScope) -> StagingAtVariant | None:
        node = entry.get("inherit")
        if is_empty_node(node):
            return None
        if isinstance(node, dict):
            require_known_keys(node, ("from", "run_exports"), "inherit")
            if "from" not in node:
                raise node_error(node, "inherit has no 'from'", hint="the name of a staging output")
        named = node.get("from") if isinstance(node, dict) else node
        name = rendered_text(named, scope)
        flag = node.get("run_exports") if isinstance(node, dict) else None
        exports = flag is None or v1_sections.evaluate_flag(flag, scope) is not False
        for other in self.root["outputs"]:
            if "staging" in other and rendered_text(_name_of_staging(other), scope) == name:
                return self._evaluated_staging(name, other, scope, run_exports=exports)
        raise node_error(named, f"no staging output is named {name!r}")

    def _evaluated_staging(
        self, name: str, entry: Mapping[str, Any], scope: VariantScope, *, run_exports: bool
    ) -> StagingAtVariant:
        before, scope.reads = scope.reads, set()
        requirements = v1_sections.STAGING_REQUIREMENTS(entry.get("requirements"), scope)
        required = frozenset({*scope.reads, *_version_keys_by_requirement(requirements, scope).values()})
        sections = {
            "requirements": requirements,
            "build": v1_sections.STAGING_BUILD(entry.get("build"), scope),
            "source": self._evaluated_sources(entry, scope, top=True),
        }
        own = frozenset(scope.reads)
        scope.reads |= before
        return StagingAtVariant(
            name=name,
            sections=sections,
            reads=frozenset(scope.reads),
            required=required | before,
            own=own | required,
            run_exports=run_exports,
        )


def _key_node(node: Mapping[str, Any], name: str) -> Any:
    """Return a key as it stands in the recipe, with its place."""
    return next(key for key in node if key == name)


def _name_of_staging(entry: Mapping[str, Any]) -> PlacedText:
    setting = entry["staging"]
    if not isinstance(setting, dict):
        raise node_error(setting, "staging is a mapping of keys", hint="write 'name:' below it")
    require_known_keys(setting, ("name",), "staging")
    if is_empty_node(setting.get("name")):
        raise node_error(setting or next(iter(entry)), "the staging output has no name")
    return require_scalar(setting["name"])


def _apply_use_and_ignore_keys(keys: Iterable[str], build: Mapping[str, Any], scope: VariantScope) -> frozenset[str]:
    """Return the keys that count as used, as ``build.noarch`` and ``build.variant`` have it."""
    named = build.get("variant", {})
    forced = {key for key in named.get("use_keys", ()) if key in scope.variant}
    ignored = {name for key in named.get("ignore_keys", ()) for name in (key, normalized_name(key))}
    if build.get("noarch") == "python":
        ignored |= {"python"} - forced
    return frozenset(({*keys} | forced) - ignored)


def requirement_versions_from_variant(requirements: Mapping[str, Any], scope: VariantScope) -> dict[str, str]:
    """Return the versions that the variant gives the requirements of ``build`` and ``host`` that have none."""
    return {name: str(scope.variant[key]) for name, key in _version_keys_by_requirement(requirements, scope).items()}


def _version_keys_by_requirement(requirements: Mapping[str, Any], scope: VariantScope) -> dict[str, str]:
    """Return the keys that give the versions of requirements of ``build`` and ``host`` without any of their own."""
    names = (name_of_bare_requirement(spec) for part in ("build", "host") for spec in requirements.get(part, ()))
    return {name: key for name in names if name and (key := scope.version_key_of_package(name))}


def _merged_build_section(whole: Mapping[str, Any], own: Mapping[str, Any], *, with_script: bool) -> dict[str, Any]:
    """Return an output's build section: its own keys, then those of the top level; ``skip`` holds if either does."""
    merged = {**whole, **{key: value for key, value in own.items() if value not in (None, [], {})}}
    if not with_script:
        merged.pop("script", None)
        if "script" in own:
            merged["script"] = own["script"]
    merged["skip"] = bool(whole.get("skip")) or bool(own.get("skip"))
    return merged
