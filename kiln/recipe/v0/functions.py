"""The functions that recipes call in templates, without a solver and without reaching beyond the feedstock."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError, TemplateFault, UnsafeTemplate
from kiln.base.yaml import ScalarInterpretation, parse_document, read_text
from kiln.conda.specs import with_version_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.recipe.v0.sources import SourceFiles
    from kiln.recipe.variants.files import Platform

# The parts of Python's modules that a template may use: values and harmless functions only.
TIME = SimpleNamespace(
    time=time.time, strftime=time.strftime, gmtime=time.gmtime, localtime=time.localtime, ctime=time.ctime
)
DATETIME = SimpleNamespace(datetime=dt.datetime, date=dt.date, timedelta=dt.timedelta, timezone=dt.timezone)

NAMES = frozenset(
    [
        "compiler", "stdlib", "cdt", "ccache", "pin_compatible", "pin_subpackage", "resolved_packages",
        "installed", "time", "datetime", "environ", "os", "load_setup_py_data", "load_setuptools", "load_npm",
        "load_file_regex", "load_file_data", "load_str_data",
    ]
)  # fmt: skip
# The functions whose result depends on the variant.
VARYING = frozenset({"compiler", "stdlib", "cdt"})


# The functions that read a file of the source.
OF_SOURCE = frozenset({"load_file_data", "load_file_regex", "load_setup_py_data", "load_setuptools"})


def template_functions(
    platform: Platform, variant: Mapping[str, Any], host_arch: str, *, sources: SourceFiles
) -> dict[str, Any]:
    """Return the template functions for one platform and variant; files are read of the recipe and its ``sources``."""
    files = _FileReadingFunctions(sources)
    return {
        "compiler": lambda language: compiler_or_stdlib_package(language, "compiler", platform, variant),
        "stdlib": lambda language: compiler_or_stdlib_package(language, "stdlib", platform, variant),
        "cdt": lambda package_name: cdt_package(package_name, variant, host_arch),
        "ccache": lambda method: "ccache",  # noqa: ARG005 - the method matters to builds, not to rendering
        **_OPEN_PINS,
        "resolved_packages": lambda env: [],  # noqa: ARG005 - nothing is resolved before a solver runs
        "installed": {},
        "load_setup_py_data": files.load_setup_py_data,
        "load_setuptools": files.load_setup_py_data,
        "load_npm": files.load_npm,
        "load_file_regex": files.load_file_regex,
        "load_file_data": files.load_file_data,
        "load_str_data": parse_data_text,
        "time": TIME,
        "datetime": DATETIME,
        "environ": platform.os.environ,
        "os": platform.os,
    }


def compiler_or_stdlib_package(language: str, component: str, platform: Platform, variant: Mapping[str, Any]) -> str:
    """Return the package of a compiler or standard library for the target platform, such as ``gcc_linux-64 12.*``."""
    language = str(language)
    native = platform.compilers.get(language, language) if component == "compiler" else language
    key = f"{language}_{component}"
    package = f"{variant.get(key, native)}_{variant.get('target_platform', platform.subdir)}"
    version = variant.get(f"{key}_version")
    return with_version_wildcard(f"{package} {version}") if version else package


def cdt_package(package_name: str, variant: Mapping[str, Any], host_arch: str) -> str:
    """Return the package of a core dependency tree, such as ``mesa-libgl-devel-cos7-x86_64``."""
    arch, distribution = {"64": ("x86_64", "cos6"), "32": ("i686", "cos6")}.get(host_arch, (host_arch, "cos7"))
    name, _, rest = str(package_name).partition(" ")
    full = f"{name}-{variant.get('cdt_name', distribution)}-{variant.get('cdt_arch', arch)}"
    return f"{full} {rest}" if rest else full


def pin_functions(mark: Callable[..., str]) -> dict[str, Callable[..., str]]:
    """Return the pinning functions; ``mark`` makes the text that they return of their arguments."""

    def pin_subpackage(
        subpackage_name: str, min_pin: object = "x.x.x.x.x.x", max_pin: object = "x", exact: object = False
    ) -> str:
        return mark("subpackage", str(subpackage_name), min_pin=min_pin, max_pin=max_pin, exact=exact)

    def pin_compatible(
        package_name: str,
        lower_bound: object = None,
        upper_bound: object = None,
        min_pin: object = "x.x.x.x.x.x",
        max_pin: object = "x",
        exact: object = False,
    ) -> str:
        bounds = {"lower_bound": lower_bound, "upper_bound": upper_bound, "min_pin": min_pin, "max_pin": max_pin}
        return mark("compatible", str(package_name), **bounds, exact=exact)

    for function in (pin_subpackage, pin_compatible):
        function.__qualname__ = function.__name__  # as errors about their arguments name it
    return {"pin_subpackage": pin_subpackage, "pin_compatible": pin_compatible}


# Without bounds, which take effect when a solver has chosen versions, and between finished outputs (render.finalise).
_OPEN_PINS = pin_functions(lambda kind, name, **_: f"{name} " if kind == "compatible" else name)


class _EmptyMatch:
    """The match of a pattern in a file that is missing so far."""

    def __bool__(self) -> bool:
        return False

    def group(self, *_: object) -> str:
        """Return no text."""
        return ""

    def groups(self, *_: object) -> tuple[str, ...]:
        """Return no groups."""
        return ()

    def groupdict(self, *_: object) -> dict[str, str]:
        """Return no groups."""
        return {}


class _FileReadingFunctions:
    """The files of a recipe and of its sources, read as data."""

    def __init__(self, sources: SourceFiles) -> None:
        self._sources = sources

    def load_npm(self) -> Any:
        """Return the data of ``package.json``."""
        return parse_data_text(read_recipe_file(self._sources.recipe, "package.json"), "json")

    def load_file_data(
        self, filename: str, fmt: str | None = None, *_: Any, from_recipe_dir: bool = False, **__: Any
    ) -> Any:
        """Return a file's data; a file that is missing so far counts as empty."""
        text = self._file_text(filename, from_recipe_dir=from_recipe_dir)
        return {} if text is None else parse_data_text(text, fmt or str(filename).rpartition(".")[2])

    def load_file_regex(self, load_file: str, regex_pattern: str, from_recipe_dir: bool = False, **_: Any) -> Any:
        """Return the match of a pattern in a file; an empty one for a file that is missing so far."""
        text = self._file_text(load_file, from_recipe_dir=from_recipe_dir)
        return _EmptyMatch() if text is None else first_regex_match(str(regex_pattern), text)

    def load_setup_py_data(self, *_: Any, **__: Any) -> Any:
        """Refuse to run a setup.py; without values, as for a missing file, while the sources are not final."""
        if not self._sources.final:
            return {}
        raise TemplateFault(
            "the template reads setup.py, which would have to be run",
            why="kiln runs no code while rendering",
            hint="write the value into the recipe, or read it with load_file_data or load_file_regex",
        )

    def _file_text(self, name: str, *, from_recipe_dir: bool) -> str | None:
        """Return the text of a file of the recipe or of its sources; None if it does not exist yet."""
        if from_recipe_dir or str(name).startswith(("/", "..")):
            return read_recipe_file(self._sources.recipe, name)
        return self._sources.source_file_text(str(name))


def read_recipe_file(folder: Path, name: str) -> str:
    """Return the text of a file of a recipe in a folder."""
    path = (folder / str(name)).resolve()
    if not path.is_relative_to(folder.resolve().parent):
        raise UnsafeTemplate(f"the template reads {str(name)!r}", why="it is outside the feedstock")
    if not path.is_file():
        raise TemplateFault(f"file {str(name)!r} not found in the recipe folder")
    return read_text(path, str(name))


def first_regex_match(pattern: str, text: str) -> re.Match[str] | None:
    """Return the first match of a recipe's own pattern."""
    try:
        return re.search(pattern, text)
    except re.error as error:
        raise TemplateFault(f"{pattern[:80]!r} is not a regular expression", why=str(error)) from error


def parse_data_text(string: str, fmt: str, *_: Any, **__: Any) -> Any:
    """Data from JSON, YAML or TOML text."""
    readers: dict[str, Callable[[str], Any]] = {
        "json": json.loads,
        "yaml": lambda text: parse_document(text, "data", ScalarInterpretation.WORDS).value,
        "yml": lambda text: parse_document(text, "data", ScalarInterpretation.WORDS).value,
        "toml": _parse_toml,
    }
    reader = readers.get(str(fmt).lower())
    if reader is None:
        raise TemplateFault(f"unknown data format {fmt!r}", hint=f"use one of {', '.join(readers)}")
    try:
        return reader(string)
    except KilnError:
        raise
    except (ValueError, RecursionError) as error:
        raise TemplateFault(f"malformed {fmt} data", why=str(error)) from error


def _parse_toml(text: str) -> Any:
    if sys.version_info < (3, 11):
        raise TemplateFault("TOML data needs Python 3.11 or newer to read")
    import tomllib

    return tomllib.loads(text)
