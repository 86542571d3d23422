"""Every failure that kiln reports, each leaf with an exit code of its own.

A message says what happened, where, why, and what to try. Only the command line prints and exits.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.place import Place


class KilnError(Exception):
    """Root of all failures; never raised itself.

    ``what`` is one sentence without a full stop; ``why`` and ``hint`` (what to try) follow on lines of their own.
    ``others`` are further faults of the same input, so that all are told at once.
    """

    exit_code: ClassVar[int]

    def __init__(
        self,
        what: str,
        *,
        at: Place | None = None,
        why: str = "",
        hint: str = "",
        others: Iterable[KilnError] = (),
    ) -> None:
        super().__init__(what)
        self.what = what
        self.at = at
        self.why = why
        self.hint = hint
        self.others = tuple(others)

    def __str__(self) -> str:
        head = f"{self.at}: {self.what}" if self.at else self.what
        notes = [f"  {label}: {text}" for label, text in (("why", self.why), ("try", self.hint)) if text]
        return "\n".join([head, *notes, *(str(other) for other in self.others)])


class UsageError(KilnError):
    """The command line asks for something that cannot be asked for."""

    exit_code = 2


class FeedstockNotFound(KilnError):
    """The folder is not a feedstock: it has no recipe/meta.yaml."""

    exit_code = 3


class UnknownConfig(KilnError):
    """No cell of the matrix has this name."""

    exit_code = 4


class MalformedYaml(KilnError):
    """A file is not the YAML that it should be."""

    exit_code = 5


class SelectorFault(KilnError):
    """A selector ``# [...]`` is no expression over known names."""

    exit_code = 6


class TemplateFault(KilnError):
    """A Jinja template is malformed or uses an undefined name."""

    exit_code = 7


class UnsafeTemplate(KilnError):
    """A Jinja template or selector reaches for Python's internals, the file system or too much work."""

    exit_code = 8


class VariantFault(KilnError):
    """Variant files contradict each other, ``zip_keys`` of unequal length for one."""

    exit_code = 9


class RecipeFault(KilnError):
    """A recipe or conda-forge.yml is well-formed but says something that has no meaning."""

    exit_code = 10


class MatrixDrift(KilnError):
    """The files in .ci_support are not what the recipe and the variant files give."""

    exit_code = 11


class UnsupportedPython(KilnError):
    """The interpreter cannot be used for what was asked."""

    exit_code = 12


class MissingTool(KilnError):
    """A program that the work needs is not on this machine."""

    exit_code = 13


class DownloadFailed(KilnError):
    """Something could not be fetched."""

    exit_code = 14


class HashMismatch(KilnError):
    """A file is not the one whose hash was recorded."""

    exit_code = 15


class DiskFull(KilnError):
    """There is not enough room on the disk, or there was not."""

    exit_code = 16


class BuildFailed(KilnError):
    """A package could not be built."""

    exit_code = 17


class SolveFailed(KilnError):
    """No set of packages satisfies what was asked."""

    exit_code = 18


class TestsFailed(KilnError):
    """A package was built and installed, but its tests fail."""

    exit_code = 19


class AlreadyRunning(KilnError):
    """Another process works on the same feedstock or channel."""

    exit_code = 20


class ReleaseRefused(KilnError):
    """What was asked to be released is not a release."""

    exit_code = 21


class NotWritable(KilnError):
    """A file or folder cannot be written, or must not be: it belongs to someone else."""

    exit_code = 22


class BrokenPackage(KilnError):
    """A file is not the conda package or wheel that its name says."""

    exit_code = 23


class ContainerFault(KilnError):
    """A container engine refuses to do what was asked of it."""

    exit_code = 24


class OutOfMemory(KilnError):
    """A build needed more memory than it may have, or than there is."""

    exit_code = 25


class UnsafePackage(KilnError):
    """A package would write outside of the folder that it is put into."""

    exit_code = 26


class FleetLimit(KilnError):
    """A run of the fleet would cost or take more than it may, or came to that."""

    exit_code = 50


class MachinesRefused(KilnError):
    """The provider gives none of the machines that were asked for."""

    exit_code = 51


class CredentialsRefused(KilnError):
    """The provider does not accept the credentials, or they are missing."""

    exit_code = 52


class MachinesLost(KilnError):
    """Machines died under a cell more often than they may."""

    exit_code = 53


class MachinesLeft(KilnError):
    """Machines of the fleet could not be given back, and may still cost money."""

    exit_code = 54


class BrokenIndex(KilnError):
    """The index of a channel, or the journal of a publication, is not what it should be."""

    exit_code = 40


class PublicationPending(KilnError):
    """An earlier publication to the channel is neither finished nor taken back."""

    exit_code = 41


class UploadFailed(KilnError):
    """A server would not take a package, or could not be reached."""

    exit_code = 42


class TokenRefused(KilnError):
    """A server does not know the token, or there is none."""

    exit_code = 43


class ProvenanceBroken(KilnError):
    """What is recorded of a package's making does not hold."""

    exit_code = 44


class NotReproduced(KilnError):
    """A package built again from its record is not the same, byte for byte."""

    exit_code = 45


class IncompatibleVersions(KilnError):
    """Versions, a GPU or a machine cannot work together."""

    exit_code = 61


class Interrupted(KilnError):
    """The run was stopped by the user; what was finished is kept."""

    exit_code = 130


def kind_of(exit_code: int) -> type[KilnError]:
    """Return the kind of failure that an exit code stands for, a failed build where it stands for none of them."""
    return next((kind for kind in KilnError.__subclasses__() if kind.exit_code == exit_code), BuildFailed)


def nearest(word: str, known: Iterable[str], *, most: int = 3) -> str:
    """Return 'did you mean ...?' for the names most like ``word``, or nothing when none is near.

    Capital letters do not count.
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), list(names), n=most, cutoff=0.6)
    return f"did you mean {' or '.join(repr(names[name]) for name in near)}?" if near else ""


def excerpt(text: str) -> str:
    """Return the lines of somebody else's output set off from kiln's own words."""
    return "\n".join(f"    | {line}" for line in text.splitlines())
