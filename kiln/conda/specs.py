"""Versions in conda's order, version specs, and match specs in every form that conda takes (CEP 29)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache, total_ordering
from itertools import zip_longest
from typing import TYPE_CHECKING

from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rattler import VersionSpec


_LONGEST, _DEEPEST = 1_000, 50  # characters and parentheses; the stack of py-rattler's parser ends at some hundreds


def matches(version: str, spec: str) -> bool:
    """Return whether a version fits a spec.

    Raises:
        ValueError: one of the two is malformed.
    """
    from rattler import Version
    from rattler.exceptions import InvalidVersionError

    try:
        return _parsed_version_spec(spec).matches(Version(version))
    except InvalidVersionError as error:
        raise ValueError(f"{version!r} is not a version: {error}") from error


@lru_cache(maxsize=1024)
def _parsed_version_spec(spec: str) -> VersionSpec:
    """Return a spec as py-rattler has it, in which no space follows an operator."""
    from rattler import VersionSpec
    from rattler.exceptions import InvalidVersionSpecError

    require_safe_to_parse(spec)
    try:
        return VersionSpec(re.sub(r"([<>=!~])\s+", r"\1", spec.strip()))
    except InvalidVersionSpecError as error:
        raise ValueError(f"{spec!r} is not a version spec: {error}") from error


def require_safe_to_parse(spec: str) -> None:
    """Refuse a spec that might end the process that parses it.

    Raises:
        ValueError: it is too long, or nested too deeply.
    """
    if len(spec) > _LONGEST or spec.count("(") > _DEEPEST:
        raise ValueError(f"a version spec of {len(spec):,} characters and {spec.count('('):,} parentheses")


_ALLOWED = lazy_pattern(r"[*.+!_0-9a-z]+")
_RUNS = lazy_pattern(r"[0-9]+|[*]+|[^0-9*]+")

Part = list[int | float | str]


@total_ordering
class Version:
    """A version in the order of conda (conda/models/version.py describes it).

    Components stand between dots and underscores; each is a run of numbers and words in turn. Words come before
    numbers, ``dev`` before all words, ``post`` after all numbers, and a missing component counts as 0.
    """

    __slots__ = ("local", "parts", "text")

    def __init__(self, text: str) -> None:
        self.text = _normalized_version_text(text)
        release, plus, local = self.text.partition("+")
        epoch, mark, rest = release.rpartition("!")
        if mark and not epoch.isdigit():
            raise ValueError(f"{text!r}: the epoch is not a number")
        if not rest or "+" in local or (plus and not release):
            raise ValueError(f"{text!r} is not a version")
        components = rest.removesuffix("_").replace("_", ".").split(".")
        if rest.endswith("_"):  # it belongs to the last component: 1.0.1_ comes before 1.0.1a
            components[-1] += "_"
        self.parts = [_parse_component(epoch or "0"), *map(_parse_component, components)]
        self.local = [_parse_component(part) for part in local.replace("_", ".").split(".")] if plus else []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and not self < other and not other < self

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: Version) -> bool:
        for own, theirs in ((self.parts, other.parts), (self.local, other.local)):
            padding: Part = []
            for left_part, right_part in zip_longest(own, theirs, fillvalue=padding):
                for left, right in zip_longest(left_part, right_part, fillvalue=0):
                    if left != right:
                        return _order_key(left) < _order_key(right)
        return False


def _order_key(item: float | str) -> tuple[int, float, str]:
    return (0, 0, item) if isinstance(item, str) else (1, item, "")


def _normalized_version_text(text: str) -> str:
    version = text.strip().lower()
    if "-" in version and "_" not in version:
        version = version.replace("-", "_")
    if not _ALLOWED.fullmatch(version):
        raise ValueError(f"{text!r} is not a version")
    return version


def _parse_component(text: str) -> Part:
    words: dict[str, float | str] = {"post": float("inf"), "dev": "DEV"}  # after all numbers, before all words
    runs: Part = [int(run) if run.isdigit() else words.get(run, run) for run in _RUNS.findall(text)]
    if not runs:
        raise ValueError("an empty component in a version")
    return runs if text[0].isdigit() else [0, *runs]


@lru_cache(maxsize=8192)
def version_or_none(text: str) -> Version | None:
    """Return the version that a text denotes, or None when it is not a version."""
    try:
        return Version(text)
    except ValueError:
        return None


def pinned_range(version: str, min_pin: str | None = "x.x.x.x.x.x.x", max_pin: str | None = "x") -> str:
    """Return the range that a pin makes of a version: ``pinned('3.11.2', 'x.x', 'x.x')`` is ``>=3.11,<3.12.0a0``.

    Each ``x`` stands for one component to keep; the rules are conda-build's. An epoch stays, as in rattler-build:
    conda-build drops it, and its range then excludes the version itself.

    Raises:
        ValueError: the text is not a version.
    """
    components = Version(version).parts[1:]
    parts, nested = [part for component in components for part in component], len(components) - 1
    epoch = version.partition("!")[0] + "!" if "!" in version else ""
    lower = epoch + _join_components(parts, nested, len(min_pin.split("."))) if min_pin else ""
    upper = epoch + _upper_bound(parts, nested, len(max_pin.split("."))) if max_pin else ""
    if lower and Version(re.sub(r"\.?\*$", "", version)) < Version(lower):
        lower = version  # a pre-release comes before the release that its first components name
    return ",".join(bound for bound in (lower and f">={lower}", upper and f"<{upper}") if bound)


def _join_components(parts: Part, nested: int, count: int) -> str:
    """Return the first ``count`` parts with dots between them, but none after that of the number ``nested``."""
    text = "".join(f"{part}{'' if index == nested else '.'}" for index, part in enumerate(parts[:count]))
    return text.removesuffix(".")


def _upper_bound(parts: Part, nested: int, count: int) -> str:
    count = min(count, len(parts))
    alphabetic = str(parts[min(count, len(parts) - 1)]).isalpha()
    last = parts[count - 1]
    bumped = f"{last + 1}{'a' if alphabetic else '.0a0'}" if isinstance(last, int) else chr(ord(str(last)[0]) + 1)
    return _join_components([*parts[: count - 1], bumped], nested, count)


_PLAIN = lazy_pattern(r"([\w.-]+)\s+([\w.-]+)$")  # a name and a version without an operator
_COMMENT = lazy_pattern(r"#[^\]]*$")
_PARTS = lazy_pattern(r"([,|()])")
_NAME = lazy_pattern(r"([^\s=<>!~\[]*)\s*(.*)", re.DOTALL)
# A version, and the build after a blank or an equals sign that no operator precedes: conda's rule.
_VERSION_BUILD = lazy_pattern(r"(.*?[^\s=!|,<>~])(?:\s+|=)([^-=,|<>~\s][^=,|<>~\s]*)")
_APART = lazy_pattern(r"[^\s=!|,<>~(]\s+[^\s=!|,<>~)]")
_BRACKETS = lazy_pattern(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]$")  # a value may be a list, in brackets itself
_KEY_VALUE = lazy_pattern(r"""\s*([A-Za-z0-9_-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|(\[[^\[\]]*\])|([^,"']*?))\s*(?:,|$)""")
_VALID_NAME = lazy_pattern(r"[A-Za-z0-9_*][A-Za-z0-9_.+*-]*")  # with an asterisk, all names that match
_VALID_VERSION = lazy_pattern(r"(?:[<>]=?|[!=]=|=|~=|!=~|==~|=<|=>)?\s*([A-Za-z0-9_.+!*-]+)|\^.*\$")
_PLAIN_BUILD = lazy_pattern(r"[A-Za-z0-9_.+*]+")
_FILE = lazy_pattern(r"(?:[a-z]+://|[./~]).*\.(?:conda|tar\.bz2)(?:#\w+|\[.*\])?", re.DOTALL)
_KEYS = frozenset({
    "build", "build_number", "channel", "extras", "features", "flags", "fn", "license", "license_family", "md5", "name",
    "namespace", "sha256", "subdir", "track_features", "url", "version", "when",
})  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchSpec:
    """A match spec: ``version`` in conda's notation, in which ``1.2`` is exact; ``rest`` are other keys in brackets."""

    name: str
    version: str = ""
    build: str = ""
    channel: str = ""
    namespace: str = ""
    rest: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=256)  # a spec is parsed for its name, then for its version
    def parse(cls, text: str) -> MatchSpec:
        """Return the match spec that a text denotes.

        Raises:
            ValueError: the text is not a match spec; the message says why.
        """
        text, keys = _split_brackets(_COMMENT.sub("", text).strip())
        channel, namespace, text = ["", "", *text.rsplit(":", 2)][-3:]
        match = _NAME.match(text)
        assert match is not None, "each part of the pattern may be empty"
        version, build = _version_and_build(match[2])
        fields = {"name": match[1], "version": version, "build": build, "channel": channel, "namespace": namespace}
        fields |= {key: keys.pop(key) for key in fields.keys() & keys.keys()}
        if "subdir" in keys and fields["channel"]:
            fields["channel"] = f"{fields['channel']}/{keys.pop('subdir')}"
        fields["version"] = _normalized_constraint(fields["version"])
        if not fields["name"]:
            raise ValueError("it names no package")
        if not _VALID_NAME.fullmatch(fields["name"]):
            raise ValueError(f"{fields['name']!r} is not the name of a package")
        return cls(**fields, rest=keys)

    @property
    def strict_rattler_text(self) -> str:
        """The text for rattler-build, in which an exact version has ``==``."""
        plain = not self.build or bool(self.version and _PLAIN_BUILD.fullmatch(self.build))
        version = "".join(map(_with_explicit_operator, _PARTS.split(self.version)))
        return self._format_spec(version, self.build if plain else "", plain=plain)

    @property
    def conda_build_text(self) -> str:
        """The text that conda-build writes into a package."""
        return self._format_spec(self.version or ("*" if self.build else ""), self.build, plain=True)

    def _format_spec(self, version: str, build: str, *, plain: bool) -> str:
        channel = f"{self.channel}:{self.namespace}:" if self.channel or self.namespace else ""
        keys = dict(self.rest) if plain else {**self.rest, "build": self.build}
        brackets = ",".join(
            f"{key}={value}" if value.startswith("[") else f'{key}="{value}"' for key, value in sorted(keys.items())
        )
        body = " ".join(filter(None, (self.name, version, build)))
        return f"{channel}{body}[{brackets}]" if brackets else f"{channel}{body}"


def invalid_spec_reason(text: str) -> str:
    """Return why a text is not a match spec; empty when it is one."""
    if _FILE.fullmatch(text.strip()):
        return ""
    try:
        MatchSpec.parse(text)
    except ValueError as error:
        return str(error)
    return ""


def strict_rattler_spec(spec: str) -> str:
    """Return a match spec of a meta.yaml in rattler-build's strict notation, in which bare versions have ``==``.

    ``libfoo 2.21.0 cpu_*`` and ``libfoo=2.21.0=cpu_*`` become ``libfoo ==2.21.0 cpu_*``; a version with an operator or
    an asterisk is unchanged. The rule is conda's: a version without operator and asterisk matches exactly. An invalid
    spec, or the address of a package, is returned as it is.
    """
    try:
        return spec if _FILE.fullmatch(spec.strip()) else MatchSpec.parse(spec).strict_rattler_text
    except ValueError:
        return " ".join(spec.split())


def conda_build_spec(spec: str) -> str:
    """Return a match spec as conda-build writes it into a package: the reverse of ``strict_rattler_spec``."""
    try:
        return spec if _FILE.fullmatch(spec.strip()) else MatchSpec.parse(spec).conda_build_text
    except ValueError:
        return " ".join(spec.split())


def with_version_wildcard(spec: str) -> str:
    """Return a spec with an asterisk after a plain version: ``gcc 12`` becomes ``gcc 12.*``."""
    match = _PLAIN.match(spec)
    if match is None:
        return spec
    name, version = match.groups()
    return f"{name} {version}" if version == "x.x" and name in {"python", "numpy"} else f"{name} {version}.*"


def package_name(spec: str) -> str:
    """Return the package name of a match spec, in its own case; of an invalid one, what stands at a name's place."""
    try:
        return MatchSpec.parse(spec).name
    except ValueError:
        return re.split(r"[\s=<>!~\[]", spec.strip(), maxsplit=1)[0]


def _split_brackets(text: str) -> tuple[str, dict[str, str]]:
    """Return a text without the brackets at its end, and the keys in them."""
    keys: dict[str, str] = {}
    while match := _BRACKETS.search(text):
        position, content = 0, match[1]
        while position < len(content):
            pair = _KEY_VALUE.match(content, position)
            if pair is None:
                raise ValueError(f"[{content}] is not a list of key=value")
            value = next((group for group in pair.groups()[1:] if group is not None), "")
            if pair[1] not in _KEYS:
                raise ValueError(f"{pair[1]!r} is not a key of a match spec")
            keys.setdefault(pair[1], value)
            position = pair.end()
        text = text[: match.start()].rstrip()
    return text, keys


def _version_and_build(text: str) -> tuple[str, str]:
    """Return the version and the build after a package's name, as conda reads them."""
    text = text.strip()
    match = _VERSION_BUILD.fullmatch(text)
    version, build = (match[1], match[2]) if match else (text, "")
    if _APART.search(version):
        raise ValueError(f"{text!r} has more than a version and a build")
    version = re.sub(r"\s+", "", version)
    if version.startswith("==") and version[2:] and not set(version[2:]) & set("=,|"):
        version = version[2:]
    elif version.startswith("=") and version[1:] and not set(version[1:]) & set("=,|"):
        version = version[1:] if build or version.endswith("*") else f"{version[1:]}.*"
    return version, build


def _normalized_constraint(version: str) -> str:
    """Return a version constraint without superfluous marks."""
    parts = re.split(r"[,|]", re.sub(r"[()]", "", version)) if version else []
    invalid = [part for part in parts if not _is_version_bound(part.strip())]
    if invalid:
        raise ValueError(f"{invalid[0]!r} is not a version, or a bound of one" if invalid[0] else "a bound is empty")
    return "".join(part.removeprefix("==") for part in _PARTS.split(version.replace(" ", "")))


def _is_version_bound(part: str) -> bool:
    match = _VALID_VERSION.fullmatch(part)
    if match is None or match[1] is None:
        return match is not None
    plain = match[1].removesuffix("*").removesuffix(".") if match[1].endswith("*") else match[1]
    return plain == "" or version_or_none(plain) is not None


def _with_explicit_operator(version: str) -> str:
    """Return a part of a version constraint with ``==`` before an exact version, and ``1.2.*`` for ``=1.2``."""
    if version[:1] == "=" and version[1:2].isalnum():
        return version[1:] if version.endswith("*") else f"{version[1:]}.*"
    bare = version[:1].isalnum() and "*" not in version
    return f"=={version}" if bare else version
