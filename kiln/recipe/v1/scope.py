"""The scope of recipe.yaml's expressions: the platform, the variant, the recipe's context, and functions.

Every key of the variant that is read is recorded: these are the keys that the recipe uses.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kiln.base.patterns import CONDA_PLATFORMS, lazy_pattern
from kiln.base.yaml import typed_variant_value, variant_value_with_booleans
from kiln.conda.specs import matches
from kiln.recipe.v1.values import InvalidOperation, Undefined, is_true, printed_text, require_defined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


def compiler_or_stdlib_keys(language: str, kind: str) -> tuple[str, str, str]:
    """Return the variant keys that ``compiler()`` or ``stdlib()`` asks for."""
    return f"{language}_{kind}", f"{language}_{kind}_version", "CONDA_BUILD_SYSROOT"


# Folders that are known to a build alone, for paths of patches and licenses.
LATE = ("PREFIX", "BUILD_PREFIX", "SRC_DIR", "RECIPE_DIR", "BUILD_DIR", "HOST_PREFIX")
_ARCHITECTURES = {"32": "x86", "64": "x86_64"}
_PLAIN = lazy_pattern(r"[0-9A-Za-z.]*")
_BOUND = lazy_pattern(r"x(\.x)*|[0-9A-Za-z_.+!]+")
_NOT_HERE = {
    "git": "kiln reads no repository while rendering",
    "load_from_file": "kiln reads no other file while rendering",
    "cmp": "use match() instead",
}


@lru_cache(maxsize=64)
def platform_names(target: str, build: str) -> dict[str, Any]:
    """Return the names that platforms give: ``linux``, ``x86_64``, ``linux64``, ``unix``, ``target_platform``."""
    system, _, arch = target.partition("-")
    names: dict[str, Any] = {}
    for subdir in (*CONDA_PLATFORMS, target):
        family, _, kind = subdir.partition("-")
        names[_ARCHITECTURES.get(kind, kind)] = kind == arch
        names[family] = family == system
        names[subdir.replace("-", "")] = subdir == target
    return names | {
        "unix": system not in {"win", "noarch"},
        "target_platform": target,
        "host_platform": target,
        "build_platform": build,
        "SHLIB_EXT": {"win": ".dll", "osx": ".dylib"}.get(system, ".so"),
    }


def variant_key_of_name(name: str) -> str:
    """Return a package's name as the key of a variant."""
    return name.lower().replace("-", "_").replace(".", "_")


class VariantScope:
    """The names and functions at one variant; ``reads`` are the keys of the variant that were asked for.

    ``words`` are variants of files that know text alone, whose true and false are truth values to a recipe.
    """

    def __init__(self, variant: Mapping[str, Any], target: str, build: str, *, words: bool = False) -> None:
        self.variant = variant
        self._value_of = variant_value_with_booleans if words else typed_variant_value
        self.target = str(variant.get("target_platform", target))
        self.build = build
        self.context: dict[str, Any] = {}
        self.in_context = False  # whether the recipe's context is being evaluated
        self.reads: set[str] = set()
        self._platform = platform_names(self.target, build)
        self._functions: dict[str, Callable[..., Any]] = {
            "compiler": lambda language: self._compiler_or_stdlib_package(printed_text(language), "compiler"),
            "stdlib": lambda language: self._compiler_or_stdlib_package(printed_text(language), "stdlib"),
            "cdt": lambda package: self._cdt_package(printed_text(package)),
            "match": _version_matches,
            "pin_subpackage": lambda name, **bounds: _pin_as_json("pin_subpackage", name, bounds),
            "pin_compatible": lambda name, **bounds: _pin_as_json("pin_compatible", name, bounds),
            "env.exists": lambda _: False,
            "env.get": _default_of_environment_variable,
            "is_linux": lambda subdir: printed_text(subdir).startswith("linux-"),
            "is_osx": lambda subdir: printed_text(subdir).startswith("osx-"),
            "is_windows": lambda subdir: printed_text(subdir).startswith("win-"),
            "is_unix": lambda subdir: printed_text(subdir).partition("-")[0] not in {"win", "noarch"},
        }

    # -- what expressions ask for ---------------------------------------------------------------------------

    def value(self, name: str) -> Any:
        """Return the value of a name; what the recipe's context defines hides the variant."""
        if name in self.context:
            if self.in_context:
                self.record_key_read(name)
            return self.context[name]
        if name in self.variant:
            self.reads.add(name)
            return self._value_of(self.variant[name])
        if name == "build_platform":
            self.reads.add(name)
        if name in _NOT_HERE:
            raise InvalidOperation(f"{name} is not supported: {_NOT_HERE[name]}")
        return self._platform[name] if name in self._platform else Undefined(name)

    def function(self, name: str) -> Callable[..., Any] | None:
        """Return the function of a name."""
        whole = name.partition(".")[0]
        if whole in _NOT_HERE:
            raise InvalidOperation(f"{name}() is not supported: {_NOT_HERE[whole]}")
        return self._functions.get(name)

    def known_names(self) -> set[str]:
        """Return every name that has a value."""
        return {*self._platform, *self.variant, *self.context}

    @contextmanager
    def leave_names_unevaluated(self, names: Iterable[str]) -> Iterator[None]:
        """Let names without a value stand as the expressions that they are, for as long as this context lasts."""
        before = self._platform
        self._platform = {**{name: f"${{{{ {name} }}}}" for name in names}, **before}
        try:
            yield
        finally:
            self._platform = before

    # -- recording ------------------------------------------------------------------------------------------

    def record_key_read(self, name: str) -> None:
        """Record that a key is used, if the variant has it."""
        if name in self.variant or name == "build_platform":
            self.reads.add(name)

    def record_name_reads(self, names: Iterable[str]) -> None:
        """Record that keys are used, but those whose names the context defines."""
        for name in names:
            if name not in self.context:
                self.record_key_read(name)

    def version_key_of_package(self, package: str) -> str | None:
        """Return the variant's key that gives a package's version, if there is one that the context does not hide."""
        key = variant_key_of_name(package)
        for name in (key, package):
            if name in self.variant and name not in self.context:
                return name
        return None

    # -- functions ------------------------------------------------------------------------------------------

    def _compiler_or_stdlib_package(self, language: str, kind: str) -> str:
        keys = compiler_or_stdlib_keys(language, kind)
        self.record_name_reads(keys)
        name = self.variant.get(keys[0]) or (_default_compiler(language, self.target) if kind == "compiler" else None)
        if name is None:
            raise InvalidOperation(f"nothing gives {keys[0]}, which {kind}({language!r}) asks for")
        package = f"{printed_text(typed_variant_value(name))}_{self.target}"
        version = self.variant.get(keys[1])
        if version is None:
            return package
        plain = printed_text(typed_variant_value(version))
        return f"{package} ={plain}" if _PLAIN.fullmatch(plain) else f"{package} {plain}"

    def _cdt_package(self, package: str) -> str:
        arch = self.target.partition("-")[2]
        usual = "cos7" if arch in {"aarch64", "ppc64le", "ppc64", "s390x"} else "cos6"
        defaults = {"cdt_name": usual, "cdt_arch": {"32": "i686", "64": "x86_64"}.get(arch, arch)}
        self.record_name_reads(defaults)
        names = [printed_text(typed_variant_value(self.variant.get(key, other))) for key, other in defaults.items()]
        name, space, rest = package.partition(" ")
        return f"{name}-{names[0]}-{names[1]}{space}{rest}"


def _default_compiler(language: str, target: str) -> str:
    """Return the compiler of a language where the variant gives none."""
    system = target.partition("-")[0]
    if language == "fortran":
        return "flang" if system == "win" else "gfortran"
    if language not in {"c", "cxx"}:
        return language
    others = {"win": ("vs2022", "vs2022"), "osx": ("clang", "clangxx"), "emscripten": ("emscripten", "emscripten")}
    return others.get(system, ("gcc", "gxx"))[language == "cxx"]


def _default_of_environment_variable(name: Any, default: Any = None) -> str:
    """Return a variable of the environment: its default, for a rendering gets none, so that it is the same anywhere."""
    if default is None:
        raise InvalidOperation(
            f"a rendering gets no variables of the environment, such as {printed_text(name)}; give a default"
        )
    return printed_text(default)


def _version_matches(value: Any, spec: Any) -> bool:
    """Return whether a version fits a spec; a key without a value fits all."""
    if isinstance(value, Undefined) or value is None:
        return True
    version = printed_text(value).partition(" ")[0]
    while version.endswith(".*"):
        version = version.removesuffix(".*")
    try:
        return matches(version.rstrip("*"), printed_text(spec))
    except ValueError as error:
        raise InvalidOperation(f"match(): {error}") from error


def _pin_as_json(kind: str, name: Any, bounds: dict[str, Any]) -> str:
    """Return a pin as the text that a requirement holds in its place: a mapping in JSON."""
    if unknown := sorted(bounds.keys() - {"exact", "lower_bound", "upper_bound", "build"}):
        raise InvalidOperation(f"{kind}() takes no {unknown[0]}; it takes exact, lower_bound, upper_bound and build")
    exact = "exact" in bounds and is_true(bounds["exact"])
    if "exact" in bounds and len(bounds) > 1:
        raise InvalidOperation(f"{kind}() takes exact or bounds, not both")
    pin: dict[str, Any] = {"name": printed_text(name)}
    if exact:
        pin["exact"] = True
    else:
        usual = {} if "exact" in bounds else {"lower_bound": "x.x.x.x.x.x", "upper_bound": "x"}
        setting = {key: value for key, value in bounds.items() if key != "exact"}
        pin |= {
            key: _checked_pin_bound(kind, key, value) for key, value in (usual | setting).items() if value is not None
        }
    return json.dumps({kind: pin}, separators=(",", ":"))


def _checked_pin_bound(kind: str, key: str, value: Any) -> str:
    result = printed_text(require_defined(value))
    if key != "build" and not _BOUND.fullmatch(result):
        raise InvalidOperation(f"{kind}(): {key} is {result!r}, which is neither x.x nor a version")
    return result
