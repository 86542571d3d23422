"""The names in selectors and templates, and templates cut into pieces that compile once."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kiln.base.errors import SelectorFault, did_you_mean
from kiln.base.patterns import CONDA_PLATFORMS, lazy_pattern
from kiln.recipe.template.expression import MissingName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.base.position import Place

    Doubts = dict[Place, SelectorFault]


# With these, pieces depend on each other, or on the text around them.
_NOT_SEPARABLE = lazy_pattern(
    r"\{[{%#][-+]|[-+][}%#]\}|\{%\s*(?:macro|call|import|from|include|extends|block|raw|filter|autoescape|with|trans)\b"
)
_MARK = lazy_pattern(r"\{\{|\{%|\{#")
_OPENING = lazy_pattern(r"\s*(if|for)\b")
_CLOSING = lazy_pattern(r"\s*(endif|endfor)\b")
_BLOCK_SET = lazy_pattern(r"\s*(set\b[^=]*$|endset\b)")
_MAX_LINES = 500  # of one construct, which is scanned again with each line; a longer one is almost certainly unclosed
_INSIDE = lazy_pattern(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[\[({]|[\])}]|%\}""", re.DOTALL)


class NotSeparable(Exception):
    """The template must be compiled as a whole."""


def cut_into_pieces(text: str) -> list[tuple[int, str, bool]]:
    """Return the pieces of a template: for each its first line (from 0), its text, and whether it needs compiling.

    The pieces' texts, joined by line breaks, are the template.
    """
    if _NOT_SEPARABLE.search(text):
        raise NotSeparable
    pieces: list[tuple[int, str, bool]] = []
    open_lines: list[str] = []
    depth = 0
    pending = ""
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        change = _block_level_change(f"{pending}\n{line}" if pending else line)
        if not (open_lines or pending) and change == 0 and not _MARK.search(line):
            _add_plain_line(pieces, number, line)
            continue
        open_lines.append(line)
        if change is None:
            pending = f"{pending}\n{line}" if pending else line
            if pending.count("\n") > _MAX_LINES:
                raise NotSeparable
            continue
        pending = ""
        depth += change
        if depth <= 0:
            pieces.append((number - len(open_lines) + 1, "\n".join(open_lines), True))
            open_lines, depth = [], 0
    if open_lines:
        raise NotSeparable  # something is never closed; compiling the whole template gives the best error
    return pieces


def _add_plain_line(pieces: list[tuple[int, str, bool]], number: int, line: str) -> None:
    if pieces and not pieces[-1][2]:
        start, before, _ = pieces[-1]
        pieces[-1] = (start, f"{before}\n{line}", False)
    else:
        pieces.append((number, line, False))


@lru_cache(maxsize=8192)
def _block_level_change(text: str) -> int | None:
    """Return by how many levels a text opens (or closes) blocks; None when it ends inside a construct."""
    change = at = 0
    while opening := _MARK.search(text, at):
        end = (
            text.find("#}", opening.end()) + 2
            if opening.group() == "{#"
            else _end_of_construct(text, opening.end(), opening.group())
        )
        if end < 2 or end > len(text):
            return None
        if opening.group() == "{%":
            statement = text[opening.end() : end - 2]
            if _BLOCK_SET.match(statement):
                raise NotSeparable
            change += bool(_OPENING.match(statement)) - bool(_CLOSING.match(statement))
        at = end
    return change


def _end_of_construct(text: str, at: int, mark: str) -> int:
    """Return the index after a construct's closing mark outside of texts and brackets; -1 when it is not closed."""
    depth = 0
    closing = "%}" if mark == "{%" else "}}"
    while True:
        token = _INSIDE.search(text, at)
        if token is None:
            return -1
        if depth == 0 and text.startswith(closing, token.start()):
            return token.start() + 2
        sign = token.group()
        if sign == "%}":  # inside brackets or an expression this is an operator and a bracket
            sign = "}"
        depth += (sign in {"[", "(", "{"}) - (sign in {"]", ")", "}"})
        at = token.end()


# Names that recipes may test although nothing defines them: to conda-build they are False.
MAY_BE_UNDEFINED = frozenset(
    line
    for line in Path(__file__).with_name("may_be_undefined.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


class RestrictedOs:
    """The part of Python's ``os`` that selectors and templates may use."""

    pathsep = ":"
    sep = "/"

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = MappingProxyType(dict(environ))

    def __repr__(self) -> str:
        return f"Os({sorted(self.environ.items())})"

    def getenv(self, name: str, default: str | None = None) -> str | None:
        """Return a variable of the rendering's environment, never of the process's."""
        return self.environ.get(name, default)


class Namespace:
    """Every name of one platform and one variant.

    As in conda-build, platform names and the environment hide a variant key of the same name, and a variant's value
    that reads as a whole number or a truth value becomes one. ``doubts`` collects the undefined names of selectors;
    without it they are errors.
    """

    __slots__ = ("_all_known", "_fixed", "_known", "_variant", "doubts")

    def __init__(
        self,
        fixed: Mapping[str, Any],
        variant: Mapping[str, Any],
        known: frozenset[str],
        *,
        all_known: bool = True,
        doubts: Doubts | None = None,
    ) -> None:
        self._fixed = fixed
        self._variant = variant
        self._known = known
        self._all_known = all_known
        self.doubts = doubts

    def lookup(self, name: str) -> Any:
        """Return the value of a name.

        Raises:
            MissingName: it has no value.
        """
        if name in self._fixed:
            return self._fixed[name]
        if name in self._variant:
            return _typed_variant_value(self._variant[name])
        raise MissingName(name)

    def fixed_value(self, name: str) -> Any:
        """Return the value of a name that is not the variant's."""
        return self._fixed[name]

    def cache_key_values(self, names: Iterable[str]) -> tuple[object, ...]:
        """Return the values of some names, None for those without, as a cache key."""
        fixed, variant = self._fixed, self._variant
        return tuple(
            [_cache_key_value(fixed[name]) if name in fixed else _cache_key_value(variant.get(name)) for name in names]
        )

    def is_known(self, name: str) -> bool:
        """Return whether a name is valid: it has a value on some platform, or recipes may test it undefined.

        Where not all names are known, only a likely misspelling counts as unknown.
        """
        if name in self._known or name in MAY_BE_UNDEFINED or name in self._fixed:
            return True
        return not self._all_known and not did_you_mean(name, self.suggested_names())

    def suggested_names(self) -> set[str]:
        """Return the names to suggest for an unknown one."""
        return {*self._fixed, *self._variant, *self._known} - {"False"}


def _cache_key_value(value: object) -> object:
    return value if isinstance(value, str) or value is None else repr(value)


def _typed_variant_value(value: Any) -> Any:
    try:
        return int(value)
    except (TypeError, ValueError):
        if isinstance(value, str) and value.lower() in {"true", "false"}:
            return value.lower() == "true"
        return value


def platform_names(subdir: str) -> dict[str, Any]:
    """Return the platform names with their truth values for a subdir; for ``noarch`` all platforms are false."""
    names: dict[str, Any] = {
        "linux32": subdir == "linux-32",
        "linux64": subdir == "linux-64",
        "win32": subdir == "win-32",
        "win64": subdir == "win-64",
        "arm": subdir.startswith("linux-arm"),
        "unix": subdir.startswith(("linux-", "osx-", "emscripten-")),
        "nomkl": False,
    }
    for known_subdir in (*CONDA_PLATFORMS, *([subdir] if "-" in subdir else [])):
        system, arch = known_subdir.split("-")[:2]
        names[system] = subdir.startswith(f"{system}-")
        names[{"32": "x86", "64": "x86_64"}.get(arch, arch)] = subdir.endswith(f"-{arch}")
    names["x86"] = subdir.endswith(("-32", "-64"))
    return names


def language_version_names(python: str, numpy: str, perl: str, lua: str) -> dict[str, Any]:
    """Return the legacy names of the languages' versions: ``py``, ``py3k``, ``np``, ``pl``, ``lua`` and so on."""
    major, minor = [*python.split(" ", maxsplit=1)[0].split("."), "0"][:2]
    number = int(f"{major}{minor}")
    names: dict[str, Any] = {
        "py": number,
        "py3k": major == "3",
        "py2k": major == "2",
        "np": int("".join(numpy.split(".")[:2])),
        "pl": perl,
        "lua": lua,
        "luajit": lua[:1] == "2",
    }
    return names | {f"py{legacy}": number == legacy for legacy in (26, 27, 33, 34, 35, 36)}
