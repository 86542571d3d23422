"""The exceptions that kiln raises, one exit code for each leaf class.

A message says what happened, where, why, and what to try. Only the command line prints and exits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from kiln.base.masking import masked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.base.position import Place


class KilnError(Exception):
    """The base class of all of kiln's errors; never raised itself.

    ``what`` is one sentence without a full stop; ``why`` and ``hint`` (what to try) are printed on separate lines.
    ``others`` are further errors in the same input, so that all are reported at once. Quoted text may contain secrets,
    for example in URLs, so all parts are masked.
    """

    exit_code: ClassVar[int]

    def __init__(
        self, what: str, *, at: Place | None = None, why: str = "", hint: str = "", others: Iterable[KilnError] = ()
    ) -> None:
        super().__init__(masked(what))
        self.what = masked(what)
        self.at = at
        self.why = masked(why)
        self.hint = masked(hint)
        self.others = tuple(others)

    def __str__(self) -> str:
        head = f"{self.at}: {self.what}" if self.at else self.what
        notes = [f"  {label}: {text}" for label, text in (("why", self.why), ("try", self.hint)) if text]
        return "\n".join([head, *notes, *(str(other) for other in self.others)])


class UsageError(KilnError):
    """The command line is invalid."""

    exit_code = 2


class FeedstockNotFound(KilnError):
    """The folder is not a feedstock: it has neither recipe/meta.yaml nor recipe/recipe.yaml."""

    exit_code = 3


class UnknownConfig(KilnError):
    """No config of the matrix has this name."""

    exit_code = 4


class MalformedYaml(KilnError):
    """A file is not valid YAML, or not of the expected shape."""

    exit_code = 5


class SelectorFault(KilnError):
    """A selector ``# [...]`` is not an expression over known names; with a pinning, one like those is a warning."""

    exit_code = 6


class TemplateFault(KilnError):
    """A Jinja template is malformed or uses an undefined name."""

    exit_code = 7


class UnsafeTemplate(KilnError):
    """A Jinja template or selector accesses Python's internals, the file system or too many resources."""

    exit_code = 8


class VariantFault(KilnError):
    """Variant files contradict each other, for example ``zip_keys`` of unequal length."""

    exit_code = 9


class RecipeFault(KilnError):
    """A recipe or conda-forge.yml is well-formed YAML with an invalid value."""

    exit_code = 10


class PinningNeeded(KilnError):
    """The feedstock uses keys that have no value without a pinning, and none can be fetched."""

    exit_code = 31


class LintFailed(KilnError):
    """The recipe or conda-forge.yml breaks rules of the linter."""

    exit_code = 36


class UnsupportedPlatform(KilnError):
    """A config is for a platform that this machine cannot build, or kiln was started on Windows outside of WSL."""

    exit_code = 33


class MatrixDrift(KilnError):
    """The files in .ci_support differ from what the recipe and the variant files generate."""

    exit_code = 11


class UnsupportedPython(KilnError):
    """The Python interpreter is too old, too new or unsuitable for the command."""

    exit_code = 12


class MissingTool(KilnError):
    """A required program is not installed on this machine."""

    exit_code = 13


class DownloadFailed(KilnError):
    """A download failed."""

    exit_code = 14


class HashMismatch(KilnError):
    """A file's hash differs from the recorded one."""

    exit_code = 15


class DiskFull(KilnError):
    """Not enough disk space."""

    exit_code = 16


class BuildFailed(KilnError):
    """A package could not be built."""

    exit_code = 17


class SolveFailed(KilnError):
    """No set of packages satisfies the specs."""

    exit_code = 18


class TestsFailed(KilnError):
    """A package was built and installed, but its tests fail."""

    exit_code = 19


class AlreadyRunning(KilnError):
    """Another process works on the same feedstock, channel or prefix."""

    exit_code = 20


class ReleaseRefused(KilnError):
    """The packages do not pass the checks for a release."""

    exit_code = 21


class NotWritable(KilnError):
    """A file or folder cannot be written, or must not be: it belongs to another user or is reached through a link."""

    exit_code = 22


class BrokenPackage(KilnError):
    """A file is not a valid conda package or wheel, or not the one that its name says."""

    exit_code = 23


class ContainerFault(KilnError):
    """The container engine failed to run a command."""

    exit_code = 24


class OutOfMemory(KilnError):
    """A build exceeded its memory limit or the machine's memory."""

    exit_code = 25


class UnsafePackage(KilnError):
    """A package would write files outside the prefix that it is installed into."""

    exit_code = 26


class LimitExceeded(KilnError):
    """A channel or a package exceeds the limits on time, memory or disk space."""

    exit_code = 27


class LedgerFault(KilnError):
    """The ledger cannot be used: damaged, locked by another process, written by a newer kiln, or not a regular file."""

    exit_code = 28


class SystemFault(KilnError):
    """The operating system refused an operation on a file or folder, or was too busy to start a program in time."""

    exit_code = 29


class SecretInPackage(KilnError):
    """A package contains a secret that was passed to its build script."""

    exit_code = 30


class FleetLimit(KilnError):
    """A fleet run would exceed, or exceeded, its limit on cost or time."""

    exit_code = 50


class ProvisionRefused(KilnError):
    """The provider could not provision any of the requested workers."""

    exit_code = 51


class CredentialsRefused(KilnError):
    """The provider rejected the credentials, or they are missing."""

    exit_code = 52


class WorkersLost(KilnError):
    """Workers were lost more often than the limit allows, or a detached run's controller is gone."""

    exit_code = 53


class TeardownIncomplete(KilnError):
    """Workers could not be terminated, and may still cost money."""

    exit_code = 54


class MachinesUnknown(KilnError):
    """The provider or a controller could not be reached, so it is unknown whether workers remain."""

    exit_code = 55


class BrokenIndex(KilnError):
    """The index of a channel, or the journal of a publication, is invalid."""

    exit_code = 40


class PublicationPending(KilnError):
    """An earlier publication to the channel is neither finished nor aborted."""

    exit_code = 41


class UploadFailed(KilnError):
    """A server rejected an upload, or could not be reached."""

    exit_code = 42


class TokenRefused(KilnError):
    """A server rejected the token, or no token is set."""

    exit_code = 43


class ProvenanceBroken(KilnError):
    """A package does not match its provenance."""

    exit_code = 44


class NotReproduced(KilnError):
    """A package rebuilt from its record differs from the published one."""

    exit_code = 45


class ConversionRefused(KilnError):
    """A meta.yaml cannot be converted to recipe.yaml, or the recipe.yaml would not render to the same."""

    exit_code = 32


class BudgetSpent(KilnError):
    """The build was stopped by --budget or --notice before it was finished; a next job continues it by --handover."""

    exit_code = 34


class NoProgress(KilnError):
    """A job of a chain has finished no action and no step more than the job before it."""

    exit_code = 35


class BrokenHandover(KilnError):
    """The folder of --handover is damaged, too large, or another config's."""

    exit_code = 37


class RehearsalRefused(KilnError):
    """A rehearsal cannot have all packages and sources that the recipe requires."""

    exit_code = 38


class IncompatibleVersions(KilnError):
    """Versions, a GPU or a machine are incompatible with each other."""

    exit_code = 61


class Interrupted(KilnError):
    """The run was interrupted by the user; finished work is kept."""

    exit_code = 130


def error_class_of_exit_code(exit_code: int) -> type[KilnError]:
    """Return the class of an exit code, BuildFailed for an unknown code."""
    return next((kind for kind in KilnError.__subclasses__() if kind.exit_code == exit_code), BuildFailed)


def combined_error(errors: Iterable[KilnError]) -> KilnError:
    """Return the first of some errors, which reports the others, too."""
    first, *others = errors
    first.others += tuple(others)
    return first


def raise_all(errors: Iterable[KilnError]) -> None:
    """Raise the first of some errors, which reports the others, too; return without any."""
    if errors := tuple(errors):
        raise combined_error(errors)


def did_you_mean(word: str, candidates: Iterable[str], *, most: int = 3, similarity: float = 0.6) -> str:
    """Return 'did you mean ...?' with the names most similar to ``word``, or an empty text. Case is ignored."""
    import difflib

    names = {name.lower(): name for name in candidates}
    matches = difflib.get_close_matches(word.lower(), list(names), n=most, cutoff=similarity)
    return f"did you mean {' or '.join(repr(names[name]) for name in matches)}?" if matches else ""


def program_output_with_margin(text: str) -> str:
    """Return another program's output with a margin that sets it off from kiln's own messages."""
    return "\n".join(f"    | {line}" for line in text.splitlines())
