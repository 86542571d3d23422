"""The search for secrets in files, in any form."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.masking import forms
from kiln.masking.mask import Mask
from kiln.masking.variables import is_public_variable, is_secret_variable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHUNK = 1 << 22  # bytes
# Values that are not secrets: paths, versions, words and names made of words.
_ORDINARY = re.compile(r"~?(?:/[\w.+@-]*)+|[\d.]+|[A-Za-z]+(?:[-_.:, ][A-Za-z]*\d{0,3})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSearch:
    """A search for values, each under the name that is reported."""

    masks: Mapping[str, Mask]

    @classmethod
    def for_secrets(cls, secrets: Mapping[str, str]) -> SecretSearch:
        """Return the search for values that are too long to occur by chance.

        Bytes are searched as Latin-1 text, so other alphabets are searched by their bytes.
        """
        long = {name: value for name, value in secrets.items() if len(value.strip()) >= forms.ANYWHERE}
        octets = {name: value.encode("utf-8", "surrogatepass") for name, value in long.items()}
        return cls(masks={name: Mask((value, octets[name].decode("latin-1"))) for name, value in long.items()})

    def names_of_secrets_in(self, chunks: Iterator[bytes]) -> tuple[str, ...]:
        """Return the names of the values in a file, which is read in chunks."""
        names: dict[str, None] = {}
        overlap = max((mask.max_form_length for mask in self.masks.values()), default=0)
        rest = ""
        for chunk in chunks:
            text = rest + chunk.decode("latin-1")
            names |= dict.fromkeys(name for name, mask in self.masks.items() if mask.contains_secret(text))
            rest = text[-overlap:]
        return tuple(names)


def secret_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the script variables that no package may contain: by their names, or because they look like secrets.

    A path, a version or a word under another name is in packages for good reasons.
    """
    return {
        name: value
        for name, value in variables.items()
        if is_secret_variable(name) or not (is_public_variable(name) or _ORDINARY.fullmatch(value))
    }
