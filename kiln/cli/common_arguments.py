"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli import option_value_parsers

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kiln.provenance.attestation_check import TrustedSigner


def add_channel_arguments(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the option for the channels to take packages from; ``default`` is its default in words."""
    parser.add_argument(
        "-c",
        "--from",
        dest="channels",
        metavar="CHANNEL",
        type=option_value_parsers.parse_channel,
        action="append",
        default=[],
        help="take packages from this channel (a folder, URL or name); can be repeated, in order of priority (default: "
        f"{default})",
    )


def add_config_selection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select configs."""
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="name of a config's file in .ci_support")
    parser.add_argument("--filter", metavar="GLOB", help="build the configs with matching names: '*cuda*python3.11*'")
    parser.add_argument("--all", action="store_true", help="build all configs (narrow with --filter)")
    parser.add_argument(
        "--failed", action="store_true", help="build the configs that failed or were interrupted in the last run"
    )


def add_attestation_arguments(parser: argparse.ArgumentParser, *, of_a_channel: bool) -> None:
    """Add the options for the signers of attestations; ``of_a_channel`` where they can be set for one channel."""
    where = "; with CHANNEL= for the packages of this channel alone" if of_a_channel else ""
    parser.add_argument(
        "--require-attestation",
        metavar="[CHANNEL=]SIGNER" if of_a_channel else "SIGNER",
        action="append",
        default=[],
        help="require an attestation (CEP 27) by this signer: a Sigstore identity, such as a workflow's URL, or a "
        f"public key in a PEM file{where}; can be repeated",
    )
    parser.add_argument(
        "--attestation-issuer",
        metavar="URL",
        default="",
        help="set the OIDC issuer of the identities (default: GitHub's or GitLab's, by the identity)",
    )
    parser.add_argument(
        "--trusted-root",
        metavar="FILE",
        type=Path,
        help="verify identities by this trusted_root.json (default: the public instance's, as py-rattler has it)",
    )


def trusted_attestation_signers(options: argparse.Namespace, texts: Sequence[str]) -> tuple[TrustedSigner, ...]:
    """Return the signers of these names.

    Raises:
        UsageError: when one is neither an identity nor a key.
    """
    from kiln.provenance.attestation_check import TrustedSigner

    return tuple(
        TrustedSigner.parse(text, issuer=options.attestation_issuer, root=options.trusted_root) for text in texts
    )
