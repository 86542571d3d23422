"""The options of a build that its processes need: one record, which the run's plan and all jobs carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.model.engine_package_settings import OWN_ENGINE

if TYPE_CHECKING:
    from pathlib import Path

STALL = 20 * 60.0  # seconds; a large link uses the processor, so only waiting is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """The options of a config's build: ``executable`` and ``run_arguments`` are for the container engine.

    From ``from_step`` on, every step runs again; the last results of the steps before it are reused. ``debug`` is a
    pattern of the output to prepare for a person, not to build; an empty one is the recipe's own step.

    For compiles by Bazel: ``compile_cache`` is the folder of its caches, if not the feedstock's own, ``distdir`` a
    folder of downloads, with source archives among them, ``mirror`` a further address of these, ``stall`` the seconds
    without an event or work after which a compile is reported as stalled. ``remote_jobs`` is the number of actions
    that a remote executor runs at a time; with ``remote_fallback`` they run here when it does not answer.

    A build stops in time before ``deadline``, in seconds since the epoch, with at least ``least_reserve`` seconds left
    for packing what it made; or after ``action_limit`` finished actions of Bazel; or as soon as the file ``notice``
    says when the machine is taken back.
    """

    engine: str = OWN_ENGINE
    executable: str | None = None
    run_arguments: tuple[str, ...] = ()
    rebuild: bool = False
    keep_failed: bool = False
    from_step: str | None = None
    debug: str | None = None
    network: str = "granted"
    rehearsal: bool = False
    compile_cache: Path | None = None
    distdir: Path | None = None
    mirror: str | None = None
    stall: float = STALL
    remote_jobs: int | None = None
    remote_fallback: bool = False
    deadline: float | None = None
    least_reserve: float = 0.0
    action_limit: int | None = None
    notice: Path | None = None

    @property
    def has_budget(self) -> bool:
        """True when the build may be stopped before it is finished."""
        return self.deadline is not None or self.action_limit is not None or self.notice is not None

    @property
    def builds_finished(self) -> bool:
        """True when finished configs are built again."""
        return self.rebuild or self.from_step is not None or self.debug is not None
