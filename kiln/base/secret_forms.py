"""The forms of a secret, quoted, escaped and encoded, and the credentials in URLs and headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MASKED = "***"
_NAMES = (
    r"(?:[a-z_-]*(?:token|signature|password|passwd|secret)|sig|pwd|auth|key|api[-_]?key|awsaccesskeyid"
    r"|x-(?:amz|goog)-credential)"
)
_NAME_PARTS = ("token", "sig", "passw", "secret", "pwd", "auth", "key", "credential")  # each of _NAMES has one
_USER = lazy_pattern(r"(?<=://)[^/\s?#'\"<>]+(?=@)")
_PATH = lazy_pattern(r"(?<=/t/)(?:[A-Za-z]{2}-[0-9A-Fa-f-]{20,}|[^/\s?#'\"<>]+)")
_QUERY = lazy_pattern(rf"(?<=[?&;]){_NAMES}=(?P<value>[^&\s'\"#<>;]+)", re.IGNORECASE)
_HEADER = lazy_pattern(
    r"\b(?:authorization|x-api-key|x-jfrog-art-api)['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
    r"(?:(?:basic|bearer|token)\s{1,4})?(?P<value>[^\s'\",]+)",
    re.IGNORECASE,
)
_HEADER_WORDS = ("uthorization", "AUTHORIZATION", "-api-key", "-Api-Key", "-API-KEY", "-art-api", "-Art-Api")
# but the folder of the projects with a t, on pip's indexes
_IN_URL = lazy_pattern(r"https?://[^\s'\"<>]*?(?<!/source)/t/")


def credential_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of credentials in a text."""
    if "://" in text:
        yield from (match.span() for match in _USER.finditer(text))
    if "/t/" in text:
        # conda's tokens: any in an address of a server; elsewhere, as in a folder named t, those of anaconda.org's form
        within = {match.end() for match in _IN_URL.finditer(text)}
        for match in _PATH.finditer(text):
            if match.start() in within or re.fullmatch(r"[A-Za-z]{2}-[0-9A-Fa-f-]{20,}", match[0]):
                yield match.span()
    if "=" in text and ("?" in text or "&" in text or ";" in text) and _may_contain_secret_parameter(text):
        yield from (match.span("value") for match in _QUERY.finditer(text))
    if any(word in text for word in _HEADER_WORDS):
        yield from (match.span("value") for match in _HEADER.finditer(text))


def _may_contain_secret_parameter(text: str) -> bool:
    """Return whether a text has a part of the names in `_NAMES`; other alphabets have letters that count as theirs."""
    if not text.isascii():
        return True
    lower = text.lower()
    return any(part in lower for part in _NAME_PARTS)


def has_credentials(text: str) -> bool:
    """Return whether there are credentials in a text."""
    return next(credential_spans(text), None) is not None


def with_masked_credentials(text: str) -> str:
    """Return a text with the credentials of every URL masked."""
    return mask_spans(text, credential_spans(text))


def secrets_in_urls(text: str) -> tuple[str, ...]:
    """Return the passwords and tokens in a text's URLs, as written and unquoted."""
    secrets = []
    for start, end in credential_spans(text):
        value = text[start:end]
        is_user = text[end : end + 1] == "@" and text[:start].endswith("://")
        secret = value.partition(":")[2] if is_user else value
        secrets += [secret, unquote(secret)]
    return tuple(dict.fromkeys(filter(None, secrets)))


def mask_spans(text: str, places: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> str:
    """Return a text with spans masked; those that touch or overlap become one."""
    parts: list[str] = []
    at = 0
    for start, end in sorted(places):
        if parts and start <= at:
            at = max(at, end)
        elif start < end:
            parts += [text[at:start], MASKED]
            at = end
    return "".join((*parts, text[at:])) if parts else text


SHORTEST = 4  # characters: a shorter text occurs by chance, and masking it would reveal it
ANYWHERE = 8  # characters from which on a secret is masked inside of words, too
WINDOW = 8  # characters of base64 that count as a part of a secret
HEX_WINDOW = 16
SURE = 2 * HEX_WINDOW  # an encoded text of this length contains a whole window at a multiple of its length
_HEX_SEPARATORS, _OCTAL_SEPARATORS = ("%", "\\x", " ", ":"), (" ", "\\")  # between the bytes of a dump
_BLANKS = lazy_pattern(r"[ \t\n]+|.", re.DOTALL)  # or one other character
_PLAIN = lazy_pattern(r"[A-Za-z0-9]+")  # what no format escapes; HTML by numbers escapes even "_"
_WORDLIKE = lazy_pattern(r"[\w.+/-]+")
# One blank in any form, without a quantifier that another could share a text with: patterns stay linear.
_BLANK = (
    r"(?:[ \t\r\n]|\\{1,8}(?:[rnt \t\n]|x20|u0020|0?40|x09|u0009|0?11|x0[ad]|u000[ad]|01[25])"
    r"|%(?:25){0,2}(?:20|09|0[AaDd])|&(?:#(?:32|9|1[03]|[xX](?:20|0?[9AaDd]))|nbsp|Tab);)"
)
_QUOTE = r"""|'\\{1,8}''|'"'"'|''|&apos;"""
_CONTROL = {"\r": "r", "\a": "a", "\b": "b", "\f": "f", "\v": "v", "\x1b": "[eE]"}


class EscapedForms:
    """The forms of one secret, or of one of its lines, whose single characters are escaped.

    ``trigger`` is in each text that ``pattern`` matches; empty where no text surely is.

    A plain class: every command imports this module, and making a dataclass or a named tuple takes a millisecond.
    """

    __slots__ = ("pattern", "trigger")

    def __init__(self, secret: str) -> None:
        self.trigger = unescaped_part(secret)
        self.pattern = re.compile(_whole_word_pattern(secret, escaped_pattern(secret)))


def unescaped_part(secret: str) -> str:
    """Return the part of a secret that no form escapes: its longest run of letters and digits."""
    return max(_PLAIN.findall(secret), key=len, default="")


def escaped_pattern(secret: str) -> str:
    """Return the regular expression of a secret in all escaped forms."""
    ways: list[str] = []
    for number, characters in enumerate(_BLANKS.findall(re.sub(r"\r\n?", "\n", secret))):
        if characters == "\\":
            if ways[-1:] != [_BACKSLASH]:  # many in a row are one: as many as they were escaped to
                ways.append(_BACKSLASH)
        elif characters[0] in " \t\n":
            ways.append(_blanks_pattern(number, breaks="\n" in characters))
        else:
            ways.append(_character_pattern(characters, escapable=bool(ways) and ways[-1] != _BACKSLASH))
    return "".join(ways)


def _blanks_pattern(number: int, *, breaks: bool) -> str:
    """Return the expression of blanks in a row: any number of them, quoted, after a line break with a mark of a list.

    A group that is looked ahead to and then repeated is never entered again, as an atomic group of Python 3.11. The
    second one ends earlier: before a backslash of the secret, which the first takes for that of a blank.
    """
    every, plain = f"b{number}", f"c{number}"
    shorter = rf"(?=(?P<{plain}>(?:\\{{0,8}}[ \t\r\n]){{1,256}}))(?P={plain})(?={_BLANK})"
    blanks = rf"(?:(?=(?P<{every}>{_BLANK}{{1,256}}))(?P={every})|{shorter}|\+{{1,8}})"
    return rf"'?\$?'?{blanks}'?'?" + (r"(?:[|>+#] ?)?" if breaks else "")


_BACKSLASH = r"(?:\\{1,64}|(?:%(?:25){0,2}5[Cc]){1,64}|(?:&#(?:92|x5[Cc]);){1,64}|\\{1,8}(?:x5c|u005c|134))"


def _character_pattern(character: str, *, escapable: bool) -> str:
    """Return the expression of a character; ``escapable`` where a backslash before it belongs to the match."""
    if _PLAIN.fullmatch(character) and character.isascii():
        return character
    raw = (r"\\{0,31}" if escapable else "") + re.escape(character)
    from html.entities import codepoint2name

    name = codepoint2name.get(ord(character))
    quote = _QUOTE if character == "'" else '|""' if character == '"' else ""
    entity = rf"|&(?:amp;){{0,3}}{name};" if name else ""
    control = rf"|\\{{1,8}}{_CONTROL[character]}" if character in _CONTROL else ""
    return f"(?:{raw}{quote}{entity}{control}|(?i:{'|'.join(_numeric_escape_patterns(character))}))"


def _numeric_escape_patterns(character: str) -> Iterator[str]:
    """Yield the expressions of a character by its number, or by those of its bytes."""
    point, octets = ord(character), character.encode("utf-8", "surrogatepass")
    yield "".join(f"%(?:25){{0,2}}{octet:02x}" for octet in octets)
    yield "".join(rf"\\{{1,8}}x{octet:02x}" for octet in octets)
    yield "".join(rf"\\{{1,8}}0?{octet:03o}" for octet in octets)
    yield rf"&(?:amp;){{0,3}}#(?:0{{0,4}}{point}|x0{{0,4}}{point:x});"
    words = character.encode("utf-16-be", "surrogatepass")
    yield "".join(rf"\\{{1,8}}u{words[at : at + 2].hex()}" for at in range(0, len(words), 2))
    yield rf"\\{{1,8}}U{point:08x}"
    if point < 256:
        yield rf"\\{{1,8}}x{point:02x}"


def _whole_word_pattern(secret: str, pattern: str) -> str:
    """Return a pattern that matches a short secret only as a whole word, if it looks like one."""
    if len(secret) >= ANYWHERE or not _WORDLIKE.fullmatch(secret):
        return pattern
    before = r"(?<![A-Za-z0-9_])" if secret[0].isalnum() else ""
    after = r"(?![A-Za-z0-9_])" if secret[-1].isalnum() else ""
    return f"{before}{pattern}{after}"


def line_break_variants(secret: str) -> tuple[bytes, ...]:
    """Return the bytes of a secret as it is, and with either line break."""
    unix = re.sub(r"\r\n?", "\n", secret)
    texts = (secret, unix, unix.replace("\n", "\r\n"))
    return tuple(dict.fromkeys(text.encode("utf-8", "surrogatepass") for text in texts))


def base64_at_all_offsets(octets: bytes) -> tuple[str, ...]:
    """Return the base64 of bytes at each of the three offsets in a text, as far as the bytes determine it."""
    from binascii import b2a_base64

    texts = []
    for shift in range(3):
        text = b2a_base64(bytes(shift) + octets, newline=False).decode()
        first, last = -(-8 * shift // 6), 8 * (shift + len(octets)) // 6
        texts.append(text[first:last])
    return (*texts, *(text.translate(URL_SAFE) for text in texts if not text.isalnum()))


URL_SAFE = str.maketrans("+/", "-_")


def byte_dumps(octets: bytes) -> Iterator[str]:
    """Yield the hexadecimal and octal dumps of bytes with separators."""
    for separator in _HEX_SEPARATORS:
        yield separator.join(map("{:02x}".format, octets))
        yield separator.join(map("{:02X}".format, octets))
    for separator in _OCTAL_SEPARATORS:
        yield separator.join(map("{:03o}".format, octets))


def complete_encoded_forms(secret: str) -> Iterator[str]:
    """Yield the encoded forms of a secret that are searched as a whole."""
    for octets in line_break_variants(secret):
        yield from byte_dumps(octets)
        if len(octets) < SURE:
            yield from (octets.hex(), octets.hex().upper())
            yield from (text for text in base64_at_all_offsets(octets) if len(text) > SHORTEST)


def windows_of_encoded_forms(secret: str) -> Iterator[str]:
    """Yield the windows of a secret's encoded forms."""
    for octets in line_break_variants(secret):
        for text in base64_at_all_offsets(octets):
            yield from _substrings_of_length(text, WINDOW)
        yield from _substrings_of_length(octets.hex(), HEX_WINDOW)


def _substrings_of_length(text: str, size: int) -> Iterable[str]:
    return (text[at : at + size] for at in range(len(text) - size + 1))
