"""Match specs in every form that conda takes (CEP 29), in conda-build's notation, and in rattler-build's strict one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern
from kiln.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return a version constraint without superfluous marks.

    Raises:
        ValueError: it is not one.
    """
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
