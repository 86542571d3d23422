"""The arguments that commands share, those of ``kiln build``, and the conversion of their values."""

from __future__ import annotations

import argparse
import re
import sys
from collections import namedtuple
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import UsageError
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.conda.provenance.check import TrustedSigner


SIZE = lazy_pattern(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
TIME = lazy_pattern(r"(?=\d)(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?:in)?)?(?:(\d+(?:\.\d+)?)s)?", re.IGNORECASE)
ACTIONS = lazy_pattern(r"(\d+) ?actions?")
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``16GB``, ``500 MB`` or ``2GiB``."""
    match = SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"invalid size {text!r}", hint="a number with its unit: 16GB, 500 MB, 2GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** POWERS[match[2].lower()])


def parse_minutes_as_seconds(text: str) -> float:
    """Return the seconds of a number of minutes."""
    try:
        return 60 * float(text)
    except ValueError as error:
        raise UsageError(f"invalid number of minutes {text!r}", hint="--stall 20") from error


def parse_folder_path(text: str) -> Path:
    """Return the absolute path of a folder that may be made later."""
    path = Path(text).absolute()
    if path.exists() and not path.is_dir():
        raise UsageError(f"not a folder: {text!r}", hint="name a folder, or one to make")
    return path


def parse_existing_folder(text: str, hint: str = "--distdir FOLDER, with the files that Bazel would download") -> Path:
    """Return the absolute path of an existing folder; builds run in other folders."""
    path = Path(text).absolute()
    if not path.is_dir():
        raise UsageError(f"folder not found: {text}", hint=hint)
    return path


def parse_remote_cache_url(url: str) -> str | None:
    """Return the URL of a remote cache, None if empty; an error omits it, for it may contain a password."""
    if url and not re.match(r"(?:https?|grpcs?)://[^/\s]+\S*$", url):
        raise UsageError("invalid URL of a remote cache", hint="--remote-cache https://HOST/PATH, or grpcs://")
    return url or None


def parse_remote_executor_url(url: str) -> str | None:
    """Return the URL of a remote executor, None if empty; an error omits it, for it may contain a password."""
    if url and not re.match(r"grpcs?://[^/\s?#]+(?:/[\w.~/-]*)?$", url, re.ASCII):
        raise UsageError("invalid URL of a remote executor", hint="--remote-executor grpcs://HOST:PORT/INSTANCE")
    return url or None


def parse_positive_number(text: str) -> int:
    """Return a positive number."""
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"invalid number {text!r}", hint="--remote-jobs 64")
    return int(text)


def parse_credentials_folder(text: str) -> Path:
    """Return the absolute path of a folder of credentials."""
    return parse_existing_folder(text, hint="--remote-credentials FOLDER, with headers or client.pem")


def parse_credentials_setting(text: str) -> Path | str | None:
    """Return the value of BAZEL_REMOTE_CREDENTIALS: a folder, or what a fleet has made of one; None if empty."""
    from kiln.build.bazel import events

    if not text:
        return None
    return text if events.is_encoded_credentials(text) else parse_credentials_folder(text)


def parse_mirror_url(url: str) -> str:
    """Return the URL of a mirror; one with a password is refused: logs and job files would show it."""
    if not re.match(r"https?://[^/\s@]+(?:/\S*)?$", url):
        raise UsageError("invalid URL of a mirror", hint="--mirror https://HOST/PATH, without a user or password")
    return url


def parse_channel(name: str) -> str:
    """Return a channel as solvers take it: an existing folder as a URL, anything else unchanged."""
    path = Path(name)
    if not name.strip() or (name.startswith(("/", ".")) and not path.is_dir()):
        raise UsageError(f"channel not found: {name!r}", hint="a folder, a URL, or a name such as conda-forge")
    return path.resolve().as_uri() if path.is_dir() else name


# A limit of a build: in seconds from now on, or of finished actions of Bazel. The annotations of a NamedTuple would
# be compiled at the start of every command that has options: that takes longer than all options.
Budget = namedtuple("Budget", ("seconds", "actions"), defaults=(None, None))


def parse_budget(text: str) -> Budget:
    """Return the limit of a build such as ``5h30m``, ``90m``, ``45s`` or ``500 actions``."""
    plain = text.replace(" ", "")
    if match := ACTIONS.fullmatch(text.strip()):
        limit = Budget(actions=int(match[1]))
    else:
        match = TIME.fullmatch(plain)
        hours, minutes, seconds = (float(part or 0) for part in match.groups()) if match else (0, 0, 0)
        limit = Budget(seconds=3600 * hours + 60 * minutes + seconds)
    if not limit.seconds and not limit.actions:
        raise UsageError(f"invalid budget {text!r}", hint="--budget 5h30m, --budget 90m, or --budget '500 actions'")
    return limit


def add_channel_arguments(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the option for the channels to take packages from; ``default`` is its default in words."""
    parser.add_argument(
        "-c",
        "--from",
        dest="channels",
        metavar="CHANNEL",
        type=parse_channel,
        action="append",
        default=[],
        help="take packages from this channel (a folder, URL or name); can be repeated, in order of priority (default: "
        f"{default})",
    )


def add_config_selection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select configs."""
    parser.add_argument("configs", nargs="*", metavar="CONFIG", help="name of a config's file in .ci_support")
    parser.add_argument(
        "--filter",
        metavar="GLOB",
        help="build the config with a matching name, or all of them with --all: '*cuda*python3.11*'",
    )
    parser.add_argument("--all", action="store_true", help="build all configs, or all that match --filter")
    parser.add_argument(
        "--failed", action="store_true", help="build the configs that failed or were interrupted in their last run"
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
        help="set the OIDC issuer of the identities (default: GitHub's or GitLab's, by the identity)",
    )
    parser.add_argument(
        "--trusted-root",
        metavar="FILE",
        type=Path,
        help="verify identities by this trusted_root.json (default: the public instance's, as py-rattler has it)",
    )


def trusted_attestation_signers(options: argparse.Namespace, texts: Sequence[str]) -> tuple[TrustedSigner, ...]:
    """Return the signers of these names."""
    from kiln.conda.provenance.check import TrustedSigner

    return tuple(
        TrustedSigner.parse(text, issuer=options.attestation_issuer or "", root=options.trusted_root) for text in texts
    )


def add_remote_executor_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a remote executor, for builds here or on the workers of a fleet."""
    parser.add_argument(
        "--remote-executor",
        metavar="URL",
        type=parse_remote_executor_url,
        help="run the actions of compiles by Bazel on the workers of this server: grpc(s)://HOST:PORT/INSTANCE; the "
        "variable BAZEL_REMOTE_EXECUTOR does the same",
    )
    parser.add_argument(
        "--remote-credentials",
        metavar="FOLDER",
        type=parse_credentials_folder,
        help="use these files for the remote executor: ca.pem, client.pem and client.key, and headers, NAME: VALUE on "
        "each line; the variable BAZEL_REMOTE_CREDENTIALS does the same",
    )
    parser.add_argument(
        "--remote-jobs",
        metavar="N",
        type=parse_positive_number,
        help="run up to N actions at a time on the remote executor (default: the recipe's)",
    )
    parser.add_argument(
        "--remote-fallback",
        action="store_true",
        help="run actions here if the remote executor does not answer (default: fail; actions that must not run "
        "remotely always run here)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln build``."""
    add_config_selection_arguments(parser)
    parser.add_argument(
        "--changed",
        action="store_true",
        help="build the configs of which a package differs since --since (default: since the last commit)",
    )
    parser.add_argument(
        "--since", metavar="REV", default="HEAD", help="the git revision that --changed compares with (default: HEAD)"
    )
    parser.add_argument(
        "-j", "--jobs", metavar="N", type=int, default=1, help="build N configs in parallel (default: 1)"
    )
    parser.add_argument("--rebuild", action="store_true", help="rebuild configs that are already finished")
    parser.add_argument(
        "--from-step",
        metavar="STEP",
        help="run this step and all later ones again, and reuse the results of earlier steps; the log has the names of "
        "the steps: 'compile', 'build NAME', 'test NAME'",
    )
    parser.add_argument(
        "--debug",
        dest="shell",
        action="store_true",
        help="open a shell where a build script of the config runs, with its environments, sources and compiled files",
    )
    parser.add_argument(
        "--output-id",
        metavar="GLOB",
        help="with --debug: select the output whose script to debug (default: the recipe's top-level script, or the "
        "only output's)",
    )
    parser.add_argument("--dry-run", action="store_true", help="show the configs to build, in order, and exit")
    parser.add_argument("--keep-failed", action="store_true", help="keep the work folder of a failed step")
    parser.add_argument(
        "--engine",
        choices=("rattler-build", "conda-build", "mambabuild"),
        default="rattler-build",
        help="build with this tool (default: %(default)s); the image or this machine must have it",
    )
    parser.add_argument(
        "--container",
        choices=("docker", "podman", "none"),
        help="build in containers of this engine; 'none' builds on this machine, where scripts have all of your "
        "permissions (default: the first engine that works, else none)",
    )
    parser.add_argument(
        "--network",
        choices=("granted", "always"),
        default="granted",
        help="give network access in containers to the scripts that the recipe grants it, or to all scripts, as "
        "conda-forge's builds do (default: %(default)s)",
    )
    parser.add_argument(
        "--memory", metavar="SIZE", type=parse_size, help="limit the memory of each config: 16GB (default: a share)"
    )
    parser.add_argument("--cores", metavar="N", type=int, help="limit the cores of each config (default: a share)")
    parser.add_argument(
        "--remote-cache",
        metavar="URL",
        type=parse_remote_cache_url,
        help="share Bazel's cache between machines: http(s):// or grpc(s)://; the variable BAZEL_REMOTE_CACHE does the "
        "same, hidden from process lists",
    )
    add_remote_executor_arguments(parser)
    parser.add_argument(
        "--compile-cache",
        metavar="FOLDER",
        type=parse_folder_path,
        help="use Bazel's disk caches in this folder, which feedstocks and machines may share (default: "
        "build_artifacts/compile-cache)",
    )
    parser.add_argument(
        "--distdir",
        metavar="FOLDER",
        type=parse_existing_folder,
        help="use downloaded files from this folder: archives of sources, and files that Bazel would download",
    )
    parser.add_argument(
        "--mirror", metavar="URL", type=parse_mirror_url, help="try this mirror of sources first, as URL/HOST/PATH"
    )
    parser.add_argument(
        "--stall",
        metavar="MINUTES",
        type=parse_minutes_as_seconds,
        default="20",
        help="report a compile without any activity for this long (default: %(default)s)",
    )
    parser.add_argument(
        "--cache-size",
        dest="cache_bound",
        metavar="SIZE",
        type=parse_size,
        default="200GB",
        help="limit the disk space of the compile caches (default: %(default)s)",
    )
    parser.add_argument(
        "--budget",
        metavar="TIME",
        type=parse_budget,
        help="stop an unfinished build in time before this time has passed, such as 5h30m, or after a number of "
        "Bazel's actions, such as '500 actions'; exit with code 34",
    )
    parser.add_argument(
        "--handover",
        metavar="DIR",
        type=parse_folder_path,
        help="continue CONFIG with what a job before has left in this folder, and leave there what a next job needs",
    )
    parser.add_argument(
        "--notice",
        metavar="FILE",
        type=lambda text: Path(text).absolute(),
        help="stop an unfinished build as --budget does, at once, when this file appears with the time at which the "
        'machine is taken back, such as {"at": 1790000120} in seconds since the epoch',
    )
    parser.add_argument(
        "--handover-size",
        metavar="SIZE",
        type=parse_size,
        default="20GB",
        help="limit the unpacked size of what is handed on (default: %(default)s)",
    )
    parser.add_argument(
        "--rehearse",
        dest="rehearsal",
        action="store_true",
        help="build and test without a conda channel, from wheels and this machine's programs; on this machine unless "
        "--container is set, and without CONFIG the only one, or the running Python's CPU config",
    )
    parser.add_argument(
        "--python",
        metavar="EXECUTABLE",
        type=Path,
        help="use this interpreter as the rehearsal's Python, and to select the config if no CONFIG is given (default: "
        "the running one, or another one on this machine)",
    )
    parser.add_argument("--calling-python", type=Path, default=Path(sys.executable), help=argparse.SUPPRESS)
    parser.add_argument(
        "--python-channel",
        metavar="CHANNEL",
        type=parse_channel,
        default="conda-forge",
        help="download a Python that this machine lacks for a rehearsal from this conda channel; 'none' downloads "
        "none (default: %(default)s)",
    )
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        "-v",
        "--verbose",
        dest="verbosity",
        action="store_const",
        const="verbose",
        default="normal",
        help="print the output of all steps, too, instead of the live view",
    )
    amount.add_argument(
        "-q",
        "--quiet",
        dest="verbosity",
        action="store_const",
        const="quiet",
        help="print failures and the last line alone, instead of the live view",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--junit", metavar="FILE", type=Path, help="write the report to this file as JUnit's XML, for a CI"
    )
