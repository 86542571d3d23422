"""The signatures of records, by OpenSSH's ssh-keygen: keys are those that people push commits with.

PROTOCOL.sshsig of OpenSSH describes the format, ssh-keygen(1) the file of allowed signers.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import ProvenanceBroken, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NAMESPACE = "kiln-provenance"


def signing_function(key: Path, *, env: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that signs a text with an SSH key, or with the agent's when ``key`` is a public one.

    Raises:
        UsageError: when the key cannot sign.
        MissingTool: when ssh-keygen is not installed.
    """

    def sign(text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            message = Path(folder) / "message"
            message.write_bytes(text.encode())  # as it is, with its line ends
            words = ("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(message))
            result = process_runner.run(words, env=env, timeout=60)
            if not result.ok:
                raise UsageError(f"{key} cannot sign", why=result.tail, hint="an unlocked SSH key, or one in the agent")
            return message.with_suffix(".sig").read_text(encoding="utf-8")

    return sign


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSigners:
    """The allowed signers: a file as git and ssh-keygen read it."""

    file: Path
    env: Mapping[str, str]

    def verified_signer(self, text: str, signature: str) -> str:
        """Return the name of a text's signer.

        Raises:
            ProvenanceBroken: when no allowed signer has signed it.
        """
        with tempfile.TemporaryDirectory() as folder:
            signature_file = Path(folder) / "message.sig"
            signature_file.write_bytes(signature.encode())
            common = ("-f", str(self.file), "-s", str(signature_file))
            principals = process_runner.capture(
                ("ssh-keygen", "-Y", "find-principals", *common), env=self.env, timeout=60
            )
            name = (principals.stdout.split() or [""])[0]
            words = ("ssh-keygen", "-Y", "verify", *common, "-I", name, "-n", NAMESPACE)
            if not (principals.ok and name and process_runner.run(words, env=self.env, timeout=60, stdin=text).ok):
                raise ProvenanceBroken("a record is not signed by an allowed signer", why=f"see {self.file}")
        return name
